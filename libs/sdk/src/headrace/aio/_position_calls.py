"""
The calls of ``headrace.aio.Consumer`` about what it reads, where it is, and how it is doing. The class for threads is
made from this one, see ``tools/sync_faces.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace._core.starts import END_TIMESTAMP, START_TIMESTAMP, AtTime, Beginning, End, Start
from headrace.aio._consumer_setup import PartitionLike, check_offset, check_timestamp, partitions_like
from headrace.aio._health import ConsumerHealth
from headrace.aio._offsets import OffsetAndTimestamp
from headrace.records import SkippedBatch, TopicPartition

if TYPE_CHECKING:
    from headrace.aio._group_steps import GroupSteps
    from headrace.aio._hand_out import HandOut
    from headrace.aio._reading import Reading
    from headrace.consumer_settings import ConsumerSettings


class PositionCalls:
    """A part of ``headrace.aio.Consumer``."""

    _closed: bool
    _out: HandOut
    _reading: Reading
    _settings: ConsumerSettings
    _started: bool
    _steps: GroupSteps | None

    def _check_usable(self) -> None:
        raise NotImplementedError

    def _ready(self) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        raise NotImplementedError

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read; in ``aio`` none before ``start``."""
        self._ready()
        return set(self._out.assignment())

    async def partitions_for(self, topic: str) -> set[int]:
        """
        The numbers of a topic's partitions.

        Raises:
            UnknownTopicOrPartition: it does not exist.
        """
        self._check_usable()
        return {tp.partition for tp in await self._reading.partitions_of(topic)}

    # --- positions ----------------------------------------------------------------------------------------------

    async def position(self, partition: PartitionLike) -> int:
        """
        The offset of the next record that the application gets.

        Raises:
            Rejected: the partition is not read by this consumer.
            WaitTimedOut: it could not be looked up within ``default_api_timeout_ms``.
        """
        await self.start()
        tp = TopicPartition(*partition)
        known = self._out.position_now(tp)
        return await self._reading.position(tp) if known is None else known

    def seek(self, partition: PartitionLike, offset: int) -> None:
        """Go on at ``offset``. Whether it exists is seen when it is fetched; ``auto_offset_reset`` applies."""
        self._ready()
        self._out.seek({TopicPartition(*partition): check_offset(offset)})

    def skip_batch(self, partition: PartitionLike | None = None) -> SkippedBatch:
        """
        Go on behind the batch that cannot be read, after a poll has raised ``CorruptBatch``, ``UnsupportedVersion`` or
        ``UnsupportedCompression``. What is returned says what was skipped, and why. The group hears of it with the next
        commit; a transaction that is aborted comes back to it.

        Args:
            partition: which one; it may be left out where only one has stopped.

        Raises:
            Rejected: no batch was met there that cannot be read, or several were and none is named.
        """
        self._ready()
        return self._out.skip_batch(None if partition is None else TopicPartition(*partition))

    def seek_to_beginning(self, *partitions: PartitionLike) -> None:
        """Go on at the first record there is, in these partitions or in all."""
        self._seek(partitions, Beginning())

    def seek_to_end(self, *partitions: PartitionLike) -> None:
        """Go on behind the last record there is when the end is looked up, in these partitions or in all."""
        self._seek(partitions, End())

    def seek_to_timestamp(self, timestamp_ms: int, *partitions: PartitionLike) -> None:
        """Go on at the first record at or after a time (ms since the epoch), or at the end if there is none."""
        self._seek(partitions, AtTime(check_timestamp(timestamp_ms)))

    def _seek(self, partitions: Iterable[PartitionLike], start: Start) -> None:
        self._ready()
        self._out.seek(dict.fromkeys(partitions_like(partitions) or self._out.assignment(), start))

    async def beginning_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The first offset that exists, of any partitions."""
        return await self._offsets(partitions, START_TIMESTAMP)

    async def end_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        """The offset behind the last committed record, of any partitions."""
        return await self._offsets(partitions, END_TIMESTAMP)

    async def _offsets(self, partitions: Iterable[PartitionLike], timestamp_ms: int) -> dict[TopicPartition, int]:
        found = await self._ask(dict.fromkeys(partitions_like(partitions), timestamp_ms))
        return {tp: at.offset for tp, at in found.items()}

    async def _ask(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._check_usable()
        found = await self._reading.offsets.ask(wanted, self._settings.default_api_timeout_ms)
        return {tp: found[tp] for tp in wanted}

    async def offsets_for_times(
        self, timestamps: Mapping[PartitionLike, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record at or after a time, in ms since the epoch; None: there is none."""
        found = await self._ask({TopicPartition(*tp): check_timestamp(time) for tp, time in timestamps.items()})
        return {tp: at if at.offset >= 0 else None for tp, at in found.items()}

    async def lag(self) -> dict[TopicPartition, int]:
        """How many offsets each partition's end is ahead of the position; asks the leaders."""
        await self.start()
        ends = await self.end_offsets(self._out.assignment())
        return {tp: max(0, end - await self.position(tp)) for tp, end in ends.items()}

    def pause(self, *partitions: PartitionLike) -> None:
        """Hand out nothing of these partitions (or of all) until ``resume``; what was fetched is kept."""
        self._ready()
        self._out.pause(partitions_like(partitions) or self._out.assignment(), paused=True)

    def resume(self, *partitions: PartitionLike) -> None:
        """Undo ``pause``, for these partitions or for all."""
        self._ready()
        self._out.pause(partitions_like(partitions) or self._out.assignment(), paused=False)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        self._check_usable()
        return set(self._out.list_paused())

    # --- how it is doing ----------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """
        ``new``, ``idle`` (nothing is assigned), ``reading``, ``stuck`` (nothing can be read now), ``topic_deleted``
        (one that is subscribed to does not exist any more) or ``closed``.

        A member of a group is also ``joining``, ``rebalancing`` (what it reads may change soon), ``disconnected`` (it
        does not know whether it still is a member, and hands nothing out) or ``out`` (its next poll joins again).
        """
        if self._closed:
            return "closed"
        reading = self._reading.state(self._started)
        return self._steps.state(reading) if self._steps is not None and self._steps.group.joined else reading

    def health(self) -> ConsumerHealth:
        """How it is doing, without asking anybody."""
        return self._reading.health(self.state, self._steps.health() if self._steps is not None else None)
