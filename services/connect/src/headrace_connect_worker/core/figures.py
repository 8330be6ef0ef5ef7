"""What a worker tells of itself and its tasks; read by another thread, while it works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace_connect.core.counts import Counts
from headrace_connect_worker.core.host_figures import HostFigures
from headrace_connect_worker.core.records import Status

Values: TypeAlias = Iterable[tuple[Sequence[str], float]]
"""Each with its labels, in their order."""


@dataclass(frozen=True, slots=True)
class Family:
    """Values of one meaning."""

    meaning: str
    labels: tuple[str, ...] = ()


_TASK: Final = ("connector", "task")
_STATE: Final = ("connector", "state")
GAUGES: Final[dict[str, Family]] = {
    "connectors": Family("Connectors that this worker watches, by state", _STATE),
    "tasks": Family("Tasks that this worker has, by state", _STATE),
    "leader": Family("1: this worker writes the configuration of all"),
    "lag_records": Family("Of sinks: records that are there and that a task has not committed", _TASK),
    "source_delay_seconds": Family("Of sources: how old the newest record of a commit was at its end", _TASK),
    "retained_bytes": Family("Of sources: what their system keeps until it is committed, as WAL of a slot", _TASK),
    "hosts": Family("Processes of this worker that run connectors"),
    "host_memory_bytes": Family("Their memory, by the connector that each was begun for", ("connector",)),
}
COUNTERS: Final[dict[str, Family]] = {
    "read_records": Family("Rows that sources gave, records that sinks read", _TASK),
    "read_bytes": Family("Of sinks: bytes of records that were read", _TASK),
    "written_records": Family("Records that were committed, in a topic or in the target", _TASK),
    "written_bytes": Family("Of sources: bytes of records that were committed", _TASK),
    "dead_letters": Family(
        "Records that could not be handled: dead letters, or dropped where they have no topic", _TASK
    ),
    "commits": Family("Commits", _TASK),
    "commit_seconds": Family("Time that commits took, in all", _TASK),
    "stage_seconds": Family("Time in a stage of a task, in all; waiting counts too", (*_TASK, "stage")),
    "retries": Family("Steps of tasks that failed and were tried again", _TASK),
    "task_restarts": Family("Times that a task failed and was started again in its host", _TASK),
    "host_crashes": Family("Processes that ended while they had something to do"),
}
_COUNTS: Final[Mapping[str, Callable[[Counts], float | None]]] = {
    "lag_records": lambda counts: counts.lag_records,
    "source_delay_seconds": lambda counts: None if counts.delay_ms is None else counts.delay_ms / 1e3,
    "retained_bytes": lambda counts: counts.retained_bytes,
    "read_records": lambda counts: counts.read_records,
    "read_bytes": lambda counts: counts.read_bytes,
    "written_records": lambda counts: counts.written_records,
    "written_bytes": lambda counts: counts.written_bytes,
    "dead_letters": lambda counts: counts.dead_letters,
    "commits": lambda counts: counts.commits,
    "commit_seconds": lambda counts: counts.commit_us / 1e6,
    "retries": lambda counts: counts.retries,
    "task_restarts": lambda counts: counts.restarts,
}
_STAGES: Final[Mapping[str, Callable[[Counts], int]]] = {
    "read": lambda counts: counts.read_us,
    "convert": lambda counts: counts.convert_us,
    "transform": lambda counts: counts.transform_us,
    "write": lambda counts: counts.write_us,
    "commit": lambda counts: counts.commit_us,
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one worker. Labels are bounded by what it has: of what it has no more there is no value."""

    hosts: HostFigures
    statuses: Callable[[], Sequence[Status]]
    """What it said last of what it has."""
    leads: Callable[[], bool]

    def values(self, name: str) -> Values:
        """Those of one of ``GAUGES`` or ``COUNTERS``."""
        match name:
            case "connectors":
                return self._states(of_tasks=False)
            case "tasks":
                return self._states(of_tasks=True)
            case "leader":
                return [((), self.leads())]
            case "hosts":
                return [((), len(self.hosts.memory))]
            case "host_memory_bytes":
                sums: Counter[str] = Counter()
                for connector, used in list(self.hosts.memory.values()):
                    sums[connector] += used
                return [((connector,), used) for connector, used in sums.items()]
            case "host_crashes":
                return [((), self.hosts.crashes)]
            case "stage_seconds":
                return [
                    ((work.connector, str(work.task), stage), spent_us(counts) / 1e6)
                    for work, counts in list(self.hosts.counts.items())
                    for stage, spent_us in _STAGES.items()
                ]
        read = _COUNTS[name]
        found = ((work, read(counts)) for work, counts in list(self.hosts.counts.items()))
        return [((work.connector, str(work.task)), value) for work, value in found if value is not None]

    def _states(self, *, of_tasks: bool) -> Values:
        found = Counter(
            (status.name, status.state.value.lower())
            for status in self.statuses()
            if (status.task is not None) is of_tasks and status.state is not None
        )
        return [(labels, count) for labels, count in found.items()]
