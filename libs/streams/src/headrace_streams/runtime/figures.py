"""What a worker counts, and what it tells of its tasks; read by another thread, while it works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

import pyarrow as pa

from headrace.records import PartitionTable
from headrace_common.core.distribution import Distribution
from headrace_streams.core.outputs import Output
from headrace_streams.core.rows import NO_TIME
from headrace_streams.core.state.cache import StateCache
from headrace_streams.core.task import Task
from headrace_streams.runtime.owned import Owned

Values = Iterable[tuple[float, Mapping[str, str]]]
_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)

GAUGES: Final[Mapping[str, str]] = {
    "tasks": "Tasks of this worker, by state: running, taking (being taken over), standby, warm_up (to move here)",
    "lag_records": "Records between what a task has read of a topic and the end of its partition",
    "lag_seconds": "Age of the last record that a task has read of a partition, as long as there are more",
    "watermark_delay_seconds": "How far a task's event time is behind the clock",
    "held_back_seconds": "How far the input that holds event time back is behind the others, by task and input",
    "state_cache_bytes": "About how many bytes of state are in memory, of what can be read from the disk again",
    "dirty_state_bytes": "About how many bytes of state the last commit changed, by node",
    "restore_records": "Offsets of changelogs that are left until a disk has followed them, by task",
}
COUNTERS: Final[Mapping[str, str]] = {
    "read_records": "Records that tasks were fed, by topic",
    "read_bytes": "Bytes of the records that tasks were fed, by topic: keys, values, times and headers in memory",
    "written_records": "Records written, by topic; changelogs count",
    "written_bytes": "Bytes of the records written, by topic: keys, values, times and headers in memory",
    "rows_in": "Rows that came to nodes and are committed, by node",
    "rows_out": "Rows that left nodes and are committed, by node",
    "commits": "Transactions that were committed",
    "rewinds": "Times that the worker went back to its last commit",
    "joins": "Times that it joined the group of the app",
    "snapshots": "Snapshots of state that were written",
    "snapshots_restored": "Disks of tasks that were taken from a snapshot",
    "snapshots_failed": "Snapshots that could not be written, read or deleted, or were damaged",
    "restored_records": "Records of changelogs that disks have followed, those of standbys too",
    "cache_hits": "Keys of state that were asked for and were in memory, by node",
    "cache_misses": "Keys of state that were looked up on the disk, by node",
    "late_rows": "Rows that came after their window had closed, by node",
    "dropped_rows": "Rows without a key where one is needed, and records without a value in streams, by node",
    "failed_records": "Records that could not be processed, and were skipped or sent to a dead letter topic, by node",
}

_MET: Final[Mapping[str, str]] = {
    "cache_hits": "hits",
    "cache_misses": "misses",
    "late_rows": "late",
    "dropped_rows": "dropped",
    "failed_records": "failed",
}
"""Which are of rows that are committed, and what a task calls them."""


@dataclass(slots=True)
class Figures:
    """Of one worker."""

    cache: StateCache
    read: Counter[str] = field(default_factory=Counter)
    read_bytes: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    written_bytes: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    given: Counter[str] = field(default_factory=Counter)
    met: dict[str, Counter[str]] = field(default_factory=lambda: {what: Counter() for what in _MET.values()})
    """As ``Task.met``."""
    counts: Counter[str] = field(default_factory=Counter)
    lags: dict[tuple[str, int], int] = field(default_factory=dict)
    read_to_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    """The timestamp of the last record that was read, of partitions that have more."""
    dirty: Mapping[str, int] = field(default_factory=dict)
    commit_time: Distribution = field(default_factory=lambda: Distribution(_BOUNDS_MS))
    """From its first step to the answer, ms."""
    states: Mapping[str, int] = field(default_factory=dict)
    restoring: Mapping[str, int] = field(default_factory=dict)
    owned: Mapping[str, Owned] = field(default_factory=dict)
    gauges: Mapping[str, str] = field(default_factory=lambda: GAUGES)
    counters: Mapping[str, str] = field(default_factory=lambda: COUNTERS)

    def seen(self, batch: PartitionTable) -> None:
        """How far a partition has been read."""
        if batch.lag is None:
            return
        at = batch.topic, batch.partition
        self.lags[at] = batch.lag
        if not batch.lag:
            self.read_to_ms.pop(at, None)
        elif batch.table.num_rows:
            self.read_to_ms[at] = batch.table["timestamp_ms"][-1].as_py()

    def unseen(self) -> None:
        """Other partitions are read from now on, or none."""
        self.lags.clear()
        self.read_to_ms.clear()

    def fed(self, topic: str, records: pa.Table) -> None:
        """A task was."""
        self.read[topic] += records.num_rows
        self.read_bytes[topic] += records.nbytes

    def wrote(self, output: Output) -> None:
        """It is on its way."""
        self.written[output.topic] += output.records.num_rows
        self.written_bytes[output.topic] += output.records.nbytes

    def committed(self, tasks: Iterable[Task]) -> None:
        """The commit stands of all that have done something; they have not heard of it."""
        dirty = Counter(dict.fromkeys(self.dirty, 0))
        for task in tasks:
            taken, given = task.passed()
            self.taken.update(taken)
            self.given.update(given)
            for what, counts in task.met().items():
                self.met[what].update(counts)
            dirty.update(task.dirty)
        self.dirty = dirty

    def values(self, name: str, now_ms: float) -> Values:
        """Those of one of ``GAUGES`` or ``COUNTERS``, with their attributes."""
        match name:
            case "tasks":
                return [(count, {"state": state}) for state, count in list(self.states.items())]
            case "lag_records":
                return [(lag, {"topic": t, "partition": str(p)}) for (t, p), lag in list(self.lags.items())]
            case "lag_seconds":
                behind = self.read_to_ms.copy()
                ages = {at: (now_ms - behind[at]) / 1e3 if at in behind else 0.0 for at in list(self.lags)}
                return [(max(0.0, age), {"topic": t, "partition": str(p)}) for (t, p), age in ages.items()]
            case "watermark_delay_seconds":
                marks = [(label, owned.task.watermark) for label, owned in list(self.owned.items())]
                return [((now_ms - at) / 1e3, {"task": label}) for label, at in marks if at != NO_TIME]
            case "held_back_seconds":
                held = [(label, owned.task.held_by) for label, owned in list(self.owned.items())]
                return [(by[1] / 1e3, {"task": label, "input": by[0]}) for label, by in held if by and isfinite(by[1])]
            case "restore_records":
                return [(left, {"task": label}) for label, left in list(self.restoring.items())]
            case "read_records":
                return _by("topic", self.read)
            case "read_bytes":
                return _by("topic", self.read_bytes)
            case "written_records":
                return _by("topic", self.written)
            case "written_bytes":
                return _by("topic", self.written_bytes)
            case "rows_in":
                return _by("node", self.taken)
            case "rows_out":
                return _by("node", self.given)
            case "dirty_state_bytes":
                return _by("node", self.dirty)
            case "state_cache_bytes":
                return [(self.cache.bytes, {})]
            case _ if name in _MET:
                return _by("node", self.met[_MET[name]])
            case _:
                return [(self.counts[name], {})]


def _by(label: str, counts: Mapping[str, int]) -> Values:
    return [(count, {label: name}) for name, count in list(counts.items())]
