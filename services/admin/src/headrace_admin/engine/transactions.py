"""
Transactions as their coordinators have them: which there are, what each writes to, deciding and aborting them.

Lists ask every coordinator at once and say which shards are missing; everything else goes to the coordinator of the
transactional id. What is open in the logs, whoever knows of it, is ``open_transactions``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from headrace_admin.config import TransactionLimits
from headrace_admin.engine.coordination import LIST_MS_MAX, Coordination, Unanswered
from headrace_admin.ports import Cluster, CoordinatorPlace, Coordinators
from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.errors import (
    HeadraceError,
    InvalidTxnState,
    Rejected,
    TransactionalIdNotFound,
    error_for,
)
from headrace_common.core.ids import NodeId, PartitionId, TopicId, TopicPartition
from headrace_common.core.image import ClusterImage
from headrace_common.runtime.access_gate import audited, by_itself
from headrace_common.runtime.clock import Clock
from headrace_proto.v1 import errors_pb2
from headrace_proto.v1 import transaction_pb2 as pb

IDS_MAX: Final = 1_000
"""Transactional ids of one request."""
_OPEN: Final = frozenset({pb.TXN_ONGOING, pb.TXN_PREPARED})
_ENDING: Final = frozenset({pb.TXN_PREPARE_COMMIT, pb.TXN_PREPARE_ABORT})


@dataclass(frozen=True, slots=True)
class Listed:
    """A transactional id, and who coordinates it."""

    transaction: pb.TransactionListing
    coordinator: NodeId


@dataclass(frozen=True, slots=True)
class Listing:
    """Transactional ids by name, and the shards that are missing."""

    transactions: tuple[Listed, ...]
    unanswered: tuple[Unanswered, ...]


@dataclass(frozen=True, slots=True)
class Detail:
    """A transactional id, its partitions by name."""

    transaction: pb.TransactionDescription
    partitions: tuple[TopicPartition, ...]
    """Topics that are gone are named by their id in hexadecimal."""
    without_marker: frozenset[TopicPartition]


Described: TypeAlias = Detail | HeadraceError


@dataclass(frozen=True, slots=True)
class PreparedListing:
    """Prepared transactions, oldest first, and the shards that are missing."""

    transactions: tuple[Detail, ...]
    unanswered: tuple[Unanswered, ...]


@dataclass(frozen=True, slots=True)
class Aborted:
    """A transaction as it was before, and whether it was aborted."""

    before: Detail
    aborted: bool


class Transactions:
    """Stateless; any number of calls at one time on one event loop."""

    def __init__(
        self,
        cluster: Cluster,
        coordinators: Coordinators,
        coordination: Coordination,
        limits: TransactionLimits,
        clock: Clock,
    ) -> None:
        self.cluster = cluster
        self.coordinators = coordinators
        self.coordination = coordination
        self.limits = limits
        self.clock = clock

    # --- looking --------------------------------------------------------------------------------------------------

    async def listing(self, request: pb.ListTransactionsRequest, *, ms_max: float = LIST_MS_MAX) -> Listing:
        """
        The transactional ids of all coordinators that ``request`` asks for; ``ms_max``: how long one may take.

        Raises:
            Rejected: an age below 0, or a state that there is not.
        """
        if request.older_than_ms < 0:
            raise Rejected(f"older_than_ms takes 0 or more, not {request.older_than_ms}")
        unknown = [s for s in request.states if s not in pb.TxnState.values() or s == pb.TXN_STATE_UNSPECIFIED]
        if unknown:
            raise Rejected(f"there is no state {unknown[0]} of a transaction")
        said = await self.coordination.all(
            lambda place: self.coordinators.ask_transaction(place, lambda stub: stub.ListTransactions, request),
            ms_max=ms_max,
        )
        found = {t.transactional_id: Listed(t, c) for c, answer in said.lists.items() for t in answer.transactions}
        return Listing(tuple(found[i] for i in sorted(found)), said.unanswered)

    async def describe(self, ids: Sequence[str], rights: Rights = EVERYTHING) -> dict[str, Described]:
        """
        Transactional ids with their partitions, and with tokens if the caller may use them; in place of one that cannot
        be told, its error.

        Raises:
            Rejected: none, or more than 1,000.
        """
        if not 1 <= len(ids) <= IDS_MAX:
            raise Rejected(f"name 1 to {IDS_MAX} transactional ids, not {len(ids)}")
        if not await self.coordination.any_shards():
            return {i: not_found(i) for i in ids}

        async def ask(place: CoordinatorPlace, some: Sequence[str]) -> dict[str, Described]:
            request = pb.DescribeTransactionsRequest(transactional_ids=some)
            answer = await self.coordinators.ask_transaction(place, lambda stub: stub.DescribeTransactions, request)
            image = self.cluster.image
            return {i: _described(i, t, image, rights) for i, t in zip(some, answer.transactions, strict=True)}

        return await self.coordination.each(ids, ask, repeatable=True)

    async def one(self, transactional_id: str, rights: Rights = EVERYTHING) -> Detail:
        """
        One transactional id.

        Raises:
            TransactionalIdNotFound: there is none of this name.
        """
        (described,) = (await self.describe([transactional_id], rights)).values()
        if isinstance(described, HeadraceError):
            raise described
        return described

    async def prepared(self, older_than_ms: int = 0, rights: Rights = EVERYTHING) -> PreparedListing:
        """Transactions that are prepared and not decided, with the tokens that decide them if the caller may."""
        listed = await self.prepared_for(older_than_ms)
        ids = [t.transaction.transactional_id for t in listed.transactions]
        details: list[Detail] = []
        for at in range(0, len(ids), IDS_MAX):
            said = await self.describe(ids[at : at + IDS_MAX], rights)
            details += [d for d in said.values() if isinstance(d, Detail) and d.transaction.state == pb.TXN_PREPARED]
        details.sort(key=lambda d: (d.transaction.prepared_at_ms, d.transaction.transactional_id))
        return PreparedListing(tuple(details), listed.unanswered)

    async def prepared_for(self, older_than_ms: int, *, ms_max: float = LIST_MS_MAX) -> Listing:
        """Ids that are prepared for at least that long: coordinators may count from when the transaction was opened."""
        request = pb.ListTransactionsRequest(states=[pb.TXN_PREPARED], older_than_ms=older_than_ms)
        listed = await self.listing(request, ms_max=ms_max)
        youngest = self.clock.now_ms() - older_than_ms
        old = tuple(t for t in listed.transactions if not older_than_ms or t.transaction.prepared_at_ms <= youngest)
        return replace(listed, transactions=old)

    # --- ending ---------------------------------------------------------------------------------------------------

    async def decide(self, request: pb.DecidePreparedRequest) -> pb.DecidePreparedResponse:
        """
        Commit or abort a prepared transaction; the answer has the verdict that holds.

        Raises:
            TxnVerdictUnknown: it was decided too long ago, or never prepared.
            Rejected: that is no token.
        """
        i = request.token.transactional_id
        if not i:
            raise Rejected("the token names no transactional id; `headrace txn prepared` shows those there are")
        if not await self.coordination.any_shards():
            raise not_found(i)
        async with audited("Admin/DecidePrepared", request):
            return await self.coordination.one(
                i,
                lambda place: self.coordinators.ask_transaction(place, lambda stub: stub.DecidePrepared, request),
                repeatable=True,
            )

    async def abort(
        self,
        transactional_id: str,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        *,
        validate_only: bool = False,
    ) -> Aborted:
        """
        Abort what is open and fence its producer. Only that transaction, and never the id's next one: what is seen open
        is what is named to the coordinator, so it may be told twice.

        Raises:
            TransactionalIdNotFound: there is none of this name.
            InvalidTxnState: nothing is open, it is prepared, or it is ending already.
        """
        with by_itself():  # whoever may change the cluster may abort what it may not describe
            before = await self.one(transactional_id)
        was = before.transaction
        _check_open(was)
        if producer_id is not None and producer_id != was.producer_id:
            raise InvalidTxnState(f"{transactional_id!r} has producer id {was.producer_id} now, not {producer_id}")
        if producer_epoch is not None and producer_epoch != was.producer_epoch:
            raise InvalidTxnState(f"{transactional_id!r} has epoch {was.producer_epoch} now, not {producer_epoch}")
        if validate_only:
            return Aborted(before, False)
        request = pb.AbortTransactionRequest(
            transactional_id=transactional_id, producer_id=was.producer_id, producer_epoch=was.producer_epoch
        )
        await self.coordination.one(
            transactional_id,
            lambda place: self.coordinators.ask_transaction(place, lambda stub: stub.AbortTransaction, request),
            repeatable=True,
        )
        return Aborted(before, True)


def not_found(transactional_id: str) -> TransactionalIdNotFound:
    """What is said of an id that nobody knows."""
    return TransactionalIdNotFound(
        f"there is no transactional id {transactional_id!r}; `headrace txn list` shows those there are"
    )


def _check_open(was: pb.TransactionDescription) -> None:
    i = was.transactional_id
    if was.state == pb.TXN_PREPARED:
        raise InvalidTxnState(
            f"the transaction of {i!r} is prepared, and the holder of its token decides it: `headrace txn prepared` "
            "shows the token, `headrace txn abort TOKEN` aborts it"
        )
    if was.state in _ENDING:
        how = "committed" if was.state == pb.TXN_PREPARE_COMMIT else "aborted"
        raise InvalidTxnState(
            f"the transaction of {i!r} is {how} already, and {len(was.without_marker)} of its partitions are still to "
            "be told; `headrace txn describe` shows which, `headrace cluster health` whether they are served"
        )
    if was.state not in _OPEN:
        raise InvalidTxnState(
            f"{i!r} has no transaction open; if a partition holds readers back, `headrace txn find-hanging` says why"
        )


def _described(i: str, t: pb.TransactionDescription, image: ClusterImage, rights: Rights) -> Described:
    if t.HasField("token") and not rights.shows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, i):
        t.ClearField("token")
    if t.error == errors_pb2.TRANSACTIONAL_ID_NOT_FOUND:
        return not_found(i)
    if t.error != errors_pb2.NONE:
        return error_for(t.error, t.message)
    return Detail(t, tuple(_named(t.partitions, image)), frozenset(_named(t.without_marker, image)))


def _named(partitions: Iterable[pb.TxnPartition], image: ClusterImage) -> list[TopicPartition]:
    return sorted(_name(PartitionId(TopicId(p.topic_id), p.partition), image) for p in partitions)


def _name(i: PartitionId, image: ClusterImage) -> TopicPartition:
    topic = image.topics.get(i.topic_id)
    return TopicPartition(bytes(i.topic_id).hex() if topic is None else topic.name, i.partition)


def by_producer(listing: Listing) -> Mapping[int, Listed]:
    return {t.transaction.producer_id: t for t in listing.transactions}
