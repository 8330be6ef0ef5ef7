"""
What is open in the logs of partitions, whoever knows of it: it holds readers of read_committed back.

Leaders say what is open, coordinators who is going to end it; ``core/transactions`` decides what hangs. Leaders are
asked before coordinators and, about what seems to hang, once more after them: what ended meanwhile does not hang.
Called by REST and gRPC, and by ``statuses``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace_admin.core.transactions import (
    NOTHING_WAITS,
    Found,
    OpenTransaction,
    Owner,
    Prepared,
    Standing,
    TxnState,
    Waiting,
    first_of_each,
    is_old,
    judge,
    worst_first,
)
from headrace_admin.engine.coordination import LIST_MS_MAX, Unanswered
from headrace_admin.engine.leaders import HURRIED, PATIENT, Patience
from headrace_admin.engine.log_offsets import LogOffsets
from headrace_admin.engine.transactions import IDS_MAX, Detail, Listed, Transactions, by_producer
from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType
from headrace_common.core.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidTxnState,
    LeaderNotAvailable,
    NotFound,
    Rejected,
    UnknownTopicOrPartition,
    unknown_topic,
)
from headrace_common.core.ids import TopicPartition
from headrace_common.core.image import INTERNAL_TOPICS, ClusterImage, ShardKind
from headrace_common.runtime.access_gate import by_itself
from headrace_proto.v1 import broker_pb2
from headrace_proto.v1 import transaction_pb2 as pb

SHOWN_MAX: Final = 10_000
"""Open transactions of one answer."""
_PRODUCER_IDS_MAX: Final = 10_000
"""Producer ids of one list; with more all are listed."""
HURRIED_LIST_MS: Final = 1_000.0
"""How long a coordinator may take to list its transactions for a status."""
_ON_CLUSTER: Final = (Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
_EPOCH_MAX: Final = 2**15 - 1
_IMAGE_WAIT_MS: Final = 500.0


@dataclass(frozen=True, slots=True)
class OpenListing:
    """What is open, and who could not be asked."""

    transactions: tuple[OpenTransaction, ...]
    """Oldest first."""
    more: int
    """So many besides."""
    unasked: Mapping[TopicPartition, HeadraceError]
    unanswered: tuple[Unanswered, ...]


@dataclass(frozen=True, slots=True)
class EndedHanging:
    """What hung in a partition, and whether it was ended."""

    before: OpenTransaction
    aborted: bool


class OpenTransactions:
    """Stateless; any number of calls at one time on one event loop."""

    def __init__(self, transactions: Transactions, logs: LogOffsets) -> None:
        self._transactions = transactions
        self._logs = logs
        self._clock = transactions.clock
        self.limits = transactions.limits

    async def listing(
        self,
        topics: Collection[str] = (),
        *,
        older_than_ms: int | None = None,
        hanging_only: bool = False,
        rights: Rights = EVERYTHING,
    ) -> OpenListing:
        """
        What is open in some topics, or in all that the caller may describe. It is judged by what all coordinators know;
        the caller is told of transactional ids that it may describe.

        Args:
            older_than_ms: only what is open for at least that long; None: all.
            hanging_only: only what nobody will end, and what it is not known of. ``older_than_ms`` None is then: longer
                than any transaction may be open.

        Raises:
            UnknownTopicOrPartition: a topic does not exist.
            Rejected: an age below 0.
            Denied: the caller may not describe a topic that is named.
        """
        for topic in topics:
            rights.check_any(_ON_CLUSTER, (Operation.DESCRIBE, ResourceType.TOPIC, topic))
        if older_than_ms is not None and older_than_ms < 0:
            raise Rejected(f"older_than_ms takes 0 or more, not {older_than_ms}")
        wanted = _partitions_of(await self._image(topics), topics)
        if not topics and not rights.shows(*_ON_CLUSTER):
            wanted = [p for p in wanted if rights.shows(Operation.DESCRIBE, ResourceType.TOPIC, p.topic)]
        hanging_after_ms = self.limits.hanging_after_ms
        if hanging_only and older_than_ms is None:
            older_than_ms = hanging_after_ms
        elif hanging_only and older_than_ms is not None:
            hanging_after_ms = older_than_ms
        with by_itself():
            found, unasked = await self._found(wanted)
            judged, unanswered = await self._judged(self._old(found, older_than_ms or 0), hanging_after_ms)
        judged = [_told(t, rights) for t in judged]
        if hanging_only:
            judged = [t for t in judged if t.standing in {Standing.HANGING, Standing.UNKNOWN}]
        judged.sort(key=lambda t: (t.since_ms, t.partition, t.first_offset, t.producer_id))
        return OpenListing(tuple(judged[:SHOWN_MAX]), max(0, len(judged) - SHOWN_MAX), unasked, unanswered)

    async def waiting(self) -> Waiting:
        """
        What readers of read_committed wait for, for longer than they do not notice; and what nobody decides. To be
        called by this node for itself: what a caller may not see would seem to hang.
        """
        if self._transactions.cluster.image.topic(INTERNAL_TOPICS[ShardKind.TRANSACTIONS]) is None:
            return NOTHING_WAITS  # there was never a transaction: nobody is asked, and nothing is waited for
        (holding, unasked), prepared = await asyncio.gather(
            self._holding(),
            self._transactions.prepared_for(self.limits.transaction_prepared_max_ms, ms_max=HURRIED_LIST_MS),
        )
        overdue = [_prepared(t) for t in prepared.transactions]
        return Waiting(
            tuple(worst_first(first_of_each(holding))),
            tuple(sorted(overdue, key=lambda p: (p.prepared_at_ms, p.transactional_id))),
            unasked,
        )

    async def _holding(self) -> tuple[list[OpenTransaction], int]:
        """
        What is open for longer than readers do not notice, and of how many partitions it is not known. In a hurry: who
        does not answer soon is left out. Partitions that nobody leads have worse to wait for.
        """
        image = self._transactions.cluster.image
        found, unasked = await self._found(_partitions_of(image, ()), HURRIED)
        offline = sum(isinstance(error, LeaderNotAvailable) for error in unasked.values())
        old = self._old(found, self.limits.transaction_notice_ms)
        judged, _ = await self._judged(old, self.limits.hanging_after_ms, ms_max=HURRIED_LIST_MS)
        return judged, len(unasked) - offline

    def _old(self, found: Iterable[Found], age_ms: int) -> list[Found]:
        """Those that are open for at least so long; 0: all, also where a leader's clock is ahead."""
        now_ms = self._clock.now_ms()
        return [f for f in found if not age_ms or is_old(f, now_ms, age_ms)]

    async def abort_hanging(
        self, partition: TopicPartition, producer_id: int | None, *, validate_only: bool, force: bool
    ) -> EndedHanging:
        """
        Write an abort marker for what hangs in a partition, with the epoch above the one it was written under: what its
        producer might still send is fenced.

        Args:
            producer_id: None: the only one that hangs there.
            force: also what is young, or what a coordinator that does not answer might know.

        Raises:
            NotFound: nothing of that producer is open there.
            InvalidTxnState: a coordinator is going to end it; or it is young, and was not forced.
            CoordinatorNotAvailable: one that might know it does not answer, and it was not forced.
            UnknownTopicOrPartition: there is no such partition.
        """
        with by_itself():  # judged by what a caller may see, what lives would seem to hang
            await self._known(partition)
            found, unasked = await self._found([partition])
            if partition in unasked:
                raise unasked[partition]
            judged, unanswered = await self._judged(found, self.limits.hanging_after_ms)
        one = _chosen(partition, producer_id, judged)
        _check_may_end(one, unanswered, force=force, patience_ms=self.limits.hanging_after_ms)
        if validate_only:
            return EndedHanging(one, False)
        if one.producer_epoch >= _EPOCH_MAX:
            raise InvalidTxnState(f"producer {one.producer_id} has used up its epochs in {partition}: nothing is above")
        marker = pb.TxnMarker(producer_id=one.producer_id, producer_epoch=one.producer_epoch + 1, commit=False)
        await self._logs.write_marker(partition, marker)
        return EndedHanging(one, True)

    # --- asking ---------------------------------------------------------------------------------------------------

    async def _image(self, topics: Collection[str]) -> ClusterImage:
        """The image; a topic that it does not have may be a moment away."""
        cluster = self._transactions.cluster
        image = cluster.image
        if all(image.topic(t) is not None for t in topics):
            return image
        return await cluster.caught_up(_IMAGE_WAIT_MS)

    async def _known(self, partition: TopicPartition) -> None:
        image = await self._image([partition.topic])
        count = {p.partition for p in _partitions_of(image, [partition.topic])}
        if partition.partition not in count:
            raise UnknownTopicOrPartition(
                f"topic {partition.topic!r} has no partition {partition.partition}; it has 0 to {len(count) - 1}"
            )

    async def _found(
        self, wanted: Iterable[TopicPartition], patience: Patience = PATIENT
    ) -> tuple[list[Found], dict[TopicPartition, HeadraceError]]:
        found: list[Found] = []
        unasked: dict[TopicPartition, HeadraceError] = {}
        for partition, said in (await self._logs.open_producers(wanted, patience)).items():
            if isinstance(said, HeadraceError):
                unasked[partition] = said
            else:
                found += [_found(partition, said, p) for p in said.producers if p.HasField("transaction_start")]
        return found, unasked

    async def _judged(
        self, found: Sequence[Found], timeout_ms: int, *, ms_max: float = LIST_MS_MAX
    ) -> tuple[list[OpenTransaction], tuple[Unanswered, ...]]:
        if not found:
            return [], ()
        ids = {f.producer_id for f in found}
        request = pb.ListTransactionsRequest(producer_ids=sorted(ids) if len(ids) <= _PRODUCER_IDS_MAX else ())
        listing = await self._transactions.listing(request, ms_max=ms_max)
        now_ms = self._clock.now_ms()
        known = by_producer(listing)
        old = {f.producer_id for f in found if is_old(f, now_ms, timeout_ms)}
        doubtful = [known[i].transaction.transactional_id for i in sorted(old & known.keys())]
        owners = {i: _owner(t) for i, t in known.items()} | await self._detailed(doubtful)
        whole = not listing.unanswered
        judged = [judge(f, owners.get(f.producer_id), whole=whole, now_ms=now_ms, timeout_ms=timeout_ms) for f in found]
        return await self._still_open(judged), listing.unanswered

    async def _detailed(self, ids: Sequence[str]) -> dict[int, Owner]:
        """Owners with their partitions; one that has gone meanwhile is not there."""
        owners: dict[int, Owner] = {}
        for at in range(0, len(ids), IDS_MAX):
            for said in (await self._transactions.describe(ids[at : at + IDS_MAX])).values():
                if isinstance(said, Detail):
                    owners[said.transaction.producer_id] = _owner_with_partitions(said)
        return owners

    async def _still_open(self, judged: Sequence[OpenTransaction]) -> list[OpenTransaction]:
        """Without those that seemed to hang and have ended while coordinators were asked."""
        hanging = [t for t in judged if t.standing is Standing.HANGING]
        if not hanging:
            return list(judged)
        found, _ = await self._found(sorted({t.partition for t in hanging}))
        still = {(f.partition, f.producer_id, f.producer_epoch, f.first_offset) for f in found}
        return [
            t
            for t in judged
            if t.standing is not Standing.HANGING
            or (t.partition, t.producer_id, t.producer_epoch, t.first_offset) in still
        ]


