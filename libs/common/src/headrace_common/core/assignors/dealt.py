"""The assignors that look at nothing but subscriptions: ``range`` and ``roundrobin``. Called through ``assign``."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_common.core.assignors.model import Assignment, MemberSubscription, by_topic, in_order, subscribers


def range_(members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]) -> dict[str, Assignment]:
    """Per topic: equally many consecutive partitions for each subscriber, one more for the first if need be."""
    result: dict[str, Assignment] = {member: {} for member in members}
    for topic, readers in subscribers(members, partitions).items():
        each, more = divmod(partitions[topic], len(readers))
        start = 0
        for i, member in enumerate(readers):
            end = start + each + (i < more)
            if end > start:
                result[member][topic] = tuple(range(start, end))
            start = end
    return result


def roundrobin(members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]) -> dict[str, Assignment]:
    """One partition after the other, topic by topic, to the next member in the circle that subscribes to the topic."""
    circle = in_order(members)
    place = {member: i for i, member in enumerate(circle)}
    held: dict[str, list[tuple[str, int]]] = {member: [] for member in members}
    turn = 0
    for topic, readers in subscribers(members, partitions).items():
        places = [place[member] for member in readers]
        for partition in range(partitions[topic]):
            # the first reader at or after `turn` in the circle
            turn = next((p for p in places if p >= turn), places[0]) if len(places) < len(circle) else turn
            held[circle[turn]].append((topic, partition))
            turn = (turn + 1) % len(circle)
    return by_topic(held)
