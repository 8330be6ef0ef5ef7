"""What the engine needs from the world outside the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Protocol

from headrace_common.core.errors import Busy, ErrorCode, Internal, MetadataUnavailable, UnknownOutcome
from headrace_common.core.ids import Endpoint, PartitionId, TopicId
from headrace_common.core.image import Node
from headrace_common.runtime.audit import StartKey
from headrace_controller.core.election import LogEnd
from headrace_controller.core.held import Inventory
from headrace_controller.core.issuing import Fetched, WantedIssuer
from headrace_controller.core.sessions import Heartbeat
from headrace_controller.core.store import Changes, KeyValue, Listing, Outcome, Transaction


class StoreUnavailable(MetadataUnavailable):
    """The metadata store cannot be reached; nothing was changed. Try again when etcd is back."""


class StoreOutcomeUnknown(UnknownOutcome):
    """The metadata store did not answer in time; the change may have happened. Look before you repeat it."""

    code = ErrorCode.METADATA_UNAVAILABLE


class TransactionTooLarge(Internal):
    """A transaction has more operations or bytes than the store takes; nothing was changed."""


class KeysUnavailable(Busy):
    """The keys of an issuer cannot be read now; the text says why."""


class LeaseLost(Exception):
    """The lease does not exist any more; every key under it is gone."""


class HistoryCompacted(Exception):
    """The store no longer has the changes from the revision asked for; list again."""


class HistoryRewound(Exception):
    """The store's revision is below one that was seen: it lost data or was restored."""


class MetadataStore(Protocol):
    """
    An ordered key-value store with transactions, watches and leases: etcd, under one cluster's prefix.

    Every change has a revision, above all before it. All calls are safe to make concurrently and end within the
    adapter's request timeout.
    """

    async def list_all(self) -> Listing:
        """
        Everything under the prefix, at one revision, linearizable.

        Raises:
            StoreUnavailable: not reachable or too slow; reading changes nothing, so this is the only failure.
        """
        ...

    async def get(self, key: str) -> KeyValue | None:
        """
        One key, linearizable.

        Raises:
            StoreUnavailable: as for ``list_all``.
        """
        ...

    async def commit(self, transaction: Transaction) -> Outcome:
        """
        Compare, then write everything or nothing. Durable on a quorum of the store when this returns.

        Raises:
            StoreUnavailable: surely nothing was changed.
            StoreOutcomeUnknown: it may have happened, or may still happen.
            TransactionTooLarge: above 128 comparisons or operations, or above 1.5 MB; nothing was sent.
            LeaseLost: a put names a lease that does not exist; nothing was changed.
        """
        ...

    def watch(self, from_revision: int) -> AbstractAsyncContextManager[AsyncIterator[Changes]]:
        """
        Every change under the prefix from ``from_revision`` on, in order, each once, revisions never torn apart.

        The block is entered when the store has accepted the watch. One watch survives no disconnection: it raises,
        and the caller resumes with a new one from the revision after the last it has seen.

        Raises:
            StoreUnavailable: the connection broke, or the store has no leader.
            HistoryCompacted: list again and compare.
            HistoryRewound: the store is behind ``from_revision - 1``.
        """
        ...

    async def grant_lease(self, ttl_s: int) -> int:
        """
        A new lease's id.

        Raises:
            StoreUnavailable: no lease can be used; one may have been granted, it ends by itself.
        """
        ...

    async def keep_lease(self, lease: int) -> None:
        """
        Give the lease its whole time again.

        Raises:
            LeaseLost: it has expired or was revoked.
            StoreUnavailable: not known whether it was renewed.
        """
        ...

    async def revoke_lease(self, lease: int) -> None:
        """
        End the lease and delete its keys now; a lease that is gone is no error.

        Raises:
            StoreUnavailable: not known whether it was revoked; it ends by itself when nobody keeps it.
        """
        ...


class ProbeResult(Enum):
    """What a look at a node's own address said."""

    SAME = "the process that registered answers"
    OTHER = "another process answers"
    REFUSED = "nobody listens; the kernel of that machine said so"
    SILENT = "no answer: paused, cut off or lost"
    ANSWERS = "somebody listens, but says not who it is"


class NodeProbe(Protocol):
    """Looks whether a node's process lives, at the node's own address."""

    async def probe(self, node: Node) -> ProbeResult:
        """One look, at most one second. Never raises for what the node does."""
        ...

    async def listens(self, endpoint: Endpoint) -> ProbeResult:
        """Whether anybody listens there: ``ANSWERS``, ``REFUSED`` or ``SILENT``; at most half a second."""
        ...


class LogEndsSource(Protocol):
    """Asks brokers where their logs end."""

    async def log_ends(self, node: Node, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, LogEnd]:
        """
        Last epoch and end, verified and on disk, of those of ``partitions`` (1 to 10,000) that the broker holds
        undamaged; at most two seconds.

        Raises:
            HeadraceError: refused, not reachable, or another process answers there.
        """
        ...


class InventorySource(Protocol):
    """Asks brokers what they have on their disks."""

    async def inventory(self, node: Node, topic_ids: Sequence[TopicId]) -> Inventory:
        """
        All logs of these topics (0 to 10,000; none: of all topics), strays and damaged ones included, and what the
        broker noted of the topics; at most half a minute.

        Raises:
            HeadraceError: refused, not reachable, too old a version, or another process answers there.
        """
        ...


class IssuerSource(Protocol):
    """Where the keys of issuers are."""

    async def fetch(self, wanted: WantedIssuer) -> Fetched:
        """
        Its keys as they are now; ends within some seconds.

        Raises:
            KeysUnavailable: they cannot be read, or are none.
        """
        ...


class ControllerPeer(Protocol):
    """The active controller, as another controller sees it."""

    async def register(self, target: Endpoint, node: Node, cluster_id: str, start: StartKey | None = None) -> int:
        """
        Register this controller there and return its epoch.

        Args:
            start: of its audit; None: it writes none.

        Raises:
            HeadraceError: refused, or not reachable.
        """
        ...

    async def heartbeat(self, target: Endpoint, heartbeat: Heartbeat) -> None:
        """
        Say that this controller lives.

        Raises:
            HeadraceError: refused, or not reachable.
        """
        ...