def _told(t: OpenTransaction, rights: Rights) -> OpenTransaction:
    """Without its owner, if the caller may not describe that."""
    if t.owner is None:
        return t
    may = rights.shows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, t.owner.transactional_id)
    return t if may else replace(t, owner=None)


def _partitions_of(image: ClusterImage, topics: Collection[str]) -> list[TopicPartition]:
    """Of some topics, or of all; internal ones have no transactions."""
    missing = [t for t in topics if image.topic(t) is None]
    if missing:
        raise unknown_topic(missing[0])
    return sorted(
        TopicPartition(topic.name, n)
        for topic in image.topics.values()
        if not topic.internal and (not topics or topic.name in topics)
        for n in range(topic.partition_count)
    )


def _found(partition: TopicPartition, said: broker_pb2.PartitionProducers, p: broker_pb2.ProducerState) -> Found:
    return Found(
        partition=partition,
        producer_id=p.producer_id,
        producer_epoch=p.producer_epoch,
        first_offset=p.transaction_start,
        since_ms=p.transaction_since_ms if p.HasField("transaction_since_ms") else p.last_timestamp_ms,
        written_ms=p.last_timestamp_ms,
        high_watermark=said.high_watermark,
    )


def _owner(listed: Listed) -> Owner:
    t = listed.transaction
    return Owner(t.transactional_id, state_of(t.state), moment(t.started_at_ms))


