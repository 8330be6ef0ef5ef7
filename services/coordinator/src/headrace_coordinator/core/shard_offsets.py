"""
What the groups of one shard are asked about offsets, in transactions and outside of them. ``shard.Shard`` calls this.

Positions of an open transaction are *pending*: written, but not committed until the transaction is. Before the first
one of a transaction is taken, its coordinator must know that this shard is to be told the end (``EnrolShard``); what
comes meanwhile waits, in order. Only the coordinator knows which epoch of a producer is the present one, so a commit
that comes after the end of its transaction finds no door: the end has taken a waiting one away, and a new question is
answered by the coordinator, which knows the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headrace_common.core.errors import (
    ConcurrentTransactions,
    GroupNotFound,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    Overloaded,
    UnknownMemberId,
)
from headrace_common.core.ids import PartitionId
from headrace_coordinator.core.effects import (
    NO_GROUP,
    Answer,
    Effect,
    EnrolShard,
    MarkerOutcomes,
    OffsetOutcome,
    OffsetOutcomes,
    OffsetsFound,
    Persist,
)
from headrace_coordinator.core.events import (
    CommitAsked,
    Marker,
    MarkersAsked,
    OffsetsAsked,
    OffsetsDeletionAsked,
    ShardEnrolled,
    TxnCommitAsked,
)
from headrace_coordinator.core.groups import Group
from headrace_coordinator.core.offsets import Offsets, Transaction, valid
from headrace_coordinator.core.room import Room
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.targets import TopicView

WAITING_MAX: Final = 100_000
"""Positions that may wait for enrolments, in one shard."""

OffsetEvent = CommitAsked | TxnCommitAsked | MarkersAsked | ShardEnrolled | OffsetsAsked | OffsetsDeletionAsked


@dataclass(slots=True)
class _Enrolment:
    """A question to the transaction's coordinator that is under way."""

    number: int
    transaction: Transaction
    waiting: list[TxnCommitAsked] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    """A transaction that this shard is enrolled in and has not seen the end of."""

    transaction: Transaction
    positions: dict[str, set[PartitionId]] = field(default_factory=dict)
    """By group: where it may have something pending."""


