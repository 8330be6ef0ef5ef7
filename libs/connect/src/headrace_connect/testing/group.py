"""A topic in memory, and a group whose members read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import pyarrow as pa

from headrace.records import PartitionTable, TopicPartition
from headrace_common.core.errors import StaleMemberEpoch
from headrace_common.runtime.clock import pause_ms
from headrace_connect.runtime.pipeline import HEADERS_TYPE
from headrace_connect.runtime.ports import GroupListener
from headrace_connect.testing.memory import TOPIC

_POLL_MS_MAX: Final = 5


@dataclass(slots=True, eq=False)
class MemoryPartition:
    """Records, and who reads them. Each third offset is a marker."""

    number: int
    values: Mapping[int, Any]
    """Offset -> value."""
    end: int
    committed: int | None = None
    member: MemoryGroup | None = None
    """Whose it is."""
    epoch: int = 0
    """Of the group, when it became that member's."""
    claim: MemoryGroup | None = None
    """Who gets it when its member has given it back."""
    heirs: list[MemoryGroup] = field(default_factory=list)
    """Who gave it back, and gets it again when its member leaves."""

    @classmethod
    def of(cls, number: int, values: Sequence[Any]) -> MemoryPartition:
        """One with these values."""
        offsets = [offset for offset in range(len(values) * 3) if offset % 3 != 2][: len(values)]
        return cls(number, dict(zip(offsets, values, strict=True)), offsets[-1] + 1 if offsets else 0)


@dataclass(slots=True, eq=False)
class MemoryTopic:
    """Partitions, and the group that reads them."""

    partitions: Sequence[MemoryPartition]
    epoch: int = 0
    """Of the group; grows whenever a partition gets another member."""

    @classmethod
    def of(cls, values: Sequence[Any], partitions: int = 1) -> MemoryTopic:
        """A topic with these values, dealt out one by one."""
        return cls([MemoryPartition.of(number, values[number::partitions]) for number in range(partitions)])

    @property
    def is_committed(self) -> bool:
        """Whether the group has committed all there is."""
        return all((partition.committed or 0) >= partition.end for partition in self.partitions)

    def forget_offsets(self) -> None:
        """The group's offsets are lost."""
        for partition in self.partitions:
            partition.committed = None

    def give(self, partition: MemoryPartition, member: MemoryGroup | None) -> None:
        """Another member has a partition from now on; None: nobody."""
        self.epoch += 1
        partition.member, partition.epoch, partition.claim = member, self.epoch, None


@dataclass(slots=True)
class _Held:
    """A partition as its member has it."""

    epoch: int
    position: int
    told_end: bool = False