def _owner_with_partitions(detail: Detail) -> Owner:
    t = detail.transaction
    return Owner(t.transactional_id, state_of(t.state), moment(t.started_at_ms), frozenset(detail.partitions))


def _prepared(listed: Listed) -> Prepared:
    t = listed.transaction
    return Prepared(
        t.transactional_id, t.producer_id, t.producer_epoch, moment(t.started_at_ms), max(0, t.prepared_at_ms)
    )


def moment(ms: int) -> int | None:
    """A time of the wire, where what is below 0 is none."""
    return ms if ms >= 0 else None


def state_of(state: int) -> TxnState:
    if state not in pb.TxnState.values():
        return TxnState.UNKNOWN
    name = pb.TxnState.Name(pb.TxnState.ValueType(state)).removeprefix("TXN_")
    return TxnState[name] if name in TxnState.__members__ else TxnState.UNKNOWN


def _chosen(partition: TopicPartition, producer_id: int | None, judged: Sequence[OpenTransaction]) -> OpenTransaction:
    if producer_id is not None:
        of_it = [t for t in judged if t.producer_id == producer_id]
        if not of_it:
            raise NotFound(
                f"producer {producer_id} has nothing open in {partition}; `headrace txn find-hanging` shows what hangs"
            )
        return of_it[0]
    hanging = [t for t in judged if t.standing in {Standing.HANGING, Standing.UNKNOWN}]
    if not hanging:
        raise NotFound(f"nothing hangs in {partition}; what is open there has a coordinator, or began a moment ago")
    if len(hanging) > 1:
        ids = ", ".join(str(t.producer_id) for t in hanging[:5])
        raise Rejected(f"{len(hanging)} producers hang in {partition}; name one of them: {ids}")
    return hanging[0]


