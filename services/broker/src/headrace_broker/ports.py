"""
What the broker's engine needs from the world.

The storage loop is the only caller of everything here that writes; reads may come from any task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace_broker.core.copying import CopyAnswer, CopyAsk
from headrace_broker.core.leadership import Proposal
from headrace_broker.core.recovered import RecoveredLog, RecoveryReport
from headrace_broker.core.rows import IndexRow, LogId, LogWrite, ProducerRow
from headrace_broker.core.topic_notes import NoteChanges, TopicNote
from headrace_common.core.errors import HeadraceError, StorageFailed
from headrace_common.core.ids import Endpoint, NodeId, Offset, PartitionId, TopicId
from headrace_common.core.image import ClusterImage, Partition, ShardKind


class WriteStalled(Exception):
    """The store is behind with its own work. Nothing was written; write the same group again a little later."""


class BytesLost(StorageFailed):
    """Stored bytes are gone, or are not what was written: to read them again does not help."""


class LogStore(Protocol):
    """
    All logs of this broker on one disk.

    Any write or sync that fails, but for ``WriteStalled``, is final: ``StorageFailed``; the broker fences itself,
    acknowledges nothing more and exits.
    """

    report: RecoveryReport

    def list_recovered(self) -> Sequence[RecoveredLog]:
        """All logs found at opening, strays and damaged ones included. Valid until the first write."""
        ...

    def new_log_id(self) -> LogId:
        """A number that no log of this data directory ever had. Durable with the first write that uses it."""
        ...

    def write(self, writes: Sequence[LogWrite]) -> None:
        """
        Apply all of ``writes`` atomically and in order; not synced. Inline: about 30 µs for 16 KiB.

        Readers see the result at once. Durable when a later ``sync`` returns.

        Raises:
            WriteStalled: nothing was written; retry exactly this group before any other.
            StorageFailed: final.
        """
        ...

    async def sync(self) -> None:
        """Everything whose ``write`` returned before this call is on disk when this returns. One at a time."""
        ...

    def floor(self, log: LogId, offset: Offset) -> IndexRow | None:
        """The row of the batch that holds ``offset``, or the last one before it; None: the log has none."""
        ...

    def index(self, log: LogId, start: Offset, end: Offset) -> Iterator[IndexRow]:
        """Rows with ``start <= base_offset < end``, ascending. Do not write while the iterator is in use."""
        ...

    def producers_before(self, log: LogId, end: Offset) -> tuple[Offset, tuple[ProducerRow, ...]] | None:
        """The newest producer snapshot at or below ``end``, after its offset; None: there is none."""
        ...

    async def read(self, log: LogId, rows: Sequence[IndexRow]) -> list[bytes]:
        """
        The batches of ``rows``, read in a thread, each compared with its row and its checksum.

        Raises:
            BytesLost: a batch is missing, or is not what was written.
            StorageFailed: it cannot be read now.
        """
        ...

    def distrust(self, log: LogId) -> None:
        """
        Durably note that bytes of ``log`` cannot be read: at the next opening it is damaged, and begins anew.

        Raises:
            StorageFailed: the disk refused.
        """
        ...

    def note_synced(self, log: LogId, end: Offset, epoch: int) -> None:
        """
        The log is on disk up to ``end``, whose last batch has ``epoch``: evidence against silent loss.

        Cheap; written to the evidence file within a second, by a thread.
        """
        ...

    async def lower_evidence(self, logs: Sequence[tuple[LogId, Offset, int]]) -> None:
        """Durably lower the evidence to these ends, before a truncation or deletion is written. ``end`` 0: forget."""
        ...

    def free_bytes(self) -> tuple[int, int]:
        """Bytes that can still be written to the data disk, and its size."""
        ...

    async def reclaim(self) -> None:
        """Give the space of deleted data back to the disk, in the background; returns when the request is made."""
        ...

    def read_token(self) -> int | None:
        """The broker epoch that the last clean shutdown left, read once and deleted at opening; None: unclean."""
        ...

    async def close(self, clean_epoch: int | None) -> None:
        """Flush everything and close; with ``clean_epoch`` the shutdown is clean and leaves it as the token."""
        ...


class TimeMemory(Protocol):
    """What a process knows of the time when the last one ended: a wall clock may be wrong from the start."""

    def last_ms(self) -> int | None:
        """What was kept last, by whatever process; None: nothing, or it cannot be read."""
        ...

    async def keep(self, time_ms: int) -> None:
        """
        Durably keep it; a crash leaves this or what was there before.

        Raises:
            StorageFailed: the disk refused; what was there before stands.
        """
        ...


class TopicNotes(Protocol):
    """
    What this broker last heard of the topics that it has logs of; outlives the metadata.

    Notes that are lost or damaged are missing, and never a reason not to start: an image brings them back.
    """

    @property
    def present(self) -> Mapping[TopicId, TopicNote]:
        """All notes that are kept durably; an object that never changes once it was handed out."""
        ...

    async def keep(self, changes: NoteChanges) -> None:
        """
        Durably apply ``changes`` and show them in ``present``; a crash leaves some of them or all. One call at a time.

        Raises:
            StorageFailed: the disk refused; some of it may be there.
        """
        ...


@dataclass(frozen=True, slots=True)
class Disk:
    """What one data directory has for the engine."""

    logs: LogStore
    notes: TopicNotes


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose data a directory holds."""

    cluster_id: str
    broker_id: int
    format: int


