"""
What the requests of a classic group's members mean: join, sync, heartbeat, leave, and streams that break.

``groups.Group`` calls ``handle``. A heartbeat that changes nothing only moves the member's deadline.
"""

from __future__ import annotations

from headrace_common.core.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    HeadraceError,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    RebalanceInProgress,
    UnknownMemberId,
)
from headrace_coordinator.core.classic_group import ClassicGroup
from headrace_coordinator.core.classic_members import Awaits, ClassicMember
from headrace_coordinator.core.effects import ClassicStanding, Effect, JoinAnswer, LeaveAnswer, SyncAnswer
from headrace_coordinator.core.events import ClassicHeartbeat, ClassicJoined, ClassicSynced, Left, StreamBroke
from headrace_coordinator.core.values import GroupState

ClassicEvent = ClassicJoined | ClassicSynced | ClassicHeartbeat | Left | StreamBroke


def handle(group: ClassicGroup, event: ClassicEvent) -> list[Effect]:
    """Apply what a member did."""
    match event:
        case ClassicJoined():
            _join(group, event)
        case ClassicSynced():
            _sync(group, event)
        case ClassicHeartbeat():
            _heartbeat(group, event)
        case Left():
            _leave(group, event)
        case StreamBroke():
            _stream_broke(group, event)
    return group.take_effects()


# --- join -----------------------------------------------------------------------------------------------


def _join(group: ClassicGroup, event: ClassicJoined) -> None:
    error = _join_fault(group, event)
    if error is not None:
        group.send(event.stream, JoinAnswer(error, event.member_id))
        return
    holder = group.members.holder(event.instance_id)
    if event.member_id:
        member = group.members.get(event.member_id)
        assert member is not None, "checked before"
        if group.bind(member, event.stream, event.at):
            _join_again(group, member, event)
    elif holder is not None:
        _replace(group, holder, event)
    else:
        member = _newcomer(event)
        group.members.add(member)
        group.bind(member, event.stream, event.at)
        group.await_join(member, event.at)


def _join_fault(group: ClassicGroup, event: ClassicJoined) -> HeadraceError | None:
    limits = group.settings
    low, high = limits.group_min_session_timeout_ms, limits.group_max_session_timeout_ms
    if not low <= event.session_timeout_ms <= high:
        return InvalidSessionTimeout(f"session.timeout.ms is {event.session_timeout_ms}; {low} to {high} are allowed")
    known = group.members.holder(event.instance_id)
    if event.member_id:
        member = group.members.identify(event.member_id, event.instance_id)
        if isinstance(member, HeadraceError):
            return member
        known = member
    elif known is None and len(group.members) >= limits.group_max_size:
        return GroupMaxSizeReached(f"the group has {len(group.members)} members, as many as group.max.size allows")
    if not event.protocols or not group.members.compatible(event.protocols, known):
        names = ", ".join(name for name, _ in event.protocols) or "none"
        return InconsistentGroupProtocol(f"the group's members have no assignor in common with this one's: {names}")
    return None


def _newcomer(event: ClassicJoined) -> ClassicMember:
    return ClassicMember(
        member_id=event.fresh_id,
        instance_id=event.instance_id,
        session_timeout_ms=event.session_timeout_ms,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        client_id=event.client_id,
        client_address=event.client_address,
        protocols=event.protocols,
    )


def _join_again(group: ClassicGroup, member: ClassicMember, event: ClassicJoined) -> None:
    same = member.protocols == event.protocols
    member.session_timeout_ms = event.session_timeout_ms
    member.rebalance_timeout_ms = event.rebalance_timeout_ms
    group.members.change_protocols(member, event.protocols)
    answered = (group.state is GroupState.COMPLETING_REBALANCE and same) or (
        group.state is GroupState.STABLE and same and member.member_id != group.leader
    )
    if answered:  # its last answer was lost, or it joins for no reason
        group.send(event.stream, group.join_answer(member))
    else:
        group.await_join(member, event.at)


