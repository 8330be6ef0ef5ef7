"""
What the config topic says should be: its records, one after the other, make the connectors and their tasks.

Every worker reads all of it and comes to the same. A generation of tasks counts when its ``TasksCommitted`` was read
and all its tasks are there: a log that was compacted, and read to somewhere in its midst, may lack some.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace_connect_worker.core.records import (
    ConfigRecord,
    ConnectorConfigured,
    LeaderSaid,
    RestartDropped,
    RestartSaid,
    SplitSpec,
    TargetSet,
    TargetState,
    TaskConfigured,
    TaskDropped,
    TasksCommitted,
)

NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class TaskSet:
    """A generation of a connector's tasks, whole."""

    generation: int
    config: Mapping[str, str] = field(hash=False)
    """What they run with; the connector's own may be newer."""
    config_offset: int
    shares: tuple[tuple[SplitSpec, ...], ...]
    """The splits of each task; of a sink's they are empty."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The last time that somebody asked for it."""

    offset: int = NEVER
    only_failed: bool = False


@dataclass(frozen=True, slots=True)
class ConnectorState:
    """One connector."""

    name: str
    config: Mapping[str, str] = field(hash=False)
    config_offset: int
    """Of the record that the configuration is from: another one, another offset."""
    target: TargetState
    tasks: TaskSet | None
    """None: no generation counts yet, or none is whole."""

    @property
    def places(self) -> int:
        """Of tasks: as many as it has, and one at least."""
        return 1 if self.tasks is None else max(1, len(self.tasks.shares))

    @property
    def is_stopped(self) -> bool:
        """Whether it is to be stopped, and has no tasks."""
        return self.target is TargetState.STOPPED and (self.tasks is None or not self.tasks.shares)


@dataclass(slots=True)
class _Kept:
    """Records of one name."""

    config: Mapping[str, str] | None = None
    config_offset: int = NEVER
    target: TargetState | None = None
    committed: TasksCommitted | None = None
    tasks: dict[int, TaskConfigured] = field(default_factory=dict)
    connector_restart: Restart = Restart()
    all_restart: Restart = Restart()
    task_restarts: dict[int, Restart] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        restarted = self.all_restart, self.connector_restart, *self.task_restarts.values()
        known = self.config is not None or self.target is not None or self.committed is not None
        return not known and not self.tasks and all(restart.offset == NEVER for restart in restarted)


class HerdState:
    """See the module's text. ``apply`` in the order of offsets."""

    def __init__(self) -> None:
        self.offset = NEVER
        """Of the last record that was read."""
        self.leader: LeaderSaid | None = None
        self._kept: dict[str, _Kept] = {}
        self._made: dict[str, ConnectorState] = {}
        self.places = 0
        """Tasks of all connectors; each has a place for one at least, also while it has none."""

    def apply(self, offset: int, record: ConfigRecord) -> None:
        """Take in a record."""
        assert offset > self.offset, "records are read in their order"
        self.offset = offset
        if isinstance(record, LeaderSaid):
            self.leader = record
            return
        kept = self._kept.setdefault(record.name, _Kept())
        match record:
            case ConnectorConfigured(_, properties):
                kept.config, kept.config_offset = properties, offset
            case TargetSet(_, target):
                kept.target = target
            case TaskConfigured(_, task):
                kept.tasks[task] = record
            case TaskDropped(_, task):
                kept.tasks.pop(task, None)
            case TasksCommitted(_, count):
                kept.committed = None if count is None else record
            case RestartSaid():
                _note_restart(kept, record, offset)
            case RestartDropped():
                kept.connector_restart = kept.all_restart = Restart()
                kept.task_restarts = {}
        self.places -= _places(self._made.pop(record.name, None))
        if kept.is_empty:
            del self._kept[record.name]
        elif kept.config is not None:
            made = self._made[record.name] = _make(record.name, kept.config, kept)
            self.places += _places(made)

    @property
    def connectors(self) -> Mapping[str, ConnectorState]:
        """Those that there are, by name."""
        return self._made

    def watcher_restart(self, name: str) -> Restart:
        """When the connector itself was to begin anew."""
        kept = self._kept.get(name)
        return Restart() if kept is None else kept.connector_restart

    def task_restart(self, name: str, task: int) -> Restart:
        """When a task was to begin anew."""
        kept = self._kept.get(name)
        if kept is None:
            return Restart()
        return max(kept.all_restart, kept.task_restarts.get(task, Restart()), key=lambda restart: restart.offset)

    def generation_max(self, name: str) -> int:
        """The highest generation that the log still tells of; 0: none."""
        kept = self._kept.get(name)
        if kept is None:
            return 0
        committed = 0 if kept.committed is None else kept.committed.generation
        return max(committed, *(task.generation for task in kept.tasks.values()), 0)

    def task_numbers(self, name: str) -> Iterable[int]:
        """Of all tasks of which there is a record."""
        kept = self._kept.get(name)
        return () if kept is None else sorted(kept.tasks)


def _note_restart(kept: _Kept, record: RestartSaid, offset: int) -> None:
    restart = Restart(offset, record.only_failed)
    if record.connector:
        kept.connector_restart = restart
    if record.tasks is None:
        kept.all_restart = restart
    else:
        kept.task_restarts.update(dict.fromkeys(record.tasks, restart))


def _places(connector: ConnectorState | None) -> int:
    return 0 if connector is None else connector.places


def _make(name: str, config: Mapping[str, str], kept: _Kept) -> ConnectorState:
    return ConnectorState(name, config, kept.config_offset, kept.target or TargetState.STARTED, _task_set(kept))


def _task_set(kept: _Kept) -> TaskSet | None:
    committed = kept.committed
    if committed is None or committed.count is None:
        return None
    shares = []
    for number in range(committed.count):
        task = kept.tasks.get(number)
        if task is None or task.generation != committed.generation:
            return None
        shares.append(task.splits)
    return TaskSet(committed.generation, committed.properties, committed.config_offset, tuple(shares))
