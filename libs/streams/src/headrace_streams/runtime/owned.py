"""What a worker has: the world outside, its tasks, and what a commit says of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.records import TopicPartition
from headrace_common.runtime.clock import Clock
from headrace_streams.core.outputs import Output
from headrace_streams.core.state.changelog import Progress
from headrace_streams.core.state.store import Changes
from headrace_streams.core.task import Task
from headrace_streams.plan.cut import SubTopology
from headrace_streams.ports import (
    Reader,
    TaskStore,
    TaskStores,
    Topics,
    Writer,
)


@dataclass(frozen=True, slots=True)
class Outside:
    """What a worker works with."""

    topics: Topics
    reader: Reader
    changelogs: Reader
    writer: Writer
    stores: TaskStores
    clock: Clock
    compute: Callable[..., Awaitable[Any]]
    """Runs work that would block the event loop."""


@dataclass(slots=True)
class Owned:
    """A task of this worker."""

    part: SubTopology
    partition: int
    task: Task
    topics: tuple[str, ...]
    """That it reads."""
    store: TaskStore | None
    """None: it keeps nothing but its positions."""
    progress: Progress
    """As of the last commit."""
    positions: dict[str, int] = field(default_factory=dict)
    """Of what was fed."""
    rows_at_ms: dict[str, float] = field(default_factory=dict)
    """When each topic had rows, or was not at its end, by the monotonic clock."""
    idle: set[str] = field(default_factory=set)
    touched: bool = False
    """Whether it has done something since the last commit."""
    changelog: TopicPartition | None = None
    log_id: str = ""
    """Of the changelog's partition: of another, a directory is of no use."""
    basis: dict[str, str] = field(default_factory=dict)
    """What its state belongs to, as the program and its topics are now."""

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.part.name}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Kept:
    """What a commit says of a task."""

    owned: Owned
    progress: Progress
    rows: Changes
    """Of its changelog; empty where it has none."""


def as_output(owned: Owned, rows: Changes) -> Output:
    assert owned.changelog is not None
    keys, values = zip(*rows, strict=True)
    columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    return Output(owned.changelog.topic, pa.table(columns), owned.changelog.partition)


def moved(kept: list[Kept]) -> dict[TopicPartition, int]:
    """The positions that differ from the last commit's. Called before that is replaced."""
    return {
        TopicPartition(topic, k.owned.partition): offset
        for k in kept
        for topic, offset in k.progress.positions.items()
        if offset != k.owned.progress.positions.get(topic)
    }


def no_store(name: str) -> Any:
    raise AssertionError(f"a task without state has no store {name}")
