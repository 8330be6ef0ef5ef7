"""
One group of the classic protocol: its members compute the assignment, and this decides who takes part in which
generation (Kafka's GroupCoordinator; KIP-62, 134, 345, 394 without its extra round trip, 814).

``shard.Shard`` sends the events. EMPTY → PREPARING_REBALANCE (members are gathered) → COMPLETING_REBALANCE (the
leader computes) → STABLE. Durable, and so persisted before it is told: a generation with its members, the assignment
in it, and who has left since. Not durable: who is about to join; whoever was told nothing simply joins again.
"""

from __future__ import annotations

from headrace_common.core.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    HeadraceError,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    RebalanceInProgress,
    UnknownMemberId,
)
from headrace_coordinator.core.classic_members import Awaits, ClassicMember
from headrace_coordinator.core.classic_rounds import ClassicRounds
from headrace_coordinator.core.effects import (
    ClassicStanding,
    CloseStream,
    Effect,
    GroupDescription,
    JoinAnswer,
    LeaveAnswer,
    MemberDescription,
    Message,
    Send,
    SyncAnswer,
)
from headrace_coordinator.core.events import ClassicHeartbeat, ClassicJoined, ClassicSynced, Left, StreamBroke
from headrace_coordinator.core.records import ClassicRecord
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.values import ClassicAssignment, GroupProtocol, GroupState, Moment

ClassicEvent = ClassicJoined | ClassicSynced | ClassicHeartbeat | Left | StreamBroke

_EMPTY, _PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
_COMPLETING, _STABLE = GroupState.COMPLETING_REBALANCE, GroupState.STABLE


