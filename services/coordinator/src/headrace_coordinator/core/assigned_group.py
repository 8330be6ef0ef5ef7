"""
What groups have in common whose members the coordinator assigns something: partitions (``consumer_group``), or items of
named work (``work_group``).

The group's epoch grows with every change on which the target depends; the target is computed at once for each, so its
epoch is the same; each member has its own, which ``reconcile.advance`` brings to the target's. All of it is durable,
and persisted before it is told. What changes for a member is pushed over its stream at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Generic, TypeVar

from headrace_common.core.errors import FencedMemberEpoch, HeadraceError, StaleMemberEpoch, UnknownMemberId
from headrace_coordinator.core.effects import CloseStream, Effect, Message, PersistGroup, Send
from headrace_coordinator.core.floors import epoch_by_clock
from headrace_coordinator.core.identity import identify
from headrace_coordinator.core.reconcile import Holder, Ownership, advance, release
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.streams import Streams
from headrace_coordinator.core.values import GroupState, MemberState, Moment

REBALANCE_TIMEOUT_MS: Final = 45_000
"""Of a member that names none."""

K = TypeVar("K", bound=Hashable)
M = TypeVar("M", bound=Holder[Any])


@dataclass(slots=True, eq=False)
class AssignedGroup(Generic[K, M]):
    """
    State, timers and transitions. ``wake_ms`` (monotonic) says when ``woken`` must be called, at the latest.

    Effects are gathered while an event is handled and leave in one order: what must be durable, what members are told,
    streams that end.
    """

    group_id: str
    settings: GroupSettings
    group_epoch: int = 0
    empty_since_ms: int = -1
    members: dict[str, M] = field(default_factory=dict)
    streams: Streams = field(default_factory=Streams)
    dirty: bool = False
    """The durable state has changed since the effects were taken."""
    wake_ms: float = inf
    _by_instance: dict[str, str] = field(default_factory=dict)
    _ownership: Ownership[K] = field(default_factory=Ownership)
    _wanted_by: dict[K, str] = field(default_factory=dict)
    _news: dict[str, None] = field(default_factory=dict)
    _sending: list[Send] = field(default_factory=list)
    _closing: list[CloseStream] = field(default_factory=list)

    # --- what a kind of group adds ----------------------------------------------------------------------------

    def make_targets(self) -> Mapping[str, frozenset[K]]:
        """What each member is to hold from now on."""
        raise NotImplementedError

    def granted(self, member: M, keys: frozenset[K], at: Moment) -> None:
        """The member has got these."""

    def forgotten(self, member: M) -> None:
        """The member is out."""

    def patience_ms(self, member: M) -> int:
        """How long the member may be silent."""
        raise NotImplementedError

    def make_standing(self, member: M, *, whole: bool) -> Message:
        """What the member is told; ``whole``: with what it is to hold, whether it knows that or not."""
        raise NotImplementedError

    def make_refusal(self, error: HeadraceError, member_id: str) -> Message:
        raise NotImplementedError

    def has_news(self, member: M) -> bool:
        """Whether something has changed since the member was told."""
        raise NotImplementedError

    def is_fresh(self, member: M) -> None:
        """The member speaks over another stream than before: nothing counts as told."""
        raise NotImplementedError

    # --- what others ask --------------------------------------------------------------------------------------

    def commit_fault(
        self, member_id: str, instance_id: str | None, epoch: int, *, transactional: bool = False
    ) -> HeadraceError | None:
        """
        Why this commit is refused, if it is; an empty ``member_id`` with no epoch is administration.

        In a transaction that is a producer without the group's metadata, which Kafka does not check either.
        """
        if not member_id and instance_id is None and epoch < 0 and (transactional or not self.members):
            return None
        member = self.identify(member_id, instance_id)
        return member if isinstance(member, HeadraceError) else self._stale(member, epoch)

    def committed(self, member_id: str, at: Moment) -> None:
        """A commit was accepted: no sign of life in this protocol."""

    def fetch_fault(self, member_id: str, member_epoch: int | None) -> HeadraceError | None:
        """Why this member may not read offsets, if so."""
        member = self.identify(member_id, None)
        if isinstance(member, HeadraceError):
            return member
        return None if member_epoch is None else self._stale(member, member_epoch)

    def _stale(self, member: M, epoch: int) -> HeadraceError | None:
        if epoch == member.epoch and not member.away:
            return None
        return StaleMemberEpoch(f"the member is at epoch {member.epoch}, not {epoch}; use the newest")

    @property
    def state(self) -> GroupState:
        """Kafka's name for where the group is. The target is computed at once, so it is never seen ASSIGNING."""
        if not self.members:
            return GroupState.EMPTY
        there = all(
            m.away or (m.state is MemberState.STABLE and m.epoch == self.group_epoch) for m in self.members.values()
        )
        return GroupState.STABLE if there else GroupState.RECONCILING

    # --- time -------------------------------------------------------------------------------------------------

    def woken(self, at: Moment) -> list[Effect]:
        """Time has passed: who was silent for too long is out, and who did not give up what it had to."""
        silent = UnknownMemberId("the session has ended without a heartbeat; join again")
        slow = FencedMemberEpoch("the member did not give up what it had to within its rebalance timeout; join again")
        late: list[tuple[M, HeadraceError]] = []
        for member in self.members.values():
            if at.mono_ms >= member.deadline_ms:
                late.append((member, silent))
            elif at.mono_ms >= member.revoke_until_ms:
                late.append((member, slow))
        if late:
            self.remove(late, at)
        self.schedule()
        return self.take_effects()

    def renew_session(self, member: M, at: Moment) -> None:
        """It lives."""
        member.deadline_ms = at.mono_ms + self.patience_ms(member)
        self.wake_ms = min(self.wake_ms, member.deadline_ms)

    def schedule(self) -> None:
        """Find out when ``woken`` is due."""
        self.wake_ms = min((min(m.deadline_ms, m.revoke_until_ms) for m in self.members.values()), default=inf)

    # --- members ----------------------------------------------------------------------------------------------

    def restore_member(self, member: M, at: Moment) -> None:
        """A member of a record, with a full session."""
        self.add(member)
        self._ownership.take(member.held, member.member_id)
        self._wanted_by.update(dict.fromkeys(member.target, member.member_id))
        member.deadline_ms = at.mono_ms + self.settings.group_consumer_session_timeout_ms
        if member.state is MemberState.UNREVOKED:
            member.revoke_until_ms = at.mono_ms + member.rebalance_timeout_ms

    def identify(self, member_id: str, instance_id: str | None) -> M | HeadraceError:
        """The member that speaks, or why it may not: it is not known, or another one has its instance id."""
        return identify(self.members.get(member_id), self.holder(instance_id), member_id, instance_id)

    def holder(self, instance_id: str | None) -> M | None:
        """Who has this instance id."""
        return None if instance_id is None else self.members.get(self._by_instance.get(instance_id, ""))

    def add(self, member: M) -> None:
        """A newcomer; it holds nothing yet."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.member_id

    def bind(self, member: M, stream: int, at: Moment) -> bool:
        """Whether the member may speak over this stream; it is its only one from now on."""
        taken = self.streams.take(member.member_id, stream)
        if taken.closes is not None:
            self.close(taken.closes)
        orphan = self.members.get(taken.orphan or "")
        if orphan is not None:
            self.renew_session(orphan, at)
        if taken.fresh:
            self.is_fresh(member)
        return taken.speaks

    def stream_broke(self, stream: int, at: Moment) -> None:
        """A stream has ended: its member has a while to come back."""
        member = self.members.get(self.streams.end(stream) or "")
        if member is not None:
            self.renew_session(member, at)

    def forget(self, member: M, *, keep_stream: bool = False) -> None:
        """It is out, and what it held is free."""
        self.forgotten(member)
        release(member, self._ownership)
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        if not keep_stream:
            self.streams.drop(member.member_id)
        self._news.pop(member.member_id, None)

    def remove(self, leaving: list[tuple[M, HeadraceError]], at: Moment) -> None:
        """They are out: tell them, if they are there, and give what they held to the others."""
        for member, error in leaving:
            stream = self.streams.of(member.member_id)
            if stream is not None:
                self.send(stream, self.make_refusal(error, member.member_id))
            self.forget(member)
        self.bump_epoch(at)

    # --- epochs -----------------------------------------------------------------------------------------------

    def bump_epoch(self, at: Moment) -> None:
        """A new epoch with a target of its own, towards which everybody moves; see ``floors``."""
        self.group_epoch = max(self.group_epoch + 1, epoch_by_clock(at))
        self.dirty = True
        self.empty_since_ms = -1 if self.members else at.wall_ms
        targets = self.make_targets()
        self._wanted_by = {key: member_id for member_id, keys in targets.items() for key in keys}
        for member_id, keys in targets.items():
            self.members[member_id].target = keys
        self.settle(set(self.members), at)

    def settle(self, member_ids: set[str], at: Moment) -> None:
        """Advance these members, and those who wait for what becomes free by that, until nobody moves."""
        todo = dict.fromkeys(sorted(member_ids))
        while todo or self._ownership.freed:
            for key in sorted(self._ownership.freed):  # type: ignore[type-var]  # keys of one kind have an order
                waiting = self._wanted_by.get(key)
                if waiting is not None and waiting in self.members:
                    todo[waiting] = None
            self._ownership.freed.clear()
            if not todo:
                return
            member = self.members[next(iter(todo))]
            del todo[member.member_id]
            before = member.assigned
            if advance(member, self.group_epoch, self._ownership, at.mono_ms):
                self.dirty = True
                self._news[member.member_id] = None
                if gained := member.assigned - before:
                    self.granted(member, gained, at)
            self.wake_ms = min(self.wake_ms, member.revoke_until_ms)

    # --- what is told -----------------------------------------------------------------------------------------

    def send(self, stream: int, message: Message) -> None:
        """Answer over a stream."""
        self._sending.append(Send(self.group_id, stream, message))

    def close(self, stream: int) -> None:
        """End a stream, after all that is sent."""
        self._closing.append(CloseStream(self.group_id, stream))

    def answer(self, member: M, stream: int, *, whole: bool) -> None:
        """Answer a heartbeat; with what the member is to hold, if it cannot know it."""
        self._news.pop(member.member_id, None)
        self.send(stream, self.make_standing(member, whole=whole))

    def take_effects(self) -> list[Effect]:
        """What is to be done, in order; members other than the one that was answered learn their news last."""
        for member_id in self._news:
            member, stream = self.members[member_id], self.streams.of(member_id)
            if stream is not None and self.has_news(member):
                self.send(stream, self.make_standing(member, whole=False))
        out: list[Effect] = [PersistGroup(self.group_id)] if self.dirty else []
        out += self._sending
        out += self._closing
        self.dirty = False
        self._news, self._sending, self._closing = {}, [], []
        return out


def epoch_fault(member: Holder[K], epoch: int, owned: frozenset[K] | None) -> HeadraceError | None:
    """
    Why a heartbeat of this epoch is refused, if it is.

    Answers and pushes cross heartbeats that are under way. So it may carry any epoch from the last one that the member
    was heard with up to its present one; KIP-848, where only answers bring news, allows the previous one only.
    """
    if epoch == member.epoch:
        return None
    if epoch > member.epoch or epoch < member.previous_epoch:
        return FencedMemberEpoch(f"the member is at epoch {member.epoch}, not {epoch}; join again")
    if owned is not None and not owned <= member.held:
        return FencedMemberEpoch(f"the member holds what epoch {member.epoch} does not give it; join again")
    return None
