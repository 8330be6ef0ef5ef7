"""A config topic that a test writes, and the state that comes of it."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_connect_worker.core import changes
from headrace_connect_worker.core.herd import HerdState
from headrace_connect_worker.core.records import ConfigRecord, SplitSpec, TargetState, Work
from headrace_connect_worker.core.status import Statuses

CONFIG = {"connector.class": "files", "tasks.max": "2"}


class HerdTopic:
    """A leader's words, one transaction after the other, at offsets with gaps as markers leave them."""

    def __init__(self) -> None:
        self.log: list[tuple[int, ConfigRecord]] = []
        self.ends: list[int] = []
        """How many records there were after each transaction."""
        self.state = HerdState()
        self.statuses = Statuses()
        self.drawn = 100

    def draw(self, before: int) -> int:
        self.drawn = max(self.drawn, before) + 1
        return self.drawn

    def write(self, records: Sequence[ConfigRecord]) -> None:
        if not records:
            return
        base = self.state.offset + 2
        for number, record in enumerate(records):
            self.log.append((base + number, record))
            self.state.apply(base + number, record)
        self.ends.append(len(self.log))

    def put(self, name: str = "c", target: TargetState | None = None, **config: str) -> None:
        given = {**CONFIG, **{key.replace("_", "."): value for key, value in config.items()}}
        self.write(changes.put_config(self.state, name, given, only_new=False, target=target))

    def find(self, *splits: str, name: str = "c", epoch: int = 1, offset: int | None = None) -> None:
        """The watcher finds these splits."""
        at = self.state.connectors[name].config_offset if offset is None else offset
        listed = tuple(SplitSpec(id) for id in splits)
        self.statuses.apply(Work(name, "source", at, splits=listed, epoch=epoch))

    def find_sink(self, tasks: int, name: str = "c") -> None:
        at = self.state.connectors[name].config_offset
        self.statuses.apply(Work(name, "sink", at, tasks=tasks, epoch=1))

    def plan(self, name: str = "c", *, fenced: bool = False) -> Sequence[ConfigRecord]:
        """The leader looks; what it wrote."""
        connector, work = self.state.connectors[name], self.statuses.work(name)
        records = changes.tasks_due(self.state, connector, work, self.draw, fenced=fenced)
        self.write(records)
        return records

    def shortage(self, name: str = "c") -> str:
        return changes.shortage(self.state, self.state.connectors[name], self.statuses.work(name))

    def target(self, target: TargetState, name: str = "c") -> None:
        self.write(changes.set_target(self.state, name, target, self.statuses.work(name), self.draw))

    def delete(self, name: str = "c") -> None:
        self.write(changes.delete(self.state, name))

    def shares(self, name: str = "c") -> list[list[str]] | None:
        tasks = self.state.connectors[name].tasks
        return None if tasks is None else [[split.id for split in share] for share in tasks.shares]

    def generation(self, name: str = "c") -> int:
        tasks = self.state.connectors[name].tasks
        assert tasks is not None
        return tasks.generation


def look(state: HerdState) -> object:
    """All that a state says, to be compared."""
    return (
        state.leader,
        {
            name: (
                one,
                state.generation_max(name),
                tuple(state.task_numbers(name)),
                state.watcher_restart(name),
                [state.task_restart(name, task) for task in range(8)],
            )
            for name, one in state.connectors.items()
        },
    )
