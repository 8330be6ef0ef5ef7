"""
What a broker counts, as plain numbers that cost nothing to raise; ``main`` publishes them as metrics.

One object for the whole broker, changed on the event loop only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headrace_common.core.distribution import Distribution

LATENCY_BOUNDS_MS: Final = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
SIZE_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(slots=True)
class Measures:
    """Counters since the start of the process; distributions with their bounds' unit in the name."""

    bytes_in: int = 0
    bytes_out: int = 0
    batches_in: int = 0
    records_in: int = 0
    produce_requests: int = 0
    fetch_requests: int = 0
    refused_batches: int = 0
    throttled_seconds: float = 0
    duplicate_batches: int = 0
    cold_reads: int = 0
    cold_bytes: int = 0
    read_ahead_hits: int = 0
    write_stalls: int = 0
    read_failures: int = 0
    retention_dropped_bytes: int = 0
    cleaner_runs: int = 0
    cleaner_failures: int = 0
    cleaner_crashes: int = 0
    cleaner_bytes_read: int = 0
    cleaner_bytes_written: int = 0
    cleaner_bytes_removed: int = 0
    cleaner_records_removed: int = 0
    scrub_passes: int = 0
    scrub_bytes: int = 0
    scrub_lost_logs: int = 0
    markers_written: int = 0
    enrolments: int = 0
    enrolments_refused: int = 0
    enrolment_retries: int = 0
    produce_ms: Distribution = field(default_factory=lambda: Distribution(LATENCY_BOUNDS_MS))
    enrolment_ms: Distribution = field(default_factory=lambda: Distribution(LATENCY_BOUNDS_MS))
    sync_ms: Distribution = field(default_factory=lambda: Distribution(LATENCY_BOUNDS_MS))
    group_batches: Distribution = field(default_factory=lambda: Distribution(SIZE_BOUNDS))


@dataclass(frozen=True, slots=True)
class PartitionGauges:
    """Where one log stands."""

    topic: str
    partition: int
    log_start: int
    log_end: int
    high_watermark: int
    last_stable: int


@dataclass(frozen=True, slots=True)
class TopicGauges:
    """What one broker has of one topic."""

    topic: str
    """Empty: all topics, as they are too many."""
    log_bytes: int
    oldest_age_s: float
    """Of the oldest record, by its own time; 0: there is none."""
