"""
What the requests of a consumer group's members mean: heartbeats that join, go on or leave, and streams that break.

``groups.Group`` calls ``handle``. A heartbeat that changes nothing only moves the member's deadline.
"""

from __future__ import annotations

from headrace_common.core.errors import (
    GroupMaxSizeReached,
    HeadraceError,
    Rejected,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.assigned_group import REBALANCE_TIMEOUT_MS, epoch_fault
from headrace_coordinator.core.consumer_group import ConsumerGroup
from headrace_coordinator.core.consumer_members import ConsumerMember
from headrace_coordinator.core.effects import ConsumerStanding, Effect, LeaveAnswer, Message
from headrace_coordinator.core.events import ConsumerHeartbeat, Left, StreamBroke
from headrace_coordinator.core.reconcile import AWAY
from headrace_coordinator.core.values import Subscription, TopicPartitions

ConsumerEvent = ConsumerHeartbeat | Left | StreamBroke


def handle(group: ConsumerGroup, event: ConsumerEvent) -> list[Effect]:
    """Apply what a member did."""
    match event:
        case ConsumerHeartbeat(member_epoch=epoch) if epoch in {AWAY, -1}:
            _leave_by_heartbeat(group, event)
        case ConsumerHeartbeat():
            error = _heartbeat(group, event)
            if error is not None:
                group.send(event.stream, ConsumerStanding(error, event.member_id))
        case Left():
            _leave_by_request(group, event)
        case StreamBroke():
            group.stream_broke(event.stream, event.at)
    return group.take_effects()


def _heartbeat(group: ConsumerGroup, event: ConsumerHeartbeat) -> HeadraceError | None:
    if event.member_epoch < 0:
        return Rejected(f"{event.member_epoch} is no member epoch; 0 joins, -1 and -2 leave")
    assignor = event.assignor
    if assignor is not None and assignor not in group.settings.group_consumer_assignors:
        offered = ", ".join(group.settings.group_consumer_assignors)
        return UnsupportedAssignor(f"no assignor is called {assignor!r}; there are {offered}")
    if event.member_epoch == 0:
        return _join(group, event)
    member = group.identify(event.member_id, event.instance_id)
    if isinstance(member, HeadraceError):
        return member
    owned = None if event.owned is None else _ids(event.owned)
    fault = epoch_fault(member, event.member_epoch, owned)
    if fault is not None:
        return fault
    if not group.bind(member, event.stream, event.at):
        return None
    member.previous_epoch = event.member_epoch
    group.renew_session(member, event.at)
    if owned is not None:
        member.report(owned)
    if _update(group, member, event):
        group.bump_epoch(event.at)
    elif owned is not None:
        group.settle({member.member_id}, event.at)
    group.answer(member, event.stream, whole=owned is not None and owned != member.assigned)
    return None


def _update(group: ConsumerGroup, member: ConsumerMember, event: ConsumerHeartbeat) -> bool:
    """Take what the member says of itself; returns whether the target depends on it."""
    sight = event.sight
    changed = sight is not None and sight != member.sight and group.take_sight(member, sight)
    member.client_address = event.client_address or member.client_address
    subscription = event.subscription
    if subscription is not None:
        if subscription.pattern is not None:
            group.view.matches.setdefault(subscription.pattern, event.matched)
        changed = changed or subscription != member.subscription
        member.subscription = subscription
    if event.assignor is not None and event.assignor != member.assignor:
        member.assignor = event.assignor
        changed = True
    if event.rebalance_timeout_ms is not None and event.rebalance_timeout_ms != member.rebalance_timeout_ms:
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        group.dirty = True
    return changed


# --- join -----------------------------------------------------------------------------------------------


def _join(group: ConsumerGroup, event: ConsumerHeartbeat) -> HeadraceError | None:
    old = group.members.get(event.member_id)
    fault = _join_fault(group, event, old)
    if fault is not None:
        return fault
    own = None if old is None else group.streams.of(old.member_id)
    if old is not None and own is not None and own >= event.stream:
        if own == event.stream:
            _join_again(group, old, event)
        else:
            group.close(event.stream)
        return None
    member = _newcomer(group, event)
    holder = group.holder(event.instance_id)
    heir_of = old if holder is None else holder
    same = False
    if heir_of is not None:
        member.target = heir_of.target
        asks_the_same = heir_of.asks_for() == member.asks_for() and group.wants(heir_of) == group.wants(member)
        same = heir_of.away and asks_the_same
    for gone in (old, holder if holder is not old else None):
        if gone is not None:
            same = same and gone is heir_of
            group.forget(gone, keep_stream=gone.member_id == member.member_id)
    group.add(member)
    group.bind(member, event.stream, event.at)
    group.renew_session(member, event.at)
    if same:
        group.reclaim(member, event.at)
    else:
        group.bump_epoch(event.at)
    group.answer(member, event.stream, whole=True)
    return None


def _join_again(group: ConsumerGroup, member: ConsumerMember, event: ConsumerHeartbeat) -> None:
    """It is a member over this very stream, and was not told otherwise since: what it holds stays its own."""
    group.renew_session(member, event.at)
    if _update(group, member, event):
        group.bump_epoch(event.at)
    group.answer(member, event.stream, whole=True)


def _join_fault(group: ConsumerGroup, event: ConsumerHeartbeat, old: ConsumerMember | None) -> HeadraceError | None:
    if not event.member_id:
        return Rejected("a member of the server-side protocol chooses its member id itself; it is empty")
    if event.subscription is None:
        return Rejected("a member that joins says what it subscribes to")
    if event.owned:
        return Rejected("a member that joins holds no partitions; it gives them up before")
    holder = group.holder(event.instance_id)
    if holder is not None and holder is not old and not holder.away:
        return UnreleasedInstanceId(
            f"the member with group_instance_id {event.instance_id!r} has not left yet; try again"
        )
    if old is None and holder is None and len(group.members) >= group.settings.group_max_size:
        return GroupMaxSizeReached(f"the group has {len(group.members)} members, as many as group.max.size allows")
    return None


def _newcomer(group: ConsumerGroup, event: ConsumerHeartbeat) -> ConsumerMember:
    timeout_ms = event.rebalance_timeout_ms
    subscription = event.subscription or Subscription(frozenset())
    if subscription.pattern is not None:
        group.view.matches.setdefault(subscription.pattern, event.matched)
    return ConsumerMember(
        member_id=event.member_id,
        instance_id=event.instance_id,
        rack=event.rack,
        client_id=event.client_id,
        client_address=event.client_address,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if timeout_ms is None else timeout_ms,
        subscription=subscription,
        assignor=event.assignor,
        sight=event.sight,
    )


# --- leave, broken streams ------------------------------------------------------------------------------


def _leave_by_heartbeat(group: ConsumerGroup, event: ConsumerHeartbeat) -> None:
    member = group.identify(event.member_id, event.instance_id)
    for_a_while = event.member_epoch == AWAY
    fault = member if isinstance(member, HeadraceError) else None
    if fault is None and for_a_while and event.instance_id is None:
        fault = Rejected("only a static member, with a group_instance_id, leaves for a while (-2)")
    if fault is not None:
        group.send(event.stream, ConsumerStanding(fault, event.member_id))
    elif isinstance(member, ConsumerMember):
        standing = ConsumerStanding(None, event.member_id, event.member_epoch)
        _leave(group, member, event, standing, for_a_while=for_a_while)


def _leave_by_request(group: ConsumerGroup, event: Left) -> None:
    member: ConsumerMember | HeadraceError | None = group.identify(event.member_id, event.instance_id)
    if not event.member_id:
        member = group.holder(event.instance_id)
    if member is None:
        member = UnknownMemberId(f"the group has no member with group_instance_id {event.instance_id!r}")
    if isinstance(member, HeadraceError):
        group.send(event.stream, LeaveAnswer(member))
        return
    for_a_while = member.instance_id is not None and not event.permanently and bool(event.member_id)
    _leave(group, member, event, LeaveAnswer(None), for_a_while=for_a_while)


def _leave(
    group: ConsumerGroup,
    member: ConsumerMember,
    event: ConsumerHeartbeat | Left,
    answer: Message,
    *,
    for_a_while: bool,
) -> None:
    own = group.streams.of(member.member_id)
    if event.member_id and own is not None and own > event.stream:
        group.close(event.stream)
        return
    group.send(event.stream, answer)
    if own == event.stream:
        group.close(event.stream)
        group.streams.drop(member.member_id)
    if for_a_while:
        group.send_away(member, event.at)
    else:
        group.remove([(member, UnknownMemberId("the member was removed from the group"))], event.at)


def _ids(owned: tuple[TopicPartitions, ...]) -> frozenset[PartitionId]:
    return frozenset(PartitionId(TopicId(entry.topic_id), number) for entry in owned for number in entry.partitions)