class MemoryGroup:
    """
    Satisfies ``GroupReader``. A member takes its partitions when it joins: whoever had them is put out of the group,
    hears of it when it polls, and has what is left to it at a higher epoch. Or, if it waits, it gets them when they
    were given back; whoever gave one back has it again when the other leaves.
    """

    def __init__(
        self,
        topic: MemoryTopic,
        rows_max: int | None = None,
        partitions: Collection[int] | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """
        Args:
            partitions: those that it wants; None: all.
            waits: whether those that somebody has are given back first.
        """
        self._topic = topic
        self._rows_max = rows_max
        self._wanted = [one for one in topic.partitions if partitions is None or one.number in partitions]
        self._waits = waits
        self._listener: GroupListener | None = None
        self._held: dict[int, _Held] = {}
        self._paused = False

    async def join(self, listener: GroupListener) -> None:
        """See ``GroupReader``."""
        self._listener = listener
        self._take()

    def _take(self) -> None:
        out = {one.member for one in self._wanted if not self._waits} - {None, self}
        for partition in self._wanted:
            if self._waits and partition.member is not None:
                partition.claim = self
            else:
                self._topic.give(partition, self)
                partition.heirs.clear()
        for partition in self._topic.partitions:
            if partition.member in out:  # it was put out, and comes again
                self._topic.give(partition, partition.member)

    async def rejoin(self) -> None:
        """See ``GroupReader``."""
        await self._lose(list(self._held))
        if not self._waits:
            self._take()
            return
        for partition in self._wanted:
            if partition.member is self:
                self._topic.give(partition, self)

    async def poll(self, timeout_ms: float, rows_max: int, bytes_max: int) -> Sequence[PartitionTable]:
        """See ``GroupReader``."""
        await self._rebalance()
        open_ = [
            one
            for one in self._wanted
            if (held := self._held.get(one.number)) is not None and not (held.told_end and held.position >= one.end)
        ]
        if self._paused or not open_:
            await pause_ms(min(timeout_ms, _POLL_MS_MAX))
            return []
        limit = max(1, min(rows_max, self._rows_max or rows_max) // len(open_))
        tables: list[PartitionTable] = []
        for one in open_:
            if sum(table.table.nbytes for table in tables) < bytes_max:
                tables.append(self._read(one, self._held[one.number], limit))
        return tables

    def _read(self, partition: MemoryPartition, held: _Held, limit: int) -> PartitionTable:
        left = [offset for offset in partition.values if offset >= held.position]
        offsets = left[:limit]
        held.position = left[limit] if len(left) > limit else partition.end
        held.told_end = held.position == partition.end
        count = len(offsets)
        values = [orjson.dumps(partition.values[offset]) for offset in offsets]
        table = pa.table(
            {
                "offset": pa.array(offsets, pa.int64()),
                "timestamp_ms": pa.array([0] * count, pa.int64()),
                "key": pa.nulls(count, pa.binary()),
                "value": pa.array(values, pa.binary()),
                "headers": pa.array([[]] * count, HEADERS_TYPE),
            }
        )
        return PartitionTable(TOPIC, partition.number, table, held.position, 0, partition.end, partition.end)

    async def _rebalance(self) -> None:
        assert self._listener is not None, "it has joined"
        owned = {one.number: one.epoch for one in self._wanted if one.member is self}
        await self._lose([number for number, held in self._held.items() if owned.get(number) != held.epoch])
        asked = [one for one in self._wanted if one.number in self._held and one.claim not in (None, self)]
        if asked:
            await self._listener.on_revoke([_place(one.number) for one in asked])
            for one in asked:
                del self._held[one.number]
                self._topic.give(one, one.claim)
                one.heirs.append(self)
        for one in self._wanted:
            if one.member is self and one.number not in self._held:
                self._held[one.number] = _Held(one.epoch, one.committed or 0)
                await self._listener.on_assign([_place(one.number)], one.epoch)

    async def _lose(self, numbers: Collection[int]) -> None:
        assert self._listener is not None, "it was a member"
        for number in numbers:
            del self._held[number]
        if numbers:
            await self._listener.on_lost([_place(number) for number in numbers])

    async def lags(self) -> Mapping[TopicPartition, int]:
        """See ``GroupReader``."""
        return {
            _place(one.number): one.end - self._held[one.number].position
            for one in self._wanted
            if one.number in self._held
        }

    def pause(self, paused: bool) -> None:
        """See ``GroupReader``."""
        self._paused = paused

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """See ``GroupReader``."""
        for place, position in positions.items():
            held = self._held[place.partition]
            held.position, held.told_end = position, False

    async def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """See ``GroupReader``."""
        of = {self._topic.partitions[place.partition]: position for place, position in positions.items()}
        held = {one: self._held.get(one.number) for one in of}
        if any(one.member is not self or at is None or at.epoch != one.epoch for one, at in held.items()):
            raise StaleMemberEpoch("another member has the partition")
        for one, position in of.items():
            one.committed = position

    async def close(self) -> None:
        """See ``GroupReader``."""
        for one in self._topic.partitions:
            if self in one.heirs:
                one.heirs.remove(self)
            if one.claim is self:
                one.claim = None
            if one.member is self:
                self._topic.give(one, one.claim or (one.heirs.pop() if one.heirs else None))


def _place(partition: int) -> TopicPartition:
    return TopicPartition(TOPIC, partition)