class ClassicGroup(ClassicRounds):
    """
    The state machine: what each request means. A heartbeat that changes nothing only moves the member's deadline.
    """

    __slots__ = ()

    # --- what others ask ------------------------------------------------------------------------------------

    def record(self) -> ClassicRecord:
        """The durable state: members that know nothing of their membership yet are not in it."""
        members = tuple(member.record() for member in self.members if member.announced)
        state = self.state if members else _EMPTY
        return ClassicRecord(state, self.generation, self._protocol, self._leader, self.empty_since_ms, members)

    @staticmethod
    def restored(group_id: str, settings: GroupSettings, record: ClassicRecord, at: Moment) -> ClassicGroup:
        """The group of a record, on the coordinator that serves it from now on: every member has a full session."""
        group = ClassicGroup(group_id, settings, record.generation, record.empty_since_ms)
        group.state, group._protocol, group._leader = record.state, record.protocol, record.leader
        for member_record in record.members:
            member = ClassicMember.restored(member_record)
            member.deadline_ms = at.mono_ms + member.session_timeout_ms
            group.members.add(member)
        if group.state is _PREPARING:
            group._rebalance_until_ms = at.mono_ms + group._longest_rebalance_ms()
        elif group.state is _COMPLETING:
            group._await_syncs(at)
        group._schedule()
        return group

    def commit_fault(
        self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool = False
    ) -> HeadraceError | None:
        """
        Why this commit is refused, if it is; an empty ``member_id`` with no generation is administration.

        In a transaction that is a producer without the group's metadata, which Kafka does not check either; and a
        member of the new generation that waits for its assignment may still bring what it read before.
        """
        if not member_id and instance_id is None and generation < 0 and (transactional or not self.members):
            return None
        member = self.members.identified(member_id, instance_id)
        if isinstance(member, HeadraceError):
            return member
        if generation != self.generation:
            return self._illegal(generation)
        if self.state is _COMPLETING and not transactional:
            return RebalanceInProgress("the group waits for its new assignment; commit again after it")
        return None

    def committed(self, member_id: str, at: Moment) -> None:
        """A commit was accepted: a sign of life."""
        member = self.members.get(member_id)
        if member is not None:
            until_ms = member.deadline_ms
            self._heard(member, at)
            # After a move its stream may come back later than its commit, which takes nothing of its session away.
            member.deadline_ms = max(member.deadline_ms, until_ms)

    def fetch_fault(self, member_id: str, member_epoch: int | None) -> HeadraceError | None:
        """Why this member may not read offsets, if so. Generations are not compared, as in Kafka."""
        del member_epoch
        return None if member_id in self.members else UnknownMemberId(f"the group has no member {member_id!r}")

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads the topic, as far as subscriptions tell."""
        return any(topic in subscription.topics for m in self.members for _, subscription in m.protocols)

    def describe(self) -> GroupDescription:
        """For people."""
        members = tuple(
            MemberDescription(
                member_id=m.member_id,
                instance_id=m.instance_id,
                client_id=m.client_id,
                client_address=m.client_address,
                member_epoch=-1,
                state=m.awaits.value,
                topics=tuple(sorted(m.topics())),
                pattern=None,
                assigned=m.assignment.partitions if self.state is _STABLE else (),
            )
            for m in self.members
        )
        return GroupDescription(
            self.group_id, GroupProtocol.CLASSIC, self.state, self.generation, -1, self._protocol, members
        )

    # --- events ---------------------------------------------------------------------------------------------

    def handle(self, event: ClassicEvent) -> list[Effect]:
        """Apply what a member did."""
        match event:
            case ClassicJoined():
                self._join(event)
            case ClassicSynced():
                self._sync(event)
            case ClassicHeartbeat():
                self._heartbeat(event)
            case Left():
                self._leave(event)
            case StreamBroke():
                self._stream_broke(event)
        return self._taken()

    # --- join -----------------------------------------------------------------------------------------------

    def _join(self, event: ClassicJoined) -> None:
        error = self._join_fault(event)
        if error is not None:
            self._send(event.stream, JoinAnswer(error, event.member_id))
            return
        holder = self.members.holder(event.instance_id)
        if event.member_id:
            member = self.members.get(event.member_id)
            assert member is not None, "checked before"
            if self._bind(member, event.stream, event.at):
                self._join_again(member, event)
        elif holder is not None:
            self._replace(holder, event)
        else:
            member = self._newcomer(event)
            self.members.add(member)
            self._bind(member, event.stream, event.at)
            self._await_join(member, event.at)

    def _join_fault(self, event: ClassicJoined) -> HeadraceError | None:
        limits = self._settings
        low, high = limits.group_min_session_timeout_ms, limits.group_max_session_timeout_ms
        if not low <= event.session_timeout_ms <= high:
            return InvalidSessionTimeout(
                f"session.timeout.ms is {event.session_timeout_ms}; {low} to {high} are allowed"
            )
        known = self.members.holder(event.instance_id)
        if event.member_id:
            member = self.members.identified(event.member_id, event.instance_id)
            if isinstance(member, HeadraceError):
                return member
            known = member
        elif known is None and len(self.members) >= limits.group_max_size:
            return GroupMaxSizeReached(f"the group has {len(self.members)} members, as many as group.max.size allows")
        if not event.protocols or not self.members.compatible(event.protocols, known):
            names = ", ".join(name for name, _ in event.protocols) or "none"
            return InconsistentGroupProtocol(f"the group's members have no assignor in common with this one's: {names}")
        return None

    def _newcomer(self, event: ClassicJoined) -> ClassicMember:
        return ClassicMember(
            member_id=event.fresh_id,
            instance_id=event.instance_id,
            session_timeout_ms=event.session_timeout_ms,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            client_id=event.client_id,
            client_address=event.client_address,
            protocols=event.protocols,
        )

    def _join_again(self, member: ClassicMember, event: ClassicJoined) -> None:
        same = member.protocols == event.protocols
        member.session_timeout_ms = event.session_timeout_ms
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        self.members.change_protocols(member, event.protocols)
        answered = (self.state is _COMPLETING and same) or (
            self.state is _STABLE and same and member.member_id != self._leader
        )
        if answered:  # its last answer was lost, or it joins for no reason
            self._send(event.stream, self._join_answer(member))
        else:
            self._await_join(member, event.at)

    def _replace(self, old: ClassicMember, event: ClassicJoined) -> None:
        """A static member was started again: it takes the place of the old one, which is fenced (KIP-345)."""
        member = self._newcomer(event)
        member.assignment, member.announced = old.assignment, old.announced
        was_leader, unsynced, sync_until_ms = old.member_id == self._leader, set(self._unsynced), self._sync_until_ms
        unchanged = self.state is _STABLE and old.topics() == member.topics() and not self._owes(old)
        if old.announced:
            self._dirty = True
        self._fence(old, FencedInstanceId(f"another member has taken group_instance_id {old.instance_id!r}"))
        self.members.add(member)
        if was_leader:
            self._leader = member.member_id
        if old.member_id in unsynced:
            self._unsynced = unsynced - {old.member_id} | {member.member_id}
            self._sync_until_ms = sync_until_ms
        self._bind(member, event.stream, event.at)
        if unchanged and self.members.vote() == self._protocol:
            self._send(event.stream, self._join_answer(member, skip_assignment=was_leader))
        else:
            self._await_join(member, event.at)

    def _owes(self, member: ClassicMember) -> bool:
        """
        Whether it was to give partitions up that nobody has got yet: the first of two steps of a cooperative assignor.
        It would have joined again for the second one, which its successor does not know of.
        """
        assigned = {(t.topic, n) for m in self.members for t in m.assignment.partitions for n in t.partitions}
        owned = member.subscription(self._protocol).owned
        return any((t.topic, n) not in assigned for t in owned for n in t.partitions)

    # --- sync -----------------------------------------------------------------------------------------------

    def _sync(self, event: ClassicSynced) -> None:
        member = self._speaker(event.member_id, event.instance_id, event.generation)
        if isinstance(member, HeadraceError):
            self._send(event.stream, SyncAnswer(member))
            return
        if not self._bind(member, event.stream, event.at):
            return
        self._heard(member, event.at)
        if self.state is _PREPARING:
            self._send(event.stream, SyncAnswer(RebalanceInProgress("the group rebalances; join again")))
        elif self.state is _STABLE:
            self._synced(member)
            self._send(event.stream, SyncAnswer(None, self.generation, member.assignment))
        else:
            member.awaits = Awaits.SYNC
            self._synced(member)
            if member.member_id == self._leader:
                self._assign(event)

    def _assign(self, event: ClassicSynced) -> None:
        for member in self.members:
            member.assignment = event.assignments.get(member.member_id, ClassicAssignment())
        self.state = _STABLE
        self._dirty = True
        for member in self.members:
            if member.awaits is Awaits.SYNC:
                self._answer_sync(member, None)
                self._heard(member, event.at)

    # --- heartbeat, leave, broken streams -------------------------------------------------------------------

    def _heartbeat(self, event: ClassicHeartbeat) -> None:
        member = self.members.identified(event.member_id, event.instance_id)
        if not isinstance(member, HeadraceError) and member.awaits is not Awaits.JOIN:
            member = self._speaker(event.member_id, event.instance_id, event.generation)
        if isinstance(member, HeadraceError):
            self._send(event.stream, ClassicStanding(member, self.generation))
            return
        if not self._bind(member, event.stream, event.at):
            return
        self._heard(member, event.at)
        told_to_join = self.state is _PREPARING and member.member_id not in self._joined
        error = RebalanceInProgress("the group rebalances; join again") if told_to_join else None
        self._send(event.stream, ClassicStanding(error, self.generation))

    def _leave(self, event: Left) -> None:
        member: ClassicMember | HeadraceError | None = self.members.identified(event.member_id, event.instance_id)
        if not event.member_id:
            member = self.members.holder(event.instance_id)
        if member is None:
            member = UnknownMemberId(f"the group has no member with group_instance_id {event.instance_id!r}")
        if isinstance(member, HeadraceError):
            self._send(event.stream, LeaveAnswer(member))
            return
        own = self._streams.of(member.member_id)
        if event.member_id and own is not None and own > event.stream:
            self._out.append(CloseStream(self.group_id, event.stream))
            return
        if member.instance_id is not None and member.announced and not event.permanently:
            self._streams.drop(member.member_id)
            member.awaits = Awaits.NOTHING
            self._heard(member, event.at)
        else:
            if member.announced:
                self._dirty = True
            by_itself = bool(event.member_id)
            self._drop(member, None if by_itself else UnknownMemberId("the member was removed from the group"))
        self._send(event.stream, LeaveAnswer(None))
        if own == event.stream:
            self._out.append(CloseStream(self.group_id, event.stream))
        if member.member_id not in self.members:
            self._go_on_without(event.at)

    def _stream_broke(self, event: StreamBroke) -> None:
        member = self.members.get(self._streams.end(event.stream) or "")
        if member is not None:
            self._lost_stream(member, event.at)

    def _lost_stream(self, member: ClassicMember, at: Moment) -> None:
        """It may come back, if it knows its id."""
        if member.announced or member.instance_id is not None:
            self._heard(member, at)
        else:
            self._drop(member, None)
            self._go_on_without(at)

    # --- who speaks -----------------------------------------------------------------------------------------

    def _speaker(self, member_id: str, instance_id: str | None, generation: int) -> ClassicMember | HeadraceError:
        member = self.members.identified(member_id, instance_id)
        if not isinstance(member, HeadraceError) and generation != self.generation:
            return self._illegal(generation)
        return member

    def _illegal(self, generation: int) -> IllegalGeneration:
        return IllegalGeneration(f"the group is in generation {self.generation}, not {generation}; join again")

    def _bind(self, member: ClassicMember, stream: int, at: Moment) -> bool:
        """Whether the member may speak over this stream; it is its only one from now on."""
        taken = self._streams.take(member.member_id, stream)
        if taken.closes is not None:
            self._out.append(CloseStream(self.group_id, taken.closes))
        orphan = self.members.get(taken.orphan or "")
        if orphan is not None:
            self._lost_stream(orphan, at)
        if taken.fresh:
            self._heard(member, at)
        return taken.speaks

    def _fence(self, old: ClassicMember, error: HeadraceError) -> None:
        stream = self._streams.of(old.member_id)
        self._drop(old, error)
        if stream is not None:
            self._out.append(CloseStream(self.group_id, stream))

    def _send(self, stream: int, message: Message) -> None:
        self._out.append(Send(self.group_id, stream, message))
