"""
The moves of a group of the server-side protocol: new epochs and targets, members that advance, drop out, time out.

Base of ``consumer_group.ConsumerGroup``, which says what the members' requests mean. Effects are gathered while an
event is handled and leave in one order: what must be durable, what members are told, streams that end.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from headrace_common.core.errors import FencedMemberEpoch, HeadraceError, UnknownMemberId
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.effects import CloseStream, ConsumerStanding, Effect, Message, PersistGroup, Send
from headrace_coordinator.core.reconcile import ConsumerMember, Ownership, advance, depart, release
from headrace_coordinator.core.records import ConsumerRecord
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.streams import Streams
from headrace_coordinator.core.targets import TopicView, chosen_assignor, target_assignment
from headrace_coordinator.core.values import MemberState, Moment, TopicInfo, TopicPartitions


class ConsumerMoves:
    """State, timers and transitions. ``wake_ms`` (monotonic) says when ``woken`` must be called, at the latest."""

    __slots__ = (
        "_by_instance",
        "_closing",
        "_dirty",
        "_names",
        "_news",
        "_ownership",
        "_sending",
        "_topics",
        "_wanted_by",
        "empty_since_ms",
        "group_epoch",
        "group_id",
        "members",
        "settings",
        "streams",
        "view",
        "wake_ms",
    )

    def __init__(
        self, group_id: str, settings: GroupSettings, view: TopicView, group_epoch: int = 0, empty_since_ms: int = -1
    ) -> None:
        self.group_id = group_id
        self.settings = settings
        self.view = view
        self.members: dict[str, ConsumerMember] = {}
        self.group_epoch = group_epoch
        self.empty_since_ms = empty_since_ms
        self.wake_ms = inf
        self.streams = Streams()
        self._by_instance: dict[str, str] = {}
        self._ownership = Ownership()
        self._wanted_by: dict[PartitionId, str] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._names: dict[TopicId, str] = {}
        self._dirty = False
        self._news: dict[str, None] = {}
        self._sending: list[Send] = []
        self._closing: list[CloseStream] = []

    # --- durable state --------------------------------------------------------------------------------------

    def record(self) -> ConsumerRecord:
        """The durable state."""
        members = tuple(member.record() for member in self.members.values())
        topics = {**self._gone_topics(), **self._topics}
        return ConsumerRecord(self.group_epoch, self.group_epoch, self.empty_since_ms, topics, members)

    def _gone_topics(self) -> dict[str, TopicInfo]:
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
            member = ConsumerMember.restored(member_record)
            self._add(member)
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
            self._remove(late, at)
        self._schedule()
        return self._taken()

    def topics_changed(self, at: Moment) -> list[Effect]:
        """The view has other topics than before: a new target, if the group's are among them."""
        topics = self.view.read_by(self.members.values())
        if self.members and not _same(self._topics, topics):
            self._bump(at)
        elif self.members:
            self._topics = topics  # with racks, which a restored group does not know
        return self._taken()

    def _heard(self, member: ConsumerMember, at: Moment) -> None:
        """It lives. Without a stream only the grace counts, unless it is static."""
        bound = self.streams.of(member.member_id) is not None or member.instance_id is not None
        patience = self.settings.group_consumer_session_timeout_ms if bound else self.settings.group_rejoin_grace_ms
        member.deadline_ms = at.mono_ms + patience
        self.wake_ms = min(self.wake_ms, member.deadline_ms)

    def _schedule(self) -> None:
        self.wake_ms = min((min(m.deadline_ms, m.revoke_until_ms) for m in self.members.values()), default=inf)

    # --- members --------------------------------------------------------------------------------------------

    def _holder(self, instance_id: str | None) -> ConsumerMember | None:
        return None if instance_id is None else self.members.get(self._by_instance.get(instance_id, ""))

    def _add(self, member: ConsumerMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.member_id

    def _forget(self, member: ConsumerMember, *, keep_stream: bool = False) -> None:
        release(member, self._ownership)
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        if not keep_stream:
            self.streams.drop(member.member_id)
        self._news.pop(member.member_id, None)

    def _remove(self, leaving: list[tuple[ConsumerMember, HeadraceError]], at: Moment) -> None:
        """They are out: tell them, if they are there, and give what they held to the others."""
        for member, error in leaving:
            stream = self.streams.of(member.member_id)
            if stream is not None:
                self._reply(stream, ConsumerStanding(error, member.member_id))
            self._forget(member)
        self._bump(at)

    def _send_away(self, member: ConsumerMember, at: Moment) -> None:
        """A static member leaves; its place is kept for a session."""
        depart(member, self._ownership)
        self.streams.drop(member.member_id)
        self._heard(member, at)
        self._dirty = True
        self._settle({member.member_id}, at)

    # --- epochs ---------------------------------------------------------------------------------------------

    def _bump(self, at: Moment) -> None:
        """A new epoch with a target of its own, towards which everybody moves."""
        self.group_epoch += 1
        self._dirty = True
        self.empty_since_ms = -1 if self.members else at.wall_ms
        self._topics = self.view.read_by(self.members.values())
        self._names.update((info.topic_id, name) for name, info in self._topics.items())
        assignor = chosen_assignor(self.members.values(), self.settings.group_consumer_assignors)
        targets = target_assignment(assignor, self.members, self._topics, self.view)
        self._wanted_by = {p: member_id for member_id, partitions in targets.items() for p in partitions}
        for member_id, partitions in targets.items():
            self.members[member_id].target = partitions
        self._settle(set(self.members), at)

    def _settle(self, member_ids: set[str], at: Moment) -> None:
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
                self._dirty = True
                self._news[member.member_id] = None
            self.wake_ms = min(self.wake_ms, member.revoke_until_ms)

    # --- what is told ---------------------------------------------------------------------------------------

    def _reply(self, stream: int, message: Message) -> None:
        self._sending.append(Send(self.group_id, stream, message))

    def _answer(self, member: ConsumerMember, stream: int, *, whole: bool) -> None:
        """Answer a heartbeat; with the assignment, if the member cannot know it."""
        self._news.pop(member.member_id, None)
        self._reply(stream, self._standing(member, whole=whole))

    def _standing(self, member: ConsumerMember, *, whole: bool) -> ConsumerStanding:
        whole = whole or member.told is not member.assigned
        member.told, member.told_epoch = member.assigned, member.epoch
        return ConsumerStanding(
            error=None,
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self.settings.group_consumer_heartbeat_interval_ms,
            session_timeout_ms=self.settings.group_consumer_session_timeout_ms,
            assignment=self._shaped(member.assigned) if whole else None,
        )

    def _shaped(self, partitions: frozenset[PartitionId]) -> tuple[TopicPartitions, ...]:
        by_topic: dict[TopicId, list[int]] = {}
        for topic_id, number in sorted(partitions):
            by_topic.setdefault(topic_id, []).append(number)
        return tuple(TopicPartitions(self._names.get(t, ""), t, tuple(numbers)) for t, numbers in by_topic.items())

    def _taken(self) -> list[Effect]:
        """What is to be done, in order; members other than the one that was answered learn their news last."""
        for member_id in self._news:
            member, stream = self.members[member_id], self.streams.of(member_id)
            if stream is not None and (member.told is not member.assigned or member.told_epoch != member.epoch):
                self._reply(stream, self._standing(member, whole=False))
        out: list[Effect] = [PersistGroup(self.group_id)] if self._dirty else []
        out += self._sending
        out += self._closing
        self._dirty = False
        self._news, self._sending, self._closing = {}, [], []
        return out


def _same(before: Mapping[str, TopicInfo], now: Mapping[str, TopicInfo]) -> bool:
    return before.keys() == now.keys() and all(info.same(now[name]) for name, info in before.items())
