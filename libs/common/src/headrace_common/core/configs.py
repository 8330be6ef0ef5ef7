"""
Topic and broker settings under Kafka's names: type, default, bounds, and what a change does.

The controller checks every change against this table; brokers read effective values from it. Adding a setting
here is all it takes for REST, CLI and ``DescribeConfigs`` to know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from headrace_common.core.errors import InvalidConfig

LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
WEEK_MS: Final = 7 * 24 * 3600 * 1000


class Type(Enum):
    """How a value is written."""

    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    STRING = "string"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting; bounds are inclusive."""

    name: str
    type: Type
    default: str
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    dynamic: bool = True
    """False: fixed when the process starts."""

    def check(self, value: str) -> str:
        """
        Return ``value`` as it is stored.

        Raises:
            InvalidConfig: with what would be allowed.
        """
        text = value.strip()
        match self.type:
            case Type.INT | Type.LONG | Type.DOUBLE:
                self._check_number(text)
            case Type.BOOLEAN:
                text = text.lower()
                if text not in {"true", "false"}:
                    raise InvalidConfig(f"{self.name} takes true or false, not {value!r}")
            case Type.LIST:
                items = [item.strip() for item in text.split(",") if item.strip()]
                for item in items:
                    self._check_choice(item)
                text = ",".join(dict.fromkeys(items))
            case Type.STRING:
                self._check_choice(text)
        return text

    def _check_number(self, text: str) -> None:
        try:
            number = float(text) if self.type is Type.DOUBLE else int(text)
        except ValueError:
            raise InvalidConfig(f"{self.name} takes a number ({self.type.value}), not {text[:60]!r}") from None
        low = self.low if self.low is not None else -LONG_MAX
        high = self.high if self.high is not None else (INT_MAX if self.type is Type.INT else LONG_MAX)
        if not low <= number <= high:
            raise InvalidConfig(f"{self.name} takes {_shown(low)} to {_shown(high)}, not {text[:60]}")

    def _check_choice(self, text: str) -> None:
        if self.choices and text not in self.choices:
            raise InvalidConfig(f"{self.name} takes {', '.join(self.choices)}, not {text[:60]!r}")


