"""The assignors that do not look at what members hold: ``range`` and ``roundrobin``. Called through ``assign``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_common.core.assignors.model import (
    Assignment,
    MemberSubscription,
    Racks,
    by_topic,
    in_order,
    subscribers,
)
from headrace_common.core.assignors.racks import nearer


def range_(
    members: Mapping[str, MemberSubscription], partitions: Mapping[str, int], racks: Racks
) -> dict[str, Assignment]:
    """
    Per topic: equally many consecutive partitions for each subscriber, one more for the first if need be.

    Racks exchange numbers between members. Topics of one size with the same readers are cut alike all the same: a
    number counts as near where all of these topics have a replica.
    """
    result: dict[str, Assignment] = {member: {} for member in members}
    alike: dict[tuple[tuple[str, ...], int], list[str]] = {}
    for topic, readers in subscribers(members, partitions).items():
        alike.setdefault((tuple(readers), partitions[topic]), []).append(topic)
    for (readers_, count), topics in sorted(alike.items(), key=lambda entry: entry[1]):
        numbers = _near_cuts(_cuts(readers_, count), topics, members, racks)
        for member, share in numbers.items():
            if share:
                result[member] |= dict.fromkeys(topics, share)
    return result


def _cuts(readers: Sequence[str], count: int) -> dict[str, tuple[int, ...]]:
    each, more = divmod(count, len(readers))
    starts = [i * each + min(i, more) for i in range(len(readers) + 1)]
    return {member: tuple(range(starts[i], starts[i + 1])) for i, member in enumerate(readers)}


def _near_cuts(
    cuts: dict[str, tuple[int, ...]],
    topics: Sequence[str],
    members: Mapping[str, MemberSubscription],
    racks: Racks,
) -> dict[str, tuple[int, ...]]:
    """The cuts after exchanges; the first topic stands for all."""
    name = topics[0]
    everywhere = [frozenset.intersection(*of_all) for of_all in zip(*(racks.get(t, ()) for t in topics), strict=False)]
    readers = {member: MemberSubscription([name], rack=members[member].rack) for member in cuts}
    held = {member: {(name, number) for number in share} for member, share in cuts.items()}
    near = nearer(held, readers, {name: everywhere})
    return {member: tuple(sorted(number for _, number in near[member])) for member in cuts}


def roundrobin(
    members: Mapping[str, MemberSubscription], partitions: Mapping[str, int], racks: Racks
) -> dict[str, Assignment]:
    """One partition after the other, topic by topic, to the next member in the circle that subscribes to the topic."""
    del racks  # as in Kafka
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
