"""
One group of the classic protocol: its members compute the assignment, and this decides who takes part in which
generation (Kafka's GroupCoordinator; KIP-62, 134, 345, 394 without its extra round trip, 814).

EMPTY → PREPARING_REBALANCE (members are gathered) → COMPLETING_REBALANCE (the leader computes) → STABLE. Durable, and
so persisted before it is told: a generation with its members, the assignment in it, and who has left since. Not
durable: who is about to join; whoever was told nothing simply joins again.

``classic_requests`` says what the members' requests mean; ``shard.Shard`` asks the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from headrace_common.core.errors import HeadraceError, IllegalGeneration, RebalanceInProgress, UnknownMemberId
from headrace_coordinator.core.classic_members import Awaits, ClassicMember, ClassicMembers
from headrace_coordinator.core.effects import (
    ClassicStanding,
    CloseStream,
    Effect,
    GroupDescription,
    JoinAnswer,
    MemberOfClassic,
    Message,
    PersistGroup,
    Send,
    SyncAnswer,
)
from headrace_coordinator.core.records import ClassicRecord
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.streams import Streams
from headrace_coordinator.core.values import ClassicAssignment, GroupProtocol, GroupState, Moment

_EMPTY, _PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
_COMPLETING, _STABLE = GroupState.COMPLETING_REBALANCE, GroupState.STABLE


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """
    State, timers and transitions. ``wake_ms`` (monotonic) says when ``woken`` must be called, at the latest.

    Effects are gathered until ``take_effects``. Where the durable state has changed, ``PersistGroup`` is the first.
    """

    group_id: str
    settings: GroupSettings
    generation: int = 0
    empty_since_ms: int = -1
    state: GroupState = _EMPTY
    members: ClassicMembers = field(default_factory=ClassicMembers)
    streams: Streams = field(default_factory=Streams)
    protocol: str = ""
    """The assignor of this generation."""
    leader: str = ""
    """The id of the member that computes the assignment."""
    joined: set[str] = field(default_factory=set)
    """Members that take part in the next generation."""
    dirty: bool = False
    """The durable state has changed since the effects were taken."""
    wake_ms: float = inf
    _unsynced: set[str] = field(default_factory=set)
    _gather_until_ms: float = -inf
    _gatherings_end_ms: float = -inf
    _rebalance_until_ms: float = inf
    _sync_until_ms: float = inf
    _effects: list[Effect] = field(default_factory=list)

    # --- what others ask ------------------------------------------------------------------------------------

    def record(self) -> ClassicRecord:
        """The durable state: members that know nothing of their membership yet are not in it."""
        members = tuple(member.record() for member in self.members if member.announced)
        state = self.state if members else _EMPTY
        return ClassicRecord(state, self.generation, self.protocol, self.leader, self.empty_since_ms, members)

    @staticmethod
    def restore(group_id: str, settings: GroupSettings, record: ClassicRecord, at: Moment) -> ClassicGroup:
        """The group of a record, on the coordinator that serves it from now on: every member has a full session."""
        group = ClassicGroup(group_id, settings, record.generation, record.empty_since_ms)
        group.state, group.protocol, group.leader = record.state, record.protocol, record.leader
        for member_record in record.members:
            member = ClassicMember.restore(member_record)
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
        member = self.members.identify(member_id, instance_id)
        if isinstance(member, HeadraceError):
            return member
        if generation != self.generation:
            return self.illegal_generation(generation)
        if self.state is _COMPLETING and not transactional:
            return RebalanceInProgress("the group waits for its new assignment; commit again after it")
        return None

    def committed(self, member_id: str, at: Moment) -> None:
        """A commit was accepted: a sign of life."""
        member = self.members.get(member_id)
        if member is not None:
            until_ms = member.deadline_ms
            self.renew_session(member, at)
            # After a move its stream may come back later than its commit, which takes nothing of its session away.
            member.deadline_ms = max(member.deadline_ms, until_ms)

    def fetch_fault(self, member_id: str, member_epoch: int | None) -> HeadraceError | None:
        """Why this member may not read offsets, if so. Generations are not compared, as in Kafka."""
        del member_epoch
        return None if member_id in self.members else UnknownMemberId(f"the group has no member {member_id!r}")

    def illegal_generation(self, generation: int) -> IllegalGeneration:
        """Why a request of another generation is refused."""
        return IllegalGeneration(f"the group is in generation {self.generation}, not {generation}; join again")

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads the topic, as far as subscriptions tell."""
        return any(topic in subscription.topics for m in self.members for _, subscription in m.protocols)

    def describe(self) -> GroupDescription:
        members = tuple(m.describe(assigned=self.state is _STABLE) for m in self.members)
        return GroupDescription(
            self.group_id, GroupProtocol.CLASSIC, self.state, self.generation, -1, self.protocol, members
        )

    # --- time and effects -----------------------------------------------------------------------------------

    def woken(self, at: Moment) -> list[Effect]:
        """Time has passed: end what has waited long enough."""
        silent = [member for member in self.members if at.mono_ms >= self._deadline_of(member)]
        self._remove(silent, at, UnknownMemberId("the session has ended without a heartbeat; join again"))
        if at.mono_ms >= self._sync_until_ms:
            self._end_syncs(at)
        if self.state is _PREPARING:
            self._complete_if_possible(at)
        self._schedule()
        return self.take_effects()

    def take_effects(self) -> list[Effect]:
        """What is to be done: first of all, what must be durable before anything of it is told."""
        out: list[Effect] = [PersistGroup(self.group_id)] if self.dirty else []
        out += self._effects
        self._effects, self.dirty = [], False
        return out

    def _prepare(self, at: Moment) -> None:
        """Gather all members for the next generation; tell those that do not know yet."""
        if self.state is _EMPTY:
            self._gatherings_end_ms = at.mono_ms + self._longest_rebalance_ms()
            self._gather_until_ms = -inf
            self._rebalance_until_ms = inf
            self.state = _PREPARING
            self._extend_gathering(at, begin=True)
            return
        self.state = _PREPARING
        self._gather_until_ms = self._gatherings_end_ms = -inf
        self._rebalance_until_ms = at.mono_ms + self._longest_rebalance_ms()
        self._wake_by(self._rebalance_until_ms)
        self._unsynced.clear()
        self._sync_until_ms = inf
        error = RebalanceInProgress("the group rebalances; join again")
        for member in self.members:
            if member.awaits is Awaits.SYNC:
                self.answer_sync(member, error)
            elif member.member_id not in self.joined:
                self._send_to(member, ClassicStanding(error, self.generation))

    def _extend_gathering(self, at: Moment, *, begin: bool = False) -> None:
        """A group that was empty waits a little for more members; each newcomer renews that, up to an end."""
        if begin or at.mono_ms < self._gather_until_ms:
            until = at.mono_ms + self.settings.group_initial_rebalance_delay_ms
            self._gather_until_ms = min(until, self._gatherings_end_ms)
            self._wake_by(self._gather_until_ms)

    def _complete_if_possible(self, at: Moment) -> None:
        if self.state is not _PREPARING:
            return
        if not self.members:
            self._become_empty(at)
        elif at.mono_ms >= self._rebalance_until_ms:
            self._end_joins(at)
        elif len(self.joined) == len(self.members) and at.mono_ms >= self._gather_until_ms:
            self._begin_generation(at)

    def _end_joins(self, at: Moment) -> None:
        """Time is up: who has not joined again is out, except static members; if nobody has, wait once more."""
        late = [m for m in self.members if m.member_id not in self.joined and m.instance_id is None]
        for member in late:
            self.drop(member, UnknownMemberId("the member did not join again within its rebalance timeout"))
        if not self.members:
            self._become_empty(at)
        elif self.joined:
            self._begin_generation(at)
        else:
            self._rebalance_until_ms = at.mono_ms + self._longest_rebalance_ms()
            self._wake_by(self._rebalance_until_ms)

    def _become_empty(self, at: Moment) -> None:
        self.state, self.protocol, self.leader = _EMPTY, "", ""
        self.joined.clear()
        self._rebalance_until_ms = self._sync_until_ms = inf
        self._gather_until_ms = -inf
        self.empty_since_ms = at.wall_ms
        if self.generation > 0:
            self.generation += 1
            self.dirty = True

    def _begin_generation(self, at: Moment) -> None:
        self.generation += 1
        self.state = _COMPLETING
        self.empty_since_ms = -1
        self.protocol = self.members.vote()
        if self.leader not in self.joined:
            self.leader = next(m.member_id for m in self.members if m.member_id in self.joined)
        self._rebalance_until_ms, self._gather_until_ms = inf, -inf
        for member in self.members:
            member.announced = True
            member.assignment = ClassicAssignment()
        self.dirty = True
        for member in self.members:
            if member.awaits is Awaits.JOIN:
                member.awaits = Awaits.NOTHING
                self._send_to(member, self.join_answer(member))
                self.renew_session(member, at)
        self.joined.clear()
        self._await_syncs(at)

    def join_answer(self, member: ClassicMember, *, skip_assignment: bool = False) -> JoinAnswer:
        """Its place in this generation; the leader gets all members with their subscriptions."""
        told = self.members if member.member_id == self.leader else ()
        everybody = tuple(MemberOfClassic(m.member_id, m.instance_id, m.subscription(self.protocol)) for m in told)
        return JoinAnswer(
            None, member.member_id, self.generation, self.protocol, self.leader, everybody, skip_assignment
        )

    def await_join(self, member: ClassicMember, at: Moment) -> None:
        """It takes part in the next generation, and is answered when that begins."""
        self.answer_sync(member, RebalanceInProgress("the group rebalances; join again"))
        member.awaits = Awaits.JOIN
        self.joined.add(member.member_id)
        if self.state is _PREPARING:
            self._extend_gathering(at)
        else:
            self._prepare(at)
        self._complete_if_possible(at)

    def assign(self, assignments: Mapping[str, ClassicAssignment], at: Moment) -> None:
        """The leader has computed who holds what, by member id: the generation is complete."""
        for member in self.members:
            member.assignment = assignments.get(member.member_id, ClassicAssignment())
        self.state = _STABLE
        self.dirty = True
        for member in self.members:
            if member.awaits is Awaits.SYNC:
                self.answer_sync(member, None)
                self.renew_session(member, at)

    def _await_syncs(self, at: Moment) -> None:
        self._unsynced = {m.member_id for m in self.members}
        self._sync_until_ms = at.mono_ms + self._longest_rebalance_ms()
        self._wake_by(self._sync_until_ms)

    def answer_sync(self, member: ClassicMember, error: HeadraceError | None) -> None:
        """Send its assignment, or why there is none, if it waits for that."""
        if member.awaits is Awaits.SYNC:
            member.awaits = Awaits.NOTHING
            assignment = ClassicAssignment() if error is not None else member.assignment
            self._send_to(member, SyncAnswer(error, self.generation, assignment))

    def _end_syncs(self, at: Moment) -> None:
        """Who has not synced by now will not."""
        self._sync_until_ms = inf
        late = [member for member in self.members if member.member_id in self._unsynced]
        self._remove(late, at, UnknownMemberId("the member did not sync within its rebalance timeout"))

    def _remove(self, gone: list[ClassicMember], at: Moment, error: HeadraceError) -> None:
        """They are out, all before a round ends without them; the others share their partitions in the next one."""
        for member in gone:
            self.drop(member, error)
        if gone:
            self.rebalance(at)

    def rebalance(self, at: Moment) -> None:
        """Members are out: begin a rebalance, or end one that waited for them alone."""
        if self.state in {_COMPLETING, _STABLE}:
            self._prepare(at)
        self._complete_if_possible(at)

    def drop(self, member: ClassicMember, error: HeadraceError | None) -> None:
        """Forget it, and tell it why, if it is there."""
        self.dirty = self.dirty or member.announced
        if error is not None:
            message: Message = ClassicStanding(error, self.generation)
            if member.awaits is Awaits.JOIN:
                message = JoinAnswer(error, member.member_id)
            elif member.awaits is Awaits.SYNC:
                message = SyncAnswer(error, self.generation)
            self._send_to(member, message)
        self.streams.drop(member.member_id)
        self.members.remove(member)
        self.joined.discard(member.member_id)
        self.finish_sync(member)

    def replace(self, old: ClassicMember, new: ClassicMember, error: HeadraceError) -> None:
        """``new`` takes the place of ``old``, which hears ``error``: as leader too, and in the sync that is awaited."""
        unsynced, sync_until_ms, stream = set(self._unsynced), self._sync_until_ms, self.streams.of(old.member_id)
        self.drop(old, error)
        if stream is not None:
            self.close(stream)
        self.members.add(new)
        if self.leader == old.member_id:
            self.leader = new.member_id
        if old.member_id in unsynced:
            self._unsynced = unsynced - {old.member_id} | {new.member_id}
            self._sync_until_ms = sync_until_ms

    def finish_sync(self, member: ClassicMember) -> None:
        """Its sync is here, or will not come."""
        self._unsynced.discard(member.member_id)
        if not self._unsynced:
            self._sync_until_ms = inf

    def _send_to(self, member: ClassicMember, message: Message) -> None:
        stream = self.streams.of(member.member_id)
        if stream is not None:
            self._effects.append(Send(self.group_id, stream, message))

    def bind(self, member: ClassicMember, stream: int, at: Moment) -> bool:
        """Whether the member may speak over this stream; it is its only one from now on."""
        taken = self.streams.take(member.member_id, stream)
        if taken.closes is not None:
            self.close(taken.closes)
        orphan = self.members.get(taken.orphan or "")
        if orphan is not None:
            self.lose_stream(orphan, at)
        if taken.fresh:
            self.renew_session(member, at)
        return taken.speaks

    def lose_stream(self, member: ClassicMember, at: Moment) -> None:
        """It may come back, if it knows its id."""
        if member.announced or member.instance_id is not None:
            self.renew_session(member, at)
        else:
            self.drop(member, None)
            self.rebalance(at)

    def send(self, stream: int, message: Message) -> None:
        """Answer over a stream."""
        self._effects.append(Send(self.group_id, stream, message))

    def close(self, stream: int) -> None:
        """End a stream, after what was sent over it."""
        self._effects.append(CloseStream(self.group_id, stream))

    # --- time -----------------------------------------------------------------------------------------------

    def _longest_rebalance_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members), default=0)

    def renew_session(self, member: ClassicMember, at: Moment) -> None:
        """It lives. Without a stream only the grace counts, unless it is static."""
        bound = self.streams.of(member.member_id) is not None or member.instance_id is not None
        patience = member.session_timeout_ms if bound else self.settings.group_rejoin_grace_ms
        member.deadline_ms = at.mono_ms + patience
        self._wake_by(member.deadline_ms)

    def _deadline_of(self, member: ClassicMember) -> float:
        waiting = member.awaits is not Awaits.NOTHING and self.streams.of(member.member_id) is not None
        return inf if waiting else member.deadline_ms

    def _wake_by(self, at_ms: float) -> None:
        self.wake_ms = min(self.wake_ms, at_ms)

    def _schedule(self) -> None:
        self.wake_ms = min((self._deadline_of(m) for m in self.members), default=inf)
        self._wake_by(self._sync_until_ms)
        if self.state is _PREPARING:
            self._wake_by(self._rebalance_until_ms)
            if len(self.joined) == len(self.members):
                self._wake_by(self._gather_until_ms)
