"""
The assignors that leave partitions where they are: ``sticky``, ``cooperative-sticky``, ``uniform``.

Where all members subscribe to the same topics, loads differ by at most one and the fewest partitions move that this
allows. Else the loads are the most even that the subscriptions permit: there is no chain of members along which a
partition each could be handed on so that a member's load falls by one and one lower by two or more grows (Harvey,
Ladner, Lovász, Tamir, *Semi-matchings for bipartite graphs and load balancing*, 2006). What cooperative-sticky holds
back is KIP-429. Racks (``racks.nearer``) change who holds what, never how many. Called through ``assign``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from headrace_common.core.assignors.model import (
    Assignment,
    MemberSubscription,
    Racks,
    by_topic,
    in_order,
    subscribers,
)
from headrace_common.core.assignors.racks import nearer

_Pair = tuple[str, int]
_Held = dict[str, set[_Pair]]


def sticky(
    members: Mapping[str, MemberSubscription], partitions: Mapping[str, int], racks: Racks
) -> dict[str, Assignment]:
    """Balanced, then near, with as much as possible left where it is."""
    return by_topic(nearer(_balance(members, partitions), members, racks))


def cooperative_sticky(
    members: Mapping[str, MemberSubscription], partitions: Mapping[str, int], racks: Racks
) -> dict[str, Assignment]:
    """As ``sticky``, without what somebody else than the new owner still holds: that one gives it up first."""
    held = nearer(_balance(members, partitions), members, racks)
    claims = _claims(members)
    owners = _owners(members, claims)
    return by_topic(
        {m: {pair for pair in pairs if pair not in claims or owners.get(pair) == m} for m, pairs in held.items()}
    )


def _balance(members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]) -> _Held:
    readers = subscribers(members, partitions)
    if not readers:
        return {member: set() for member in members}
    held = _keep_owned(members, partitions)
    order = in_order(members)
    if all(len(of_topic) == len(order) for of_topic in readers.values()):
        return _level(order, held, readers, partitions)
    _deal_out(held, order, readers, partitions)
    return _even_out(held, order, readers, members)


def _claims(members: Mapping[str, MemberSubscription]) -> dict[_Pair, list[str]]:
    claims: dict[_Pair, list[str]] = {}
    for member, subscription in members.items():
        for topic, numbers in subscription.owned.items():
            for partition in set(numbers):
                claims.setdefault((topic, partition), []).append(member)
    return claims


def _owners(members: Mapping[str, MemberSubscription], claims: Mapping[_Pair, list[str]]) -> dict[_Pair, str]:
    """Who has each claimed partition: the only one with the newest claim. Two of one generation: nobody."""
    owners: dict[_Pair, str] = {}
    for pair, claimants in claims.items():
        if len(claimants) == 1:
            owners[pair] = claimants[0]
            continue
        newest = max(members[m].generation for m in claimants)
        of_newest = [m for m in claimants if members[m].generation == newest]
        if len(of_newest) == 1:
            owners[pair] = of_newest[0]
    return owners


def _keep_owned(members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]) -> _Held:
    """What each member holds and may go on holding, before balance is looked at."""
    held: _Held = {member: set() for member in members}
    wanted = {member: frozenset(subscription.topics) for member, subscription in members.items()}
    for pair, member in _owners(members, _claims(members)).items():
        topic, partition = pair
        if topic in wanted[member] and 0 <= partition < partitions.get(topic, 0):
            held[member].add(pair)
    return held


def _list_unowned(held: _Held, readers: Mapping[str, list[str]], partitions: Mapping[str, int]) -> list[_Pair]:
    owned: set[_Pair] = set().union(*held.values())
    return [(t, p) for t in readers for p in range(partitions[t]) if (t, p) not in owned]


def _level(order: list[str], held: _Held, readers: Mapping[str, list[str]], partitions: Mapping[str, int]) -> _Held:
    """All subscribe to the same: who holds the most may hold the one more that does not divide."""
    each, more = divmod(sum(partitions[t] for t in readers), len(order))
    by_load = sorted(order, key=lambda m: -len(held[m]))  # stable: equal loads stay in order
    quota = {member: each + (i < more) for i, member in enumerate(by_load)}
    for member in order:
        if len(held[member]) > quota[member]:
            # the highest numbers go, evenly over the topics
            first = sorted(held[member], key=lambda pair: (pair[1], pair[0]))
            held[member] = set(first[: quota[member]])
    open_places = deque((member, quota[member] - len(held[member])) for member in order)
    for pair in _list_unowned(held, readers, partitions):
        while open_places[0][1] == 0:
            open_places.popleft()
        member, places = open_places.popleft()
        held[member].add(pair)
        open_places.append((member, places - 1))
    return held


def _deal_out(held: _Held, order: list[str], readers: Mapping[str, list[str]], partitions: Mapping[str, int]) -> None:
    """Each partition without an owner to the least loaded of its readers; topics with few readers first."""
    load = {member: len(held[member]) for member in order}
    free = _list_unowned(held, readers, partitions)
    free.sort(key=lambda pair: len(readers[pair[0]]))
    for pair in free:
        member = min(readers[pair[0]], key=load.__getitem__)
        held[member].add(pair)
        load[member] += 1


def _even_out(
    held: _Held, order: list[str], readers: Mapping[str, list[str]], members: Mapping[str, MemberSubscription]
) -> _Held:
    """Hand partitions on, along chains if need be, until that makes nothing more even. Each step lowers Σ load²."""
    moves = _Moves(held, {member: frozenset(members[member].topics) for member in order}, readers)
    settled: set[str] = set()
    while True:
        candidates = [m for m in order if m not in settled]
        if not candidates:
            return held
        heaviest = max(candidates, key=lambda m: len(held[m]))
        chain, reached = moves.direct(heaviest), set[str]()
        if not chain:
            chain, reached = moves.chain(heaviest)
        if chain:
            moves.shift(chain)
            settled.clear()
        else:
            settled |= reached  # whoever is reached is no heavier, and reaches nobody else


class _Moves:
    """Finds where partitions can go. A chain is ``[(giver, topic, taker), …]``, each taker the next giver."""

    def __init__(self, held: _Held, wanted: Mapping[str, frozenset[str]], readers: Mapping[str, list[str]]) -> None:
        self._held = held
        self._wanted = wanted
        self._readers = {topic: frozenset(of_topic) for topic, of_topic in readers.items()}
        self._by_topic: dict[str, dict[str, set[int]]] = {member: {} for member in held}
        for member, pairs in held.items():
            for topic, partition in pairs:
                self._by_topic[member].setdefault(topic, set()).add(partition)

    def direct(self, giver: str) -> list[tuple[str, str, str]]:
        """To the least loaded member that reads something the giver holds, if its load is lower by two or more."""
        limit = len(self._held[giver]) - 2
        topics = self._by_topic[giver].keys()
        low = [m for m in self._held if len(self._held[m]) <= limit]
        for taker in sorted(low, key=lambda m: (len(self._held[m]), m)):
            if not self._wanted[taker].isdisjoint(topics):
                return [(giver, min(t for t in topics if t in self._wanted[taker]), taker)]
        return []

    def chain(self, giver: str) -> tuple[list[tuple[str, str, str]], set[str]]:
        """
        The shortest chain from the giver to a member whose load is lower by two or more (breadth first).

        Without one: empty, and all members that the giver reaches, itself among them.
        """
        limit = len(self._held[giver]) - 2
        came_by: dict[str, tuple[str, str]] = {}
        seen = {giver}
        seen_topics: set[str] = set()
        queue = deque([giver])
        while queue:
            member = queue.popleft()
            for topic in sorted(self._by_topic[member].keys() - seen_topics):
                seen_topics.add(topic)
                for taker in sorted(self._readers[topic] - seen):
                    seen.add(taker)
                    came_by[taker] = (member, topic)
                    if len(self._held[taker]) <= limit:
                        return self._path(giver, taker, came_by), seen
                    queue.append(taker)
        return [], seen

    def shift(self, chain: list[tuple[str, str, str]]) -> None:
        """Hand one partition on along each step, the highest number of the topic."""
        for giver, topic, taker in chain:
            numbers = self._by_topic[giver][topic]
            partition = max(numbers)
            numbers.remove(partition)
            if not numbers:
                del self._by_topic[giver][topic]
            self._by_topic[taker].setdefault(topic, set()).add(partition)
            self._held[giver].remove((topic, partition))
            self._held[taker].add((topic, partition))

    @staticmethod
    def _path(giver: str, taker: str, came_by: Mapping[str, tuple[str, str]]) -> list[tuple[str, str, str]]:
        path: list[tuple[str, str, str]] = []
        while taker != giver:
            member, topic = came_by[taker]
            path.append((member, topic, taker))
            taker = member
        return path[::-1]
