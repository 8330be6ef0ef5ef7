"""
Which of the records that a task has here are next, where their order across its inputs matters: joins.

Inputs are merged by the timestamps of their records, as far as these are here: records up to the least of the newest
times go together, and the task puts them in the order of their event times. An input that is at its end holds nothing
back; for one that is not and has nothing here, the others wait, for as long as the caller is patient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headrace_streams.core.rows import Numbers, numbers


@dataclass(frozen=True, slots=True)
class Portion:
    """Records of one input that are next, and the position behind them."""

    topic: str
    records: pa.Table
    """As they came; without rows where the position alone has moved."""
    next_offset: int


class Feed:
    """Pure. Of each input, records leave in the order in which they came."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._waiting: dict[str, Portion | None] = dict.fromkeys(topics)
        self._at_end: set[str] = set()

    @property
    def rows(self) -> int:
        """How many wait."""
        return sum(map(self.waiting, self._waiting))

    def waiting(self, topic: str) -> int:
        """How many wait of one input."""
        waiting = self._waiting[topic]
        return 0 if waiting is None else waiting.records.num_rows

    def offer(self, portion: Portion, *, at_end: bool) -> None:
        """
        More has come.

        Args:
            at_end: nothing is behind it for now.
        """
        topic, before = portion.topic, self._waiting[portion.topic]
        if before is not None:
            portion = Portion(topic, pa.concat_tables([before.records, portion.records]), portion.next_offset)
        self._waiting[topic] = portion
        (self._at_end.add if at_end else self._at_end.discard)(topic)

    def take(self, *, patient: bool) -> list[Portion]:
        """
        What is next, to be fed together. Empty: nothing, or it waits.

        Args:
            patient: wait for inputs that are not at their ends and have nothing here.
        """
        here = {topic: one for topic, one in self._waiting.items() if one is not None and one.records.num_rows}
        if patient and any(topic not in here and topic not in self._at_end for topic in self._waiting):
            return [self._all_of(one) for one in self._waiting.values() if one is not None and one.topic not in here]
        running: dict[str, Any] = {
            topic: np.maximum.accumulate(numbers(one.records["timestamp_ms"])) for topic, one in here.items()
        }
        newest = [int(times[-1]) for topic, times in running.items() if topic not in self._at_end]
        found = []
        for topic, one in self._waiting.items():
            if one is None:
                continue
            count = int(np.searchsorted(running[topic], min(newest), side="right")) if newest and topic in here else -1
            if count in (-1, one.records.num_rows):
                found.append(self._all_of(one))
            elif count:
                found.append(self._first_of(one, count))
        return found

    def _all_of(self, waiting: Portion) -> Portion:
        self._waiting[waiting.topic] = None
        return waiting

    def _first_of(self, waiting: Portion, count: int) -> Portion:
        topic, records = waiting.topic, waiting.records
        self._waiting[topic] = Portion(topic, records.slice(count), waiting.next_offset)
        return Portion(topic, records.slice(0, count), records["offset"][count].as_py())


def merged(times: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """
    Of the rows of several inputs, one behind the other: which input each is of, and the places of all in the order of
    their times, in which the rows of each input stay in theirs.
    """
    of = np.repeat(np.arange(len(times)), [len(one) for one in times])
    running = np.concatenate([np.zeros(0, np.int64), *(np.maximum.accumulate(one) for one in times)])
    return of, np.argsort(running, kind="stable")


def runs(inputs: Sequence[pa.Table]) -> Iterable[tuple[int, pa.Table]]:
    """Records of several inputs in pieces of one, in the order of their timestamps."""
    of, order = merged([numbers(raw["timestamp_ms"]) for raw in inputs])
    of = of[order]
    if not len(of):
        return
    bounds = [0, *(np.flatnonzero(np.diff(of)) + 1).tolist(), len(of)]
    fed = [0] * len(inputs)
    for first, end in pairwise(bounds):
        place = int(of[first])
        yield place, inputs[place].slice(fed[place], end - first)
        fed[place] += end - first
