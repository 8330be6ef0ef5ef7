"""
Publishes plain numbers as metrics, read when Prometheus asks and not before. ``main`` calls it once.

What they mean stands here, where people look for it. Names end in base units: what the broker has in ms is shown in
seconds. Distributions are counted by the broker itself, so that the hot path pays one list increment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from headrace_broker.core.measures import Measures, PartitionGauges, TopicGauges
from headrace_common.core.distribution import Distribution
from headrace_common.runtime.metrics import Metrics, buckets_of

PREFIX: Final = "headrace_broker_"
ALL_TOPICS: Final = "*"
"""The label of what is not told by topic, since there are too many."""

COUNTERS: Final[Mapping[str, str]] = {
    "bytes_in": "Bytes of batches that producers wrote",
    "bytes_out": "Bytes of batches that were sent to consumers and replicas",
    "batches_in": "Batches that producers wrote",
    "records_in": "Records that producers wrote",
    "produce_requests": "Produce requests",
    "fetch_requests": "Fetch requests",
    "refused_batches": "Batches that were refused",
    "throttled_seconds": "How long clients were told to wait by quotas",
    "duplicate_batches": "Batches that were written before, and acknowledged again",
    "cold_reads": "Reads from disk, because the tail cache did not have the batches",
    "cold_bytes": "Bytes read from disk, because the tail cache did not have them",
    "read_ahead_hits": "Reads that found what was read ahead",
    "write_stalls": "Times that RocksDB held writes up",
    "read_failures": "Reads of stored batches that failed, or gave something else than was written",
    "retention_dropped_bytes": "Bytes that retention deleted",
    "cleaner_runs": "Logs compacted",
    "cleaner_failures": "Logs that could not be compacted, because a batch cannot be read",
    "cleaner_crashes": "Logs that could not be compacted, because of a bug",
    "cleaner_bytes_read": "Bytes that compaction read",
    "cleaner_bytes_written": "Bytes that compaction wrote",
    "cleaner_bytes_removed": "Bytes that compaction removed",
    "cleaner_records_removed": "Records that compaction removed",
    "scrub_passes": "Scrubs that have read all logs",
    "scrub_bytes": "Bytes that scrubs read",
    "scrub_lost_logs": "Logs in which a scrub found a batch that cannot be read",
    "markers_written": "Ends of transactions that were written into logs",
    "enrolments": "Partitions added to transactions",
    "enrolments_refused": "Partitions that coordinators refused to add to transactions",
    "enrolment_retries": "Repeated requests to coordinators to add partitions to transactions",
}
DISTRIBUTIONS: Final[Mapping[str, tuple[str, str, float]]] = {
    "produce_ms": ("produce_seconds", "Time from a produce request to its answer", 1e-3),
    "enrolment_ms": ("enrolment_seconds", "Time to add a partition to a transaction", 1e-3),
    "sync_ms": ("sync_seconds", "Time that one sync of the log to disk took", 1e-3),
    "group_batches": ("group_batches", "Batches written by one group commit", 1.0),
}
"""Name, meaning and the factor to its base unit."""
GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "queue_bytes": ("queue_bytes", "Bytes that wait to be written"),
    "tail_cache_bytes": ("tail_cache_bytes", "Bytes of newest batches that are held in memory"),
    "fetch_bytes_in_flight": ("fetch_bytes_in_flight", "Bytes of fetch answers that are being sent"),
    "disk_free_bytes": ("disk_free_bytes", "Free bytes of the data disk"),
    "disk_reserve_bytes": ("disk_reserve_bytes", "Free bytes below which records are refused"),
    "image_revision": ("image_revision", "Revision of the metadata that the broker has"),
    "producer_ids_left": ("producer_ids_left", "Producer ids that can be given without asking the controller"),
    "partitions_led": ("partitions_led", "Partitions that the broker leads"),
    "partitions_followed": ("partitions_followed", "Partitions that the broker copies from their leaders"),
    "replication_streams_broken": ("replication_streams_broken", "Leaders from which nothing can be copied now"),
    "under_replicated_partitions": (
        "under_replicated_partitions",
        "Partitions led here with fewer replicas in sync than they have",
    ),
    "under_min_isr_partitions": (
        "under_min_isr_partitions",
        "Partitions led here with fewer replicas in sync than min.insync.replicas",
    ),
    "enrolments_waiting": ("enrolments_waiting", "Partitions that wait to be added to a transaction"),
    "enrolment_parked_bytes": ("enrolment_parked_bytes", "Bytes of batches that wait for that"),
    "open_transactions": (
        "open_transactions",
        "Open transactions in the logs of the broker, by partition and producer",
    ),
    "last_stable_lag_records_max": (
        "last_stable_lag_records_max",
        "Most records of one partition led here that readers of read_committed wait for",
    ),
    "last_stable_lag_records": (
        "last_stable_lag_records",
        "Records of all partitions led here that readers of read_committed wait for",
    ),
    "oldest_open_transaction_s": (
        "oldest_open_transaction_seconds",
        "Age of the oldest open transaction in partitions led here; 0: none is open",
    ),
    "cleaner_dirty_ratio_max": ("cleaner_dirty_ratio_max", "Largest part of a compacted log that is not compacted yet"),
    "cleaner_stuck_logs": ("cleaner_stuck_logs", "Logs that cannot be compacted"),
    "cleaner_idle_s": ("cleaner_idle_seconds", "Time since the cleaner last looked at its logs"),
    "logs_online": ("logs_online", "Logs that are served"),
    "logs_damaged": ("logs_damaged", "Logs that lost acknowledged records"),
    "logs_stray": ("logs_stray", "Logs that the metadata does not know"),
    "logs_deleting": ("logs_deleting", "Logs that are being deleted"),
}
"""Name and meaning."""
PARTITION_GAUGES: Final[Mapping[str, str]] = {
    "log_start": "First offset of a log",
    "log_end": "Offset of the next record of a log",
    "high_watermark": "Offset below which all in-sync replicas have a log",
    "last_stable": "Offset up to which readers of read_committed see a log",
}
TOPIC_GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "log_bytes": ("log_bytes", "Bytes that the broker stores of a topic"),
    "oldest_age_s": ("oldest_age_seconds", "Age of the oldest record of a topic, by its own time; 0: there is none"),
}


def publish(
    metrics: Metrics,
    measures: Measures,
    gauges: Mapping[str, Callable[[], float]],
    partitions: Callable[[], Iterable[PartitionGauges]],
    topics: Callable[[], Iterable[TopicGauges]],
) -> None:
    """Create all instruments of one broker; the callables are called at each look, from the endpoint's thread."""
    meter = metrics.meter
    for field in fields(measures):
        value = getattr(measures, field.name)
        if isinstance(value, Distribution):
            name, meaning, factor = DISTRIBUTIONS.get(field.name, (field.name, "", 1.0))
            metrics.histogram(PREFIX + name, meaning, partial(buckets_of, value, factor))
        else:
            _counter(meter, field.name, partial(getattr, measures, field.name))
    for own_name, read in gauges.items():
        name, meaning = GAUGES.get(own_name, (own_name, ""))
        meter.create_observable_gauge(PREFIX + name, [partial(_observe_one, read)], description=meaning)
    for name, meaning in PARTITION_GAUGES.items():
        meter.create_observable_gauge(PREFIX + name, [partial(_per_partition, partitions, name)], description=meaning)
    for own_name, (name, meaning) in TOPIC_GAUGES.items():
        meter.create_observable_gauge(PREFIX + name, [partial(_per_topic, topics, own_name)], description=meaning)


def _counter(meter: Meter, name: str, read: Callable[[], float]) -> None:
    meter.create_observable_counter(PREFIX + name, [partial(_observe_one, read)], description=COUNTERS.get(name, ""))


def _observe_one(read: Callable[[], float], options: CallbackOptions) -> Iterable[Observation]:
    del options
    return [Observation(read())]


def _per_partition(
    partitions: Callable[[], Iterable[PartitionGauges]], name: str, options: CallbackOptions
) -> Iterable[Observation]:
    del options
    return [
        Observation(getattr(one, name), {"topic": one.topic, "partition": str(one.partition)}) for one in partitions()
    ]


def _per_topic(
    topics: Callable[[], Iterable[TopicGauges]], name: str, options: CallbackOptions
) -> Iterable[Observation]:
    del options
    return [Observation(getattr(one, name), {"topic": one.topic or ALL_TOPICS}) for one in topics()]
