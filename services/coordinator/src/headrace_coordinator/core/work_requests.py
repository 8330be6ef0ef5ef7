"""
What the requests of a work group's members mean: heartbeats that join, go on or leave, and streams that break.

``groups.Group`` calls ``handle``. A heartbeat that changes nothing only moves the member's deadline.
"""

from __future__ import annotations

from typing import Final

from headrace_common.core.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    HeadraceError,
    Rejected,
    UnknownMemberId,
)
from headrace_coordinator.core.assigned_group import REBALANCE_TIMEOUT_MS, epoch_fault
from headrace_coordinator.core.effects import Effect, LeaveAnswer, Message, WorkStanding
from headrace_coordinator.core.events import Left, StreamBroke, WorkHeartbeat
from headrace_coordinator.core.work_group import WorkGroup
from headrace_coordinator.core.work_members import WorkMember

WorkEvent = WorkHeartbeat | Left | StreamBroke
MEMBERS_MAX: Final = 1_000
LEAVE: Final = -1


def handle(group: WorkGroup, event: WorkEvent) -> list[Effect]:
    """Apply what a member did."""
    match event:
        case WorkHeartbeat(member_epoch=epoch):
            error = _leave_by_heartbeat(group, event) if epoch == LEAVE else _heartbeat(group, event)
            if error is not None:
                group.send(event.stream, WorkStanding(error, event.member_id))
        case Left():
            error = _leave(group, event, LeaveAnswer(None))
            if error is not None:
                group.send(event.stream, LeaveAnswer(error))
        case StreamBroke():
            group.stream_broke(event.stream, event.at)
    return group.take_effects()


def _heartbeat(group: WorkGroup, event: WorkHeartbeat) -> HeadraceError | None:
    if event.member_epoch < 0:
        return Rejected(f"{event.member_epoch} is no member epoch; 0 joins, -1 leaves")
    if event.member_epoch == 0:
        return _join(group, event)
    member = group.identify(event.member_id, event.instance_id)
    if isinstance(member, HeadraceError):
        return member
    fault = epoch_fault(member, event.member_epoch, event.owned)
    if fault is not None:
        return fault
    if not group.bind(member, event.stream, event.at):
        return None
    serial = member.declaration
    if event.declaration is not None:
        declared = group.declare(event.declaration, event.at, (member,))
        if isinstance(declared, HeadraceError):
            return declared
        serial = declared
    member.previous_epoch = event.member_epoch
    member.client_address = event.client_address or member.client_address
    group.renew_session(member, event.at)
    if event.rebalance_timeout_ms not in (None, member.rebalance_timeout_ms):
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        group.dirty = True
    if event.owned is not None:
        member.report(event.owned)
    _move(group, member, event, serial)
    group.answer(member, event.stream, whole=event.owned is not None and event.owned != member.assigned)
    return None


def _move(group: WorkGroup, member: WorkMember, event: WorkHeartbeat, serial: int) -> None:
    """Take what the member says, and see whether it moves anything."""
    group.forget_left(event.ended)
    group.pass_tokens(member, event.refused, event.at)
    changed = serial != member.declaration
    member.declaration = serial
    caught_up = event.lags is not None and group.take_lags(member, event.lags)
    if changed or caught_up:
        group.bump_epoch(event.at)
    elif event.owned is not None:
        group.settle({member.member_id}, event.at)


# --- join -----------------------------------------------------------------------------------------------------


def _join(group: WorkGroup, event: WorkHeartbeat) -> HeadraceError | None:
    old, holder = group.members.get(event.member_id), group.holder(event.instance_id)
    fault = _join_fault(group, event, old or holder)
    if fault is not None:
        return fault
    own = None if old is None else group.streams.of(old.member_id)
    if own is not None and own > event.stream:
        group.close(event.stream)
        return None
    assert event.declaration is not None, "it was looked at"
    replaced = [one for one in (old, holder) if one is not None]
    serial = group.declare(event.declaration, event.at, replaced)
    if isinstance(serial, HeadraceError):
        return serial
    if old is not None and own == event.stream:
        group.renew_session(old, event.at)
        _move(group, old, event, serial)
        group.answer(old, event.stream, whole=True)
        return None
    member = _newcomer(event, serial)
    group.forget_left((event.transactional_id,))  # what is open under it is the newcomer's own
    for gone in dict.fromkeys(one.member_id for one in replaced):
        _replace(group, group.members[gone], member)
    group.add(member)
    group.bind(member, event.stream, event.at)
    group.renew_session(member, event.at)
    group.bump_epoch(event.at)
    group.answer(member, event.stream, whole=True)
    return None


def _join_fault(group: WorkGroup, event: WorkHeartbeat, place: WorkMember | None) -> HeadraceError | None:
    if not event.member_id:
        return Rejected("a member of a work group chooses its member id itself; it is empty")
    if event.declaration is None:
        return Rejected("a member that joins declares what is to be done")
    if event.owned:
        return Rejected("a member that joins does nothing yet; it gives up its items before")
    most = min(MEMBERS_MAX, group.settings.group_max_size)
    if place is None and len(group.members) >= most:
        return GroupMaxSizeReached(f"the group has {len(group.members)} members; {most} is the most")
    return None


def _newcomer(event: WorkHeartbeat, serial: int) -> WorkMember:
    timeout_ms = event.rebalance_timeout_ms
    return WorkMember(
        member_id=event.member_id,
        instance_id=event.instance_id,
        client_id=event.client_id,
        client_address=event.client_address,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if timeout_ms is None else timeout_ms,
        process_id=event.process_id,
        endpoint=event.endpoint,
        zone=event.zone,
        transactional_id=event.transactional_id,
        declaration=serial,
        lags=event.lags or {},
    )


def _replace(group: WorkGroup, gone: WorkMember, member: WorkMember) -> None:
    """The newcomer begins from what the one before it had; that one is out."""
    member.target |= gone.target
    member.standby |= gone.standby
    same = gone.member_id == member.member_id
    if gone.transactional_id == member.transactional_id:
        gone.transactional_id = ""
    if not same:
        group.put_out(
            gone, FencedInstanceId(f"another member has taken group_instance_id {gone.instance_id!r}; stop this one")
        )
    group.forget(gone, keep_stream=same)


# --- leave ----------------------------------------------------------------------------------------------------


def _leave_by_heartbeat(group: WorkGroup, event: WorkHeartbeat) -> HeadraceError | None:
    return _leave(group, event, WorkStanding(None, event.member_id, LEAVE))


def _leave(group: WorkGroup, event: WorkHeartbeat | Left, answer: Message) -> HeadraceError | None:
    by_name = not event.member_id
    found = group.holder(event.instance_id) if by_name else group.identify(event.member_id, event.instance_id)
    if found is None:
        return UnknownMemberId(f"the group has no member with group_instance_id {event.instance_id!r}")
    if isinstance(found, HeadraceError):
        return found
    own = group.streams.of(found.member_id)
    if not by_name and own is not None and own > event.stream:
        group.close(event.stream)
        return None
    if not by_name:
        found.transactional_id = ""  # it has ended what was open
    group.send(event.stream, answer)
    if own == event.stream:
        group.close(event.stream)
        group.streams.drop(found.member_id)
    group.remove([(found, UnknownMemberId("the member was removed from the group"))], event.at)
    return None
