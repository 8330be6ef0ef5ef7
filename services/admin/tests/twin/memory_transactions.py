"""The ``TransactionCoordinators`` port in memory, for tests: the transactional ids of a ``MemoryCluster``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from services.admin.tests.twin.memory_cluster import MemoryCluster

from headrace_admin.ports import CoordinatorPlace
from headrace_common.core.errors import (
    HeadraceError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    NetworkFailed,
    NotCoordinator,
    TransactionalIdNotFound,
    TxnVerdictUnknown,
)
from headrace_common.core.ids import PartitionId, TopicId
from headrace_common.core.image import ShardKey, ShardKind
from headrace_common.rpc.status import detail_of
from headrace_proto.v1 import transaction_pb2 as pb

A = TypeVar("A")

_NONE_MS: Final = -1


class MemoryTransactions:
    """One for all coordinators; those in ``down`` cannot be reached, shards in ``loading`` are not served yet."""

    def __init__(self, cluster: MemoryCluster, now_ms: int = 1_700_000_000_000) -> None:
        self._cluster = cluster
        self._ids: dict[str, pb.TransactionDescription] = {}
        self._decided: dict[str, tuple[int, bool]] = {}
        self._aborted: dict[str, tuple[int, int]] = {}
        self._nonce = 0
        self.now_ms = now_ms
        self.down: set[int] = set()
        self.loading: set[int] = set()
        self.lost = 0
        """So many answers are lost from now on, after the request was carried out."""
        self.asked: list[str] = []
        """The names of what was asked for, in order."""

    # --- what producers do ----------------------------------------------------------------------------------------

    def begin(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int = 0,
        *,
        partitions: Iterable[tuple[str, int]] = (),
        started_ms: int | None = None,
    ) -> None:
        """A transaction is open, and so it is in its partitions, from their ends on."""
        started = self.now_ms if started_ms is None else started_ms
        named = list(partitions)
        ids = [PartitionId(self._cluster.image.topic_ids[topic], n) for topic, n in named]
        self._ids[transactional_id] = pb.TransactionDescription(
            transactional_id=transactional_id,
            state=pb.TXN_ONGOING,
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=60_000,
            started_at_ms=started,
            prepared_at_ms=_NONE_MS,
            partitions=[pb.TxnPartition(topic_id=i.topic_id, partition=i.partition) for i in ids],
        )
        for (topic, n), i in zip(named, ids, strict=True):
            end = self._cluster.ends.get(i, 0)
            self._cluster.write(topic, n, producer_id, epoch, first_offset=end, since_ms=started)
            self._cluster.ends[i] = end + 1

    def prepare(self, transactional_id: str, *, prepared_ms: int | None = None) -> pb.PreparedToken:
        """It is prepared."""
        t = self._ids[transactional_id]
        self._nonce += 1
        t.state, t.prepared_at_ms = pb.TXN_PREPARED, self.now_ms if prepared_ms is None else prepared_ms
        token = pb.PreparedToken(
            transactional_id=transactional_id,
            producer_id=t.producer_id,
            producer_epoch=t.producer_epoch,
            nonce=self._nonce,
        )
        t.token.CopyFrom(token)
        return token

    def end(self, transactional_id: str, *, commit: bool) -> None:
        """It ends, and so it does in its partitions."""
        t = self._ids[transactional_id]
        for p in t.partitions:
            i = PartitionId(TopicId(p.topic_id), p.partition)
            self._cluster.end_transaction(i, t.producer_id, t.producer_epoch + 1, commit=commit)
        t.producer_epoch += 1
        t.state = pb.TXN_COMPLETE_COMMIT if commit else pb.TXN_COMPLETE_ABORT
        t.started_at_ms = t.prepared_at_ms = _NONE_MS
        t.ClearField("token")
        t.ClearField("partitions")

    def ending(self, transactional_id: str, *, commit: bool, without_marker: Iterable[tuple[str, int]]) -> None:
        """Its end is decided, and is still to be told to some partitions."""
        t = self._ids[transactional_id]
        t.state = pb.TXN_PREPARE_COMMIT if commit else pb.TXN_PREPARE_ABORT
        for topic, n in without_marker:
            t.without_marker.add(topic_id=self._cluster.image.topic_ids[topic], partition=n)

    def forget(self, transactional_id: str) -> None:
        """Its coordinator has lost it: what it has open hangs."""
        del self._ids[transactional_id]

    def state(self, transactional_id: str) -> int:
        """As its coordinator has it."""
        return self._ids[transactional_id].state

    # --- TransactionCoordinators ----------------------------------------------------------------------------------

    async def list_transactions(
        self, place: CoordinatorPlace, request: pb.ListTransactionsRequest
    ) -> pb.ListTransactionsResponse:
        """Those of its shards that are loaded."""
        self._reach(place, "list_transactions")
        shards = self._cluster.image.shards.items()
        owned = {k.number for k, s in shards if k.kind is ShardKind.TRANSACTIONS and s.owner == place.id}
        served = owned - self.loading
        mine = [t for i, t in sorted(self._ids.items()) if self._shard(i) in served and self._wanted(t, request)]
        return pb.ListTransactionsResponse(
            transactions=[
                pb.TransactionListing(
                    transactional_id=t.transactional_id,
                    producer_id=t.producer_id,
                    state=t.state,
                    producer_epoch=t.producer_epoch,
                    started_at_ms=t.started_at_ms,
                    prepared_at_ms=t.prepared_at_ms,
                )
                for t in mine
            ],
            loading=sorted(owned & self.loading),
        )

    def _wanted(self, t: pb.TransactionDescription, request: pb.ListTransactionsRequest) -> bool:
        since_ms = t.prepared_at_ms if t.state == pb.TXN_PREPARED else t.started_at_ms
        old = since_ms >= 0 and self.now_ms - since_ms >= request.older_than_ms
        return (
            (not request.states or t.state in request.states)
            and (not request.producer_ids or t.producer_id in request.producer_ids)
            and (not request.older_than_ms or old)
        )

    async def describe_transactions(
        self, place: CoordinatorPlace, request: pb.DescribeTransactionsRequest
    ) -> pb.DescribeTransactionsResponse:
        """Each by itself."""
        self._reach(place, "describe_transactions")
        answer = pb.DescribeTransactionsResponse()
        for i in request.transactional_ids:
            try:
                self._check(place, i)
                answer.transactions.append(self._found(i))
            except HeadraceError as error:
                detail = detail_of(error)
                answer.transactions.add(transactional_id=i, error=detail.code, message=detail.message)
            else:
                answer.transactions[-1].coordinator, answer.transactions[-1].shard = place.id, self._shard(i)
        return self._answered(answer)

    async def decide_prepared(
        self, place: CoordinatorPlace, request: pb.DecidePreparedRequest
    ) -> pb.DecidePreparedResponse:
        """Once; then the verdict that was given."""
        self._reach(place, "decide_prepared")
        i = request.token.transactional_id
        self._check(place, i)
        t = self._ids.get(i)
        if t is not None and t.HasField("token") and t.token == request.token:
            self.end(i, commit=request.commit)
            self._decided[i] = request.token.nonce, request.commit
        last = self._decided.get(i)
        if last is None or last[0] != request.token.nonce:
            raise TxnVerdictUnknown(f"what became of that transaction of {i!r} is not known any more")
        return self._answered(pb.DecidePreparedResponse(committed=last[1], producer_id=-1, producer_epoch=-1))

    async def abort_transaction(
        self, place: CoordinatorPlace, request: pb.AbortTransactionRequest
    ) -> pb.AbortTransactionResponse:
        """Only what is open, and only the transaction that is named."""
        self._reach(place, "abort_transaction")
        i = request.transactional_id
        self._check(place, i)
        t = self._found(i)
        if (request.producer_id, request.producer_epoch) == self._aborted.get(i):
            return pb.AbortTransactionResponse()
        if request.HasField("producer_id") and request.producer_id != t.producer_id:
            raise InvalidProducerIdMapping(f"{i!r} has another producer id")
        if request.HasField("producer_epoch") and request.producer_epoch != t.producer_epoch:
            raise InvalidProducerEpoch(f"{i!r} has epoch {t.producer_epoch}")
        if t.state != pb.TXN_ONGOING:
            raise InvalidTxnState(f"{i!r} has nothing open that could be aborted")
        self._aborted[i] = t.producer_id, t.producer_epoch
        self.end(i, commit=False)
        return self._answered(pb.AbortTransactionResponse())

    def _shard(self, i: str) -> int:
        return self._cluster.shard_of(i, ShardKind.TRANSACTIONS)

    def _found(self, i: str) -> pb.TransactionDescription:
        found = self._ids.get(i)
        if found is None:
            raise TransactionalIdNotFound(f"there is no transactional id {i!r}")
        return found

    def _reach(self, place: CoordinatorPlace, what: str) -> None:
        self.asked.append(what)
        if place.id in self.down:
            raise NetworkFailed(f"coordinator {place.id} does not answer")

    def _check(self, place: CoordinatorPlace, i: str) -> None:
        number = self._shard(i)
        shard = self._cluster.image.shards.get(ShardKey(ShardKind.TRANSACTIONS, number))
        if shard is None or shard.owner != place.id or number in self.loading:
            raise NotCoordinator(f"coordinator {place.id} does not serve shard {number}")

    def _answered(self, answer: A) -> A:
        if self.lost:
            self.lost -= 1
            raise NetworkFailed("the connection broke before the answer came")
        return answer