def _replace(group: ClassicGroup, old: ClassicMember, event: ClassicJoined) -> None:
    """A static member was started again: it takes the place of the old one, which is fenced (KIP-345)."""
    member = _newcomer(event)
    member.assignment, member.announced = old.assignment, old.announced
    was_leader = old.member_id == group.leader
    unchanged = group.state is GroupState.STABLE and old.topics() == member.topics() and not _owes(group, old)
    error = FencedInstanceId(f"another member has taken group_instance_id {old.instance_id!r}")
    group.replace(old, member, error)
    group.bind(member, event.stream, event.at)
    if unchanged and group.members.vote() == group.protocol:
        group.send(event.stream, group.join_answer(member, skip_assignment=was_leader))
    else:
        group.await_join(member, event.at)


def _owes(group: ClassicGroup, member: ClassicMember) -> bool:
    """
    Whether it was to give partitions up that nobody has got yet: the first of two steps of a cooperative assignor.
    It would have joined again for the second one, which its successor does not know of.
    """
    assigned = {(t.topic, n) for m in group.members for t in m.assignment.partitions for n in t.partitions}
    owned = member.subscription(group.protocol).owned
    return any((t.topic, n) not in assigned for t in owned for n in t.partitions)


# --- sync -----------------------------------------------------------------------------------------------


def _sync(group: ClassicGroup, event: ClassicSynced) -> None:
    member = _speaker(group, event)
    if isinstance(member, HeadraceError):
        group.send(event.stream, SyncAnswer(member))
        return
    if not group.bind(member, event.stream, event.at):
        return
    group.renew_session(member, event.at)
    if group.state is GroupState.PREPARING_REBALANCE:
        group.send(event.stream, SyncAnswer(RebalanceInProgress("the group rebalances; join again")))
    elif group.state is GroupState.STABLE:
        group.finish_sync(member)
        group.send(event.stream, SyncAnswer(None, group.generation, member.assignment))
    else:
        member.awaits = Awaits.SYNC
        group.finish_sync(member)
        if member.member_id == group.leader:
            group.assign(event.assignments, event.at)


# --- heartbeat, leave, broken streams -------------------------------------------------------------------


def _heartbeat(group: ClassicGroup, event: ClassicHeartbeat) -> None:
    member = group.members.identify(event.member_id, event.instance_id)
    if not isinstance(member, HeadraceError) and member.awaits is not Awaits.JOIN:
        member = _speaker(group, event)
    if isinstance(member, HeadraceError):
        group.send(event.stream, ClassicStanding(member, group.generation))
        return
    if not group.bind(member, event.stream, event.at):
        return
    group.renew_session(member, event.at)
    told_to_join = group.state is GroupState.PREPARING_REBALANCE and member.member_id not in group.joined
    error = RebalanceInProgress("the group rebalances; join again") if told_to_join else None
    group.send(event.stream, ClassicStanding(error, group.generation))


def _leave(group: ClassicGroup, event: Left) -> None:
    member: ClassicMember | HeadraceError | None = group.members.identify(event.member_id, event.instance_id)
    if not event.member_id:
        member = group.members.holder(event.instance_id)
    if member is None:
        member = UnknownMemberId(f"the group has no member with group_instance_id {event.instance_id!r}")
    if isinstance(member, HeadraceError):
        group.send(event.stream, LeaveAnswer(member))
        return
    own = group.streams.of(member.member_id)
    if event.member_id and own is not None and own > event.stream:
        group.close(event.stream)
        return
    if member.instance_id is not None and member.announced and not event.permanently:
        group.streams.drop(member.member_id)
        member.awaits = Awaits.NOTHING
        group.renew_session(member, event.at)
    else:
        by_itself = own == event.stream
        group.drop(member, None if by_itself else UnknownMemberId("the member was removed from the group"))
    group.send(event.stream, LeaveAnswer(None))
    if own == event.stream:
        group.close(event.stream)
    if member.member_id not in group.members:
        group.rebalance(event.at)


def _stream_broke(group: ClassicGroup, event: StreamBroke) -> None:
    member = group.members.get(group.streams.end(event.stream) or "")
    if member is not None:
        group.lose_stream(member, event.at)


def _speaker(group: ClassicGroup, event: ClassicSynced | ClassicHeartbeat) -> ClassicMember | HeadraceError:
    member = group.members.identify(event.member_id, event.instance_id)
    if not isinstance(member, HeadraceError) and event.generation != group.generation:
        return group.illegal_generation(event.generation)
    return member
