"""Availability from acknowledged writes: gaps of partitions, outages, and what was served each second. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Generic, TypeVar

SECOND: Final = 1_000_000_000

P = TypeVar("P", bound=Hashable)
"""What names a partition."""


@dataclass(frozen=True, slots=True)
class Gap(Generic[P]):
    """A time without an acknowledged write on one partition."""

    seconds: float
    partition: P
    begin_ns: int


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which at least one partition had a gap; gaps that overlap are one outage."""

    begin_ns: int
    end_ns: int
    partitions: int
    """How many had a gap."""

    @property
    def seconds(self) -> float:
        """From the last write before it to the first write after it on all of them."""
        return (self.end_ns - self.begin_ns) / SECOND


def longest_gap(acks: Mapping[int, Sequence[int]], begin: int, end: int) -> Gap[int]:
    """Of the gaps of all partitions that touch the time from ``begin`` to ``end``."""
    worst = Gap(0.0, -1, begin)
    for gap in gaps(acks, begin, end):
        if gap.seconds > worst.seconds:
            worst = gap
    return worst


def gaps(acks: Mapping[P, Sequence[int]], begin: int, end: int) -> Iterable[Gap[P]]:
    """All gaps that touch the time from ``begin`` to ``end``, partition by partition; times ascend."""
    for partition, times in acks.items():
        low = max(bisect_right(times, begin) - 1, 0)
        high = min(bisect_left(times, end) + 1, len(times))
        window = times[low:high] or [begin]
        # A partition that never answers again has a gap until the end of the time we look at.
        edges = [*window, end] if window[-1] < end else window
        for before, after in pairwise(edges):
            yield Gap((after - before) / SECOND, partition, before)


def outages(acks: Mapping[P, Sequence[int]], begin: int, end: int, seconds_min: float) -> list[Outage]:
    """Gaps of at least ``seconds_min``, those that overlap together, in the order of time."""
    found: list[tuple[int, int, set[P]]] = []
    long = (gap for gap in gaps(acks, begin, end) if gap.seconds >= seconds_min)
    for gap in sorted(long, key=lambda gap: gap.begin_ns):
        until = gap.begin_ns + round(gap.seconds * SECOND)
        if found and gap.begin_ns < found[-1][1]:
            first, last, partitions = found[-1]
            found[-1] = (first, max(last, until), partitions | {gap.partition})
        else:
            found.append((gap.begin_ns, until, {gap.partition}))
    return [Outage(first, last, len(partitions)) for first, last, partitions in found]


def per_second(acks: Mapping[P, Sequence[int]], begin: int, end: int) -> list[tuple[int, int]]:
    """For each second: partitions with an acknowledged write in it, and writes in all."""
    rows: list[tuple[int, int]] = []
    for at in range(begin, end, SECOND):
        counts = [bisect_left(times, at + SECOND) - bisect_left(times, at) for times in acks.values()]
        rows.append((sum(count > 0 for count in counts), sum(counts)))
    return rows


def strip(rows: Sequence[tuple[int, int]], partitions: int) -> str:
    """One sign a second: ``#`` all partitions served (or more: some were added), ``.`` none, else tenths of them."""
    return "".join(
        "#" if served >= partitions else "." if served == 0 else str(served * 10 // partitions) for served, _ in rows
    )
