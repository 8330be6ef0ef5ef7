"""
One group of the server-side protocol (KIP-848): the coordinator computes the assignment and moves the members to it.

Three epochs: the group's grows with every change of members, subscriptions or topics; the target assignment is computed
at once for each, so its epoch is the same; each member has its own, which ``reconcile.advance`` brings to the target's.
All of it is durable, and persisted before it is told. What changes for a member is pushed over its stream at once.

``consumer_requests`` says what the members' requests mean; ``shard.Shard`` asks the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from headrace_common.core.errors import FencedMemberEpoch, HeadraceError, StaleMemberEpoch, UnknownMemberId
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.effects import (
    CloseStream,
    ConsumerStanding,
    Effect,
    GroupDescription,
    MemberDescription,
    Message,
    PersistGroup,
    Send,
)
from headrace_coordinator.core.floors import epoch_by_clock
from headrace_coordinator.core.identity import identify
from headrace_coordinator.core.reconcile import ConsumerMember, Ownership, advance, depart, release
from headrace_coordinator.core.records import ConsumerRecord
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.streams import Streams
from headrace_coordinator.core.targets import TopicView, choose_assignor, target_assignment
from headrace_coordinator.core.values import (
    GroupProtocol,
    GroupState,
    MemberState,
    Moment,
    TopicInfo,
    TopicPartitions,
)


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """
    State, timers and transitions. ``wake_ms`` (monotonic) says when ``woken`` must be called, at the latest.

    Effects are gathered while an event is handled and leave in one order: what must be durable, what members are told,
    streams that end.
    """

    group_id: str
    settings: GroupSettings
    view: TopicView
    group_epoch: int = 0
    empty_since_ms: int = -1
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    streams: Streams = field(default_factory=Streams)
    dirty: bool = False
    """The durable state has changed since the effects were taken."""
    wake_ms: float = inf
    _by_instance: dict[str, str] = field(default_factory=dict)
    _ownership: Ownership = field(default_factory=Ownership)
    _wanted_by: dict[PartitionId, str] = field(default_factory=dict)
    _topics: dict[str, TopicInfo] = field(default_factory=dict)
    _names: dict[TopicId, str] = field(default_factory=dict)
    _news: dict[str, None] = field(default_factory=dict)
    _sending: list[Send] = field(default_factory=list)
    _closing: list[CloseStream] = field(default_factory=list)

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

    def _stale(self, member: ConsumerMember, epoch: int) -> HeadraceError | None:
        if epoch == member.epoch and not member.away:
            return None
        return StaleMemberEpoch(f"the member is at epoch {member.epoch}, not {epoch}; use the newest")

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads the topic."""
        return any(topic in self.view.list_names(m.subscription) for m in self.members.values())

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
                assigned=self._group_by_topic(m.assigned),
                target=self._group_by_topic(m.target),
            )
            for m in self.members.values()
        )
        assignor = choose_assignor(self.members.values(), self.settings.group_consumer_assignors)
        return GroupDescription(
            self.group_id, GroupProtocol.CONSUMER, self.state, self.group_epoch, self.group_epoch, assignor, members
        )

    # --- durable state --------------------------------------------------------------------------------------

    def record(self) -> ConsumerRecord:
        """The durable state."""
        members = tuple(member.record() for member in self.members.values())
        topics = {**self._find_gone_topics(), **self._topics}
        return ConsumerRecord(self.group_epoch, self.group_epoch, self.empty_since_ms, topics, members)

    def _find_gone_topics(self) -> dict[str, TopicInfo]:
        """Topics that are read no more, of which members still hold partitions: they are told by name to let go."""
        if len(self._names) == len(self._topics):
            return {}
        read = {info.topic_id for info in self._topics.values()}
        held = {id.topic_id for m in self.members.values() for id in m.assigned | m.revoking} - read
        self._names = {topic_id: name for topic_id, name in self._names.items() if topic_id in read | held}
        return {self._names[topic_id]: TopicInfo(topic_id, 0) for topic_id in held if topic_id in self._names}

    def restore(self, record: ConsumerRecord, at: Moment) -> None:
        """Take over the state of a record, to serve it from now on: every member has a full session."""
        assert not self.members, "a group is restored once"
        self.group_epoch, self.empty_since_ms = record.group_epoch, record.empty_since_ms
        self._topics = {name: info for name, info in record.topics.items() if info.partitions}
        self._names = {info.topic_id: name for name, info in record.topics.items()}
        for member_record in record.members:
            member = ConsumerMember.restore(member_record)
            self.add(member)
            self._ownership.take(member.assigned | member.revoking, member.member_id)
            self._wanted_by.update(dict.fromkeys(member.target, member.member_id))
            member.deadline_ms = at.mono_ms + self.settings.group_consumer_session_timeout_ms
            if member.state is MemberState.UNREVOKED:
                member.revoke_until_ms = at.mono_ms + member.rebalance_timeout_ms
        self._schedule()

    # --- time and topics ------------------------------------------------------------------------------------

    def woken(self, at: Moment) -> list[Effect]:
        """Time has passed: who was silent for too long is out, and who did not give up what it had to."""
        silent = UnknownMemberId("the session has ended without a heartbeat; join again")
        slow = FencedMemberEpoch("the member did not give up its partitions within its rebalance timeout; join again")
        late: list[tuple[ConsumerMember, HeadraceError]] = []
        for member in self.members.values():
            if at.mono_ms >= member.deadline_ms:
                late.append((member, silent))
            elif at.mono_ms >= member.revoke_until_ms:
                late.append((member, slow))
        if late:
            self.remove(late, at)
        self._schedule()
        return self.take_effects()

    def topics_changed(self, at: Moment) -> list[Effect]:
        """The view has other topics than before: a new target, if the group's are among them."""
        topics = self.view.find_subscribed(self.members.values())
        if self.members and not _same(self._topics, topics):
            self.bump_epoch(at)
        elif self.members:
            self._topics = topics  # with racks, which a restored group does not know
        return self.take_effects()

    def renew_session(self, member: ConsumerMember, at: Moment) -> None:
        """It lives. Without a stream only the grace counts, unless it is static."""
        bound = self.streams.of(member.member_id) is not None or member.instance_id is not None
        patience = self.settings.group_consumer_session_timeout_ms if bound else self.settings.group_rejoin_grace_ms
        member.deadline_ms = at.mono_ms + patience
        self.wake_ms = min(self.wake_ms, member.deadline_ms)

    def _schedule(self) -> None:
        self.wake_ms = min((min(m.deadline_ms, m.revoke_until_ms) for m in self.members.values()), default=inf)

    # --- members --------------------------------------------------------------------------------------------

    def identify(self, member_id: str, instance_id: str | None) -> ConsumerMember | HeadraceError:
        """The member that speaks, or why it may not: it is not known, or another one has its instance id."""
        return identify(self.members.get(member_id), self.holder(instance_id), member_id, instance_id)

    def bind(self, member: ConsumerMember, stream: int, at: Moment) -> bool:
        """Whether the member may speak over this stream; it is its only one from now on."""
        taken = self.streams.take(member.member_id, stream)
        if taken.closes is not None:
            self.close(taken.closes)
        orphan = self.members.get(taken.orphan or "")
        if orphan is not None:
            self.renew_session(orphan, at)
        if taken.fresh:
            member.told = None
        return taken.speaks

    def holder(self, instance_id: str | None) -> ConsumerMember | None:
        """Who has this instance id."""
        return None if instance_id is None else self.members.get(self._by_instance.get(instance_id, ""))

    def add(self, member: ConsumerMember) -> None:
        """A newcomer; it holds nothing yet."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.member_id

    def forget(self, member: ConsumerMember, *, keep_stream: bool = False) -> None:
        """It is out, and what it held is free."""
        release(member, self._ownership)
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        if not keep_stream:
            self.streams.drop(member.member_id)
        self._news.pop(member.member_id, None)

    def remove(self, leaving: list[tuple[ConsumerMember, HeadraceError]], at: Moment) -> None:
        """They are out: tell them, if they are there, and give what they held to the others."""
        for member, error in leaving:
            stream = self.streams.of(member.member_id)
            if stream is not None:
                self.send(stream, ConsumerStanding(error, member.member_id))
            self.forget(member)
        self.bump_epoch(at)

    def send_away(self, member: ConsumerMember, at: Moment) -> None:
        """A static member leaves; its place is kept for a session."""
        depart(member, self._ownership)
        self.streams.drop(member.member_id)
        self.renew_session(member, at)
        self.dirty = True
        self.settle({member.member_id}, at)

    def reclaim(self, member: ConsumerMember, at: Moment) -> None:
        """A static member is back and asks for the same: what was kept for it is its own again."""
        self._wanted_by.update(dict.fromkeys(member.target, member.member_id))
        self.dirty = True
        self.settle({member.member_id}, at)

    # --- epochs ---------------------------------------------------------------------------------------------

    def bump_epoch(self, at: Moment) -> None:
        """A new epoch with a target of its own, towards which everybody moves; see ``floors``."""
        self.group_epoch = max(self.group_epoch + 1, epoch_by_clock(at))
        self.dirty = True
        self.empty_since_ms = -1 if self.members else at.wall_ms
        self._topics = self.view.find_subscribed(self.members.values())
        self._names.update((info.topic_id, name) for name, info in self._topics.items())
        assignor = choose_assignor(self.members.values(), self.settings.group_consumer_assignors)
        targets = target_assignment(assignor, self.members, self._topics, self.view)
        self._wanted_by = {p: member_id for member_id, partitions in targets.items() for p in partitions}
        for member_id, partitions in targets.items():
            self.members[member_id].target = partitions
        self.settle(set(self.members), at)

    def settle(self, member_ids: set[str], at: Moment) -> None:
        """Advance these members, and those who wait for what becomes free by that, until nobody moves."""
        todo = dict.fromkeys(sorted(member_ids))
        while todo or self._ownership.freed:
            for partition in sorted(self._ownership.freed):
                waiting = self._wanted_by.get(partition)
                if waiting is not None and waiting in self.members:
                    todo[waiting] = None
            self._ownership.freed.clear()
            if not todo:
                return
            member = self.members[next(iter(todo))]
            del todo[member.member_id]
            if advance(member, self.group_epoch, self._ownership, at.mono_ms):
                self.dirty = True
                self._news[member.member_id] = None
            self.wake_ms = min(self.wake_ms, member.revoke_until_ms)

    # --- what is told ---------------------------------------------------------------------------------------

    def send(self, stream: int, message: Message) -> None:
        """Answer over a stream."""
        self._sending.append(Send(self.group_id, stream, message))

    def close(self, stream: int) -> None:
        """End a stream, after all that is sent."""
        self._closing.append(CloseStream(self.group_id, stream))

    def answer(self, member: ConsumerMember, stream: int, *, whole: bool) -> None:
        """Answer a heartbeat; with the assignment, if the member cannot know it."""
        self._news.pop(member.member_id, None)
        self.send(stream, self._make_standing(member, whole=whole))

    def _make_standing(self, member: ConsumerMember, *, whole: bool) -> ConsumerStanding:
        whole = whole or member.told is not member.assigned
        member.told, member.told_epoch = member.assigned, member.epoch
        return ConsumerStanding(
            error=None,
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self.settings.group_consumer_heartbeat_interval_ms,
            session_timeout_ms=self.settings.group_consumer_session_timeout_ms,
            assignment=self._group_by_topic(member.assigned) if whole else None,
        )

    def _group_by_topic(self, partitions: frozenset[PartitionId]) -> tuple[TopicPartitions, ...]:
        by_topic: dict[TopicId, list[int]] = {}
        for topic_id, number in sorted(partitions):
            by_topic.setdefault(topic_id, []).append(number)
        return tuple(TopicPartitions(self._names.get(t, ""), t, tuple(numbers)) for t, numbers in by_topic.items())

    def take_effects(self) -> list[Effect]:
        """What is to be done, in order; members other than the one that was answered learn their news last."""
        for member_id in self._news:
            member, stream = self.members[member_id], self.streams.of(member_id)
            if stream is not None and (member.told is not member.assigned or member.told_epoch != member.epoch):
                self.send(stream, self._make_standing(member, whole=False))
        out: list[Effect] = [PersistGroup(self.group_id)] if self.dirty else []
        out += self._sending
        out += self._closing
        self.dirty = False
        self._news, self._sending, self._closing = {}, [], []
        return out


def _same(before: Mapping[str, TopicInfo], now: Mapping[str, TopicInfo]) -> bool:
    return before.keys() == now.keys() and all(info.same(now[name]) for name, info in before.items())
