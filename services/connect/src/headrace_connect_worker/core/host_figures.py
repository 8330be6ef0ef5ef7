"""What hosts have counted, and what they are; written by one thread, read by another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace_connect.core.counts import Counts
from headrace_connect.core.host_messages import TaskCounts
from headrace_connect_worker.core.hosting import HostNumber, Work


@dataclass(slots=True)
class HostFigures:
    """Of one worker; has nothing of hosts and tasks that have ended."""

    counts: dict[Work, Counts] = field(default_factory=dict)
    memory: dict[HostNumber, tuple[str, int]] = field(default_factory=dict)
    """For whom each host was begun, and its bytes of memory."""
    crashes: int = 0
    """Hosts that have ended while they had something to do."""

    def take(self, counted: Iterable[TaskCounts], own: Iterable[Work]) -> None:
        """
        Args:
            counted: said by a host.
            own: what that host has to do; of all else nothing counts.
        """
        theirs = frozenset(own)
        for one in counted:
            work = Work(one.connector, one.task)
            if work in theirs:
                self.counts[work] = one.counts

    def forget(self, work: Work) -> None:
        """Its task has ended."""
        self.counts.pop(work, None)

    def look(self, number: HostNumber, label: str, memory: int) -> None:
        """A host was looked at."""
        self.memory[number] = (label, memory)

    def lose(self, number: HostNumber) -> None:
        """A host has ended."""
        self.memory.pop(number, None)
