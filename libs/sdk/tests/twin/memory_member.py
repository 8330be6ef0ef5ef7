"""What groups in memory know of a member, and how they speak to it. Used by ``memory_classic``, ``memory_target``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace_common.core.assignors import MemberSubscription
from headrace_common.core.ids import TopicPartition
from headrace_proto.v1 import coordinator_pb2 as pb

Topics = Mapping[str, tuple[bytes, int]]
"""Topic id and number of partitions, by name."""


class Line(Protocol):
    """The stream of one member, as a group sees it."""

    def push(self, response: pb.MembershipResponse) -> None:
        """Say something, asked or not; from any thread."""
        ...

    def later(self, ms: float, call: Callable[[], None]) -> None:
        """Call after a time, unless the process ends before."""
        ...


@dataclass(slots=True, eq=False)
class Member:
    """One member of either protocol."""

    member_id: str
    instance_id: str | None
    line: Line
    rebalance_timeout_ms: int = 300_000
    # classic
    subscriptions: dict[str, pb.ClassicSubscription] = field(default_factory=dict)
    """By assignor, in the order of preference."""
    joins: bool = False
    """Its join is not answered yet."""
    syncs: bool = False
    assignment: pb.ClassicAssignment = field(default_factory=pb.ClassicAssignment)
    # server-side
    epoch: int = 0
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assignor: str = ""
    assigned: frozenset[TopicPartition] = frozenset()
    releasing: frozenset[TopicPartition] = frozenset()
    """Taken away, and not given up yet."""
    unconfirmed: frozenset[TopicPartition] = frozenset()
    """Given, and not reported to be held yet: a report without it may be older than the gift, so it stays."""
    away: bool = False
    """A static member that has said that it will be back."""


def partition_set(partitions: Iterable[TopicPartition], topics: Topics) -> list[pb.TopicPartitions]:
    """In the form of the wire."""
    found: dict[str, pb.TopicPartitions] = {}
    for topic, partition in sorted(partitions):
        if topic not in found:
            found[topic] = pb.TopicPartitions(topic=topic, topic_id=topics[topic][0] if topic in topics else b"")
        found[topic].partitions.append(partition)
    return list(found.values())


def partitions_in(entries: Iterable[pb.TopicPartitions]) -> frozenset[TopicPartition]:
    """From the form of the wire."""
    return frozenset(TopicPartition(entry.topic, number) for entry in entries for number in entry.partitions)


def subscription_of(member: Member, topics: Iterable[str]) -> MemberSubscription:
    """For the assignors of the server-side protocol."""
    owned: dict[str, set[int]] = {}
    for topic, partition in member.assigned:
        owned.setdefault(topic, set()).add(partition)
    return MemberSubscription(tuple(topics), owned, member.epoch, member.instance_id)
