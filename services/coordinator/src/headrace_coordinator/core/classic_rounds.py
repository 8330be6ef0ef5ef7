"""
The rounds of a classic group: when a rebalance begins, whom it waits for, when it ends, who drops out.

Base of ``classic_group.ClassicGroup``, which says what the members' requests mean. An event that changes the durable
state begins with ``PersistGroup``, before all that is told.
"""

from __future__ import annotations

from math import inf

from headrace_common.core.errors import HeadraceError, RebalanceInProgress, UnknownMemberId
from headrace_coordinator.core.classic_members import Awaits, ClassicMember, ClassicMembers
from headrace_coordinator.core.effects import (
    ClassicStanding,
    Effect,
    JoinAnswer,
    MemberOfClassic,
    Message,
    PersistGroup,
    Send,
    SyncAnswer,
)
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.streams import Streams
from headrace_coordinator.core.values import ClassicAssignment, GroupState, Moment

_EMPTY, _PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
_COMPLETING, _STABLE = GroupState.COMPLETING_REBALANCE, GroupState.STABLE


class ClassicRounds:
    """State, timers and transitions. ``wake_ms`` (monotonic) says when ``woken`` must be called, at the latest."""

    __slots__ = (
        "_dirty",
        "_gather_until_ms",
        "_gatherings_end_ms",
        "_joined",
        "_leader",
        "_out",
        "_protocol",
        "_rebalance_until_ms",
        "_settings",
        "_streams",
        "_sync_until_ms",
        "_unsynced",
        "empty_since_ms",
        "generation",
        "group_id",
        "members",
        "state",
        "wake_ms",
    )

    def __init__(self, group_id: str, settings: GroupSettings, generation: int = 0, empty_since_ms: int = -1) -> None:
        self.group_id = group_id
        self.members = ClassicMembers()
        self.state = _EMPTY
        self.generation = generation
        self.empty_since_ms = empty_since_ms
        self.wake_ms = inf
        self._settings = settings
        self._streams = Streams()
        self._protocol = ""
        self._leader = ""
        self._joined: set[str] = set()
        self._unsynced: set[str] = set()
        self._gather_until_ms = -inf
        self._gatherings_end_ms = -inf
        self._rebalance_until_ms = inf
        self._sync_until_ms = inf
        self._dirty = False
        self._out: list[Effect] = []

    def woken(self, at: Moment) -> list[Effect]:
        """Time has passed: end what has waited long enough."""
        silent = [member for member in self.members if at.mono_ms >= self._deadline_of(member)]
        self._remove(silent, at, UnknownMemberId("the session has ended without a heartbeat; join again"))
        if at.mono_ms >= self._sync_until_ms:
            self._end_syncs(at)
        if self.state is _PREPARING:
            self._complete_if_possible(at)
        self._schedule()
        return self._taken()

    def _taken(self) -> list[Effect]:
        """What is to be done: first of all, what must be durable before anything of it is told."""
        out: list[Effect] = [PersistGroup(self.group_id)] if self._dirty else []
        out += self._out
        self._out, self._dirty = [], False
        return out

    # --- rebalance ------------------------------------------------------------------------------------------

    def _prepare(self, at: Moment) -> None:
        """Gather all members for the next generation; tell those that do not know yet."""
        if self.state is _EMPTY:
            self._gatherings_end_ms = at.mono_ms + self._longest_rebalance_ms()
            self._gather_until_ms = -inf
            self._rebalance_until_ms = inf
            self.state = _PREPARING
            self._gather_on(at, begin=True)
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
                self._answer_sync(member, error)
            elif member.member_id not in self._joined:
                self._tell(member, ClassicStanding(error, self.generation))

    def _gather_on(self, at: Moment, *, begin: bool = False) -> None:
        """A group that was empty waits a little for more members; each newcomer renews that, up to an end."""
        if begin or at.mono_ms < self._gather_until_ms:
            until = at.mono_ms + self._settings.group_initial_rebalance_delay_ms
            self._gather_until_ms = min(until, self._gatherings_end_ms)
            self._wake_by(self._gather_until_ms)

    def _complete_if_possible(self, at: Moment) -> None:
        if self.state is not _PREPARING:
            return
        if not self.members:
            self._become_empty(at)
        elif at.mono_ms >= self._rebalance_until_ms:
            self._end_joins(at)
        elif len(self._joined) == len(self.members) and at.mono_ms >= self._gather_until_ms:
            self._begin_generation(at)

    def _end_joins(self, at: Moment) -> None:
        """Time is up: who has not joined again is out, except static members; if nobody has, wait once more."""
        late = [m for m in self.members if m.member_id not in self._joined and m.instance_id is None]
        if late:
            self._dirty = True
        for member in late:
            self._drop(member, UnknownMemberId("the member did not join again within its rebalance timeout"))
        if not self.members:
            self._become_empty(at)
        elif self._joined:
            self._begin_generation(at)
        else:
            self._rebalance_until_ms = at.mono_ms + self._longest_rebalance_ms()
            self._wake_by(self._rebalance_until_ms)

    def _become_empty(self, at: Moment) -> None:
        told = self.generation > 0
        self.state, self._protocol, self._leader = _EMPTY, "", ""
        self._joined.clear()
        self._rebalance_until_ms = self._sync_until_ms = inf
        self._gather_until_ms = -inf
        self.empty_since_ms = at.wall_ms
        if told:
            self.generation += 1
            self._dirty = True

    def _begin_generation(self, at: Moment) -> None:
        self.generation += 1
        self.state = _COMPLETING
        self.empty_since_ms = -1
        self._protocol = self.members.vote()
        if self._leader not in self._joined:
            self._leader = next(m.member_id for m in self.members if m.member_id in self._joined)
        self._rebalance_until_ms, self._gather_until_ms = inf, -inf
        for member in self.members:
            member.announced = True
            member.assignment = ClassicAssignment()
        self._dirty = True
        for member in self.members:
            if member.awaits is Awaits.JOIN:
                member.awaits = Awaits.NOTHING
                self._tell(member, self._join_answer(member))
                self._heard(member, at)
        self._joined.clear()
        self._await_syncs(at)

    def _join_answer(self, member: ClassicMember, *, skip_assignment: bool = False) -> JoinAnswer:
        everybody: tuple[MemberOfClassic, ...] = ()
        if member.member_id == self._leader:
            everybody = tuple(
                MemberOfClassic(m.member_id, m.instance_id, m.subscription(self._protocol)) for m in self.members
            )
        return JoinAnswer(
            None, member.member_id, self.generation, self._protocol, self._leader, everybody, skip_assignment
        )

    def _await_join(self, member: ClassicMember, at: Moment) -> None:
        self._answer_sync(member, RebalanceInProgress("the group rebalances; join again"))
        member.awaits = Awaits.JOIN
        self._joined.add(member.member_id)
        if self.state is _PREPARING:
            self._gather_on(at)
        else:
            self._prepare(at)
        self._complete_if_possible(at)

    def _await_syncs(self, at: Moment) -> None:
        self._unsynced = {m.member_id for m in self.members}
        self._sync_until_ms = at.mono_ms + self._longest_rebalance_ms()
        self._wake_by(self._sync_until_ms)

    def _answer_sync(self, member: ClassicMember, error: HeadraceError | None) -> None:
        if member.awaits is Awaits.SYNC:
            member.awaits = Awaits.NOTHING
            assignment = ClassicAssignment() if error is not None else member.assignment
            self._tell(member, SyncAnswer(error, self.generation, assignment))

    def _end_syncs(self, at: Moment) -> None:
        """Who has not synced by now will not."""
        self._sync_until_ms = inf
        late = [member for member in self.members if member.member_id in self._unsynced]
        self._remove(late, at, UnknownMemberId("the member did not sync within its rebalance timeout"))

    # --- members --------------------------------------------------------------------------------------------

    def _remove(self, gone: list[ClassicMember], at: Moment, error: HeadraceError) -> None:
        """They are out, all before a round ends without them; the others share their partitions in the next one."""
        for member in gone:
            self._dirty = self._dirty or member.announced
            self._drop(member, error)
        if gone:
            self._go_on_without(at)

    def _go_on_without(self, at: Moment) -> None:
        if self.state in {_COMPLETING, _STABLE}:
            self._prepare(at)
        self._complete_if_possible(at)

    def _drop(self, member: ClassicMember, error: HeadraceError | None) -> None:
        """Forget it, and tell it why, if it is there."""
        if error is not None:
            message: Message = ClassicStanding(error, self.generation)
            if member.awaits is Awaits.JOIN:
                message = JoinAnswer(error, member.member_id)
            elif member.awaits is Awaits.SYNC:
                message = SyncAnswer(error, self.generation)
            self._tell(member, message)
        self._streams.drop(member.member_id)
        self.members.remove(member)
        self._joined.discard(member.member_id)
        self._synced(member)

    def _synced(self, member: ClassicMember) -> None:
        self._unsynced.discard(member.member_id)
        if not self._unsynced:
            self._sync_until_ms = inf

    def _tell(self, member: ClassicMember, message: Message) -> None:
        stream = self._streams.of(member.member_id)
        if stream is not None:
            self._out.append(Send(self.group_id, stream, message))

    # --- time -----------------------------------------------------------------------------------------------

    def _longest_rebalance_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members), default=0)

    def _heard(self, member: ClassicMember, at: Moment) -> None:
        """It lives. Without a stream only the grace counts, unless it is static."""
        bound = self._streams.of(member.member_id) is not None or member.instance_id is not None
        patience = member.session_timeout_ms if bound else self._settings.group_rejoin_grace_ms
        member.deadline_ms = at.mono_ms + patience
        self._wake_by(member.deadline_ms)

    def _deadline_of(self, member: ClassicMember) -> float:
        waiting = member.awaits is not Awaits.NOTHING and self._streams.of(member.member_id) is not None
        return inf if waiting else member.deadline_ms

    def _wake_by(self, at_ms: float) -> None:
        self.wake_ms = min(self.wake_ms, at_ms)

    def _schedule(self) -> None:
        self.wake_ms = min((self._deadline_of(m) for m in self.members), default=inf)
        self._wake_by(self._sync_until_ms)
        if self.state is _PREPARING:
            self._wake_by(self._rebalance_until_ms)
            if len(self._joined) == len(self.members):
                self._wake_by(self._gather_until_ms)
