"""
How a member of the server-side protocol gets from what it holds to what it is to hold (KIP-848, reconciliation).

``consumer_group.ConsumerGroup`` calls ``advance`` whenever something may have changed for a member: a new target, a
report of the member, a partition that became free. Two rules make sure that no partition has two owners:

* What a member is to give up stays *held* by it (``revoking``) until a report of the member does not name it any more.
* A member is asked to give up only what it has reported to hold. What was given to it and is *unconfirmed* may still be
  on its way, so that an older report without it would look like the release. It is asked after its confirmation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from headrace_common.core.ids import PartitionId
from headrace_coordinator.core.records import ConsumerMemberRecord
from headrace_coordinator.core.values import MemberState, Subscription

AWAY: Final = -2
"""Epoch of a static member that has left for a while."""

_NOTHING: Final[frozenset[PartitionId]] = frozenset()


@dataclass(slots=True)
class ConsumerMember:
    member_id: str
    instance_id: str | None
    rack: str | None
    client_id: str
    client_address: str
    rebalance_timeout_ms: int
    subscription: Subscription
    assignor: str | None
    epoch: int = 0
    previous_epoch: int = 0
    """The one that it was last heard with: it has this one or a newer one, up to ``epoch``."""
    state: MemberState = MemberState.STABLE
    assigned: frozenset[PartitionId] = _NOTHING
    revoking: frozenset[PartitionId] = _NOTHING
    target: frozenset[PartitionId] = _NOTHING
    owned: frozenset[PartitionId] | None = _NOTHING
    """Its last report. None: it has not reported to this coordinator."""
    unconfirmed: frozenset[PartitionId] = _NOTHING
    """Of ``assigned``: what it has not reported to hold since it was given."""
    deadline_ms: float = inf
    """Monotonic; when it is out unless it is heard before."""
    revoke_until_ms: float = inf
    """Monotonic; when it is out unless it has given up what it must."""
    told: frozenset[PartitionId] | None = None
    """The assignment that was last sent over its present stream; compared as an object, not by what is in it."""
    told_epoch: int = 0
    """The epoch that was last sent."""

    @property
    def away(self) -> bool:
        """It has left for a while, and holds nothing; its place is kept for the session."""
        return self.epoch == AWAY

    def asks_for(self) -> tuple[object, ...]:
        """What the target depends on, of what it says of itself."""
        return self.subscription, self.assignor, self.rack

    def report(self, owned: frozenset[PartitionId]) -> None:
        """What it says that it holds."""
        self.owned = owned
        self.unconfirmed = (self.unconfirmed & self.assigned) - owned

    def record(self) -> ConsumerMemberRecord:
        """Its durable part."""
        return ConsumerMemberRecord(
            member_id=self.member_id,
            instance_id=self.instance_id,
            rack=self.rack,
            client_id=self.client_id,
            client_address=self.client_address,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topics=self.subscription.topics,
            pattern=self.subscription.pattern,
            assignor=self.assignor,
            epoch=self.epoch,
            previous_epoch=self.previous_epoch,
            state=self.state,
            assigned=self.assigned,
            revoking=self.revoking,
            target=self.target,
        )

    @staticmethod
    def restore(record: ConsumerMemberRecord) -> ConsumerMember:
        """The member of a record; what it holds is to be confirmed anew."""
        return ConsumerMember(
            member_id=record.member_id,
            instance_id=record.instance_id,
            rack=record.rack,
            client_id=record.client_id,
            client_address=record.client_address,
            rebalance_timeout_ms=record.rebalance_timeout_ms,
            subscription=Subscription(record.topics, record.pattern),
            assignor=record.assignor,
            epoch=record.epoch,
            previous_epoch=record.previous_epoch,
            state=record.state,
            assigned=record.assigned,
            revoking=record.revoking,
            target=record.target,
            owned=None,
            unconfirmed=record.assigned,
        )


@dataclass(slots=True)
class Ownership:
    """Who holds each partition now, as far as the coordinator knows: ``assigned`` and ``revoking`` of all members."""

    _owner: dict[PartitionId, str] = field(default_factory=dict)
    freed: set[PartitionId] = field(default_factory=set)
    """What has become free since somebody looked."""

    def is_free(self, partition: PartitionId) -> bool:
        return partition not in self._owner

    def take(self, partitions: Iterable[PartitionId], member_id: str) -> None:
        """They are this member's now."""
        for partition in partitions:
            assert partition not in self._owner, f"{partition} has an owner, {self._owner[partition]}"
            self._owner[partition] = member_id

    def free(self, partitions: Iterable[PartitionId]) -> None:
        """They are nobody's any more."""
        for partition in partitions:
            del self._owner[partition]
            self.freed.add(partition)


def advance(member: ConsumerMember, target_epoch: int, ownership: Ownership, now_ms: float) -> bool:
    """Move the member as far as it can go; returns whether anything durable of it changed."""
    if member.away:
        return _shrink(member, ownership)
    changed = _finish_revoking(member, ownership)
    if member.revoking:
        return changed
    surplus = member.assigned - member.target
    if surplus:
        return _revoke(member, surplus, now_ms) or changed
    return _move(member, target_epoch, ownership) or changed


def release(member: ConsumerMember, ownership: Ownership) -> None:
    """The member is out, or holds nothing any more: all that it held is free."""
    ownership.free(member.assigned | member.revoking)
    member.assigned = member.revoking = member.unconfirmed = member.owned = _NOTHING
    member.state = MemberState.STABLE
    member.revoke_until_ms = inf


def depart(member: ConsumerMember, ownership: Ownership) -> None:
    """A static member leaves for a while: what it is to hold is kept for it."""
    ownership.free(member.revoking)
    member.epoch = member.previous_epoch = AWAY
    member.state = MemberState.STABLE
    member.revoking = member.owned = member.unconfirmed = _NOTHING
    member.revoke_until_ms = inf


def _shrink(member: ConsumerMember, ownership: Ownership) -> bool:
    """It runs nowhere, so what it is not to hold any more is free at once."""
    surplus = member.assigned - member.target
    if surplus:
        member.assigned -= surplus
        ownership.free(surplus)
    return bool(surplus)


def _finish_revoking(member: ConsumerMember, ownership: Ownership) -> bool:
    if not member.revoking or member.owned is None or not member.revoking.isdisjoint(member.owned):
        return False
    ownership.free(member.revoking)
    member.revoking = _NOTHING
    return True


def _revoke(member: ConsumerMember, surplus: frozenset[PartitionId], now_ms: float) -> bool:
    """Ask for what it has confirmed to hold; wait for the confirmation of the rest."""
    was = member.state, member.assigned
    member.state = MemberState.UNREVOKED
    member.revoking = surplus - member.unconfirmed
    if member.revoking:
        member.assigned -= member.revoking
    if member.revoking or was[0] is not MemberState.UNREVOKED:
        member.revoke_until_ms = now_ms + member.rebalance_timeout_ms
    return was != (member.state, member.assigned)


def _move(member: ConsumerMember, target_epoch: int, ownership: Ownership) -> bool:
    """Nothing is to be given up: it is in the target epoch, and gets what is free."""
    was = member.epoch, member.state, member.assigned
    missing = member.target - member.assigned
    gained = frozenset(p for p in missing if ownership.is_free(p))
    if gained:
        ownership.take(gained, member.member_id)
        member.assigned |= gained
        member.unconfirmed |= gained
    member.epoch = target_epoch
    member.state = MemberState.STABLE if len(gained) == len(missing) else MemberState.UNRELEASED
    member.revoke_until_ms = inf
    return was != (member.epoch, member.state, member.assigned)
