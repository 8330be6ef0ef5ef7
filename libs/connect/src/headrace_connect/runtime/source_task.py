"""
The loop of a source's task: reads splits side by side, and does what ``core.source_commit`` decides.

One loop owns everything; only reading goes on beside it, a chunk ahead.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any, Final

from headrace_common.core.errors import ErrorCode, HeadraceError, RecordTooLarge, Then
from headrace_common.runtime.clock import Clock, until_beat_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.core import source_steps as core
from headrace_connect.core.counts import Counts
from headrace_connect.core.errors import Fault, after_ms_of, fault_of, is_retriable
from headrace_connect.core.retrying import Retrying
from headrace_connect.core.source_commit import Phase, Rules, SourceCommit
from headrace_connect.plugin import Chunk, Position, Source, Split
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.failing import FENCED, TaskFailed, reason_of
from headrace_connect.runtime.inbox import Inbox
from headrace_connect.runtime.measuring import SourceMeasure, StageTimes
from headrace_connect.runtime.noting import Notes
from headrace_connect.runtime.pipeline import SourcePipeline
from headrace_connect.runtime.polling import Polls
from headrace_connect.runtime.ports import Outgoing, SourceLog, SourceSpans, SourceWriter, Steps
from headrace_connect.runtime.room import Room
from headrace_connect.runtime.sending import BadRecords, Outbox, Sending
from headrace_connect.runtime.sizes import size_of
from headrace_connect.runtime.slicing import Slice, slices_of

_PAUSE_MS: Final = 100.0
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceOutside:
    """What a source's task is given."""

    log: SourceLog
    pipeline: SourcePipeline
    clock: Clock
    steps: Steps
    polls: Polls | None = None
    """Shared with other tasks. None: each drained split is read again by itself."""
    times: StageTimes | None = None
    """Where the pipeline has stages of its own: what it spends in them."""
    spans: SourceSpans | None = None
    """None: nothing is traced."""


@dataclass(frozen=True, slots=True)
class SourceTaskSettings:
    """How a source's task behaves."""

    rules: Rules = Rules()
    poll_interval_ms: float = 500
    """How long a drained source that shares its thread is left alone."""
    look_interval_ms: float = 5_000
    """How often it looks what the source's system keeps for it."""
    bytes_max: int = 64 << 20
    """Of chunks that wait or are not committed; no more are read meanwhile."""
    slice_bytes: int = 16 << 20
    """Larger chunks are converted and sent slice by slice."""
    bad: BadRecords = BadRecords()


@dataclass(frozen=True, slots=True)
class _Read:
    """What reading a split gave."""

    reading: int
    """Which reading; what comes of an older one does not count."""
    split: str
    chunk: Chunk | None = None
    size: int = 0
    """Of the chunk, in bytes."""
    error: Exception | None = None
    """Neither: the split has come to its end."""


