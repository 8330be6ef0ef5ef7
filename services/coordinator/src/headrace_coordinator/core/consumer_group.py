"""
One group of the server-side protocol (KIP-848): the coordinator computes the assignment and moves the members to it.

``assigned_group`` has what is not about topics. ``consumer_requests`` says what the members' requests mean;
``shard.Shard`` asks the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.assigned_group import AssignedGroup
from headrace_coordinator.core.consumer_members import ConsumerMember
from headrace_coordinator.core.effects import ConsumerStanding, Effect, GroupDescription, MemberDescription
from headrace_coordinator.core.reconcile import depart
from headrace_coordinator.core.records import ConsumerRecord
from headrace_coordinator.core.targets import TopicView, choose_assignor, target_assignment
from headrace_coordinator.core.values import GroupProtocol, Moment, Sight, TopicInfo, TopicPartitions


@dataclass(slots=True, eq=False)
class ConsumerGroup(AssignedGroup[PartitionId, ConsumerMember]):
    """See ``AssignedGroup``."""

    view: TopicView = field(kw_only=True)
    _topics: dict[str, TopicInfo] = field(default_factory=dict)
    _names: dict[TopicId, str] = field(default_factory=dict)
    _wanted: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By member, the topics that its part of the target is of; members that only a record knows are not in it."""

    # --- what others ask ------------------------------------------------------------------------------------

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads the topic."""
        return any(self.view.reads(m, topic) for m in self.members.values())

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
        held = {id.topic_id for m in self.members.values() for id in m.held} - read
        self._names = {topic_id: name for topic_id, name in self._names.items() if topic_id in read | held}
        return {self._names[topic_id]: TopicInfo(topic_id, 0) for topic_id in held if topic_id in self._names}

    def restore(self, record: ConsumerRecord, at: Moment) -> None:
        """Take over the state of a record, to serve it from now on: every member has a full session."""
        assert not self.members, "a group is restored once"
        self.group_epoch, self.empty_since_ms = record.group_epoch, record.empty_since_ms
        self._topics = {name: info for name, info in record.topics.items() if info.partitions}
        self._names = {info.topic_id: name for name, info in record.topics.items()}
        presumed = frozenset(info.topic_id for info in self._topics.values())
        for member_record in record.members:
            member = ConsumerMember.restore(member_record, presumed)
            self.restore_member(member, at)
        self.schedule()

    # --- topics -----------------------------------------------------------------------------------------------

    def topics_changed(self, at: Moment) -> list[Effect]:
        """The view has other topics than before, or shows others: a new target, if the group's are among them."""
        wanted = self.view.find_wanted(self.members.values())
        topics = self.view.find_topics(wanted.values())
        moved = any(self._wanted.get(member_id, names) != names for member_id, names in wanted.items())
        if self.members and (moved or not _same(self._topics, topics)):
            self.bump_epoch(at)
        elif self.members:
            self._topics, self._wanted = topics, wanted  # with racks, which a restored group does not know
        return self.take_effects()

    def make_targets(self) -> Mapping[str, frozenset[PartitionId]]:
        self._wanted = self.view.find_wanted(self.members.values())
        self._topics = self.view.find_topics(self._wanted.values())
        self._names.update((info.topic_id, name) for name, info in self._topics.items())
        assignor = choose_assignor(self.members.values(), self.settings.group_consumer_assignors)
        return target_assignment(assignor, self.members, self._topics, self._wanted)

    def wants(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that the member's part of the target is of."""
        return self.view.find_wanted((member,))[member.member_id]

    def take_sight(self, member: ConsumerMember, sight: Sight) -> bool:
        """
        Take what who speaks may know of; returns whether the target depends on it.

        A member that a record knows and that is heard for the first time moves nothing by that: its target was made
        with what it sees.
        """
        before = self.wants(member)
        member.sight = sight
        if self.wants(member) == before:
            return False
        return any(self.members[id].target != keys for id, keys in self.make_targets().items())

    # --- members --------------------------------------------------------------------------------------------

    def patience_ms(self, member: ConsumerMember) -> int:
        """Without a stream only the grace counts, unless it is static."""
        bound = self.streams.of(member.member_id) is not None or member.instance_id is not None
        return self.settings.group_consumer_session_timeout_ms if bound else self.settings.group_rejoin_grace_ms

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

    # --- what is told ---------------------------------------------------------------------------------------

    def is_fresh(self, member: ConsumerMember) -> None:
        member.told = None

    def has_news(self, member: ConsumerMember) -> bool:
        return member.told is not member.assigned or member.told_epoch != member.epoch

    def make_refusal(self, error: HeadraceError, member_id: str) -> ConsumerStanding:
        return ConsumerStanding(error, member_id)

    def make_standing(self, member: ConsumerMember, *, whole: bool) -> ConsumerStanding:
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


def _same(before: Mapping[str, TopicInfo], now: Mapping[str, TopicInfo]) -> bool:
    return before.keys() == now.keys() and all(info.same(now[name]) for name, info in before.items())
