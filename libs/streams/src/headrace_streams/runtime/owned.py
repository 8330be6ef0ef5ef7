"""What a worker has: the world outside, its tasks, and what a commit says of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.records import Committed, TopicPartition
from headrace.work_types import Declaration
from headrace_common.runtime.clock import Clock
from headrace_streams.core.outputs import Output
from headrace_streams.core.state.changelog import Progress, remark
from headrace_streams.core.state.store import Changes
from headrace_streams.core.task import Task
from headrace_streams.plan.cut import SubTopology
from headrace_streams.ports import Membership, Reader, Snapshots, TaskStore, TaskStores, Topics, Writers


@dataclass(frozen=True, slots=True)
class Outside:
    """What a worker works with."""

    topics: Topics
    reader: Reader
    changelogs: Reader
    writers: Writers
    stores: TaskStores
    join: Callable[[Declaration, Mapping[str, int]], Awaitable[Membership]]
    """Shares these tasks; told how far its disk is behind in each that keeps state."""
    clock: Clock
    compute: Callable[..., Awaitable[Any]]
    """Runs work that would block the event loop, one piece after the other."""
    look: Callable[..., Awaitable[Any]]
    """Runs what only reads, beside that."""
    snapshots: Snapshots | None = None
    """None: there is no place for them."""
    globals: Reader | None = None
    """Of tables that each worker has whole; None: the app has none."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A task of the app, whoever has it."""

    part: SubTopology
    partition: int
    topics: tuple[str, ...]
    """That it reads."""
    basis: Mapping[str, str]
    """What its state belongs to, as the program and its topics are now."""
    changelog: TopicPartition | None = None
    """None: it keeps nothing but its positions."""
    log_id: str = ""
    """Of the changelog's partition: of another, a directory is of no use."""

    @property
    def label(self) -> str:
        """For people, and as an item of the group."""
        return f"{self.part.name}/{self.partition}"

    @property
    def partitions(self) -> list[TopicPartition]:
        """That it reads."""
        return [TopicPartition(topic, self.partition) for topic in self.topics]


@dataclass(slots=True, eq=False)
class Owned:
    """A task of this worker."""

    spec: Spec
    task: Task
    store: TaskStore | None
    """None: it keeps nothing but its positions."""
    progress: Progress = field(default_factory=Progress)
    """As of the last commit."""
    positions: dict[str, int] = field(default_factory=dict)
    """Of what was fed."""
    rows_at_ms: dict[str, float] = field(default_factory=dict)
    """When each topic had rows, or was not at its end, by the monotonic clock."""
    idle: set[str] = field(default_factory=set)
    epoch: int = 0
    """Of this worker, in the group."""
    touched: bool = False
    """Whether it has done something since the last commit."""
    began_at_ms: float = 0.0
    """By the monotonic clock."""

    def awake(self, now_ms: float) -> None:
        """Every topic counts as one that just had rows."""
        self.rows_at_ms = dict.fromkeys(self.spec.topics, now_ms)
        self.idle.clear()


@dataclass(frozen=True, slots=True)
class Kept:
    """What a commit says of a task."""

    owned: Owned
    progress: Progress
    rows: Changes
    """Of its changelog; empty where it has none."""


def as_output(owned: Owned, rows: Changes) -> Output:
    """Rows of the task's changelog."""
    changelog = owned.spec.changelog
    assert changelog is not None
    keys, values = zip(*rows, strict=True)
    columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    return Output(changelog.topic, pa.table(columns), changelog.partition)


def moved(kept: list[Kept]) -> dict[TopicPartition, Committed]:
    """
    The positions that differ from the last commit's; all if none does: by them the group sees who commits. Called
    before the last commit is replaced.

    A task without a changelog has its event times beside the first of its positions.
    """
    every: dict[TopicPartition, Committed] = {}
    changed: dict[TopicPartition, Committed] = {}
    for k in kept:
        owned, positions = k.owned, k.progress.positions
        first = next((topic for topic in owned.spec.topics if topic in positions), "") if owned.store is None else ""
        for topic, offset in positions.items():
            at = TopicPartition(topic, owned.spec.partition)
            every[at] = Committed(offset, metadata=remark(k.progress.watermarks) if topic == first else "")
            if topic == first or owned.progress.positions.get(topic) != offset:
                changed[at] = every[at]
    return changed or every


def no_store(name: str) -> Any:
    """The cold tier of a task that has none."""
    raise AssertionError(f"a task without state has no store {name}")
