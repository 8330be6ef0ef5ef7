"""
What each member of a work group is to do and to follow. ``work_group.WorkGroup`` calls ``make_plan`` for each epoch.

Sticky: what a member is to do stays its own as far as loads allow; what it has had longest moves last. Stateful items
move from a living member only when the other one is hardly behind; until then they are *awaited* there, and some of
them, ``max_warmup``, followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from headrace_coordinator.core.values import Declaration
from headrace_coordinator.core.work_balance import Balance
from headrace_coordinator.core.work_members import WorkMember

LOOKED_AT: Final = 64
"""Members with few standbys that are considered for one more."""

Members = Mapping[str, WorkMember]


@dataclass(slots=True)
class Plan:
    """Of one epoch."""

    owners: dict[str, str]
    """Item -> who is to do it."""
    awaited: dict[str, str] = field(default_factory=dict)
    """Item -> who is to do it when it has caught up."""
    standby: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Member -> what it is to follow."""
    warm_up: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Member -> what it is to follow until it takes it over."""


def make_plan(
    current: Declaration, members: Members, known: Mapping[int, Set[str]], awaited: Mapping[str, str]
) -> Plan:
    """
    What members are to do of ``current``.

    Args:
        known: the items of each declaration that a member has.
        awaited: of the plan before.
    """
    balance = Balance(current, members, known)
    _keep(balance, members)
    placed = _place(balance, current, members)
    plan = Plan(dict(balance.owners))
    for item, member_id in sorted(awaited.items()):
        if balance.may(member_id, item):
            balance.give(item, member_id)
    balance.even_out()
    for item, member_id in balance.owners.items():
        if plan.owners[item] == member_id:
            continue
        behind = members[member_id].is_behind(item, current.acceptable_recovery_lag)
        if current.items[item].stateful and behind and item not in placed:
            plan.awaited[item] = member_id
        else:
            plan.owners[item] = member_id
    _Standbys(current, members, balance, plan).choose()
    _warm_up(plan, members, current.max_warmup)
    return plan


def _keep(balance: Balance, members: Members) -> None:
    """What is to be somebody's stays that; else whoever still does it keeps it. The newest come last."""
    for of_member in ("target", "held"):
        for member_id in sorted(members):
            epochs = members[member_id].epochs
            for item in sorted(getattr(members[member_id], of_member), key=lambda i: (epochs.get(i, inf), i)):
                if item not in balance.owners and balance.may(member_id, item):
                    balance.give(item, member_id)


def _place(balance: Balance, current: Declaration, members: Members) -> set[str]:
    """
    Give away what nobody does: who is the least behind with its state gets it, else who has the least to do.

    Returns: what nobody has anything of, so that it may as well go to another one.
    """
    followers: dict[str, list[tuple[float, bool, str]]] = defaultdict(list)
    for member_id, member in members.items():
        for item in member.standby | member.warm_up | member.lags.keys():
            if item not in balance.owners and balance.may(member_id, item):
                followers[item].append((member.lags.get(item, inf), item not in member.standby, member_id))
    placed = set()
    free = [id for id in current.items if id not in balance.owners]
    for item in sorted(free, key=lambda item: (-current.items[item].weight, item)):
        if current.items[item].stateful and item in followers:
            nearest = min(followers[item], key=lambda one: (one[0], one[1], balance.load(one[2]), one[2]))
            balance.give(item, nearest[2])
        elif (lightest := balance.find_lightest(item)) is not None:
            balance.give(item, lightest)
            placed.add(item)
    return placed


def _warm_up(plan: Plan, members: Members, most: int) -> None:
    """Those that are under way go on; who follows an item anyway needs none."""
    waiting = [(item not in members[m].warm_up, item, m) for item, m in plan.awaited.items()]
    needed = [(item, m) for _, item, m in sorted(waiting) if item not in plan.standby[m]]
    for item, member_id in needed[:most]:
        plan.warm_up[member_id].add(item)


class _Standbys:
    """Who follows what: on other processes, if possible in other zones, rather who did so before, or has state."""

    def __init__(self, current: Declaration, members: Members, balance: Balance, plan: Plan) -> None:
        self._items = current.items
        self._members = members
        self._balance = balance
        self._plan = plan
        self._lightest = [(0, member_id) for member_id in sorted(members)]
        heapify(self._lightest)
        self._with_state: dict[str, set[str]] = defaultdict(set)
        for member_id, member in members.items():
            for item in member.standby | member.lags.keys() | member.held:
                self._with_state[item].add(member_id)

    def choose(self) -> None:
        for item in sorted(self._plan.owners):
            wanted = self._items[item].standbys if self._items[item].stateful else 0
            chosen = [self._members[self._plan.owners[item]]]
            while len(chosen) <= wanted and (best := self._find_best(item, chosen)) is not None:
                chosen.append(best)
                self._plan.standby[best.member_id].add(item)
                heappush(self._lightest, (len(self._plan.standby[best.member_id]), best.member_id))

    def _find_best(self, item: str, chosen: list[WorkMember]) -> WorkMember | None:
        processes, zones = {m.process_id for m in chosen}, {m.zone for m in chosen}
        candidates = self._with_state[item] | self._list_lightest()
        possible = [
            self._members[m]
            for m in candidates
            if self._members[m].process_id not in processes and self._balance.may(m, item)
        ]
        return min(possible, key=lambda m: self._rate(item, m, zones), default=None)

    def _rate(self, item: str, member: WorkMember, zones: set[str]) -> tuple[bool, bool, float, int, str]:
        """The lower the better."""
        near = member.zone in zones
        lag = member.lags.get(item, 0.0 if item in member.held else inf)
        return near, item not in member.standby, lag, len(self._plan.standby[member.member_id]), member.member_id

    def _list_lightest(self) -> set[str]:
        found: dict[str, int] = {}
        while self._lightest and len(found) < LOOKED_AT:
            count, member_id = heappop(self._lightest)
            if count == len(self._plan.standby[member_id]):
                found[member_id] = count
        for member_id, count in found.items():
            heappush(self._lightest, (count, member_id))
        return set(found)