def _check_may_end(one: OpenTransaction, unanswered: Collection[Unanswered], *, force: bool, patience_ms: int) -> None:
    if one.standing is Standing.COORDINATED:
        assert one.owner is not None, "a coordinator knows it"
        raise InvalidTxnState(
            f"producer {one.producer_id} belongs to transactional id {one.owner.transactional_id!r}, whose transaction "
            f"is {one.owner.state.value}: {_how_it_ends(one.owner)}"
        )
    if force:
        return
    if one.standing is Standing.UNKNOWN:
        shards = ", ".join(str(u.shard) for u in list(unanswered)[:5])
        raise CoordinatorNotAvailable(
            f"{len(unanswered)} shards of transactions cannot be asked ({shards}), so whether producer "
            f"{one.producer_id} has a coordinator is not known; start a coordinator, or force it"
        )
    if one.standing is Standing.YOUNG:
        raise InvalidTxnState(
            f"producer {one.producer_id} began in {one.partition} less than {patience_ms / 1_000:g} s ago, so it "
            "may be beginning or ending just now; wait, or force it"
        )


def _how_it_ends(owner: Owner) -> str:
    match owner.state:
        case TxnState.ONGOING:
            return f"`headrace txn abort {owner.transactional_id}` ends it in all its partitions"
        case TxnState.PREPARED:
            return "`headrace txn prepared` shows the token that decides it"
    return f"its end is on its way, `headrace txn describe {owner.transactional_id}` shows where it is missing"
