"""
What is used of the quotas of a process: a count for each group that shares one. A process has one meter of a rate.

A group whose count is as good as new is forgotten when another one comes. Should there be more at a time than are
remembered, those that did something longest ago begin anew: nobody is ever throttled for what others did.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from headrace_common.core.quotas.kinds import Rate
from headrace_common.core.quotas.state import Group, Holding
from headrace_common.core.quotas.token_bucket import TokenBucket

GROUPS_MAX: Final = 10_000
"""Remembered by one meter."""


class Counts:
    """The counts of the groups that did something of late. One event loop."""

    def __init__(self, groups_max: int = GROUPS_MAX) -> None:
        self._groups_max = groups_max
        self._of: OrderedDict[Group, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._of)

    def find(self, group: Group, now_ms: float) -> TokenBucket:
        """That of a group, which begins now if there is none."""
        count = self._of.get(group)
        if count is not None:
            self._of.move_to_end(group)
            return count
        self.forget_idle(now_ms)
        if len(self._of) >= self._groups_max:
            self._of.popitem(last=False)
        count = self._of[group] = TokenBucket(now_ms)
        return count

    def forget_idle(self, now_ms: float) -> None:
        """Those that did something longest ago, up to the first that still counts."""
        while self._of and next(iter(self._of.values())).is_idle(now_ms):
            self._of.popitem(last=False)


class Meter:
    """Of one rate. What is above the quota is told to wait, or not done: which, is for whoever asks to say."""

    def __init__(self, rate: Rate, groups_max: int = GROUPS_MAX) -> None:
        self.rate = rate
        self.counts = Counts(groups_max)

    def record(self, holding: Holding, value: float, now_ms: float) -> int:
        """See ``TokenBucket.record``: it is done anyway."""
        return self.counts.find(holding.group, now_ms).record(value, holding.value, now_ms)

    def take(self, holding: Holding, value: float, now_ms: float) -> int | None:
        """See ``TokenBucket.take``: None means that it may be done."""
        return self.counts.find(holding.group, now_ms).take(value, holding.value, now_ms)
