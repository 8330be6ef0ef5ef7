"""
One group as its shard keeps it, whichever protocol its members speak; and groups read from the log's records.

``shard.Shard`` calls this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from headrace_common.core.errors import HeadraceError
from headrace_coordinator.core import classic_requests, consumer_requests, work_requests
from headrace_coordinator.core.classic_group import ClassicGroup
from headrace_coordinator.core.consumer_group import ConsumerGroup
from headrace_coordinator.core.effects import (
    ClassicStanding,
    ConsumerStanding,
    Effect,
    GroupDescription,
    GroupListing,
    JoinAnswer,
    LeaveAnswer,
    Message,
    SyncAnswer,
    WorkStanding,
)
from headrace_coordinator.core.events import (
    ClassicHeartbeat,
    ClassicJoined,
    ClassicSynced,
    ConsumerHeartbeat,
    Left,
    MemberEvent,
    StreamBroke,
    WorkHeartbeat,
)
from headrace_coordinator.core.floors import DELETED, Floor
from headrace_coordinator.core.offsets import Offsets
from headrace_coordinator.core.records import (
    ClassicRecord,
    ConsumerRecord,
    DeclarationKey,
    GroupRecord,
    OffsetKey,
    PendingKey,
    WorkRecord,
    declaration_key,
    read_declaration,
    read_group,
    read_key,
    read_offset,
    read_pending,
)
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.targets import TopicView
from headrace_coordinator.core.values import Declaration, GroupProtocol, GroupState, Moment
from headrace_coordinator.core.work_group import WorkGroup

Membership = ClassicGroup | ConsumerGroup | WorkGroup


@dataclass(slots=True)
class Group:
    """One group: its offsets, and its members."""

    offsets: Offsets
    membership: Membership | None = None
    """None: only offsets were committed."""
    recorded: bool = False
    """The log has a record of its membership, or is about to."""
    scheduled_ms: float = inf
    """For when it stands in the shard's heap."""

    @property
    def floor(self) -> Floor:
        """The generation, or the group's epoch, and that of items; 0: it never had members."""
        match self.membership:
            case None:
                return Floor()
            case ClassicGroup(generation=generation):
                return Floor(generation)
            case WorkGroup(group_epoch=epoch, item_epoch=item_epoch):
                return Floor(epoch, item_epoch)
            case ConsumerGroup(group_epoch=epoch):
                return Floor(epoch)

    @property
    def protocol(self) -> GroupProtocol | None:
        """None: only offsets were committed."""
        match self.membership:
            case None:
                return None
            case ClassicGroup():
                return GroupProtocol.CLASSIC
            case ConsumerGroup():
                return GroupProtocol.CONSUMER
            case WorkGroup():
                return GroupProtocol.WORK

    @property
    def empty(self) -> bool:
        """It has no members."""
        return self.membership is None or not self.membership.members

    def handle(self, event: MemberEvent) -> list[Effect] | None:
        """What a member did; None: it speaks another protocol than the group's members."""
        match self.membership, event:
            case ClassicGroup() as group, (
                ClassicJoined() | ClassicSynced() | ClassicHeartbeat() | Left() | StreamBroke()
            ):
                return classic_requests.handle(group, event)
            case ConsumerGroup() as group, ConsumerHeartbeat() | Left() | StreamBroke():
                return consumer_requests.handle(group, event)
            case WorkGroup() as group, WorkHeartbeat() | Left() | StreamBroke():
                return work_requests.handle(group, event)
        assert self.membership is not None, "only members do something"
        return None

    def make_listing(self, group_id: str) -> GroupListing:
        if self.membership is None:
            return GroupListing(group_id, None, GroupState.EMPTY, 0)
        return GroupListing(group_id, self.protocol, self.membership.state, len(self.membership.members))

    def description(self, group_id: str) -> GroupDescription:
        if self.membership is None:
            return GroupDescription(group_id, None, GroupState.EMPTY, -1, -1, "", ())
        return self.membership.describe()

    def may_open_to(self, event: MemberEvent) -> bool:
        """Whether a first member may join; a work group stays one until it is deleted, for its items' epochs."""
        return self.empty and (not isinstance(self.membership, WorkGroup) or isinstance(event, WorkHeartbeat))

    def open_to(self, event: MemberEvent, settings: GroupSettings, view: TopicView, floor: Floor) -> None:
        """
        Its members' state machine for a first member, which joins; of the protocol that this one speaks. ``floor``: the
        epochs of an earlier group of this name.
        """
        assert self.may_open_to(event), "members and newcomers speak one protocol"
        present = self.membership
        epoch = max(self.floor.epoch, floor.epoch)  # they go on where the generations ended, and the other way round
        since_ms = -1 if present is None else present.empty_since_ms
        match event, present:
            case (
                (ClassicJoined(), ClassicGroup())
                | (ConsumerHeartbeat(), ConsumerGroup())
                | (WorkHeartbeat(), WorkGroup())
            ):
                return
            case ClassicJoined(), _:
                self.membership = ClassicGroup(event.group_id, settings, epoch, since_ms)
            case WorkHeartbeat(), _:
                self.membership = WorkGroup(event.group_id, settings, epoch, since_ms, item_epoch=floor.item_epoch)
            case _:
                self.membership = ConsumerGroup(event.group_id, settings, epoch, since_ms, view=view)


