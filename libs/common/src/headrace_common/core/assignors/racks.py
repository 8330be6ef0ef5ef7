"""
Exchanges partitions between members, so that more of them are read in a rack that has a replica (KIP-881).

Balance comes first: every member holds as many partitions after it as before. Racks come second: each exchange raises
the number of partitions that have a replica in their member's rack, and where all members subscribe to the same topics
no other sharing with these loads has more. Staying where it is comes last: what a member did not hold before goes
first. ``dealt`` and ``sticky`` call this.

An exchange is a cycle: one member gives a partition to another, which gives one to the next, and the last to the first
(cycle cancelling, as in minimum-cost flows). Members of one rack and subscription are one *place*, partitions with the
same racks and readers are of one *kind*; a cycle is sought among places, and carries as many partitions as it can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from headrace_common.core.assignors.model import MemberSubscription, Racks

_Pair = tuple[str, int]
_Place = tuple[int, str]
"""The number of the subscription; the rack, empty if none is known."""
_Kind = tuple[frozenset[int], frozenset[str]]
"""The numbers of the subscriptions that read it; the racks of its replicas."""
_Step = tuple[_Place, _Kind, _Place]
STEPS_MAX: Final = 1_000_000
"""Most steps of looking for cycles in one assignment; groups in which everybody subscribes to something else
get what was found until then."""


def nearer(
    held: dict[str, set[_Pair]], members: Mapping[str, MemberSubscription], racks: Racks
) -> dict[str, set[_Pair]]:
    """The same shares with partitions exchanged; as they were, if no member or no replica has a rack."""
    if not any(subscription.rack for subscription in members.values()) or not any(map(any, racks.values())):
        return held
    return _Exchange(held, members, racks).done()


class _Exchange:
    """One assignment on its way; ``_held`` is where everything is now."""

    def __init__(
        self, held: Mapping[str, Collection[_Pair]], members: Mapping[str, MemberSubscription], racks: Racks
    ) -> None:
        self._members = members
        self._steps = 0
        wanted = {member: frozenset(subscription.topics) for member, subscription in members.items()}
        distinct = sorted(set(wanted.values()), key=sorted)
        numbers = {topics: number for number, topics in enumerate(distinct)}
        readers: dict[str, frozenset[int]] = {}
        self._held: dict[_Place, dict[_Kind, list[tuple[_Pair, str]]]] = {}
        for member in sorted(members):
            place = (numbers[wanted[member]], members[member].rack or "")
            kinds = self._held.setdefault(place, {})
            for pair in sorted(held.get(member, ())):
                topic, partition = pair
                if topic not in readers:
                    readers[topic] = frozenset(n for n, topics in enumerate(distinct) if topic in topics)
                kinds.setdefault((readers[topic], _at(racks.get(topic, ()), partition)), []).append((pair, member))
        self._places = sorted(self._held)

    def done(self) -> dict[str, set[_Pair]]:
        """Exchange until no cycle is left; what each member holds then."""
        found = True
        while found:
            found = False
            for place in self._places:
                for kind in self._far(place):
                    while self._held[place].get(kind) and (cycle := self._cycle(place, kind)):
                        self._shift(cycle)
                        found = True
        result: dict[str, set[_Pair]] = {member: set() for member in self._members}
        for kinds in self._held.values():
            for entries in kinds.values():
                for pair, member in entries:
                    result[member].add(pair)
        return result

    def _far(self, place: _Place) -> list[_Kind]:
        """Kinds that the place holds without having their rack, in a fixed order."""
        return [kind for kind in _sort_kinds(self._held[place]) if place[1] not in kind[1]]

    def _cycle(self, start: _Place, kind: _Kind) -> list[_Step]:
        """The shortest one that takes one of ``kind`` from ``start`` into a rack of its; empty: none."""
        came_by: dict[_Place, _Step] = {}
        queue: deque[_Place] = deque()
        for taker in self._takers(kind):
            came_by[taker] = (start, kind, taker)
            queue.append(taker)
        while queue:
            place = queue.popleft()
            kinds = _sort_kinds(self._held[place])
            for other in kinds:
                # to the start: nearer there, or no farther than it was here
                if start[0] in other[0] and (start[1] in other[1] or place[1] not in other[1]):
                    return _path(start, (place, other, start), came_by)
            for other in kinds:
                for taker in self._takers(other):
                    if taker not in came_by and taker != start:
                        came_by[taker] = (place, other, taker)
                        queue.append(taker)
        return []

    def _takers(self, kind: _Kind) -> Iterator[_Place]:
        """The places that read the kind and have a rack of its."""
        self._steps += len(self._places)
        if self._steps <= STEPS_MAX:
            readers, racks = kind
            yield from (place for place in self._places if place[0] in readers and place[1] in racks)

    def _shift(self, cycle: Sequence[_Step]) -> None:
        """Hand on along the cycle as many as every step has; each giver gets one for each that it gives."""
        count = min(len(self._held[giver][kind]) for giver, kind, _ in cycle)
        given = [self._take(giver, kind, count) for giver, kind, _ in cycle]
        for i, (_, kind, taker) in enumerate(cycle):
            receivers = given[(i + 1) % len(cycle)]  # the taker is the next step's giver
            entries = self._held[taker].setdefault(kind, [])
            entries += [(pair, member) for (pair, _), (_, member) in zip(given[i], receivers, strict=True)]

    def _take(self, place: _Place, kind: _Kind, count: int) -> list[tuple[_Pair, str]]:
        """So many out of a place: first what its members did not hold before, then the highest numbers."""
        entries = sorted(self._held[place][kind], key=lambda entry: (self._owned(*entry), -entry[0][1], entry))
        self._held[place][kind] = entries[count:]
        if not entries[count:]:
            del self._held[place][kind]
        return entries[:count]

    def _owned(self, pair: _Pair, member: str) -> bool:
        return pair[1] in self._members[member].owned.get(pair[0], ())


def _at(racks: Sequence[frozenset[str]], partition: int) -> frozenset[str]:
    return racks[partition] if partition < len(racks) else frozenset()


def _sort_kinds(kinds: Collection[_Kind]) -> list[_Kind]:
    return sorted(kinds, key=lambda kind: (sorted(kind[0]), sorted(kind[1])))


def _path(start: _Place, last: _Step, came_by: Mapping[_Place, _Step]) -> list[_Step]:
    steps = [last]
    while steps[-1][0] != start:
        steps.append(came_by[steps[-1][0]])
    return steps[::-1]
