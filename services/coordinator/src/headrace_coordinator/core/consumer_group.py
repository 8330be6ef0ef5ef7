"""
One group of the server-side protocol (KIP-848): the coordinator computes the assignment and moves the members to it.

``shard.Shard`` sends the events. Three epochs: the group's grows with every change of members, subscriptions or
topics; the target assignment is computed at once for each, so its epoch is the same; each member has its own, which
``reconcile.advance`` brings to the target's. All of it is durable, and persisted before it is told. What changes for a
member is pushed over its stream at once.

Answers and pushes cross heartbeats that are under way. So a heartbeat may carry any epoch from the last one that the
member was heard with up to its present one; KIP-848, where only answers bring news, allows the previous one only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace_common.core.errors import (
    FencedMemberEpoch,
    GroupMaxSizeReached,
    HeadraceError,
    Rejected,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.consumer_moves import ConsumerMoves
from headrace_coordinator.core.effects import (
    CloseStream,
    ConsumerStanding,
    Effect,
    GroupDescription,
    LeaveAnswer,
    MemberDescription,
)
from headrace_coordinator.core.events import ConsumerHeartbeat, Left, StreamBroke
from headrace_coordinator.core.identity import identified
from headrace_coordinator.core.reconcile import AWAY, ConsumerMember
from headrace_coordinator.core.targets import chosen_assignor
from headrace_coordinator.core.values import (
    GroupProtocol,
    GroupState,
    MemberState,
    Moment,
    Subscription,
    TopicPartitions,
)

ConsumerEvent = ConsumerHeartbeat | Left | StreamBroke
REBALANCE_TIMEOUT_MS: Final = 45_000
"""Of a member that names none."""


class ConsumerGroup(ConsumerMoves):
    """The state machine: what each request means. A heartbeat that changes nothing only moves the member's deadline."""

    __slots__ = ()

    # --- what others ask ------------------------------------------------------------------------------------

    def commit_fault(
        self, member_id: str, instance_id: str | None, epoch: int, *, transactional: bool = False
    ) -> HeadraceError | None:
        """
        Why this commit is refused, if it is; an empty ``member_id`` with no epoch is administration.

        In a transaction that is a producer without the group's metadata, which Kafka does not check either.
        """
        if not member_id and instance_id is None and epoch < 0 and (transactional or not self.members):
            return None
        member = self._identified(member_id, instance_id)
        return member if isinstance(member, HeadraceError) else self._stale(member, epoch)

    def committed(self, member_id: str, at: Moment) -> None:
        """A commit was accepted: no sign of life in this protocol."""

    def fetch_fault(self, member_id: str, member_epoch: int | None) -> HeadraceError | None:
        """Why this member may not read offsets, if so."""
        member = self._identified(member_id, None)
        if isinstance(member, HeadraceError):
            return member
        return None if member_epoch is None else self._stale(member, member_epoch)

    def _stale(self, member: ConsumerMember, epoch: int) -> HeadraceError | None:
        if epoch == member.epoch and not member.away:
            return None
        return StaleMemberEpoch(f"the member is at epoch {member.epoch}, not {epoch}; use the newest")

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads the topic."""
        return any(topic in self.view.wanted(m.subscription) for m in self.members.values())

    @property
    def state(self) -> GroupState:
        """Kafka's name for where the group is. The target is computed at once, so it is never seen ASSIGNING."""
        if not self.members:
            return GroupState.EMPTY
        there = all(
            m.away or (m.state is MemberState.STABLE and m.epoch == self.group_epoch) for m in self.members.values()
        )
        return GroupState.STABLE if there else GroupState.RECONCILING

    def describe(self) -> GroupDescription:
        """For people."""
        members = tuple(
            MemberDescription(
                member_id=m.member_id,
                instance_id=m.instance_id,
                client_id=m.client_id,
                client_address=m.client_address,
                member_epoch=m.epoch,
                state=m.state.name,
                topics=tuple(sorted(m.subscription.topics)),
                pattern=m.subscription.pattern,
                assigned=self._shaped(m.assigned),
                target=self._shaped(m.target),
            )
            for m in self.members.values()
        )
        assignor = chosen_assignor(self.members.values(), self.settings.group_consumer_assignors)
        return GroupDescription(
            self.group_id, GroupProtocol.CONSUMER, self.state, self.group_epoch, self.group_epoch, assignor, members
        )

    # --- events ---------------------------------------------------------------------------------------------

    def handle(self, event: ConsumerEvent) -> list[Effect]:
        """Apply what a member did."""
        match event:
            case ConsumerHeartbeat(member_epoch=epoch) if epoch in {AWAY, -1}:
                self._leave_by_heartbeat(event)
            case ConsumerHeartbeat():
                error = self._heartbeat(event)
                if error is not None:
                    self._reply(event.stream, ConsumerStanding(error, event.member_id))
            case Left():
                self._leave_by_request(event)
            case StreamBroke():
                self._stream_broke(event)
        return self._taken()

    def _heartbeat(self, event: ConsumerHeartbeat) -> HeadraceError | None:
        if event.member_epoch < 0:
            return Rejected(f"{event.member_epoch} is no member epoch; 0 joins, -1 and -2 leave")
        assignor = event.assignor
        if assignor is not None and assignor not in self.settings.group_consumer_assignors:
            offered = ", ".join(self.settings.group_consumer_assignors)
            return UnsupportedAssignor(f"no assignor is called {assignor!r}; there are {offered}")
        if event.member_epoch == 0:
            return self._join(event)
        member = self._identified(event.member_id, event.instance_id)
        if isinstance(member, HeadraceError):
            return member
        owned = None if event.owned is None else _ids(event.owned)
        fault = self._epoch_fault(member, event.member_epoch, owned)
        if fault is not None:
            return fault
        if not self._bind(member, event.stream, event.at):
            return None
        member.previous_epoch = event.member_epoch
        self._heard(member, event.at)
        if owned is not None:
            member.report(owned)
        if self._update(member, event):
            self._bump(event.at)
        elif owned is not None:
            self._settle({member.member_id}, event.at)
        self._answer(member, event.stream, whole=owned is not None and owned != member.assigned)
        return None

    def _epoch_fault(
        self, member: ConsumerMember, epoch: int, owned: frozenset[PartitionId] | None
    ) -> HeadraceError | None:
        if epoch == member.epoch:
            return None
        if epoch > member.epoch or epoch < member.previous_epoch:
            return FencedMemberEpoch(f"the member is at epoch {member.epoch}, not {epoch}; join again")
        if owned is not None and not owned <= member.assigned | member.revoking:
            return FencedMemberEpoch(f"the member holds what epoch {member.epoch} does not give it; join again")
        return None

    def _update(self, member: ConsumerMember, event: ConsumerHeartbeat) -> bool:
        """Take what the member says of itself; returns whether the target depends on it."""
        changed = False
        member.client_address = event.client_address or member.client_address
        subscription = event.subscription
        if subscription is not None:
            if subscription.pattern is not None:
                self.view.matches.setdefault(subscription.pattern, event.matched)
            changed = subscription != member.subscription
            member.subscription = subscription
        if event.assignor is not None and event.assignor != member.assignor:
            member.assignor = event.assignor
            changed = True
        if event.rebalance_timeout_ms is not None and event.rebalance_timeout_ms != member.rebalance_timeout_ms:
            member.rebalance_timeout_ms = event.rebalance_timeout_ms
            self._dirty = True
        return changed

    # --- join -----------------------------------------------------------------------------------------------

    def _join(self, event: ConsumerHeartbeat) -> HeadraceError | None:
        old = self.members.get(event.member_id)
        fault = self._join_fault(event, old)
        if fault is not None:
            return fault
        own = None if old is None else self.streams.of(old.member_id)
        if old is not None and own is not None and own >= event.stream:
            if own == event.stream:
                self._joined_twice(old, event)
            else:
                self._closing.append(CloseStream(self.group_id, event.stream))
            return None
        member = self._newcomer(event)
        holder = self._holder(event.instance_id)
        heir_of = old if holder is None else holder
        same = False
        if heir_of is not None:
            member.target = heir_of.target
            same = heir_of.away and heir_of.asks_for() == member.asks_for()
        for gone in (old, holder if holder is not old else None):
            if gone is not None:
                same = same and gone is heir_of
                self._forget(gone, keep_stream=gone.member_id == member.member_id)
        self._add(member)
        self._bind(member, event.stream, event.at)
        self._heard(member, event.at)
        if same:  # a static member is back: what was kept for it is its own again
            self._wanted_by.update(dict.fromkeys(member.target, member.member_id))
            self._dirty = True
            self._settle({member.member_id}, event.at)
        else:
            self._bump(event.at)
        self._answer(member, event.stream, whole=True)
        return None

    def _joined_twice(self, member: ConsumerMember, event: ConsumerHeartbeat) -> None:
        """It is a member over this very stream, and was not told otherwise since: what it holds stays its own."""
        self._heard(member, event.at)
        if self._update(member, event):
            self._bump(event.at)
        self._answer(member, event.stream, whole=True)

    def _join_fault(self, event: ConsumerHeartbeat, old: ConsumerMember | None) -> HeadraceError | None:
        if not event.member_id:
            return Rejected("a member of the server-side protocol chooses its member id itself; it is empty")
        if event.subscription is None:
            return Rejected("a member that joins says what it subscribes to")
        if event.owned:
            return Rejected("a member that joins holds no partitions; it gives them up before")
        holder = self._holder(event.instance_id)
        if holder is not None and holder is not old and not holder.away:
            return UnreleasedInstanceId(
                f"the member with group_instance_id {event.instance_id!r} has not left yet; try again"
            )
        if old is None and holder is None and len(self.members) >= self.settings.group_max_size:
            return GroupMaxSizeReached(f"the group has {len(self.members)} members, as many as group.max.size allows")
        return None

    def _newcomer(self, event: ConsumerHeartbeat) -> ConsumerMember:
        timeout_ms = event.rebalance_timeout_ms
        subscription = event.subscription or Subscription(frozenset())
        if subscription.pattern is not None:
            self.view.matches.setdefault(subscription.pattern, event.matched)
        return ConsumerMember(
            member_id=event.member_id,
            instance_id=event.instance_id,
            rack=event.rack,
            client_id=event.client_id,
            client_address=event.client_address,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if timeout_ms is None else timeout_ms,
            subscription=subscription,
            assignor=event.assignor,
        )

    # --- leave, broken streams ------------------------------------------------------------------------------

    def _leave_by_heartbeat(self, event: ConsumerHeartbeat) -> None:
        member = self._identified(event.member_id, event.instance_id)
        for_a_while = event.member_epoch == AWAY
        fault = member if isinstance(member, HeadraceError) else None
        if fault is None and for_a_while and event.instance_id is None:
            fault = Rejected("only a static member, with a group_instance_id, leaves for a while (-2)")
        if fault is not None:
            self._reply(event.stream, ConsumerStanding(fault, event.member_id))
        elif isinstance(member, ConsumerMember):
            standing = ConsumerStanding(None, event.member_id, event.member_epoch)
            self._leave(member, event, lambda: self._reply(event.stream, standing), for_a_while=for_a_while)

    def _leave_by_request(self, event: Left) -> None:
        member: ConsumerMember | HeadraceError | None = self._identified(event.member_id, event.instance_id)
        if not event.member_id:
            member = self._holder(event.instance_id)
        if member is None:
            member = UnknownMemberId(f"the group has no member with group_instance_id {event.instance_id!r}")
        if isinstance(member, HeadraceError):
            self._reply(event.stream, LeaveAnswer(member))
            return
        for_a_while = member.instance_id is not None and not event.permanently and bool(event.member_id)
        self._leave(member, event, lambda: self._reply(event.stream, LeaveAnswer(None)), for_a_while=for_a_while)

    def _leave(
        self, member: ConsumerMember, event: ConsumerHeartbeat | Left, reply: Callable[[], None], *, for_a_while: bool
    ) -> None:
        own = self.streams.of(member.member_id)
        if event.member_id and own is not None and own > event.stream:
            self._closing.append(CloseStream(self.group_id, event.stream))
            return
        reply()
        if own == event.stream:
            self._closing.append(CloseStream(self.group_id, event.stream))
            self.streams.drop(member.member_id)
        if for_a_while:
            self._send_away(member, event.at)
        else:
            self._remove([(member, UnknownMemberId("the member was removed from the group"))], event.at)

    def _stream_broke(self, event: StreamBroke) -> None:
        member = self.members.get(self.streams.end(event.stream) or "")
        if member is not None:
            self._heard(member, event.at)

    # --- who speaks -----------------------------------------------------------------------------------------

    def _identified(self, member_id: str, instance_id: str | None) -> ConsumerMember | HeadraceError:
        return identified(self.members.get(member_id), self._holder(instance_id), member_id, instance_id)

    def _bind(self, member: ConsumerMember, stream: int, at: Moment) -> bool:
        """Whether the member may speak over this stream; it is its only one from now on."""
        taken = self.streams.take(member.member_id, stream)
        if taken.closes is not None:
            self._closing.append(CloseStream(self.group_id, taken.closes))
        orphan = self.members.get(taken.orphan or "")
        if orphan is not None:
            self._heard(orphan, at)
        if taken.fresh:
            member.told = None
        return taken.speaks


def _ids(owned: tuple[TopicPartitions, ...]) -> frozenset[PartitionId]:
    return frozenset(PartitionId(TopicId(entry.topic_id), number) for entry in owned for number in entry.partitions)
