"""What the assignors read of a member, and the shape of what they return."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

Assignment = dict[str, tuple[int, ...]]
"""Topic -> partitions, ascending; no topic without partitions."""

Racks = Mapping[str, Sequence[frozenset[str]]]
"""Topic -> for each partition, from 0, the racks in which it has replicas; what is missing is not known."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """One member as the assignors see it."""

    topics: Collection[str]
    """Subscribed topics; patterns are resolved before."""
    owned: Mapping[str, Collection[int]] = field(default_factory=lambda: MappingProxyType({}))
    """What it holds now; only the sticky assignors look at it."""
    generation: int = -1
    """When it got ``owned``; of two members that claim one partition the newer has it. -1: not known."""
    instance_id: str | None = None
    """Static members come first, by this name: so a restart, with a new member id, changes nothing."""
    rack: str | None = None
    """Where it is; partitions with a replica there are preferred where balance allows. None or empty: not known."""
    user_data: bytes = b""
    """What its ``user_data`` said, for an assignor of the application's own; no other looks at it."""


def racks_of(replicas: Iterable[int], by_node: Mapping[int, str]) -> frozenset[str]:
    """The racks of a partition's replicas, as far as they are known."""
    return frozenset(by_node[node] for node in replicas if by_node.get(node))


def in_order(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Member ids in the order in which members are served: static ones by instance id, then the others by id."""
    return sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or "", m))


def subscribers(members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]) -> dict[str, list[str]]:
    """Topics that exist and have subscribers, ascending, each with its members in the order of ``in_order``."""
    wanted = {member: frozenset(members[member].topics) for member in in_order(members)}
    if len(set(wanted.values())) == 1:  # as in most groups
        everybody = list(wanted)
        return {topic: everybody for topic in sorted(wanted[everybody[0]]) if partitions.get(topic, 0) > 0}
    found: dict[str, list[str]] = {}
    for member, topics in wanted.items():
        for topic in topics:
            if partitions.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member)
    return dict(sorted(found.items()))


def by_topic(held: Mapping[str, Collection[tuple[str, int]]]) -> dict[str, Assignment]:
    """From sets of (topic, partition) per member to the shape that is returned."""
    result: dict[str, Assignment] = {}
    for member, pairs in held.items():
        lists: dict[str, list[int]] = {}
        for topic, partition in sorted(pairs):
            lists.setdefault(topic, []).append(partition)
        result[member] = {topic: tuple(numbers) for topic, numbers in lists.items()}
    return result
