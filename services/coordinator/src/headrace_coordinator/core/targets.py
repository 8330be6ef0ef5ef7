"""The target assignment of a group of the server-side protocol. ``consumer_group.ConsumerGroup`` calls it per epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace_common.core.assignors import MemberSubscription, assign
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.consumer_members import ConsumerMember
from headrace_coordinator.core.values import Sight, Subscription, TopicInfo, Topics


@dataclass(slots=True)
class TopicView:
    """What a shard knows of the cluster's topics; its groups share one, and the shard alone changes it."""

    topics: Topics = field(default_factory=dict)
    matches: dict[str, frozenset[str]] = field(default_factory=dict)
    """Pattern -> the topics that it matches now."""
    closed: bool = False
    """See ``TopicsChanged``."""

    def list_names(self, subscription: Subscription) -> frozenset[str]:
        """Names of the topics that are subscribed to, whether they exist or not."""
        if subscription.pattern is None:
            return subscription.topics
        return subscription.topics | self.matches.get(subscription.pattern, frozenset())

    def reads(self, member: ConsumerMember, topic: str) -> bool:
        """Whether the member subscribes to the topic and may know of it; where that is not known, it does."""
        if topic not in self.list_names(member.subscription):
            return False
        return member.sight is None or bool(member.sight.filter_visible(frozenset((topic,))))

    def find_wanted(self, members: Iterable[ConsumerMember]) -> dict[str, frozenset[str]]:
        """By member, the topics that exist, that it subscribes to and that it may know of."""
        known: dict[tuple[Subscription, Sight | frozenset[TopicId] | None], frozenset[str]] = {}
        wanted = {}
        for member in members:
            presumed = member.presumed if self.closed else None
            kind = member.subscription, presumed if member.sight is None else member.sight
            if kind not in known:
                known[kind] = self._find_seen(*kind)
            wanted[member.member_id] = known[kind]
        return wanted

    def _find_seen(self, subscription: Subscription, sight: Sight | frozenset[TopicId] | None) -> frozenset[str]:
        names = frozenset(self.list_names(subscription) & self.topics.keys())
        if sight is None:
            return names
        if isinstance(sight, frozenset):
            return frozenset(name for name in names if self.topics[name].topic_id in sight)
        return sight.filter_visible(names)

    def find_topics(self, wanted: Iterable[frozenset[str]]) -> dict[str, TopicInfo]:
        """The topics that some member wants."""
        names: frozenset[str] = frozenset().union(*set(wanted))
        return {name: self.topics[name] for name in sorted(names)}


def choose_assignor(members: Iterable[ConsumerMember], offered: tuple[str, ...]) -> str:
    """The one that most members ask for; of equals the one that is offered first; if nobody asks, the first."""
    votes = Counter(m.assignor for m in members if m.assignor in offered)
    return max(offered, key=lambda name: (votes[name], -offered.index(name)))


def target_assignment(
    assignor: str,
    members: Mapping[str, ConsumerMember],
    topics: Mapping[str, TopicInfo],
    wanted: Mapping[str, frozenset[str]],
) -> dict[str, frozenset[PartitionId]]:
    """What each member is to hold of what it wants; sticky assignors start from the members' present targets."""
    names = {info.topic_id: name for name, info in topics.items()}
    inputs = {
        member_id: MemberSubscription(
            topics=wanted[member_id],
            owned=_by_name(m.target, names),
            instance_id=m.instance_id,
            rack=m.rack,
        )
        for member_id, m in members.items()
    }
    racks = {name: info.racks for name, info in topics.items() if info.racks}
    result = assign(assignor, inputs, {name: info.partitions for name, info in topics.items()}, racks)
    return {
        member_id: frozenset(
            PartitionId(topics[name].topic_id, number) for name, numbers in assignment.items() for number in numbers
        )
        for member_id, assignment in result.items()
    }


def _by_name(partitions: frozenset[PartitionId], names: Mapping[TopicId, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic_id, number in partitions:
        name = names.get(topic_id)
        if name is not None:
            found.setdefault(name, []).append(number)
    return found
