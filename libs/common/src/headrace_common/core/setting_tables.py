"""
Topic and broker settings under Kafka's names: type, default and bounds. Adding a setting here is all it takes for REST,
CLI and ``DescribeConfigs`` to know it; code that goes by it reads ``configs.TopicConfig``. ``configs`` checks changes
against these tables.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from headrace_common.core.features import ACCESS, REQUIRED_FENCES
from headrace_common.core.setting import LONG_MAX, Setting, Type

WEEK_MS: Final = 7 * 24 * 3600 * 1000


def _table(*settings: Setting) -> Mapping[str, Setting]:
    return {s.name: s for s in settings}


TOPIC_SETTINGS: Final = _table(
    Setting(
        "audit.access",
        Type.LIST,
        "",
        "What the audit says of the topic's records: who reads them, who writes them, or both. Empty: nothing.",
        choices=("read", "write"),
        feature=ACCESS,
    ),
    Setting(
        "cleanup.policy",
        Type.LIST,
        "delete",
        "What happens to old records: delete them by time and size, compact to the last value of each key, or both.",
        choices=("delete", "compact"),
    ),
    Setting(
        "compression.type",
        Type.STRING,
        "producer",
        "How batches are stored: as sent (producer), uncompressed, or in a codec that the broker applies to others.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    ),
    Setting(
        "delete.retention.ms",
        Type.LONG,
        "86400000",
        "How long a compacted topic shows that a key was deleted, in ms.",
        low=0,
    ),
    Setting(
        "fencing.required",
        Type.BOOLEAN,
        "false",
        "Whether appends without a fencing token are refused; fence records and ends of transactions need none.",
        feature=REQUIRED_FENCES,
    ),
    Setting(
        "max.compaction.lag.ms",
        Type.LONG,
        str(LONG_MAX),
        "A record is compacted so long after it was written, whatever the dirty ratio, in ms.",
        low=1,
    ),
    Setting("max.message.bytes", Type.INT, "1048588", "Largest record batch in bytes.", low=0, high=64 << 20),
    Setting(
        "message.timestamp.after.max.ms", Type.LONG, "3600000", "How far ahead of the broker's clock, in ms.", low=0
    ),
    Setting(
        "message.timestamp.before.max.ms", Type.LONG, str(LONG_MAX), "How far behind the broker's clock, in ms.", low=0
    ),
    Setting(
        "message.timestamp.type",
        Type.STRING,
        "CreateTime",
        "Whose clock stamps records.",
        choices=("CreateTime", "LogAppendTime"),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        Type.DOUBLE,
        "0.5",
        "A log is compacted when this share of its bytes was not compacted before.",
        low=0,
        high=1,
    ),
    Setting(
        "min.compaction.lag.ms",
        Type.LONG,
        "0",
        "A record is not compacted before it has this age, in ms.",
        low=0,
    ),
    Setting("min.insync.replicas", Type.INT, "1", "Replicas that must hold a record before it is acknowledged.", low=1),
    Setting("retention.bytes", Type.LONG, "-1", "Bytes a partition keeps; -1: no bound.", low=-1),
    Setting("retention.ms", Type.LONG, str(WEEK_MS), "How long a partition keeps records, in ms; -1: forever.", low=-1),
    Setting("segment.bytes", Type.INT, str(1 << 30), "A segment is sealed at this size.", low=1024),
    Setting(
        "segment.jitter.ms",
        Type.LONG,
        "0",
        "At most so much earlier than segment.ms a segment is sealed, by chance, in ms.",
        low=0,
    ),
    Setting("segment.ms", Type.LONG, str(WEEK_MS), "A segment is sealed at this age, in ms.", low=1),
    Setting(
        "unclean.leader.election.enable",
        Type.BOOLEAN,
        "false",
        "Whether a replica that may have lost committed records may lead.",
    ),
)

BROKER_SETTINGS: Final = _table(
    Setting(
        "auto.leader.rebalance.enable",
        Type.BOOLEAN,
        "true",
        "Give leadership back to preferred leaders.",
        per_broker=False,
    ),
    Setting(
        "broker.heartbeat.interval.ms",
        Type.INT,
        "2000",
        "How often a node says it lives, in ms.",
        low=50,
        dynamic=False,
    ),
    Setting(
        "broker.session.timeout.ms",
        Type.INT,
        "9000",
        "Silence after which a node is fenced, in ms.",
        low=200,
        dynamic=False,
    ),
    Setting(
        "cluster.expected.brokers",
        Type.INT,
        "0",
        "Internal topics are not made before so many brokers have joined; 0: they do not wait.",
        low=0,
        high=10_000,
        per_broker=False,
    ),
    Setting(
        "default.replication.factor",
        Type.INT,
        "3",
        "Replicas of a topic created without a number.",
        low=1,
        high=32,
        per_broker=False,
    ),
    Setting(
        "follower.replication.throttled.rate",
        Type.LONG,
        "-1",
        "Bytes a second that a broker copies for replicas which a reassignment adds; -1: no bound.",
        low=-1,
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        Type.LONG,
        "300",
        "How often leaders go back to their preferred brokers, in seconds.",
        low=1,
        per_broker=False,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        Type.INT,
        "10",
        "Leaders go back when a broker misses more of its leaderships than this, in percent.",
        low=0,
        high=100,
        per_broker=False,
    ),
    Setting(
        "log.cleaner.backoff.ms",
        Type.LONG,
        "15000",
        "How long the cleaner waits when there is nothing to compact, in ms.",
        low=0,
    ),
    Setting(
        "log.cleaner.dedupe.buffer.size",
        Type.LONG,
        str(128 << 20),
        "Bytes of memory for the keys of the log that is being compacted.",
        low=1 << 20,
        high=16 << 30,
    ),
    Setting("log.cleaner.delete.retention.ms", Type.LONG, "86400000", "Default of delete.retention.ms.", low=0),
    Setting("log.cleaner.enable", Type.BOOLEAN, "true", "Whether logs are compacted at all."),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        Type.DOUBLE,
        str(LONG_MAX),
        "Bytes a second that the cleaner reads and writes at most.",
        low=1024,
        high=sys.float_info.max,
    ),
    Setting("log.cleaner.max.compaction.lag.ms", Type.LONG, str(LONG_MAX), "Default of max.compaction.lag.ms.", low=1),
    Setting(
        "log.cleaner.min.cleanable.ratio", Type.DOUBLE, "0.5", "Default of min.cleanable.dirty.ratio.", low=0, high=1
    ),
    Setting("log.cleaner.min.compaction.lag.ms", Type.LONG, "0", "Default of min.compaction.lag.ms.", low=0),
    Setting(
        "log.cleanup.policy",
        Type.LIST,
        "delete",
        "Default of cleanup.policy.",
        choices=("delete", "compact"),
        per_broker=False,
    ),
    Setting("log.retention.bytes", Type.LONG, "-1", "Default of retention.bytes.", low=-1),
    Setting("log.retention.check.interval.ms", Type.LONG, "300000", "How often retention looks, in ms.", low=1),
    Setting("log.retention.ms", Type.LONG, str(WEEK_MS), "Default of retention.ms.", low=-1),
    Setting("log.roll.jitter.ms", Type.LONG, "0", "Default of segment.jitter.ms.", low=0),
    Setting("log.roll.ms", Type.LONG, str(WEEK_MS), "Default of segment.ms.", low=1),
    Setting("log.scrub.enable", Type.BOOLEAN, "true", "Whether stored batches are read once in a while to find rot."),
    Setting(
        "log.scrub.interval.ms",
        Type.LONG,
        str(WEEK_MS),
        "How long after the beginning of one scrub the next begins, in ms.",
        low=1,
    ),
    Setting(
        "log.scrub.max.bytes.per.second",
        Type.LONG,
        str(8 << 20),
        "Bytes a second that a scrub reads at most.",
        low=1024,
    ),
    Setting("log.segment.bytes", Type.INT, str(1 << 30), "Default of segment.bytes.", low=1024),
    Setting("message.max.bytes", Type.INT, "1048588", "Default of max.message.bytes.", low=0, high=64 << 20),
    Setting(
        "num.partitions",
        Type.INT,
        "1",
        "Partitions of a topic created without a number.",
        low=1,
        high=100_000,
        per_broker=False,
    ),
    Setting(
        "offsets.topic.min.isr",
        Type.INT,
        "2",
        "min.insync.replicas of __consumer_offsets when it is made; in force at most its replicas.",
        low=1,
        high=32,
        per_broker=False,
    ),
    Setting(
        "offsets.topic.num.partitions",
        Type.INT,
        "50",
        "Partitions of __consumer_offsets when it is made; they never change afterwards.",
        low=1,
        high=1_000,
        per_broker=False,
    ),
    Setting(
        "offsets.topic.replication.factor",
        Type.INT,
        "3",
        "Replicas of __consumer_offsets, at most the brokers there are; it gets more when brokers join.",
        low=1,
        high=32,
        per_broker=False,
    ),
    Setting(
        "offsets.topic.segment.bytes",
        Type.INT,
        str(100 << 20),
        "segment.bytes of __consumer_offsets when it is made: small, so that little is left that was not compacted.",
        low=1024,
        per_broker=False,
    ),
    Setting(
        "producer.id.expiration.ms",
        Type.INT,
        "86400000",
        "Idle time after which a producer is forgotten, in ms.",
        low=1,
    ),
    Setting(
        "producer.ids.max",
        Type.INT,
        "10000",
        "Producers that a partition remembers; above it the one that has not written for longest is forgotten.",
        low=100,
        high=1_000_000,
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        Type.LONG,
        "500",
        "Replication waits for nothing: followers are sent what there is. Only a high watermark that moves without new"
        " records is told a little later, after this many ms and at most 20.",
        low=1,
    ),
    Setting(
        "replica.lag.time.max.ms",
        Type.LONG,
        "30000",
        "How long a follower may be behind before it leaves the ISR, in ms.",
        low=100,
    ),
    Setting(
        "transaction.state.log.min.isr",
        Type.INT,
        "2",
        "min.insync.replicas of __transaction_state when it is made; in force at most its replicas.",
        low=1,
        high=32,
        per_broker=False,
    ),
    Setting(
        "transaction.state.log.num.partitions",
        Type.INT,
        "50",
        "Partitions of __transaction_state when it is made; they never change afterwards.",
        low=1,
        high=1_000,
        per_broker=False,
    ),
    Setting(
        "transaction.state.log.replication.factor",
        Type.INT,
        "3",
        "Replicas of __transaction_state, at most the brokers there are; it gets more when brokers join.",
        low=1,
        high=32,
        per_broker=False,
    ),
    Setting(
        "transaction.state.log.segment.bytes",
        Type.INT,
        str(100 << 20),
        "segment.bytes of __transaction_state when it is made: small, so that little is left that was not compacted.",
        low=1024,
        per_broker=False,
    ),
)

# A topic setting that is not set on the topic takes this broker setting when that is set.
TOPIC_DEFAULT_FROM: Final[Mapping[str, str]] = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
}
