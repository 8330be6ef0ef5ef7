"""A membership's records: read, held up until a task's other inputs have theirs, and fed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from headrace.records import PartitionTable, TopicPartition
from headrace_common.runtime.failpoints import failpoint
from headrace_streams.config import StreamsConfig
from headrace_streams.core.feed import Portion
from headrace_streams.runtime.calling import Calling
from headrace_streams.runtime.committing import Committing
from headrace_streams.runtime.figures import Figures
from headrace_streams.runtime.merging import Merging
from headrace_streams.runtime.owned import Outside, Owned
from headrace_streams.runtime.pacing import Pace
from headrace_streams.runtime.seat import Seat

_log: Final = logging.getLogger(__name__)


class Feeding:
    """What the tasks of a worker read."""

    def __init__(
        self,
        config: StreamsConfig,
        outside: Outside,
        seat: Seat,
        call: Calling,
        committing: Committing,
        pace: Pace,
        figures: Figures,
    ) -> None:
        self._config = config
        self._outside = outside
        self._seat = seat
        self._call = call
        self._committing = committing
        self._pace = pace
        self._figures = figures
        self._of: dict[TopicPartition, Owned] = {}
        self._merging: dict[Owned, Merging] = {}
        self._paused: set[TopicPartition] = set()

    async def begin(self) -> None:
        """Read on where each task is."""
        self._figures.unseen()
        owned = self._seat.owned.values()
        self._of = {tp: one for one in owned for tp in one.spec.partitions}
        wait_ms, rows = self._config.join_wait_ms, self._config.max_batch_rows
        self._merging = {one: Merging(one, wait_ms, rows) for one in owned if one.spec.part.in_order}
        self._paused = set()
        await self._outside.reader.assign({tp: one.positions.get(tp.topic, -1) for tp, one in self._of.items()})
        tasks = "1 task" if len(owned) == 1 else f"{len(owned)} tasks"
        _log.info("%s works on %s and stands by for %d", self._seat.app, tasks, len(self._seat.followed))

    async def read(self, wait_ms: int) -> None:
        """Read once, feed what came, and tell tasks of what did not."""
        self._pause()
        for batch in await self._outside.reader.poll(wait_ms, self._config.max_batch_rows):
            await self._feed(batch)
        for merging in list(self._merging.values()):
            await self._feed_all(merging.owned, merging.take(self._outside.clock.monotonic_ms()))
            await self._committing.commit_in_time()
        await self._rest()

    async def is_behind_group(self) -> bool:
        """Whether the group's positions are no longer those of this worker's last commit."""
        committed = await self._outside.reader.committed(list(self._of))
        of_group = {tp: None if at is None else at.offset for tp, at in committed.items()}
        return any(of_group[tp] != owned.progress.positions.get(tp.topic) for tp, owned in self._of.items())

    # --- what came --------------------------------------------------------------------------------------------------

    async def _feed(self, batch: PartitionTable) -> None:
        owned = self._of[TopicPartition(batch.topic, batch.partition)]
        portion = Portion(batch.topic, batch.table, batch.next_offset)
        if owned in self._merging:
            self._merging[owned].offer(portion, at_end=batch.lag == 0)
        else:
            await self._feed_in_parts(owned, portion)
        if batch.table.num_rows or batch.lag != 0:
            owned.rows_at_ms[batch.topic] = self._outside.clock.monotonic_ms()
            owned.idle.discard(batch.topic)
        self._figures.seen(batch)

    async def _feed_in_parts(self, owned: Owned, portion: Portion) -> None:
        """Feed records of one input, no more at a time than its transaction has time for."""
        left = portion.records
        while left.num_rows:
            began_ms = self._outside.clock.monotonic_ms()
            first = left.slice(0, self._pace.rows(portion.topic))
            left = left.slice(first.num_rows)
            next_offset = int(left["offset"][0].as_py()) if left.num_rows else portion.next_offset
            await self._feed_all(owned, [Portion(portion.topic, first, next_offset)])
            self._pace.took(portion.topic, first.num_rows, self._outside.clock.monotonic_ms() - began_ms)
            await self._committing.commit_in_time()
        if not portion.records.num_rows:
            await self._feed_all(owned, [portion])

    async def _feed_all(self, owned: Owned, portions: list[Portion]) -> None:
        """Feed records of some of a task's inputs, together."""
        given = [(one.topic, one.records) for one in portions if one.records.num_rows]
        if given:
            await self._commit_before()
        owned.touched |= bool(given) or any(owned.positions.get(one.topic) != one.next_offset for one in portions)
        if given:
            owned.task.tell(self._outside.clock.now_ms())
            await self._call(owned.task.feed_together, given)
            await self._committing.send(owned.task.take())
            for topic, records in given:
                self._committing.rows += records.num_rows
                self._figures.fed(topic, records)
            failpoint("streams.fed")
        owned.positions |= {one.topic: one.next_offset for one in portions}

    async def _commit_before(self) -> None:
        """Before user code runs."""
        if self._committing.is_open and self._pace.is_careful(self._outside.clock.monotonic_ms()):
            await self._committing.commit()

    def _pause(self) -> None:
        """Read no more of inputs that are ahead of the others of their tasks."""
        full = {TopicPartition(t, m.owned.spec.partition) for m in self._merging.values() for t in m.full()}
        if full != self._paused:
            self._outside.reader.pause(full)
            self._paused = full

    # --- what did not come ------------------------------------------------------------------------------------------

    async def _rest(self) -> None:
        """Tell tasks of topics that have stood at their ends for long, and of the time where they wait for it."""
        now = self._outside.clock.monotonic_ms()
        quiet: dict[TopicPartition, Owned] = {}
        for owned in self._seat.owned.values():
            if (due := owned.task.due) is not None and due <= self._outside.clock.now_ms():
                await self._commit_before()
                owned.touched = True
                await self._call(owned.task.tick, self._outside.clock.now_ms())
                await self._committing.send(owned.task.take())
            if owned.task.waits and now - owned.began_at_ms >= self._config.idle_after_ms:
                await self._commit_before()
                owned.touched = True
                await self._call(owned.task.rest_again)
                await self._committing.send(owned.task.take())
            for topic in owned.spec.part.topics:
                if owned in self._merging and self._merging[owned].waiting(topic):
                    continue
                if topic not in owned.idle and now - owned.rows_at_ms[topic] >= self._config.idle_after_ms:
                    quiet[TopicPartition(topic, owned.spec.partition)] = owned
        if quiet:
            await self._idle(quiet, await self._outside.reader.at_ends(list(quiet)))

    async def _idle(self, quiet: Mapping[TopicPartition, Owned], at_ends: Collection[TopicPartition]) -> None:
        """
        Of partitions that gave nothing for long, those at their ends are idle. Of the others something is on its way:
        this process stood still, or their broker does not answer.
        """
        for at, owned in quiet.items():
            if at not in at_ends:
                owned.rows_at_ms[at.topic] = self._outside.clock.monotonic_ms()
                continue
            owned.idle.add(at.topic)
            await self._commit_before()
            owned.touched = True
            await self._call(owned.task.idle, at.topic)
            await self._committing.send(owned.task.take())
