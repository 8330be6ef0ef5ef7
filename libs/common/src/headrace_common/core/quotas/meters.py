"""
What is used of the quotas of a process: a count for each group that shares one. A process has one meter of a rate.

A group whose count is as good as new is forgotten when another one comes. Should there be more at a time than are
remembered, those that did something longest ago begin anew: nobody is ever throttled for what others did.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from headrace_common.core.quotas.kinds import Rate
from headrace_common.core.quotas.state import Group, Holding
from headrace_common.core.quotas.token_bucket import TokenBucket
from headrace_common.core.quotas.windows import WINDOW_MS, Windows

GROUPS_MAX: Final = 10_000
"""Remembered by one meter."""
_ONE_WINDOW: Final = frozenset({Rate.REQUEST_PERCENTAGE, Rate.CONNECTION_CREATION_RATE})
"""Of these nobody is told to wait longer than a window (KIP-124, KIP-612)."""


class _Count(Protocol):
    def is_idle(self, now_ms: int, /) -> bool: ...


T = TypeVar("T", bound=_Count)


class Counts(Generic[T]):
    """The counts of the groups that did something of late. One event loop."""

    def __init__(self, begin: Callable[[int], T], groups_max: int = GROUPS_MAX) -> None:
        self._begin = begin
        self._groups_max = groups_max
        self._of: OrderedDict[Group, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._of)

    def find(self, group: Group, now_ms: int) -> T:
        """That of a group, which begins now if there is none."""
        count = self._of.get(group)
        if count is not None:
            self._of.move_to_end(group)
            return count
        self.forget_idle(now_ms)
        if len(self._of) >= self._groups_max:
            self._of.popitem(last=False)
        count = self._of[group] = self._begin(now_ms)
        return count

    def forget_idle(self, now_ms: int) -> None:
        """Those that did something longest ago, up to the first that still counts."""
        while self._of and next(iter(self._of.values())).is_idle(now_ms):
            self._of.popitem(last=False)


class RateMeter:
    """Bytes, percents of threads or connections. Never an error: who is above the quota is told how long to wait."""

    def __init__(self, rate: Rate, groups_max: int = GROUPS_MAX) -> None:
        self.rate = rate
        self.counts = Counts(Windows, groups_max)
        self._wait_ms_max = WINDOW_MS if rate in _ONE_WINDOW else None

    def record(self, holding: Holding, value: float, now_ms: int) -> int:
        """Count this, and say how many milliseconds the client has to wait."""
        wait_ms = self.counts.find(holding.group, now_ms).record(value, holding.value, now_ms)
        most = self._wait_ms_max
        return wait_ms if most is None or wait_ms < most else most

    def take_back(self, holding: Holding, value: float, now_ms: int) -> None:
        """What was counted is not done after all: the answer of a fetch that is throttled is sent empty."""
        self.counts.find(holding.group, now_ms).add(-value, now_ms)


class MutationMeter:
    """Partitions that are created and deleted: above the quota it is an error, THROTTLING_QUOTA_EXCEEDED."""

    rate = Rate.CONTROLLER_MUTATION_RATE

    def __init__(self, groups_max: int = GROUPS_MAX) -> None:
        self.counts = Counts(TokenBucket, groups_max)

    def take(self, holding: Holding, partitions: int, now_ms: int) -> int | None:
        """See ``TokenBucket.take``: None means that it may be done."""
        return self.counts.find(holding.group, now_ms).take(partitions, holding.value, now_ms)

    def record(self, holding: Holding, partitions: int, now_ms: int) -> int:
        """See ``TokenBucket.record``: it is done anyway."""
        return self.counts.find(holding.group, now_ms).record(partitions, holding.value, now_ms)
