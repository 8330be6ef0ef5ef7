"""What a worker needs from outside: records, transactions, topics, disks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headrace.group_types import ConsumerGroupMetadata
from headrace.records import Committed, PartitionTable, TopicPartition
from headrace.work_types import WorkChange
from headrace_common.core.distribution import Distribution
from headrace_streams.core.outputs import Limits, Output
from headrace_streams.core.snapshots import Snapshot
from headrace_streams.core.state.changelog import Progress
from headrace_streams.core.state.store import Changes, Cold
from headrace_streams.plan.known import Known

Positions = Mapping[TopicPartition, int]


class Reading(Protocol):
    """What a worker counts; read by another thread."""

    gauges: Mapping[str, str]
    """Names, and what they mean."""
    counters: Mapping[str, str]
    commit_time: Distribution

    def values(self, name: str, now_ms: float) -> Iterable[tuple[float, Mapping[str, str]]]:
        """Those of one name, with their labels."""
        ...


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


@dataclass(frozen=True, slots=True)
class Shared:
    """What the workers of an app share."""

    tasks: frozenset[str] = frozenset()
    """By label."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """The columns of the rows that they send to each other, by repartition topic."""


class Topics(Protocol):
    """Administration, as far as an app needs it."""

    async def find(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        """
        Those of the topics that exist.

        Raises:
            HeadraceError: nobody answers.
        """
        ...

    async def names(self) -> list[str]:
        """
        Of all topics.

        Raises:
            HeadraceError: nobody answers.
        """
        ...

    async def make(self, topics: Sequence[InternalTopic]) -> dict[str, TopicFacts]:
        """
        Make the topics that are not there; what is there is told, and left as it is, but that it takes any event time.

        Raises:
            HeadraceError: one cannot be made.
        """
        ...

    async def limits(self, names: Sequence[str]) -> dict[str, Limits]:
        """
        What topics take that exist; whatever brokers take, where the app may not see the settings of one.

        Raises:
            HeadraceError: nobody answers.
        """
        ...

    async def trim(self, positions: Positions) -> None:
        """Delete the records of repartition topics below these offsets."""
        ...

    async def shared(self, app: str) -> Shared:
        """
        What workers of an app share now; nothing if no worker is a member.

        Raises:
            HeadraceError: nobody answers.
        """
        ...

    async def positions(self, app: str) -> dict[TopicPartition, int]:
        """
        The app's positions; those of a transaction that is open do not count, and are not waited for.

        Raises:
            HeadraceError: nobody answers.
        """
        ...

    async def known(self, app: str) -> Known:
        """
        What the group of an app says of it, also while no worker runs; nothing if there is no such group.

        Raises:
            HeadraceError: nobody answers.
        """
        ...


class Reader(Protocol):
    """
    Reads committed records of partitions that it is told. Positions are the worker's: nothing is committed here.
    """

    async def assign(self, positions: Positions) -> None:
        """
        Read exactly these partitions, from these offsets on; -1: from the start of the log. The next poll tells of each
        where it is, also of those that go on where they were.
        """
        ...

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out nothing of exactly these, until told otherwise or assigned anew."""
        ...

    async def poll(self, timeout_ms: float, max_rows: int) -> list[PartitionTable]:
        """
        Records by partition, and progress without records.

        Raises:
            PositionOutOfRange: a position is not in the log any more; names it.
            HeadraceError: reading cannot go on.
        """
        ...

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        """The app's positions, when no transaction that changes them is open. None: never committed."""
        ...

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks: everything that was decided before the call is below."""
        ...

    async def at_ends(self, partitions: Sequence[TopicPartition]) -> Collection[TopicPartition]:
        """
        Which of these, that are read, have nothing left to hand out, as their brokers say now. None of them, if one
        does not answer soon.
        """
        ...

    async def starts(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offsets that exist."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class Sent(Protocol):
    """Records on their way."""

    def end(self) -> int:
        """The offset behind the last of them, once the transaction is committed; all went to one partition."""
        ...


class Membership(Protocol):
    """A worker's place among those that share the app's tasks. ``headrace.aio.WorkGroup`` says what each call means."""

    @property
    def transactional_id(self) -> str | None:
        """Of this membership's writer."""
        ...

    def group_metadata(self) -> ConsumerGroupMetadata:
        """
        Who commits positions now.

        Raises:
            UnknownMemberId: others have its tasks by now.
        """
        ...

    async def poll(self, timeout_ms: float = 0) -> WorkChange | None:
        """
        What has changed since; None: nothing.

        Raises:
            HeadraceError: it cannot be a member.
        """
        ...

    def give_up(self, *items: str) -> None:
        """Nothing runs of these any more."""
        ...

    def report(
        self,
        *,
        lags: Mapping[str, int] | None = None,
        refused: Mapping[str, int] | None = None,
        ended: Iterable[str] = (),
    ) -> None:
        """How far it is with what it follows; which tokens were refused; whose transactions it has ended."""
        ...

    async def close(self) -> None:
        """Leave: its tasks go to others at once."""
        ...