class Directory(Protocol):
    """A broker's data directory: whose it is, and how the last process on it ended."""

    @property
    def identity(self) -> Identity | None:
        """None: not bound to a broker of a cluster yet."""
        ...

    @property
    def token(self) -> int | None:
        """The broker epoch that a clean shutdown left here before this opening; None: unclean, or new."""
        ...

    @property
    def emptied(self) -> bool:
        """Whether the store was lost and a new one made, and the cluster has not been told yet."""
        ...

    def bind(self, cluster_id: str, broker_id: int) -> None:
        """
        Durably say whose data this is, once; the same again changes nothing.

        Raises:
            InconsistentClusterId, Rejected: it is another's; the text names both.
            StorageFailed: the disk refused.
        """
        ...

    def forget_gone(self) -> None:
        """The cluster knows what is gone here. Raises StorageFailed."""
        ...


@dataclass(slots=True)
class Storage:
    """What a broker keeps from one process to the next, while it is open."""

    directory: Directory
    disk: Disk
    times: TimeMemory
    clean_epoch: int | None = None
    """Set when the shutdown is clean: it is closed with this as its token."""


@dataclass(frozen=True, slots=True)
class IsrDecision:
    """What the controller says of one proposal: the partition as it is now, or why not."""

    current: Partition | None = None
    error: HeadraceError | None = None


class LeaderStream(Protocol):
    """One open ``Replicate`` stream to a broker. One task sends, another receives."""

    async def send(self, ask: CopyAsk) -> None:
        """
        Say something; returns when the transport has taken it.

        Raises:
            HeadraceError: the stream is broken.
        """
        ...

    async def receive(self) -> CopyAnswer | None:
        """
        What the leader says next; None: it has ended the stream.

        Raises:
            HeadraceError: the stream is broken.
        """
        ...

    async def close(self) -> None:
        """Break the stream off, if it is open."""
        ...


class Leaders(Protocol):
    """The way to other brokers."""

    async def open(self, broker: NodeId, endpoint: Endpoint) -> LeaderStream:
        """
        A new stream to the broker that listens there.

        Raises:
            HeadraceError: it cannot be reached.
        """
        ...


@dataclass(frozen=True, slots=True)
class Enrolment:
    """Partitions that a transaction is about to write to."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[PartitionId, ...]


class TransactionCoordinators(Protocol):
    """The way to the coordinators of transactions."""

    async def enrol(
        self, at: Endpoint, enrolments: Sequence[Enrolment], timeout_ms: float
    ) -> list[HeadraceError | None]:
        """
        Have partitions listed; one answer per enrolment, in order. None: listed, durably, and the transaction is open.

        Several calls may be under way at once. A repeat changes nothing.

        Raises:
            HeadraceError: nothing is known of any of them; ask again.
        """
        ...

    async def keep(self, known: Collection[Endpoint]) -> None:
        """Close connections to all other addresses."""
        ...


class Cluster(Protocol):
    """
    The controller and the image that it keeps, as a registered broker sees them.

    Controllers may be away for any time; the last image then stands. An image is never older than the one before it.
    """

    def images(self) -> AsyncIterator[ClusterImage]:
        """The image each time it changed, newest only, beginning with the present one; never ends."""
        ...

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's newest registration; -1: none."""
        ...

    @property
    def session_ms(self) -> float:
        """After which silence the controller fences a broker."""
        ...

    async def alter_partitions(self, proposals: Sequence[tuple[PartitionId, Proposal]]) -> list[IsrDecision]:
        """
        Ask for new ISRs, or for other leaders; one answer per proposal, in order.

        Raises:
            HeadraceError: nothing is known of any of them; ask again later.
        """
        ...

    def say_disk_low(self, low: bool) -> None:
        """Say from now on that this broker's disk has no room, so that others lead, or that it has again."""
        ...

    async def confirm_deletions(self, topic_ids: Sequence[TopicId], partitions: Sequence[PartitionId] = ()) -> None:
        """
        Say that this broker's logs of these topics, and of these single partitions, are gone.

        Raises:
            HeadraceError: nothing was noted, or it is unknown; say it again later.
        """
        ...

    async def allocate_producer_ids(self) -> range:
        """
        Producer ids that nobody else ever gets.

        Raises:
            HeadraceError: none were given.
        """
        ...

    async def ensure_internal_topic(self, kind: ShardKind) -> int:
        """
        Have an internal topic made unless it is there; the revision of an image that has it.

        Raises:
            HeadraceError: there is none, as far as known; ask again.
        """
        ...