def _shown(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def _table(*settings: Setting) -> Mapping[str, Setting]:
    return {s.name: s for s in settings}


TOPIC_SETTINGS: Final = _table(
    Setting(
        "cleanup.policy",
        Type.LIST,
        "delete",
        "What happens to old records: delete them by time and size, compact to the last value of each key, or both.",
        choices=("delete", "compact"),
    ),
    Setting("compression.type", Type.STRING, "producer", "Batches are stored as sent.", choices=("producer",)),
    Setting(
        "delete.retention.ms",
        Type.LONG,
        "86400000",
        "How long a compacted topic shows that a key was deleted, in ms.",
        low=0,
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
    Setting(
        "retention.ms", Type.LONG, str(WEEK_MS), "How long a partition keeps records, in ms; -1: for ever.", low=-1
    ),
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
    Setting("auto.leader.rebalance.enable", Type.BOOLEAN, "true", "Give leadership back to preferred leaders."),
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
    ),
    Setting(
        "default.replication.factor", Type.INT, "3", "Replicas of a topic created without a number.", low=1, high=32
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
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        Type.INT,
        "10",
        "Leaders go back when a broker misses more of its leaderships than this, in percent.",
        low=0,
        high=100,
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
    ),
    Setting("log.cleaner.max.compaction.lag.ms", Type.LONG, str(LONG_MAX), "Default of max.compaction.lag.ms.", low=1),
    Setting(
        "log.cleaner.min.cleanable.ratio", Type.DOUBLE, "0.5", "Default of min.cleanable.dirty.ratio.", low=0, high=1
    ),
    Setting("log.cleaner.min.compaction.lag.ms", Type.LONG, "0", "Default of min.compaction.lag.ms.", low=0),
    Setting("log.cleanup.policy", Type.LIST, "delete", "Default of cleanup.policy.", choices=("delete", "compact")),
    Setting("log.retention.bytes", Type.LONG, "-1", "Default of retention.bytes.", low=-1),
    Setting("log.retention.check.interval.ms", Type.LONG, "300000", "How often retention looks, in ms.", low=1),
    Setting("log.retention.ms", Type.LONG, str(WEEK_MS), "Default of retention.ms.", low=-1),
    Setting("log.roll.jitter.ms", Type.LONG, "0", "Default of segment.jitter.ms.", low=0),
    Setting("log.roll.ms", Type.LONG, str(WEEK_MS), "Default of segment.ms.", low=1),
    Setting("log.segment.bytes", Type.INT, str(1 << 30), "Default of segment.bytes.", low=1024),
    Setting("message.max.bytes", Type.INT, "1048588", "Default of max.message.bytes.", low=0, high=64 << 20),
    Setting("num.partitions", Type.INT, "1", "Partitions of a topic created without a number.", low=1, high=100_000),
    Setting(
        "offsets.topic.min.isr",
        Type.INT,
        "2",
        "min.insync.replicas of __consumer_offsets when it is made; in force at most its replicas.",
        low=1,
        high=32,
    ),
    Setting(
        "offsets.topic.num.partitions",
        Type.INT,
        "50",
        "Partitions of __consumer_offsets when it is made; they never change afterwards.",
        low=1,
        high=1_000,
    ),
    Setting(
        "offsets.topic.replication.factor",
        Type.INT,
        "3",
        "Replicas of __consumer_offsets, at most the brokers there are; it gets more when brokers join.",
        low=1,
        high=32,
    ),
    Setting(
        "producer.id.expiration.ms",
        Type.INT,
        "86400000",
        "Idle time after which a producer is forgotten, in ms.",
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
    ),
    Setting(
        "transaction.state.log.num.partitions",
        Type.INT,
        "50",
        "Partitions of __transaction_state when it is made; they never change afterwards.",
        low=1,
        high=1_000,
    ),
    Setting(
        "transaction.state.log.replication.factor",
        Type.INT,
        "3",
        "Replicas of __transaction_state, at most the brokers there are; it gets more when brokers join.",
        low=1,
        high=32,
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


def check_topic_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """
    All of a topic's own settings, as they are stored.

    Raises:
        InvalidConfig: all that is wrong, in one text.
    """
    return _checked(TOPIC_SETTINGS, configs, "topic")


def check_broker_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """The same for dynamic broker settings; those fixed at start are refused."""
    fixed = [n for n in configs if n in BROKER_SETTINGS and not BROKER_SETTINGS[n].dynamic]
    if fixed:
        raise InvalidConfig(f"{', '.join(sorted(fixed))}: fixed at start; set it in the broker's configuration")
    return _checked(BROKER_SETTINGS, configs, "broker")


def _checked(table: Mapping[str, Setting], configs: Mapping[str, str], what: str) -> dict[str, str]:
    good: dict[str, str] = {}
    wrong: list[str] = []
    for name, value in configs.items():
        setting = table.get(name)
        if setting is None:
            wrong.append(f"{name[:80]} is not a {what} setting")
            continue
        try:
            good[name] = setting.check(value)
        except InvalidConfig as error:
            wrong.append(str(error))
    wrong += [f"{name} cannot be empty" for name in ("cleanup.policy", "log.cleanup.policy") if good.get(name) == ""]
    low, high = good.get("min.compaction.lag.ms"), good.get("max.compaction.lag.ms")
    if low is not None and high is not None and int(low) > int(high):
        wrong.append(f"min.compaction.lag.ms={low} is above max.compaction.lag.ms={high}")
    if wrong:
        raise InvalidConfig("; ".join(wrong))
    return good


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The effective settings of one topic, parsed."""

    max_message_bytes: int
    timestamp_after_max_ms: int
    timestamp_before_max_ms: int
    log_append_time: bool
    min_insync_replicas: int | None
    """None: by the number of replicas, see ``min_isr_in_force``."""
    retention_bytes: int
    """-1: no bound; so it is without the policy delete."""
    retention_ms: int
    """-1: for ever; so it is without the policy delete."""
    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int = 0
    compacts: bool = False
    """Whether the policy has compact."""
    dirty_ratio_min: float = 0.5
    """``min.cleanable.dirty.ratio``."""
    compaction_lag_ms_min: int = 0
    compaction_lag_ms_max: int = LONG_MAX
    delete_retention_ms: int = 86_400_000

    @staticmethod
    def effective(own: Mapping[str, str], cluster: Mapping[str, str]) -> TopicConfig:
        """From the topic's own settings and the cluster's dynamic defaults; both were checked before."""

        def value(name: str) -> str:
            if name in own:
                return own[name]
            inherited = TOPIC_DEFAULT_FROM.get(name)
            if inherited is not None and inherited in cluster:
                return cluster[inherited]
            return TOPIC_SETTINGS[name].default

        policies = value("cleanup.policy").split(",")
        deletes = "delete" in policies
        return TopicConfig(
            max_message_bytes=int(value("max.message.bytes")),
            timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
            timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
            log_append_time=value("message.timestamp.type") == "LogAppendTime",
            min_insync_replicas=int(own["min.insync.replicas"]) if "min.insync.replicas" in own else None,
            retention_bytes=int(value("retention.bytes")) if deletes else -1,
            retention_ms=int(value("retention.ms")) if deletes else -1,
            segment_bytes=int(value("segment.bytes")),
            segment_ms=int(value("segment.ms")),
            segment_jitter_ms=int(value("segment.jitter.ms")),
            compacts="compact" in policies,
            dirty_ratio_min=float(value("min.cleanable.dirty.ratio")),
            compaction_lag_ms_min=int(value("min.compaction.lag.ms")),
            compaction_lag_ms_max=int(value("max.compaction.lag.ms")),
            delete_retention_ms=int(value("delete.retention.ms")),
        )


def min_isr_in_force(own: int | None, replicas: int, *, adding: int = 0, removing: int = 0) -> int:
    """
    How many replicas must be in sync: what the topic says (``own``), else 2 of three or more, else 1.

    Never more than there are; while replicas are exchanged (``adding`` and ``removing`` of ``replicas``), as many as
    there were before or will be after, whichever is less.
    """
    settled = max(1, replicas - max(adding, removing))
    wanted = own if own is not None else 2 if settled >= 3 else 1
    return min(wanted, settled)
