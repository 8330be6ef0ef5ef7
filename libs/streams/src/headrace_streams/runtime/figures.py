"""What a worker counts, and what it tells of its tasks; read by another thread, while it works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

from headrace_common.core.distribution import Distribution
from headrace_streams.core.rows import NO_TIME
from headrace_streams.core.state.cache import StateCache
from headrace_streams.runtime.owned import Owned

Values = Iterable[tuple[float, Mapping[str, str]]]
_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)

GAUGES: Final[Mapping[str, str]] = {
    "tasks": "Tasks of this worker, by state: running, taking (being taken over), standby",
    "lag_records": "Records between what a task has read of a topic and the end of its partition",
    "watermark_delay_seconds": "How far a task's event time is behind the clock",
    "held_back_seconds": "How far the input that holds event time back is behind the others, by task and input",
    "state_cache_bytes": "About how many bytes of state are in memory, of what can be read from the disk again",
    "restore_records": "Offsets of changelogs that are left until a disk has followed them, by task",
}
COUNTERS: Final[Mapping[str, str]] = {
    "read_records": "Records that tasks were fed, by topic",
    "written_records": "Records written, by topic; changelogs count",
    "commits": "Transactions that were committed",
    "rewinds": "Times that the worker went back to its last commit",
    "joins": "Times that it joined the group of the app",
    "snapshots": "Snapshots of state that were written",
    "snapshots_restored": "Disks of tasks that were taken from a snapshot",
    "snapshots_failed": "Snapshots that could not be written, read or deleted, or were damaged",
    "cache_hits": "Keys of state that were asked for and were in memory, by node; of tasks that it has now",
    "cache_misses": "Keys of state that were looked up on the disk, by node; of tasks that it has now",
    "late_rows": "Rows that came after their window had closed, by node; of tasks that it has now",
    "dropped_rows": "Rows without a key where one is needed, and records without a value in streams, by node",
    "failed_records": "Records that could not be processed, and were skipped or sent to a dead letter topic, by node",
}


@dataclass(slots=True)
class Figures:
    """Of one worker."""

    cache: StateCache
    read: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    lags: dict[tuple[str, int], int] = field(default_factory=dict)
    commit_time: Distribution = field(default_factory=lambda: Distribution(_BOUNDS_MS))
    """From its first step to the answer, ms."""
    states: Mapping[str, int] = field(default_factory=dict)
    restoring: Mapping[str, int] = field(default_factory=dict)
    owned: Mapping[str, Owned] = field(default_factory=dict)
    gauges: Mapping[str, str] = field(default_factory=lambda: GAUGES)
    counters: Mapping[str, str] = field(default_factory=lambda: COUNTERS)

    def values(self, name: str, now_ms: float) -> Values:
        """Those of one of ``GAUGES`` or ``COUNTERS``, with their attributes."""
        match name:
            case "tasks":
                return [(count, {"state": state}) for state, count in list(self.states.items())]
            case "lag_records":
                return [(lag, {"topic": t, "partition": str(p)}) for (t, p), lag in list(self.lags.items())]
            case "watermark_delay_seconds":
                marks = [(label, owned.task.watermark) for label, owned in list(self.owned.items())]
                return [((now_ms - at) / 1e3, {"task": label}) for label, at in marks if at != NO_TIME]
            case "held_back_seconds":
                held = [(label, owned.task.held_by) for label, owned in list(self.owned.items())]
                return [(by[1] / 1e3, {"task": label, "input": by[0]}) for label, by in held if by and isfinite(by[1])]
            case "restore_records":
                return [(left, {"task": label}) for label, left in list(self.restoring.items())]
            case "read_records":
                return [(count, {"topic": topic}) for topic, count in list(self.read.items())]
            case "written_records":
                return [(count, {"topic": topic}) for topic, count in list(self.written.items())]
            case "state_cache_bytes":
                return [(self.cache.bytes, {})]
            case "cache_hits":
                return self._of_nodes("hits")
            case "cache_misses":
                return self._of_nodes("misses")
            case "late_rows":
                return self._of_nodes("late")
            case "dropped_rows":
                return self._of_nodes("dropped")
            case "failed_records":
                return self._of_nodes("failed")
            case _:
                return [(self.counts[name], {})]

    def _of_nodes(self, what: str) -> Values:
        found: Counter[str] = Counter()
        for owned in list(self.owned.values()):
            found.update(getattr(owned.task, what))
        return [(count, {"node": node}) for node, count in found.items()]
