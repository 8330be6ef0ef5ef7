"""What the coordinator counts, as Prometheus sees it; what it means stands here, where people look for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation

from headrace_common.core.distribution import Distribution
from headrace_common.runtime.metrics import Metrics, buckets_of

PREFIX: Final = "headrace_coordinator_"
_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)

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


COUNTERS: Final[Mapping[str, str]] = {
    "appended_records": "State records written",
    "loaded_records": "State records read when shards were taken on",
    "rebalances": "New generations of groups of the classic protocol",
    "assignments": "Assignments sent to members of the server-side protocol",
    "shards_lost": "Shards given up because another coordinator writes them",
}
TIMES: Final[Mapping[str, str]] = {
    "append_latency": "Time from the first request of an append to its commit",
    "commit_latency": "Time that a CommitOffsets call took",
    "load_time": "Time from being given a shard to serving it",
    "end_latency": "Time that an EndTxn, DecidePrepared or CommitUnit call took",
    "ending_time": "Time from a transaction's verdict to its last marker",
}


class OtelMeasures:
    """
    See ``Measures``: plain numbers, read when Prometheus asks and not before. A transaction raises eleven of them, and
    an instrument costs as much as all its state machine does.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._meter = metrics.meter
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._times = {name: Distribution(_BOUNDS_MS) for name in TIMES}
        self._ended: Counter[tuple[bool, str]] = Counter()
        for name, meaning in COUNTERS.items():
            self._counter(name, meaning, partial(self._read_count, name))
        self._counter("transactions_ended", "Transactions that are over, by verdict and cause", self._read_ended)
        for name, meaning in TIMES.items():
            metrics.histogram(f"{PREFIX}{name}_seconds", meaning, partial(buckets_of, self._times[name], 1e-3))

    def appended(self, records: int, ms: float) -> None:
        self._counts["appended_records"] += records
        self._times["append_latency"].record(ms)

    def committed(self, ms: float) -> None:
        self._times["commit_latency"].record(ms)

    def loaded(self, records: int, ms: float) -> None:
        self._counts["loaded_records"] += records
        self._times["load_time"].record(ms)

    def rebalanced(self) -> None:
        self._counts["rebalances"] += 1

    def assigned(self) -> None:
        self._counts["assignments"] += 1

    def lost(self) -> None:
        self._counts["shards_lost"] += 1

    def decided(self, ms: float) -> None:
        self._times["end_latency"].record(ms)

    def ended(self, commit: bool, cause: str, ms: float) -> None:
        self._ended[commit, cause] += 1
        self._times["ending_time"].record(ms)

    def publish(self, readings: Mapping[str, Reading]) -> None:
        """Register all gauges; ``readings`` has one for each name of ``GAUGES``."""
        for name, description in GAUGES.items():
            self._meter.create_observable_gauge(
                PREFIX + name, callbacks=[_observe(readings[name])], description=description
            )

    def _read_count(self, name: str) -> Iterable[tuple[float, Mapping[str, str]]]:
        return [(self._counts[name], {})]

    def _read_ended(self) -> Iterable[tuple[float, Mapping[str, str]]]:
        return [
            (count, {"verdict": "commit" if commit else "abort", "cause": cause})
            for (commit, cause), count in list(self._ended.items())
        ]

    def _counter(self, name: str, description: str, read: Reading) -> None:
        self._meter.create_observable_counter(PREFIX + name, callbacks=[_observe(read)], description=description)


def _observe(read: Reading) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [Observation(value, dict(attributes)) for value, attributes in read()]