class Writer(Protocol):
    """Writes in transactions under a membership's transactional id. Each error says by ``then`` what to do."""

    async def fence(self, partition: TopicPartition, token: int) -> int:
        """
        Become the only writer of a partition, in a transaction or outside; where the fence stands.

        Raises:
            FencedWriter: another has a higher token.
        """
        ...

    async def begin(self) -> None:
        """Open a transaction."""
        ...

    async def send(self, output: Output) -> Sent:
        """Accept records; waits for room, not for the broker."""
        ...

    async def send_at_once(self, output: Output) -> None:
        """Accept records that are of no transaction: who reads them does not wait for one."""
        ...

    async def flush(self) -> None:
        """Wait until all that was sent is in its logs, or has failed, which ``commit`` tells."""
        ...

    async def behind(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """
        Offsets that lie behind everything that was acknowledged in these before the call: of records that nobody sees,
        in a transaction that is aborted. The end of a log that a broker tells may be that of a leader that was deposed.

        Raises:
            HeadraceError: one was not written.
        """
        ...

    async def commit(self, positions: Mapping[TopicPartition, Committed]) -> None:
        """
        Deliver everything, what was sent at once first, and commit with these positions; asks until the verdict is
        known.

        Raises:
            HeadraceError: not committed: ``abort``, unless ``then`` says "fenced".
        """
        ...

    async def abort(self) -> None:
        """
        Drop what was sent since ``begin``, but for what was sent at once; asks until that is certain.

        Raises:
            HeadraceError: another writer has taken over.
        """
        ...

    async def close(self) -> None:
        """Let go; what is open is aborted."""
        ...


class Writers(Protocol):
    """Makes writers, and ends those of others."""

    async def open(self, membership: Membership) -> Writer:
        """The membership's own; positions are committed as that member."""
        ...

    async def end(self, transactional_id: str) -> None:
        """Fence a writer that is no member any more: what it left open is decided when this returns."""
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

    def room(self) -> AbstractContextManager[Path]:
        """
        An empty directory on the same disk, for a copy; deleted in the end.

        Raises:
            StorageFailed: the disk refuses.
        """
        ...

    def copy(self, directory: Path) -> None:
        """
        Copy everything into an empty directory, as of one commit, while others write.

        Raises:
            StorageFailed: the disk refuses, or it is closed.
        """
        ...

    def replace(self, directory: Path) -> None:
        """
        Have what a copy holds, instead of what is here; its files are moved.

        Raises:
            StorageFailed: the disk refuses, or it is no such copy. ``wipe`` makes it usable again.
        """
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

    def tidy(self, oldest_ms: int) -> Mapping[tuple[str, int], Checkpoint]:
        """
        Delete what is not open, and has no checkpoint or an older one; the checkpoints of what else is not open, by
        sub-topology and partition.

        Raises:
            StorageFailed: the disk refuses.
        """
        ...


class Snapshots(Protocol):
    """Copies of cold tiers, at a place that outlives machines. Any call may be cancelled."""

    async def find(self, task: str) -> list[Snapshot]:
        """
        What there is of a task, complete or not.

        Raises:
            HeadraceError: the place cannot be read.
        """
        ...

    async def put(self, task: str, snapshot: Snapshot, directory: Path) -> None:
        """
        Write the files of a copy; the snapshot is complete when this returns, and not before.

        Raises:
            HeadraceError: it is not complete.
        """
        ...

    async def get(self, task: str, snapshot: Snapshot, directory: Path) -> None:
        """
        Bring the files of a copy into an empty directory.

        Raises:
            SnapshotDamaged: some are missing or not what was written.
            HeadraceError: the place cannot be read, or the disk refuses.
        """
        ...

    async def delete(self, task: str, snapshot: Snapshot) -> None:
        """
        Delete it; while it is being deleted it is not complete.

        Raises:
            HeadraceError: something of it is left.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store of the app."""

    name: str
    sub_topology: str
    """Its tasks are ``<sub_topology>/0`` and so on."""
    partitions: int
    keys: Sequence[pa.Field[Any]] = ()
    """The columns of its keys; empty: the keys of records, whatever they are."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a store in one task."""

    store: str
    partition: int
    key: bytes | None = None
    """Of the rows those of this key."""
    stale: bool = False
    """A task that is only followed will do."""
    topic: str = ""
    """With ``offset``: a record of the same partition that the state must contain. Empty: none."""
    offset: int = -1
    wait_ms: int = 0
    """How long to wait for that record."""
    first: bytes | None = None
    """Of the rows those whose keys are not below."""
    last: bytes | None = None
    """Of the rows those whose keys are not above."""


class Answering(Protocol):
    """Knows what the tasks of a worker have kept."""

    def stores(self) -> Sequence[StoreInfo]:
        """
        Of the app, whoever has them.

        Raises:
            CoordinatorNotAvailable: the worker has just started.
        """
        ...

    def locate(self, store: str, texts: Sequence[str]) -> tuple[bytes, int]:
        """
        The key that texts stand for, one for each of its columns, and its partition.

        Raises:
            NotFound: the app has no such store.
            Rejected: its keys have other columns.
        """
        ...

    async def rows(self, asked: Question) -> pa.Table | None:
        """
        Rows of a store in one task, committed; None: it has nothing that can be shown.

        Raises:
            NotFound: the app has no such store.
            NotCoordinator: the task is elsewhere, or is being taken over.
            OffsetNotAvailable: the record that it is to contain is not in it yet.
            Rejected: the task does not read that record's topic.
        """
        ...


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """One topic of the cluster."""

    facts: TopicFacts
    configs: Mapping[str, str]
    """What was set for it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a partition of a changelog has of one store."""

    keys: Sequence[bytes]
    """That hold something."""
    progress: Progress
    """Of the newest commit."""
    end: int
    """The high watermark up to which this is all."""


class Upkeep(Protocol):
    """What a cluster has of apps, and how to change it while none of an app's workers runs."""

    async def topics(self) -> dict[str, ListedTopic]:
        """All of the cluster, by name."""
        ...

    async def groups(self) -> dict[str, int]:
        """All groups, with their numbers of members."""
        ...

    async def work_groups(self) -> list[str]:
        """Those of the groups whose members share named work, as workers of apps do, and others."""
        ...

    async def has_event_times(self, group: str) -> bool:
        """Whether there are event times beside the positions of a group: tasks of an app without state have them."""
        ...

    async def members(self, app: str) -> int:
        """Of the app's group; 0 also if there is no such group."""
        ...

    async def known(self, app: str) -> Known:
        """What the group of an app says of it, also while no worker runs; nothing if there is no such group."""
        ...

    async def committed(self, app: str) -> dict[TopicPartition, int]:
        """The positions of the app's group."""
        ...

    async def targets(
        self, app: str, topics: Sequence[str], to: str | Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """
        Offsets in all partitions of these topics: the ends (``"latest"``), those of a time, or what is given, which
        names its topics itself. What lies outside a log is moved to its nearer end.
        """
        ...

    async def progress(self, changelogs: Sequence[TopicPartition]) -> dict[TopicPartition, Progress]:
        """What the newest commit of each task says, by its changelog; of those that have made one."""
        ...

    async def is_empty(self, topic: str) -> bool:
        """Whether no record was ever written to it."""
        ...

    async def make(self, topics: Sequence[InternalTopic]) -> None:
        """Make those that are not there."""
        ...

    async def delete(self, topic: str) -> None:
        """Delete a topic; one that is not there is fine."""
        ...

    async def forget(self, app: str, partitions: Sequence[TopicPartition]) -> None:
        """Forget the group's positions in these."""
        ...

    async def begin(self, app: str, positions: Positions) -> None:
        """
        Open a transaction that holds positions of the group. Who asks for stable positions waits until it has ended.
        What an earlier one left open is aborted.
        """
        ...

    async def take_over(self, partition: TopicPartition) -> None:
        """
        Become the partition's only writer: whatever a worker of before still sends is refused, and what an earlier
        reset left open is aborted.
        """
        ...

    async def read(self, partition: TopicPartition, prefix: bytes) -> Stored:
        """
        What a changelog has of one store, once each transaction in it has been decided.

        Args:
            prefix: what the store's keys begin with.

        Raises:
            WaitTimedOut: one has not been decided.
        """
        ...

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Their high watermarks."""
        ...

    async def append(self, partition: TopicPartition, rows: Changes) -> None:
        """Write rows of a changelog in the open transaction."""
        ...

    async def send(self, output: Output) -> None:
        """Write records of another topic in the open transaction."""
        ...

    async def commit(self) -> None:
        """Commit all that, and the positions."""
        ...

    async def abort(self) -> None:
        """Drop it, if one is open."""
        ...
