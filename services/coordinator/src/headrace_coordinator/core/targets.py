"""The target assignment of a group of the server-side protocol. ``consumer_group.ConsumerGroup`` calls it per epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace_common.core.assignors import MemberSubscription, assign
from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.consumer_members import ConsumerMember
from headrace_coordinator.core.values import Subscription, TopicInfo, Topics


@dataclass(slots=True)
class TopicView:
    """What a shard knows of the cluster's topics; its groups share one, and the shard alone changes it."""

    topics: Topics = field(default_factory=dict)
    matches: dict[str, frozenset[str]] = field(default_factory=dict)
    """Pattern -> the topics that it matches now."""

    def list_names(self, subscription: Subscription) -> frozenset[str]:
        """Names of the topics that are subscribed to, whether they exist or not."""
        if subscription.pattern is None:
            return subscription.topics
        return subscription.topics | self.matches.get(subscription.pattern, frozenset())

    def find_subscribed(self, members: Iterable[ConsumerMember]) -> dict[str, TopicInfo]:
        """The topics that exist and that a member subscribes to."""
        names: set[str] = set()
        for subscription in {m.subscription for m in members}:
            names |= self.list_names(subscription)
        return {name: self.topics[name] for name in sorted(names) if name in self.topics}


def choose_assignor(members: Iterable[ConsumerMember], offered: tuple[str, ...]) -> str:
    """The one that most members ask for; of equals the one that is offered first; if nobody asks, the first."""
    votes = Counter(m.assignor for m in members if m.assignor in offered)
    return max(offered, key=lambda name: (votes[name], -offered.index(name)))


def target_assignment(
    assignor: str, members: Mapping[str, ConsumerMember], topics: Mapping[str, TopicInfo], view: TopicView
) -> dict[str, frozenset[PartitionId]]:
    """What each member is to hold; sticky assignors start from the members' present targets."""
    names = {info.topic_id: name for name, info in topics.items()}
    wanted = {s: view.list_names(s) for s in {m.subscription for m in members.values()}}
    inputs = {
        member_id: MemberSubscription(
            topics=wanted[m.subscription],
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