class ShardOffsets:
    """``groups`` and ``view`` belong to the shard; groups that come to be or to nothing by their offsets do so here."""

    __slots__ = (
        "_asked",
        "_enrolments",
        "_groups",
        "_numbers",
        "_open",
        "_order",
        "_room",
        "_settings",
        "_view",
        "_waiting",
    )

    def __init__(self, settings: GroupSettings, view: TopicView, groups: dict[str, Group], room: Room) -> None:
        self._room = room
        self._settings = settings
        self._view = view
        self._groups = groups
        self._open: dict[int, _Open] = {}
        """By producer id."""
        self._enrolments: dict[int, list[_Enrolment]] = {}
        """By producer id; more than one only where somebody says what is not so."""
        self._asked: dict[int, _Enrolment] = {}
        """The same by number."""
        self._waiting = 0
        """Positions that wait in them."""
        self._numbers = 0
        self._order = 0
        """That of the next pending position."""
        for group_id, group in groups.items():
            self._remember(group_id, group.offsets)

    def _remember(self, group_id: str, offsets: Offsets) -> None:
        """Know what the log says to be pending."""
        for key, by_producer in offsets.pending.items():
            for producer_id, pending in by_producer.items():
                self._order = max(self._order, pending.order + 1)
                known = self._open.get(producer_id)
                if known is None or known.transaction.epoch < pending.epoch:
                    transaction = Transaction(producer_id, pending.epoch, pending.transactional_id)
                    known = self._open[producer_id] = _Open(transaction, {} if known is None else known.positions)
                known.positions.setdefault(group_id, set()).add(key)

    def handle(self, event: OffsetEvent) -> list[Effect]:
        """Apply ``event`` and return what must now be done, in order."""
        match event:
            case CommitAsked():
                return self._commit(event)
            case TxnCommitAsked():
                return self._commit_in_transaction(event)
            case ShardEnrolled():
                return self._enrolled(event)
            case MarkersAsked():
                return self._end_all(event)
            case OffsetsAsked():
                return self._find(event)
            case OffsetsDeletionAsked():
                return self._delete(event)

    # --- outside of transactions ----------------------------------------------------------------------------

    def _commit(self, event: CommitAsked) -> list[Effect]:
        group = self._groups.get(event.group_id)
        fault = self._member_fault(event, group)
        if fault is not None:
            return [_refuse(event, fault)]
        group = group or Group(Offsets(event.group_id))
        limit = self._settings.offset_metadata_max_bytes
        rows, outcomes = group.offsets.commit(event.offsets, self._view.topics, limit, event.at.wall_ms)
        return self._accept(event, group, rows, outcomes)

    def _member_fault(self, event: CommitAsked | TxnCommitAsked, group: Group | None) -> HeadraceError | None:
        if group is not None and group.membership is not None:
            return group.membership.commit_fault(
                event.member_id,
                event.instance_id,
                event.generation,
                transactional=isinstance(event, TxnCommitAsked),
            )
        if event.member_id or event.instance_id is not None or event.generation >= 0:
            return UnknownMemberId(f"the group {event.group_id!r} has no member {event.member_id!r}; join it")
        return self._room.fault(event.group_id) if group is None else None

    def _accept(
        self,
        event: CommitAsked | TxnCommitAsked,
        group: Group,
        rows: tuple[tuple[bytes, bytes | None], ...],
        outcomes: tuple[OffsetOutcome, ...],
    ) -> list[Effect]:
        effects: list[Effect] = []
        if rows:
            self._groups[event.group_id] = group
            effects.append(Persist(event.group_id, rows))
        if group.membership is not None:
            group.membership.committed(event.member_id, event.at)
        effects.append(Answer(event.group_id, event.ref, OffsetOutcomes(outcomes)))
        return effects

    def _find(self, event: OffsetsAsked) -> list[Effect]:
        group = self._groups.get(event.group_id)
        if event.member_id is not None:
            fault: HeadraceError | None = UnknownMemberId(f"there is no group {event.group_id!r}; join it")
            if group is not None and group.membership is not None:
                fault = group.membership.fetch_fault(event.member_id, event.member_epoch)
            if fault is not None:
                return [Answer(event.group_id, event.ref, fault)]
        offsets = group.offsets if group is not None else Offsets(event.group_id)
        found = offsets.find(event.partitions, self._view.topics, require_stable=event.require_stable)
        return [Answer(event.group_id, event.ref, OffsetsFound(found))]

    def _delete(self, event: OffsetsDeletionAsked) -> list[Effect]:
        group = self._groups.get(event.group_id)
        if group is None:
            error = GroupNotFound(f"there is no group {event.group_id!r}")
            return [Answer(event.group_id, event.ref, error)]
        membership = group.membership
        rows, outcomes = group.offsets.delete(
            event.partitions, self._view.topics, lambda topic: membership is not None and membership.subscribes(topic)
        )
        effects: list[Effect] = [Persist(event.group_id, rows)] if rows else []
        effects.append(Answer(event.group_id, event.ref, OffsetOutcomes(outcomes)))
        return effects

    # --- positions of open transactions ---------------------------------------------------------------------

    def _commit_in_transaction(self, event: TxnCommitAsked) -> list[Effect]:
        fault = self._txn_fault(event)
        if fault is not None:
            return [_refuse(event, fault)]
        transaction = _transaction_of(event)
        opened = self._open.get(event.producer_id)
        worthless = not valid(event.offsets, self._view.topics, self._settings.offset_metadata_max_bytes)
        if worthless or (opened is not None and opened.transaction == transaction):
            return self._hold(event)
        return self._wait(event, transaction)

    def _txn_fault(self, event: TxnCommitAsked) -> HeadraceError | None:
        opened = self._open.get(event.producer_id)
        if opened is not None:
            _, epoch, transactional_id = opened.transaction
            if event.producer_epoch < epoch:
                return InvalidProducerEpoch(
                    f"producer {event.producer_id} is at epoch {epoch}, not {event.producer_epoch}; abort and begin "
                    "the next transaction"
                )
            if event.transactional_id != transactional_id:
                return InvalidProducerIdMapping(
                    f"producer {event.producer_id} belongs to another transactional id than "
                    f"{event.transactional_id!r}; call init_transactions"
                )
        return self._member_fault(event, self._groups.get(event.group_id))

    def _wait(self, event: TxnCommitAsked, transaction: Transaction) -> list[Effect]:
        """Until the coordinator of the transaction knows of this shard."""
        if self._waiting + len(event.offsets) > WAITING_MAX:
            error = Overloaded(f"{self._waiting} positions wait for the coordinators of their transactions; try again")
            return [_refuse(event, error)]
        self._waiting += len(event.offsets)
        for enrolment in self._enrolments.get(event.producer_id, ()):
            if enrolment.transaction == transaction:
                enrolment.waiting.append(event)
                return []
        self._numbers += 1
        enrolment = self._asked[self._numbers] = _Enrolment(self._numbers, transaction, [event])
        self._enrolments.setdefault(event.producer_id, []).append(enrolment)
        return [EnrolShard(self._numbers, event.transactional_id, event.producer_id, event.producer_epoch)]

    def _close(self, enrolment: _Enrolment) -> None:
        """It is answered, or in vain."""
        del self._asked[enrolment.number]
        of_producer = self._enrolments[enrolment.transaction.producer_id]
        of_producer.remove(enrolment)
        if not of_producer:
            del self._enrolments[enrolment.transaction.producer_id]
        self._waiting -= sum(len(one.offsets) for one in enrolment.waiting)

    def _enrolled(self, event: ShardEnrolled) -> list[Effect]:
        enrolment = self._asked.get(event.number)
        if enrolment is None:
            return []  # the transaction has ended meanwhile
        self._close(enrolment)
        error = event.error or self._predecessor_fault(enrolment.transaction)
        if error is not None:
            return [_refuse(one, error) for one in enrolment.waiting]
        opened = self._open.get(enrolment.transaction.producer_id)
        if opened is None or opened.transaction.epoch < enrolment.transaction.epoch:
            self._open[enrolment.transaction.producer_id] = _Open(enrolment.transaction)
        effects: list[Effect] = []
        for one in enrolment.waiting:
            fault = self._txn_fault(one)  # the member may be out by now
            effects += self._hold(one) if fault is None else [_refuse(one, fault)]
        return effects

    def _predecessor_fault(self, transaction: Transaction) -> HeadraceError | None:
        """The coordinator opens a transaction when the one before has ended everywhere; never mix the two here."""
        opened = self._open.get(transaction.producer_id)
        if opened is None or opened.transaction.epoch >= transaction.epoch:
            return None
        for group_id, keys in opened.positions.items():
            group = self._groups.get(group_id)
            if group is not None and group.offsets.has_pending(transaction.producer_id, keys):
                return ConcurrentTransactions(
                    f"the end of the transaction before, of epoch {opened.transaction.epoch}, has not come here yet; "
                    "try again"
                )
        return None

    def _hold(self, event: TxnCommitAsked) -> list[Effect]:
        group = self._groups.get(event.group_id) or Group(Offsets(event.group_id))
        rows, outcomes = group.offsets.hold(
            _transaction_of(event),
            event.offsets,
            self._view.topics,
            self._settings.offset_metadata_max_bytes,
            event.at.wall_ms,
            self._order,
        )
        self._order += len(event.offsets)
        if rows:
            positions = self._open[event.producer_id].positions.setdefault(event.group_id, set())
            positions |= group.offsets.keys_of(event.offsets, self._view.topics)
        return self._accept(event, group, rows, outcomes)

    # --- the ends of transactions ---------------------------------------------------------------------------

    def _end_all(self, event: MarkersAsked) -> list[Effect]:
        effects: list[Effect] = []
        outcomes = tuple(self._end(marker, event.at.wall_ms, effects) for marker in event.markers)
        effects.append(Answer(NO_GROUP, event.ref, MarkerOutcomes(outcomes)))
        return effects

    def _end(self, marker: Marker, wall_ms: int, effects: list[Effect]) -> HeadraceError | None:
        """Apply or drop what is pending; a marker that finds nothing has done its work before, or there was none."""
        self._take_away(marker, effects)
        opened = self._open.get(marker.producer_id)
        if opened is None:
            return None
        if opened.transaction.epoch >= marker.producer_epoch:
            return InvalidProducerEpoch(
                f"producer {marker.producer_id} has a transaction of epoch {opened.transaction.epoch} open here; "
                f"epoch {marker.producer_epoch} ends earlier ones"
            )
        del self._open[marker.producer_id]
        for group_id, keys in sorted(opened.positions.items()):
            group = self._groups.get(group_id)
            if group is None:
                continue  # it was deleted, and with it what was pending
            rows = group.offsets.decide(
                marker.producer_id, marker.producer_epoch, sorted(keys), commit=marker.commit, wall_ms=wall_ms
            )
            if rows:
                effects.append(Persist(group_id, rows))
            if group.membership is None and group.offsets.empty:
                del self._groups[group_id]
        return None

    def _take_away(self, marker: Marker, effects: list[Effect]) -> None:
        """Commits that wait to be enrolled in a transaction which has ended are late."""
        for enrolment in list(self._enrolments.get(marker.producer_id, ())):
            producer_id, epoch, _ = enrolment.transaction
            if epoch < marker.producer_epoch:
                self._close(enrolment)
                error = InvalidProducerEpoch(f"the transaction of producer {producer_id}, epoch {epoch}, has ended")
                effects += [_refuse(one, error) for one in enrolment.waiting]


def _transaction_of(event: TxnCommitAsked) -> Transaction:
    return Transaction(event.producer_id, event.producer_epoch, event.transactional_id)


def _refuse(event: CommitAsked | TxnCommitAsked, error: HeadraceError) -> Answer:
    failed = tuple(OffsetOutcome(one.topic, one.partition, error) for one in event.offsets)
    return Answer(event.group_id, event.ref, OffsetOutcomes(failed))
