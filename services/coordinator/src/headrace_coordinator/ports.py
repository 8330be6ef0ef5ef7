"""What the coordinator's engine needs from the world: the cluster, the log of each shard, ends of logs, patterns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import Endpoint, Offset, PartitionId
from headrace_common.core.image import ClusterImage, Role, ShardKey

Record: TypeAlias = tuple[bytes, bytes | None]
"""Key and value; the last value of a key counts, and None takes the key away."""


class Cluster(Protocol):
    """The cluster image, and whether this process still has its place in it."""

    @property
    def image(self) -> ClusterImage:
        """The newest image; revision 0 until the first has come."""
        ...

    def images(self) -> AsyncIterator[ClusterImage]:
        """The image each time it changed, newest only, beginning with the present one; never ends."""
        ...

    @property
    def tenure_until_ms(self) -> float:
        """
        Monotonic ms until which the controller surely gives this node's shards to nobody else because of its silence.

        Counted from when the last answered heartbeat was *sent*, so a process that was paused finds it in the past.
        Minus infinity: the node is fenced, or does not know the image yet in which it is not: what was taken from it
        while it was silent stands in images before that.
        """
        ...


class Revisions(Protocol):
    """How new images can be."""

    async def newest_revision(self) -> int:
        """
        The revision of the active controller's image, which is not older than any other was when this was asked.

        Raises:
            HeadraceError: no controller answered in time.
        """
        ...


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a log, decoded: records in the order of the log, control records left out."""

    keys: list[bytes | None]
    values: list[bytes | None]
    next_offset: Offset


class ShardLog(Protocol):
    """
    The partition of one shard, written under one fencing token. One task writes, strictly one append at a time.

    Every method but ``close`` goes on trying, with pauses, while the outcome is unknown or the partition has no leader
    or too few replicas; whoever gives up cancels it.
    """

    async def take_over(self) -> Offset:
        """
        Make the token the partition's own, so that no earlier writer appends any more; durable when this returns.

        Repeatable: under a token that is the partition's already it proves that this still holds.

        Returns:
            The offset up to which to read for everything that earlier writers have committed.

        Raises:
            FencedWriter: the partition has a higher token; this writer is too late.
        """
        ...

    def read(self, until: Offset) -> AsyncIterator[Slice]:
        """
        All committed records from the log's start to ``until``, in slices of some MB.

        Raises:
            CorruptBatch, UnsupportedVersion: a batch cannot be decoded; the shard cannot be served.
        """
        ...

    async def append(self, records: Sequence[Record]) -> None:
        """
        Write ``records`` behind everything that was appended before; durable (acks=all) when this returns.

        They may end up in the log more than once, but never behind a later append.

        Args:
            records: each key once. Empty: write a note that says nothing, to prove that the token still holds.

        Raises:
            FencedWriter: the partition has another token; nothing of this writer will ever be appended again.
            HeadraceError: refused for good (a record is too large); earlier parts may have been written.
        """
        ...

    async def close(self) -> None:
        """Give up what belongs to this log alone."""
        ...


class ShardLogs(Protocol):
    """The partitions of ``__consumer_offsets`` and ``__transaction_state``."""

    def open(self, key: ShardKey, token: int) -> ShardLog:
        """The log of shard ``key``, to be written under ``token`` (the shard's epoch)."""
        ...


class LogEnds(Protocol):
    """Where the logs of any partitions end."""

    async def ends(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, Offset]:
        """The end offsets that consumers see, of those partitions whose leader answered in time."""
        ...


@dataclass(frozen=True, slots=True)
class Destination:
    """Who takes ends of transactions: the leader of partitions, or the coordinator of shards of groups."""

    role: Role
    at: Endpoint


class Marker(NamedTuple):
    """The end of one transaction."""

    producer_id: int
    epoch: int
    """Above that of all its records."""
    commit: bool


MarkerErrors: TypeAlias = Sequence[Sequence[HeadraceError | None]]
"""Per marker and partition of a request, in its order; None: the partition has it."""


class Markers(Protocol):
    """Ends of transactions to those who keep their partitions."""

    async def write(self, to: Destination, markers: Sequence[tuple[Marker, Sequence[PartitionId]]]) -> MarkerErrors:
        """
        Write these ends; where there is no error it is committed, or was before.

        Raises:
            HeadraceError: nothing is known; they may have been written.
        """
        ...


class Enrolments(Protocol):
    """The coordinators of transactions, as shards of groups need them."""

    async def enrol(self, transactional_id: str, producer_id: int, producer_epoch: int, shard: int) -> None:
        """
        Make ``shard`` of ``__consumer_offsets`` part of the open transaction, or open it; one attempt, repeatable.

        Durable when this returns: the end of the transaction will be told to whoever keeps the shard.

        Raises:
            InvalidProducerEpoch, ProducerFenced, InvalidProducerIdMapping, InvalidTxnState: it will not happen.
            ConcurrentTransactions: the end of the transaction before takes long.
            HeadraceError: it did not happen now, or nobody knows.
        """
        ...


class ProducerIds(Protocol):
    """Where new producer ids come from."""

    async def next_id(self) -> int:
        """
        An id that nobody has.

        Raises:
            HeadraceError: none was given; try again.
        """
        ...


class Patterns(Protocol):
    """Regular expressions of subscriptions."""

    def check(self, pattern: str) -> None:
        """
        Raises:
            InvalidRegularExpression: too long, or it cannot be read; the text says where.
        """
        ...

    def find_matching(self, pattern: str, names: Iterable[str]) -> frozenset[str]:
        """The ``names`` that match as a whole, in time linear in their lengths."""
        ...


class Measures(Protocol):
    """What is counted and timed; nothing here fails or waits."""

    def appended(self, records: int, ms: float) -> None:
        """One append is durable; ``ms`` from its first request on, repetitions included."""
        ...

    def committed(self, ms: float) -> None:
        """One CommitOffsets call was answered."""
        ...

    def loaded(self, records: int, ms: float) -> None:
        """A shard is served; ``ms`` from the order to take it on."""
        ...

    def rebalanced(self) -> None:
        """A group of the classic protocol has a new generation."""
        ...

    def assigned(self) -> None:
        """A member of the server-side protocol was sent another assignment."""
        ...

    def lost(self) -> None:
        """A shard was given up because another writer has it."""
        ...

    def decided(self, ms: float) -> None:
        """One EndTxn, DecidePrepared or CommitUnit call was answered."""
        ...

    def ended(self, commit: bool, cause: str, ms: float) -> None:
        """A transaction is over; ``ms`` from its verdict to its last marker."""
        ...
