"""
Which host process does what: one for each connector, or for each task where the connector wants that.

Beyond ``hosts_max`` connectors share: of those that run in the environment, the one with the least to do.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias

HostNumber: TypeAlias = int
"""Of one start of one process; never used again."""


@dataclass(frozen=True, slots=True)
class Work:
    """A task of a connector, or its watch."""

    connector: str
    task: int | None
    """None: the watch."""


@dataclass(slots=True)
class _Host:
    environment: str
    key: Work
    """For whom it was begun."""
    work: set[Work] = field(default_factory=set)


@dataclass(slots=True)
class Hosting:
    """Decides; whoever calls it begins and ends the processes."""

    hosts_max: int
    _hosts: dict[HostNumber, _Host] = field(default_factory=dict)
    _places: dict[Work, HostNumber] = field(default_factory=dict)
    _next: HostNumber = 1

    def place(self, work: Work, environment: str, *, alone: bool = False) -> tuple[HostNumber, bool]:
        """
        Where ``work`` is to be done, and whether that host has to be begun.

        Args:
            environment: whose Python it needs.
            alone: a task of it shares with no other task of its connector.
        """
        assert work not in self._places, "it is placed once"
        key = work if alone and work.task is not None else Work(work.connector, None)
        number = self._find(key, environment)
        if number is not None:
            self._add(work, number)
            return number, False
        number, self._next = self._next, self._next + 1
        self._hosts[number] = _Host(environment, key)
        self._add(work, number)
        return number, True

    def _add(self, work: Work, number: HostNumber) -> None:
        self._hosts[number].work.add(work)
        self._places[work] = number

    def _find(self, key: Work, environment: str) -> HostNumber | None:
        able = {number: host for number, host in self._hosts.items() if host.environment == environment}
        for number, host in able.items():
            if host.key == key:
                return number
        if len(self._hosts) < self.hosts_max or not able:
            return None
        return min(able, key=lambda number: (len(able[number].work), number))

    def find(self, work: Work) -> HostNumber | None:
        """Where it is done; None: nowhere."""
        return self._places.get(work)

    def environment(self, number: HostNumber) -> str:
        """Of a host."""
        return self._hosts[number].environment

    def work(self, number: HostNumber) -> Collection[Work]:
        """What a host has to do."""
        return frozenset(self._hosts[number].work) if number in self._hosts else frozenset()

    def alone(self, number: HostNumber) -> tuple[str | None, int | None]:
        """For which connector alone a host works, and for which task of it alone; None: for several, or for none."""
        work = self.work(number)
        connectors = {one.connector for one in work}
        tasks = [one.task for one in work if one.task is not None]
        if len(connectors) != 1:
            return None, None
        return connectors.pop(), tasks[0] if len(tasks) == 1 else None

    def remove(self, work: Work) -> HostNumber | None:
        """Nothing of it is done any more. The host that has nothing left to do, which is forgotten."""
        number = self._places.pop(work, None)
        if number is None:
            return None
        host = self._hosts[number]
        host.work.discard(work)
        if host.work:
            return None
        del self._hosts[number]
        return number

    def lose(self, number: HostNumber) -> Collection[Work]:
        """A host is gone; what it did."""
        host = self._hosts.pop(number, None)
        if host is None:
            return frozenset()
        for work in host.work:
            del self._places[work]
        return frozenset(host.work)
