"""Availability from acknowledged writes: the longest gap of any partition, and what was served each second. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest time without an acknowledged write on one partition."""

    seconds: float
    partition: int
    begin_ns: int


def longest_gap(acks: Mapping[int, Sequence[int]], begin: int, end: int) -> Gap:
    """Of the gaps of all partitions that touch the time from ``begin`` to ``end``."""
    worst = Gap(0.0, -1, begin)
    for partition, times in acks.items():
        low = max(bisect_right(times, begin) - 1, 0)
        high = min(bisect_left(times, end) + 1, len(times))
        window = times[low:high] or [begin]
        # A partition that never answers again has a gap until the end of the time we look at.
        edges = [*window, end] if window[-1] < end else window
        for before, after in pairwise(edges):
            gap = (after - before) / SECOND
            if gap > worst.seconds:
                worst = Gap(gap, partition, before)
    return worst


def per_second(acks: Mapping[int, Sequence[int]], begin: int, end: int) -> list[tuple[int, int]]:
    """For each second: partitions with an acknowledged write in it, and writes in all."""
    rows: list[tuple[int, int]] = []
    for at in range(begin, end, SECOND):
        counts = [bisect_left(times, at + SECOND) - bisect_left(times, at) for times in acks.values()]
        rows.append((sum(count > 0 for count in counts), sum(counts)))
    return rows


def strip(rows: Sequence[tuple[int, int]], partitions: int) -> str:
    """One sign a second: ``#`` all partitions served, ``.`` none, else tenths of them."""
    return "".join(
        "#" if served == partitions else "." if served == 0 else str(served * 10 // partitions) for served, _ in rows
    )
