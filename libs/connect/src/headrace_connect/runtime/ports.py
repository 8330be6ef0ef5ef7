"""What tasks need of the outside: a log to write and to read, positions, dead letters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.records import PartitionTable, TopicPartition
from headrace_connect.plugin import Position, Rows

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """Records for one topic, in their order."""

    topic: str
    table: pa.Table
    """
    Columns ``value`` and ``key`` (binary, may be null), and where they are known ``timestamp_ms`` (int64),
    ``partition`` (int32; null: the key decides) and ``headers`` (lists of ``{"key": text, "value": bytes}``).
    """
    rows: Ints | None = None
    """Which rows of their chunk they are. None: they are none of it, but dead letters, notes, or of ``further``."""


class Sent(Protocol):
    """Records that were sent."""

    async def places(self) -> tuple[Ints, Ints]:
        """The partition and the offset of each, in their order; waits until they are written."""
        ...


class SourceWriter(Protocol):
    """
    A task's way into its topics. Records and positions between ``begin`` and ``commit`` are seen together or not at
    all, unless the connector is told to do without transactions. Each error says by ``then`` what to do.
    """

    async def begin(self) -> None:
        """Open a transaction."""
        ...

    async def send(self, records: Outgoing) -> Sent:
        """Accept records; makes the topic where there is none. Waits for room, not for the broker."""
        ...

    async def send_positions(self, positions: Mapping[str, Position]) -> None:
        """Accept positions of splits."""
        ...

    async def commit(self) -> None:
        """
        Deliver everything and commit. With ``then == "retry"`` nobody can tell yet: the same call again.
        """
        ...

    async def abort(self) -> None:
        """Drop what was sent since ``begin``."""
        ...

    async def close(self) -> None:
        """Let go; what is open is aborted, or will be by the next one."""
        ...


class SourceLog(Protocol):
    """Where a source's task writes, and what was committed of it."""

    async def claim(self) -> SourceWriter:
        """
        Claim the connector's owner with the task's generation and take the task's id: nothing that older tasks have
        begun is ever committed after this.

        Raises:
            FencedOwner: a newer generation was here.
        """
        ...

    async def locate(self, splits: Collection[str]) -> Mapping[str, Position]:
        """
        What is committed of these splits, as of the high watermark that the offset topic has now; waits for
        transactions that were begun before it. Splits without a position are left out.
        """
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class GroupListener(Protocol):
    """Is told what the group gives and takes; called within ``poll``."""

    async def on_assign(self, partitions: Collection[TopicPartition], epoch: int) -> None:
        """These are this member's, at this epoch of it."""
        ...

    async def on_revoke(self, partitions: Collection[TopicPartition]) -> None:
        """These are given up when it returns."""
        ...

    async def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Others may have these already."""
        ...


class GroupReader(Protocol):
    """A member of a sink's group; reads what is committed."""

    async def join(self, listener: GroupListener) -> None:
        """Become a member."""
        ...

    async def rejoin(self) -> None:
        """Leave, and become a new member, at a higher epoch. The listener is told of what is given up."""
        ...

    async def poll(self, timeout_ms: float, rows_max: int, bytes_max: int) -> Sequence[PartitionTable]:
        """
        Records by partition, and progress without records; none while paused. Each partition is heard of after it was
        assigned or sought.

        Args:
            bytes_max: no batch follows one that reaches it.
        """
        ...

    async def lags(self) -> Mapping[TopicPartition, int]:
        """Of its partitions: how much there is behind what was polled. Also while paused, and beside ``poll``."""
        ...

    def pause(self, paused: bool) -> None:
        """Whether to hand out nothing, also of partitions that come."""
        ...

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read on from there."""
        ...

    async def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit the group's offsets."""
        ...

    async def close(self) -> None:
        """Leave."""
        ...


class DeadLetters(Protocol):
    """A sink's way into the topic of its dead letters."""

    async def undecided(self) -> bytes | None:
        """The token of what an earlier task has prepared and nobody has decided. Called once, first."""
        ...

    async def prepare(self, records: Outgoing) -> bytes:
        """Send in a transaction and prepare it: durable, and seen by nobody before it is decided."""
        ...

    async def decide(self, token: bytes, *, commit: bool) -> None:
        """Decide what was prepared; the same again does nothing."""
        ...

    async def send(self, records: Outgoing) -> None:
        """Send without a transaction; in the topic when it returns."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class Prepared(Protocol):
    """Transactions of the cluster that are prepared and not decided."""

    async def find(self) -> Sequence[tuple[str, bytes]]:
        """
        Transactional ids and tokens, of all that this client may see; none is left out.

        Raises:
            HeadraceError: a coordinator does not say what it has.
        """
        ...

    async def decide(self, token: bytes, *, commit: bool) -> None:
        """
        Decide one; the same again does nothing.

        Raises:
            AlreadyDecided: it was decided the other way.
        """
        ...


class SourceSpans(Protocol):
    """Traces what a source's task sends: a span for each topic of a commit."""

    def send(self, records: Outgoing) -> Outgoing:
        """These are about to be sent; what is to be sent in their place, as their headers carry the trace."""
        ...

    def commit(self) -> None:
        """All that was sent is committed."""
        ...

    def drop(self, reason: str) -> None:
        """None of it will be, of what there is."""
        ...


class SinkSpans(Protocol):
    """Traces what a sink's task writes: a span for each batch, until it is committed."""

    def write(self, partition: TopicPartition, rows: Sequence[Rows]) -> AbstractContextManager[None]:
        """The block writes these, under their span."""
        ...

    def commit(self, partitions: Collection[TopicPartition]) -> None:
        """What was written of these is in the target."""
        ...

    def drop(self, reason: str, partitions: Collection[TopicPartition] | None = None) -> None:
        """What was written of these, or of all, and is not committed is written again, or by others."""
        ...


class Steps(Protocol):
    """Told of each step that a task comes to; a test stops tasks there."""

    async def reach(self, step: str) -> None:
        """The task has come to ``step``."""
        ...