def refusal(event: MemberEvent, error: HeadraceError) -> Message:
    """The answer to a member's request that no group takes."""
    match event:
        case ClassicJoined():
            return JoinAnswer(error, event.member_id)
        case ClassicSynced():
            return SyncAnswer(error)
        case ClassicHeartbeat():
            return ClassicStanding(error)
        case ConsumerHeartbeat():
            return ConsumerStanding(error, event.member_id)
        case WorkHeartbeat():
            return WorkStanding(error, event.member_id)
        case Left():
            return LeaveAnswer(error)
        case _:
            raise AssertionError("a broken stream is not answered")


@dataclass(slots=True)
class ReadLog:
    """What the records of a shard say."""

    offsets: dict[str, Offsets]
    members: dict[str, GroupRecord]
    parts: dict[str, dict[bytes, bytes]]
    """Of what work groups do: by group, what stands in the log."""

    @staticmethod
    def of(rows: Mapping[bytes, bytes | None]) -> ReadLog:
        """
        Decode the last value of each key.

        Raises:
            RecordDamaged, UnsupportedVersion: a record cannot be read.
        """
        log = ReadLog({}, {}, {})
        for key, value in rows.items():
            if value is None:
                continue
            match read_key(key):
                case OffsetKey(group_id, partition):
                    log._of(group_id).held[partition] = read_offset(value)
                case PendingKey(group_id, producer_id, partition):
                    by_producer = log._of(group_id).pending.setdefault(partition, {})
                    by_producer[producer_id] = read_pending(value)
                case DeclarationKey(group_id):
                    log.parts.setdefault(group_id, {})[key] = value
                case str(group_id):
                    log.members[group_id] = read_group(value)
        return log

    def _of(self, group_id: str) -> Offsets:
        of_group = self.offsets.get(group_id)
        if of_group is None:
            of_group = self.offsets[group_id] = Offsets(group_id)
        return of_group

    def patterns(self) -> frozenset[str]:
        """Of all members' subscriptions."""
        groups = (record for record in self.members.values() if isinstance(record, ConsumerRecord))
        return frozenset(m.pattern for record in groups for m in record.members if m.pattern is not None)

    def groups(self, settings: GroupSettings, view: TopicView, at: Moment) -> dict[str, Group]:
        groups = {group_id: Group(offsets) for group_id, offsets in self.offsets.items()}
        for group_id, record in self.members.items():
            if record.empty_since_ms == DELETED:
                continue
            group = groups.setdefault(group_id, Group(Offsets(group_id)))
            group.recorded = True
            if isinstance(record, ClassicRecord):
                group.membership = ClassicGroup.restore(group_id, settings, record, at)
            elif isinstance(record, WorkRecord):
                group.membership = WorkGroup(group_id, settings)
                group.membership.restore(record, self._read_declarations(group_id, record), at)
            else:
                group.membership = ConsumerGroup(group_id, settings, view=view)
                group.membership.restore(record, at)
        return groups

    def _read_declarations(self, group_id: str, record: WorkRecord) -> dict[int, Declaration]:
        parts = self.parts.get(group_id, {})
        return {
            serial: read_declaration(parts.get(declaration_key(group_id, serial, at), b"") for at in range(count))
            for serial, count in record.declarations
        }
