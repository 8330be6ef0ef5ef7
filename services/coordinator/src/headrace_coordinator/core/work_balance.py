"""
Loads of a work group's members, and how they become even: ``work_targets`` calls this.

Each member gets about as much weight as any other of what both know. What a lighter one has not declared does not count
between them: members declare one after another, and the first to name something new would else give something old away.
The lightest members are found by a heap for each declaration, and what a heavy one can give by groups of items that are
alike, so that 20,000 items on 1,000 members take a moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from heapq import heappop, heappush
from typing import NamedTuple

from headrace_coordinator.core.values import Declaration
from headrace_coordinator.core.work_members import WorkMember


class _Kind(NamedTuple):
    """What matters of an item when it is moved."""

    weight: int
    stateful: bool
    known_to: tuple[int, ...]
    """The declarations that have it."""


class Balance:
    """Who does what, and how heavy that is. ``known``: the items of each declaration that a member has."""

    def __init__(self, current: Declaration, members: Mapping[str, WorkMember], known: Mapping[int, Set[str]]) -> None:
        self.owners: dict[str, str] = {}
        self._current = current
        self._members = members
        self._loads = dict.fromkeys(members, 0)
        self._loads_of = {number: dict.fromkeys(members, 0) for number in known}
        self._held: dict[str, dict[_Kind, dict[str, None]]] = {member_id: {} for member_id in members}
        self._lightest: dict[int, list[tuple[int, str]]] = {number: [] for number in sorted(known)}
        for member_id in sorted(members):
            self._note(member_id)
        self._kinds = {
            id: _Kind(item.weight, item.stateful, tuple(n for n in self._lightest if id in known[n]))
            for id, item in current.items.items()
        }

    def may(self, member_id: str, item: str) -> bool:
        """Whether the member is there, and has declared the item, which is current."""
        member, kind = self._members.get(member_id), self._kinds.get(item)
        return member is not None and kind is not None and member.declaration in kind.known_to

    def give(self, item: str, member_id: str) -> None:
        """It is this member's, and no longer whoever's it was."""
        kind = self._kinds[item]
        before = self.owners.get(item)
        if before is not None:
            of_kind = self._held[before][kind]
            del of_kind[item]
            if not of_kind:
                del self._held[before][kind]
            self._add(before, kind, -kind.weight)
        self.owners[item] = member_id
        self._held[member_id].setdefault(kind, {})[item] = None
        self._add(member_id, kind, kind.weight)

    def load(self, member_id: str) -> int:
        """The weight of what is this member's."""
        return self._loads[member_id]

    def find_lightest(self, item: str) -> str | None:
        """Of those that may do the item; None: nobody may."""
        tops = [top for number in self._kinds[item].known_to if (top := self._top(number)) is not None]
        return min(tops)[1] if tops else None

    def even_out(self) -> None:
        """
        Until nobody is heavier than another, in what both know, by 1.5 of the weight of an item that could go there.

        A move at 1.5 leaves a third of the difference; one at little more than 1 would disturb an item for nothing.
        """
        while (move := self._find_move()) is not None:
            self.give(*move)

    def _add(self, member_id: str, kind: _Kind, weight: int) -> None:
        self._loads[member_id] += weight
        for number in kind.known_to:
            self._loads_of[number][member_id] += weight
        self._note(member_id)

    def _note(self, member_id: str) -> None:
        heappush(self._lightest[self._members[member_id].declaration], (self._loads[member_id], member_id))

    def _top(self, number: int) -> tuple[int, str] | None:
        heap = self._lightest[number]
        while heap and self._loads[heap[0][1]] != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else None

    def _find_move(self) -> tuple[str, str] | None:
        if not self._loads:
            return None
        heaviest = max(self._loads, key=lambda member_id: (self._loads[member_id], member_id))
        tops = sorted(top for number in self._lightest if (top := self._top(number)) is not None)
        for load, light in tops:
            if (item := self._pick((heaviest,), light, load)) is not None:
                return item, light
        heavy_first = sorted(self._loads, key=lambda member_id: (-self._loads[member_id], member_id))
        for load, light in tops:
            if (item := self._pick(heavy_first, light, load)) is not None:
                return item, light
        return None

    def _pick(self, heavy: Iterable[str], light: str, load: int) -> str | None:
        """One that makes the two nearly even; rather one that moves at once, and one that few know, for it is new."""
        number = self._members[light].declaration
        for member_id in heavy:
            if self._loads[member_id] - load <= 1:
                return None
            gap = self._loads_of[number][member_id] - load
            kinds = [k for k in self._held[member_id] if 3 * k.weight <= 2 * gap and number in k.known_to]
            if kinds:
                kind = min(kinds, key=lambda k: (abs(gap - 2 * k.weight), k.stateful, len(k.known_to), k))
                return self._choose(self._held[member_id][kind], self._members[light])
        return None

    def _choose(self, items: dict[str, None], to: WorkMember) -> str:
        """Of items that are alike: what the member is nearest to, else what was given last."""
        near = [(lag, item) for item, lag in to.lags.items() if item in items]
        return min(near)[1] if near else next(reversed(items))
