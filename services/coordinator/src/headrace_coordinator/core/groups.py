"""
One group as its shard keeps it, whichever protocol its members speak; and groups read from the log's records.

``shard.Shard`` calls this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from headrace_common.core.errors import HeadraceError
from headrace_coordinator.core import classic_requests, consumer_requests
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
)
from headrace_coordinator.core.events import (
    ClassicHeartbeat,
    ClassicJoined,
    ClassicSynced,
    ConsumerHeartbeat,
    Left,
    MemberEvent,
    StreamBroke,
)
from headrace_coordinator.core.floors import DELETED
from headrace_coordinator.core.offsets import Offsets
from headrace_coordinator.core.records import (
    ClassicRecord,
    ConsumerRecord,
    GroupRecord,
    OffsetKey,
    PendingKey,
    read_group,
    read_key,
    read_offset,
    read_pending,
)
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.targets import TopicView
from headrace_coordinator.core.values import GroupProtocol, GroupState, Moment

Membership = ClassicGroup | ConsumerGroup


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
    def epoch(self) -> int:
        """The generation, or the group's epoch; 0: it never had members."""
        if self.membership is None:
            return 0
        return self.membership.generation if isinstance(self.membership, ClassicGroup) else self.membership.group_epoch

    @property
    def empty(self) -> bool:
        """It has no members."""
        return self.membership is None or not self.membership.members

    def handle(self, event: MemberEvent) -> list[Effect] | None:
        """What a member did; None: it speaks the other protocol than the group's members."""
        if isinstance(self.membership, ClassicGroup):
            return None if isinstance(event, ConsumerHeartbeat) else classic_requests.handle(self.membership, event)
        assert self.membership is not None, "only members do something"
        if isinstance(event, ConsumerHeartbeat | Left | StreamBroke):
            return consumer_requests.handle(self.membership, event)
        return None

    def make_listing(self, group_id: str) -> GroupListing:
        if self.membership is None:
            return GroupListing(group_id, None, GroupState.EMPTY, 0)
        classic = isinstance(self.membership, ClassicGroup)
        protocol = GroupProtocol.CLASSIC if classic else GroupProtocol.CONSUMER
        return GroupListing(group_id, protocol, self.membership.state, len(self.membership.members))

    def description(self, group_id: str) -> GroupDescription:
        if self.membership is None:
            return GroupDescription(group_id, None, GroupState.EMPTY, -1, -1, "", ())
        return self.membership.describe()

    def open_to(self, event: MemberEvent, settings: GroupSettings, view: TopicView, floor: int) -> Membership:
        """
        Its members' state machine for a first member, which joins; of the protocol that this one speaks. ``floor``: the
        epoch of an earlier group of this name.
        """
        assert self.empty, "members and newcomers speak one protocol"
        present = self.membership
        kind = ClassicGroup if isinstance(event, ClassicJoined) else ConsumerGroup
        if present is not None and isinstance(present, kind):
            return present
        epoch = max(self.epoch, floor)  # they go on where the generations ended, and the other way round
        since_ms = -1 if present is None else present.empty_since_ms
        if kind is ClassicGroup:
            self.membership = ClassicGroup(event.group_id, settings, epoch, since_ms)
        else:
            self.membership = ConsumerGroup(event.group_id, settings, view, epoch, since_ms)
        return self.membership


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
        case Left():
            return LeaveAnswer(error)
        case _:
            raise AssertionError("a broken stream is not answered")


@dataclass(slots=True)
class ReadLog:
    """What the records of a shard say."""

    offsets: dict[str, Offsets]
    members: dict[str, GroupRecord]

    @staticmethod
    def of(rows: Mapping[bytes, bytes | None]) -> ReadLog:
        """
        Decode the last value of each key.

        Raises:
            RecordDamaged, UnsupportedVersion: a record cannot be read.
        """
        log = ReadLog({}, {})
        for key, value in rows.items():
            if value is None:
                continue
            match read_key(key):
                case OffsetKey(group_id, partition):
                    log._of(group_id).held[partition] = read_offset(value)
                case PendingKey(group_id, producer_id, partition):
                    by_producer = log._of(group_id).pending.setdefault(partition, {})
                    by_producer[producer_id] = read_pending(value)
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
            else:
                group.membership = ConsumerGroup(group_id, settings, view)
                group.membership.restore(record, at)
        return groups
