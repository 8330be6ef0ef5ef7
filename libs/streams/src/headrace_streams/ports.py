"""What a worker needs from outside: records, transactions, topics, disks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.records import PartitionTable, TopicPartition
from headrace_streams.core.outputs import Output
from headrace_streams.core.state.store import Changes, Cold

Positions = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that the app makes for itself."""

    name: str
    partitions: int
    compacted: bool


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What is known of a topic that exists."""

    topic_id: str
    partitions: int


class Topics(Protocol):
    """Administration, as far as an app needs it."""

    async def find(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        """
        Those of the topics that exist.

        Raises:
            HeadraceError: nobody answers.
        """
        ...

    async def make(self, topics: Sequence[InternalTopic]) -> dict[str, TopicFacts]:
        """
        Make the topics that are not there; what is there is left as it is, and told.

        Raises:
            HeadraceError: one cannot be made.
        """
        ...

    async def trim(self, positions: Positions) -> None:
        """Delete the records of repartition topics below these offsets."""
        ...


class Reader(Protocol):
    """
    Reads committed records of partitions that it is told. Positions are the worker's: nothing is committed here.
    """

    async def assign(self, positions: Positions) -> None:
        """Read exactly these partitions, from these offsets on; -1: from the start of the log."""
        ...

    async def poll(self, timeout_ms: float, max_rows: int) -> list[PartitionTable]:
        """
        Records by partition, and progress without records.

        Raises:
            PositionOutOfRange: a position is not in the log any more; names it.
            HeadraceError: reading cannot go on.
        """
        ...

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The app's positions, when no transaction that changes them is open. None: never committed."""
        ...

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks: everything that was decided before the call is below."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class Sent(Protocol):
    """Records on their way."""

    def end(self) -> int:
        """The offset behind the last of them, once the transaction is committed; all went to one partition."""
        ...


class Writer(Protocol):
    """Writes in transactions under the app's transactional id. Each error says by ``then`` what to do."""

    async def start(self) -> None:
        """Become the only writer: what an earlier one left open is aborted, and it is fenced."""
        ...

    async def begin(self) -> None:
        """Open a transaction."""
        ...

    async def send(self, output: Output) -> Sent:
        """Accept records; waits for room, not for the broker."""
        ...

    async def commit(self, positions: Positions) -> None:
        """
        Deliver everything and commit it with these positions; asks until the verdict is known.

        Raises:
            HeadraceError: not committed: ``abort``, unless ``then`` says "fenced".
        """
        ...

    async def abort(self) -> None:
        """
        Drop what was sent since ``begin``; asks until that is certain.

        Raises:
            HeadraceError: another writer has taken over.
        """
        ...

    async def close(self) -> None:
        """Let go; what is open is aborted."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Up to where a cold tier has followed its changelog."""

    log_id: str
    """Of the partition of the changelog: the id of its topic, and its number."""
    next_offset: int
    at_ms: int
    """When that was, by the clock."""


class TaskStore(Protocol):
    """
    The cold tier of one task: its changelog's newest rows. Changes are whole or not there after a crash, with the
    checkpoint that belongs to them; the newest may be missing, and are in the changelog.
    """

    def checkpoint(self) -> Checkpoint | None:
        """None: nothing is here."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """One row of the changelog."""
        ...

    def cold(self, store: str) -> Cold:
        """The rows of one store."""
        ...

    def write(self, rows: Changes, checkpoint: Checkpoint) -> None:
        """Apply rows of the changelog, in their order."""
        ...

    def wipe(self) -> None:
        """Forget everything."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class TaskStores(Protocol):
    """Where the cold tiers of a worker are."""

    def open(self, sub_topology: str, partition: int) -> TaskStore:
        """
        Raises:
            StorageFailed: the disk refuses, or another process has it.
        """
        ...
