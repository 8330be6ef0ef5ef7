"""What the coordinator counts, as OpenTelemetry instruments; what they mean stands here, where people look for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

PREFIX: Final = "headrace_coordinator_"
_BOUNDS_SECONDS: Final = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]

Reading = Callable[[], Iterable[tuple[float, Mapping[str, str]]]]
"""Values with their attributes; called from the endpoint's thread."""

GAUGES: Final[Mapping[str, str]] = {
    "shards": "Shards of this node, by phase",
    "groups": "Groups of the shards served here, by state",
    "members": "Members of all groups served here",
    "group_lag": "Records between a group's committed offset and the end of the log",
    "transactions": "Transactions of the shards served here that are open, prepared or ending, by state",
    "transactions_waiting": "Requests that wait for the end of the transaction before theirs",
    "transaction_oldest_open_age_seconds": "Age of the oldest open transaction; 0: none is open",
    "transaction_oldest_prepared_age_seconds": "Age of the oldest prepared transaction; 0: none is prepared",
    "transactions_prepared_overdue": "Transactions that are prepared for longer than transaction.prepared.max.ms",
    "transactions_without_markers": "Decided transactions whose end is not in all their partitions yet",
    "groups_without_lag": "Groups whose lag is not measured, because there are more partitions than group.lag allows",
}


class OtelMeasures:
    """See ``Measures``."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._append_seconds = self._histogram(
            "append_latency", "Time from the first request of an append to its commit"
        )
        self._commit_seconds = self._histogram("commit_latency", "Time that a CommitOffsets call took")
        self._load_seconds = self._histogram("load_time", "Time from being given a shard to serving it")
        self._appended = self._counter("appended_records", "State records written")
        self._loaded = self._counter("loaded_records", "State records read when shards were taken on")
        self._rebalances = self._counter("rebalances", "New generations of groups of the classic protocol")
        self._assignments = self._counter("assignments", "Assignments sent to members of the server-side protocol")
        self._lost = self._counter("shards_lost", "Shards given up because another coordinator writes them")

        self._decide_seconds = self._histogram(
            "end_latency", "Time that an EndTxn, DecidePrepared or CommitUnit call took"
        )
        self._ending_seconds = self._histogram("ending_time", "Time from a transaction's verdict to its last marker")
        self._ended = self._counter("transactions_ended", "Transactions that are over, by verdict and cause")

    def appended(self, records: int, ms: float) -> None:
        self._appended.add(records)
        self._append_seconds.record(ms / 1_000)

    def committed(self, ms: float) -> None:
        self._commit_seconds.record(ms / 1_000)

    def loaded(self, records: int, ms: float) -> None:
        self._loaded.add(records)
        self._load_seconds.record(ms / 1_000)

    def rebalanced(self) -> None:
        self._rebalances.add(1)

    def assigned(self) -> None:
        self._assignments.add(1)

    def lost(self) -> None:
        self._lost.add(1)

    def decided(self, ms: float) -> None:
        self._decide_seconds.record(ms / 1_000)

    def ended(self, commit: bool, cause: str, ms: float) -> None:
        self._ended.add(1, {"verdict": "commit" if commit else "abort", "cause": cause})
        self._ending_seconds.record(ms / 1_000)

    def publish(self, readings: Mapping[str, Reading]) -> None:
        """Register all gauges; ``readings`` has one for each name of ``GAUGES``."""
        for name, description in GAUGES.items():
            self._meter.create_observable_gauge(
                PREFIX + name, callbacks=[_observe(readings[name])], description=description
            )

    def _histogram(self, name: str, description: str) -> Histogram:
        return self._meter.create_histogram(
            PREFIX + name, unit="s", description=description, explicit_bucket_boundaries_advisory=_BOUNDS_SECONDS
        )

    def _counter(self, name: str, description: str) -> Counter:
        return self._meter.create_counter(PREFIX + name, description=description)


def _observe(read: Reading) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [Observation(value, dict(attributes)) for value, attributes in read()]