class SourceTask:
    """One task; ``run`` is its life."""

    def __init__(
        self,
        source: Source[Any],
        splits: Sequence[Split],
        outside: SourceOutside,
        settings: SourceTaskSettings,
        *,
        on_open: Callable[[], None] = lambda: None,
        on_commit: Callable[[], None] = lambda: None,
        on_topic: Callable[[str], None] = lambda _: None,
        counts: Counts | None = None,
    ) -> None:
        """
        Args:
            on_open: called once, when reading begins.
            on_commit: called after each commit.
            on_topic: called with the topic of records before they are sent; dead letters do not count.
            counts: what it adds to.
        """
        self._calls = Calls(source)
        self._source = source
        self._splits = {split.id: split for split in splits}
        self._outside = outside
        self._settings = settings
        self._on_open = on_open
        self._on_commit = on_commit
        self._on_topic = on_topic
        self._counts = counts or Counts()
        self._measure = SourceMeasure(self._counts, outside.clock)
        self._times = outside.times or StageTimes(self._counts, outside.clock)
        self._machine = SourceCommit(list(self._splits), settings.rules)
        self._commit_retries = Retrying(settings.rules.retry_timeout_ms, _PAUSE_MS)
        self._inbox = Inbox()
        self._room = Room(settings.bytes_max)
        self._runner: TaskRunner | None = None
        self._pumps: list[asyncio.Task[None]] = []
        self._reading = 0
        self._opened = False
        self._writer: SourceWriter | None = None
        self._outbox = Outbox("", ())
        self._sending = Sending(f"{type(source).__module__}.{type(source).__qualname__}", settings.bad)
        self._notes = Notes(source, self._calls) if type(source).note is not Source.note else None
        self._end: core.End | None = None
        self._drained: dict[str, bool] = {}

    def ask(self, event: core.SuspendAsked | core.ResumeAsked | core.CloseAsked) -> None:
        """Have the loop do this as soon as it can."""
        self._inbox.ask(event)

    @property
    def is_idle(self) -> bool:
        """Whether every split has said that there is nothing more, or has ended, and all of it is committed."""
        return (
            self._machine.phase is Phase.READING
            and not self._machine.pending
            and self._drained.keys() == self._splits.keys()
            and all(self._drained.values())
        )

    async def run(self) -> None:
        """
        Until it was asked to close.

        Raises:
            TaskFailed: with ``Fault.FENCED``: a newer task has taken over.
            Exception: of the connector, the clients or the runtime.
        """
        try:
            async with TaskRunner() as self._runner:
                await self._calls.call(self._source.start)
                self._runner.start(self._look_at_source(), name="retained")
                await self._perform(self._machine.handle(core.Started()))
                while self._end is None:
                    await self._turn()
        finally:
            await self._release()
        if self._end.fault is not None:
            raise TaskFailed(self._end.fault, self._end.reason)

    async def _look_at_source(self) -> None:
        while True:
            await self._outside.clock.sleep_ms(until_beat_ms(self._now_ms(), self._settings.look_interval_ms))
            self._counts.retained_bytes = self._source.retained_bytes

    async def _turn(self) -> None:
        due_ms = self._machine.due_ms()
        left_ms = None if due_ms is None else max(0, ceil(due_ms - self._now_ms()))  # a whole one: less may be no time
        item = await self._inbox.take(left_ms)
        match item:
            case None:
                await self._handle(core.Ticked(self._now_ms()))
            case _Read():
                if item.reading == self._reading:
                    await self._take(item)
            case _:
                await self._handle(item)

    async def _release(self) -> None:
        self._untrace("its task has ended")
        with suppress(Exception):
            await self._calls.stop()
        if self._writer is not None:
            with suppress(HeadraceError):
                await self._writer.close()

    def _now_ms(self) -> float:
        return self._outside.clock.monotonic_ms()

    # --- what was read --------------------------------------------------------------------------------------------

    async def _take(self, read: _Read) -> None:
        if read.error is not None:
            await self._handle(self._read_failed(read.split, read.error))
            return
        self._room.take(read.size)
        self._drained[read.split] = read.chunk is None or read.chunk.drained
        if read.chunk is None:
            await self._handle(core.Ticked(self._now_ms()))
            return
        for one in slices_of(read.chunk, read.size, self._settings.slice_bytes):
            if read.reading == self._reading and self._end is None:
                await self._take_slice(read.split, read.chunk, one)

    async def _take_slice(self, split: str, whole: Chunk, one: Slice) -> None:
        chunk = one.chunk
        with self._times.spend("convert"):
            converted = self._outside.pipeline.apply(chunk)
        for records in converted.outgoing:
            self._on_topic(records.topic)
        self._measure.read(len(chunk.rows), converted.outgoing, len(converted.lost))
        bad = self._settings.bad
        if converted.lost:
            for lost in converted.lost if bad.logs or not bad.tolerates else ():
                _log.warning("%s", lost)
            if not bad.tolerates:
                await self._handle(core.ReadFailed(split, False, Fault.DATA, str(converted.lost[0]), self._now_ms()))
                return
        self._outbox = Outbox(split, [_moved(records, one.start) for records in converted.outgoing], converted.lost)
        if self._notes is not None and one.first:
            self._notes.take(self._splits[split], whole)
        await self._handle(
            core.Arrived(
                split,
                whole.position,
                self._outbox.count(letters=bad.topic is not None),
                converted.bytes,
                one.last and whole.boundary,
                one.last and whole.drained,
                self._now_ms(),
                one.last,
            )
        )

    def _read_failed(self, split: str, error: Exception) -> core.ReadFailed:
        fault = fault_of(error)
        _log.warning("split %s of %s: %s", split, type(self._source).__name__, reason_of(error))
        if is_retriable(error):
            self._measure.retry()
        now_ms, after_ms = self._now_ms(), after_ms_of(error)
        return core.ReadFailed(split, is_retriable(error), fault, reason_of(error), now_ms, after_ms)

    async def _pump(self, reading: int, split: str, after: Position | None, at_ms: float | None) -> None:
        if at_ms is not None:
            await self._outside.clock.sleep_ms(at_ms - self._now_ms())
        try:
            await self._pull(reading, split, after)
        except Exception as error:  # noqa: BLE001 - of the connector; the loop decides what becomes of it
            self._room.leave(split)
            await self._inbox.put(_Read(reading, split, error=error))
        else:
            self._room.leave(split)
            await self._inbox.put(_Read(reading, split))

    async def _pull(self, reading: int, split: str, after: Position | None) -> None:
        since_ms = self._now_ms()

        async def enter() -> None:
            nonlocal since_ms
            await self._room.enter(split)
            since_ms = self._now_ms()

        chunks = self._calls.iterate(self._source.read, self._splits[split], after, before=enter)
        async with aclosing(chunks):
            async for chunk, shares in chunks:
                self._times.add("read", self._now_ms() - since_ms)
                size = size_of(chunk)
                self._room.arrive(split, size)
                await self._inbox.put(_Read(reading, split, chunk, size))
                if shares and chunk.drained:
                    await self._rest(split)

    async def _rest(self, split: str) -> None:
        """Until a drained split is read again."""
        polls, interval_ms = self._outside.polls, self._settings.poll_interval_ms
        if polls is None or type(self._source).is_still is Source.is_still:
            await self._outside.clock.sleep_ms(interval_ms)
        else:
            await polls.rest(partial(self._source.is_still, self._splits[split]), interval_ms)

    async def _halt(self) -> None:
        self._reading += 1
        pumps, self._pumps = self._pumps, []
        for pump in pumps:
            pump.cancel()
        if pumps:
            await asyncio.wait(pumps)
        self._inbox.clear()
        self._room.clear()
        self._drained = {}

    # --- what is decided ------------------------------------------------------------------------------------------

    async def _handle(self, event: core.Event) -> None:
        await self._perform(self._machine.handle(event))

    async def _perform(self, effects: Sequence[core.Effect]) -> None:
        left = deque(effects)
        while left and self._end is None:
            effect = left.popleft()
            try:
                event = await self._do(effect)
            except HeadraceError as error:
                event = self._event_of(effect, error)
                if event is None:
                    raise
                left.clear()
                await self._outside.clock.sleep_ms(_PAUSE_MS if isinstance(event, core.OutcomeUnknown) else 0)
            if event is not None:
                left.extendleft(reversed(self._machine.handle(event)))

    async def _do(self, effect: core.Effect) -> core.Event | None:
        reach = self._outside.steps.reach
        match effect:
            case core.Claim():
                await self._claim()
                await reach("connect.source.claimed")
                return core.Claimed()
            case core.Locate():
                positions = await self._outside.log.locate(list(self._splits))
                await reach("connect.source.located")
                return core.Located(positions)
            case core.Read(after, at_ms):
                self._read(after, at_ms)
            case core.Halt():
                await self._halt()
            case core.Begin():
                if self._notes is not None:
                    self._notes.begin()
                await self._open_writer().begin()
            case core.Send():
                await self._send()
                await reach("connect.source.sent")
            case core.SendPositions(positions):
                if self._notes is not None:
                    await self._notes.send(self._open_writer())
                    await reach("connect.source.noted")
                await self._open_writer().send_positions(positions)
                await reach("connect.source.positions")
            case core.Commit():
                self._measure.begin_commit()
                await self._open_writer().commit()
                await reach("connect.source.committed")
                self._measure.commit()
                self._room.commit()
                if self._outside.spans is not None:
                    self._outside.spans.commit()
                self._commit_retries.worked()
                self._on_commit()
                return core.Committed()
            case core.Abort(reason):
                await self._abort(reason)
                await reach("connect.source.aborted")
                return core.Aborted()
            case core.Confirm(positions):
                for split, position in positions.items():
                    await self._calls.call(self._source.committed, self._splits[split], position)
                await reach("connect.source.confirmed")
            case core.End():
                self._end = effect
        return None

    def _event_of(self, effect: core.Effect, error: HeadraceError) -> core.Event | None:
        """What the machine is told of a failure; None: the task fails."""
        if error.code in FENCED:
            return core.Refused()
        if error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            return core.IdForgotten()
        if not isinstance(effect, core.Begin | core.Send | core.SendPositions | core.Commit):
            return None
        if isinstance(effect, core.Commit) and error.then == Then.RETRY:
            if self._commit_retries.wait_ms(self._now_ms()) is None:
                return None
            self._measure.retry()
            return core.OutcomeUnknown()
        if error.then == Then.FENCED:
            return None
        if isinstance(error, RecordTooLarge):
            return core.Unwritable(reason_of(error))
        _log.warning("a transaction is given up: %s", error)
        self._untrace(reason_of(error))
        self._measure.retry()
        return core.NotDelivered(reason_of(error), self._now_ms())

    def _open_writer(self) -> SourceWriter:
        assert self._writer is not None, "the owner was claimed"
        return self._writer

    async def _send(self) -> None:
        since_ms = self._now_ms()
        self._trace(self._outbox)
        sent = await self._sending.send(self._open_writer(), self._outbox)
        self._measure.lose(self._outbox.too_large)
        self._times.add("write", self._now_ms() - since_ms)
        if self._notes is not None:
            self._notes.sent(sent)

    async def _abort(self, reason: str) -> None:
        if reason:
            _log.warning("a transaction is given up: %s", reason)
        self._measure.drop()
        self._untrace("its transaction was aborted")
        await self._open_writer().abort()
        self._room.commit()

    def _trace(self, outbox: Outbox) -> None:
        spans = self._outside.spans
        if spans is not None:
            outbox.outgoing = [spans.send(records) for records in outbox.outgoing]

    def _untrace(self, reason: str) -> None:
        """What was sent since the last commit will not be committed."""
        if self._outside.spans is not None:
            self._outside.spans.drop(reason)

    async def _claim(self) -> None:
        self._measure.drop()
        self._room.commit()
        self._untrace("its transactional id was forgotten")
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with suppress(HeadraceError):
                await writer.close()
        self._writer = await self._outside.log.claim()

    def _read(self, after: Mapping[str, Position | None], at_ms: float | None) -> None:
        assert self._runner is not None, "reading is within run()"
        if not self._opened:
            self._opened = True
            self._on_open()
        for split, position in after.items():
            pump = self._pump(self._reading, split, position, at_ms)
            self._pumps = [task for task in self._pumps if not task.done()]
            self._pumps.append(self._runner.start(pump, name=f"read {split}"))


def _moved(records: Outgoing, start: int) -> Outgoing:
    """With rows of the whole chunk, of which they are a part from ``start`` on."""
    return records if records.rows is None or not start else replace(records, rows=records.rows + start)
