"""
How a member gets from what it holds to what it is to hold, where the coordinator assigns (KIP-848, reconciliation).

What is held are partitions in consumer groups and items in work groups: keys of any kind. ``assigned_group`` calls
``advance`` whenever something may have changed for a member: a new target, a report of the member, a key that became
free. Two rules make sure that no key has two owners:

* What a member is to give up stays *held* by it (``revoking``) until a report of the member does not name it any more:
  any of it, as KIP-848 has it, or with ``Ownership.singly`` this one.
* A member is asked to give up only what it has reported to hold. What was given to it and is *unconfirmed* may still be
  on its way, so that an older report without it would look like the release. It is asked after its confirmation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Generic, TypeVar

from headrace_coordinator.core.values import MemberState

K = TypeVar("K", bound=Hashable)

AWAY: Final = -2
"""Epoch of a static member that has left for a while."""

NOTHING: Final[frozenset[Any]] = frozenset()


@dataclass(slots=True, kw_only=True)
class Holder(Generic[K]):
    """What a member holds, of whichever kind of group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_address: str
    rebalance_timeout_ms: int
    epoch: int = 0
    previous_epoch: int = 0
    """The one that it was last heard with: it has this one or a newer one, up to ``epoch``."""
    state: MemberState = MemberState.STABLE
    assigned: frozenset[K] = NOTHING
    revoking: frozenset[K] = NOTHING
    target: frozenset[K] = NOTHING
    owned: frozenset[K] | None = NOTHING
    """Its last report. None: it has not reported to this coordinator."""
    unconfirmed: frozenset[K] = NOTHING
    """Of ``assigned``: what it has not reported to hold since it was given."""
    deadline_ms: float = inf
    """Monotonic; when it is out unless it is heard before."""
    revoke_until_ms: float = inf
    """Monotonic; when it is out unless it has given up what it must."""

    @property
    def away(self) -> bool:
        """It has left for a while, and holds nothing; its place is kept for the session."""
        return self.epoch == AWAY

    @property
    def held(self) -> frozenset[K]:
        """What nobody else may have."""
        return self.assigned | self.revoking

    def report(self, owned: frozenset[K]) -> None:
        """What it says that it holds."""
        self.owned = owned
        self.unconfirmed = (self.unconfirmed & self.assigned) - owned


@dataclass(slots=True)
class Ownership(Generic[K]):
    """Who holds each key now, as far as the coordinator knows: ``assigned`` and ``revoking`` of all members."""

    _owner: dict[K, str] = field(default_factory=dict)
    freed: set[K] = field(default_factory=set)
    """What has become free since somebody looked."""
    singly: bool = False
    """What a member has given up is free before it has given up all that it must."""

    def is_free(self, key: K) -> bool:
        return key not in self._owner

    def take(self, keys: Iterable[K], member_id: str) -> None:
        """They are this member's now."""
        for key in keys:
            assert key not in self._owner, f"{key} has an owner, {self._owner[key]}"
            self._owner[key] = member_id

    def free(self, keys: Iterable[K]) -> None:
        """They are nobody's any more."""
        for key in keys:
            del self._owner[key]
            self.freed.add(key)


def advance(member: Holder[K], target_epoch: int, ownership: Ownership[K], now_ms: float) -> bool:
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


def release(member: Holder[K], ownership: Ownership[K]) -> None:
    """The member is out, or holds nothing any more: all that it held is free."""
    ownership.free(member.held)
    member.assigned = member.revoking = member.unconfirmed = member.owned = NOTHING
    member.state = MemberState.STABLE
    member.revoke_until_ms = inf


def depart(member: Holder[K], ownership: Ownership[K]) -> None:
    """A static member leaves for a while: what it is to hold is kept for it."""
    ownership.free(member.revoking)
    member.epoch = member.previous_epoch = AWAY
    member.state = MemberState.STABLE
    member.revoking = member.owned = member.unconfirmed = NOTHING
    member.revoke_until_ms = inf


def _shrink(member: Holder[K], ownership: Ownership[K]) -> bool:
    """It runs nowhere, so what it is not to hold any more is free at once."""
    surplus = member.assigned - member.target
    if surplus:
        member.assigned -= surplus
        ownership.free(surplus)
    return bool(surplus)


def _finish_revoking(member: Holder[K], ownership: Ownership[K]) -> bool:
    if not member.revoking or member.owned is None:
        return False
    released = member.revoking - member.owned
    if not released or (released != member.revoking and not ownership.singly):
        return False
    ownership.free(released)
    member.revoking -= released
    return True


def _revoke(member: Holder[K], surplus: frozenset[K], now_ms: float) -> bool:
    """Ask for what it has confirmed to hold; wait for the confirmation of the rest."""
    was = member.state, member.assigned
    member.state = MemberState.UNREVOKED
    member.revoking = surplus - member.unconfirmed
    if member.revoking:
        member.assigned -= member.revoking
    if member.revoking or was[0] is not MemberState.UNREVOKED:
        member.revoke_until_ms = now_ms + member.rebalance_timeout_ms
    return was != (member.state, member.assigned)


def _move(member: Holder[K], target_epoch: int, ownership: Ownership[K]) -> bool:
    """Nothing is to be given up: it is in the target epoch, and gets what is free."""
    was = member.epoch, member.state, member.assigned
    missing = member.target - member.assigned
    gained = frozenset(key for key in missing if ownership.is_free(key))
    if gained:
        ownership.take(gained, member.member_id)
        member.assigned |= gained
        member.unconfirmed |= gained
    member.epoch = target_epoch
    member.state = MemberState.STABLE if len(gained) == len(missing) else MemberState.UNRELEASED
    member.revoke_until_ms = inf
    return was != (member.epoch, member.state, member.assigned)
