"""
Which task reads which ranges: few partitions are split, many are packed, so that every task has about the same to do.

Ranges are laid in a row, by topic and partition, and the row is cut into equal shares. A cut near the border of a range
is moved there, so that partitions of about the same size stay whole. Nothing depends on chance or on the order of the
input: a repeated batch is packed alike. Called by the readers on the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from headrace_common.core.ids import TopicPartition
from headrace_spark.core.offsets import OffsetRange

RECORD_BYTES: Final = 200
"""What a record is taken for, where nothing better is known."""
TASK_BYTES_MIN: Final = 8 << 20
"""Below this a task costs more to start than to run: an empty Python task takes 60 ms, and 1.2 million records of 100
bytes are read in a second."""
TASK_BYTES: Final = 64 << 20
"""About this much is a task where there is more than the cores that are known of take: half a second's work, so that a
cluster of any size is kept busy, and a task that fails repeats little."""
SLACK: Final = 16
"""A share may be larger by one part of so many, to leave a range in one piece…"""
SLIVER: Final = 64
"""…or smaller by one of so many, not to begin one."""

Task: TypeAlias = tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """What bounds the number of tasks."""

    cores: int
    """At least so many tasks can run at a time; about so many are made where there is enough to do."""
    tasks_min: int | None = None
    """``minPartitions``."""
    tasks_max: int | None = None
    """``maxTasks``."""
    offsets_max: int | None = None
    """``maxRecordsPerPartition``: most offsets in one task; as many tasks as that takes."""
    record_bytes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """How large a record of a partition is, where known."""
    task_bytes_min: int = TASK_BYTES_MIN
    task_bytes: int = TASK_BYTES


def pack(ranges: Iterable[OffsetRange], packing: Packing) -> tuple[Task, ...]:
    """Lay ``ranges`` into tasks; each offset is in one of them. No ranges: no tasks."""
    row = sorted(each for each in ranges if len(each))
    if not row:
        return ()
    filling = _Filling(row, packing)
    left = _tasks(row, packing)
    while filling.rest:
        filling.next_task(max(1, left))
        left -= 1
    return tuple(filling.tasks)


def _tasks(row: list[OffsetRange], packing: Packing) -> int:
    """How many tasks to aim at."""
    total_bytes = sum(len(each) * _record_bytes(each, packing) for each in row)
    wanted = min(max(1, packing.cores), -(-total_bytes // max(1, packing.task_bytes_min)))
    wanted = max(wanted, total_bytes // max(1, packing.task_bytes), packing.tasks_min or 1)
    if packing.tasks_max is not None:
        wanted = min(wanted, packing.tasks_max)
    return max(1, min(wanted, sum(map(len, row))))


def _record_bytes(each: OffsetRange, packing: Packing) -> int:
    return max(1, packing.record_bytes.get(each.partition, RECORD_BYTES))


class _Filling:
    """Takes ranges from the front of the row until a task has its share."""

    def __init__(self, row: list[OffsetRange], packing: Packing) -> None:
        self.rest = row[::-1]
        """What is not in a task yet, the next one last."""
        self.tasks: list[Task] = []
        self._packing = packing
        self._bytes = sum(len(each) * _record_bytes(each, packing) for each in row)

    def next_task(self, tasks_left: int) -> None:
        """Fill one task, so that so many, with this one, get the same."""
        share = -(-self._bytes // tasks_left)
        slack, sliver = share // SLACK, share // SLIVER
        offsets_left = self._packing.offsets_max
        task: list[OffsetRange] = []
        while self.rest and share > 0 and offsets_left != 0:
            each = self.rest[-1]
            size = _record_bytes(each, self._packing)
            whole = len(each) * size <= share + slack
            if not whole and task and share <= sliver:
                break
            count = len(each) if whole else max(1, share // size)
            if offsets_left is not None:
                count = min(count, offsets_left)
                offsets_left -= count
            task.append(self._take(count))
            share -= count * size
            self._bytes -= count * size
            if count < len(each):
                break
        self.tasks.append(tuple(task))

    def _take(self, count: int) -> OffsetRange:
        """The first offsets of the row."""
        each = self.rest.pop()
        middle = each.start + count
        if middle < each.end:
            self.rest.append(OffsetRange(each.partition, middle, each.end))
        return OffsetRange(each.partition, each.start, middle)
