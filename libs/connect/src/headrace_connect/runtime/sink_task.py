"""The loop of a sink's task: polls as a member of its group, and does what ``core.sink_commit`` decides."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.records import PartitionTable, TopicPartition
from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect.core import sink_steps as core
from headrace_connect.core.counts import Counts
from headrace_connect.core.dead_letters import Origin, Refusal, Stage
from headrace_connect.core.errors import Fault, PartitionTaken, RowsRefused, after_ms_of, fault_of, is_retriable
from headrace_connect.core.pieces import Piece, Records, Row
from headrace_connect.core.sink_commit import REJOIN_MS, SinkCommit, SinkRules
from headrace_connect.plugin import Guarantee, Rows, Sink
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.failing import OUT_OF_GROUP, TaskFailed, reason_of
from headrace_connect.runtime.measuring import SinkMeasure, StageTimes
from headrace_connect.runtime.pipeline import Indices, Lost, SinkPipeline, dead_letters
from headrace_connect.runtime.ports import DeadLetters, GroupReader, Outgoing, SinkSpans, Steps

POLL_MS: Final = 500.0
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SinkOutside:
    """What a sink's task is given."""

    group: GroupReader
    pipeline: SinkPipeline
    dead_letters: DeadLetters | None
    """None: bad records that are tolerated are dropped."""
    clock: Clock
    steps: Steps
    times: StageTimes | None = None
    """Where the pipeline has stages of its own: what it spends in them."""
    spans: SinkSpans | None = None
    """None: nothing is traced."""


@dataclass(frozen=True, slots=True)
class SinkTaskSettings:
    """How a sink's task behaves."""

    connector: str
    task: int
    rules: SinkRules
    rows_max: int = 10_000
    """Of one poll."""
    lag_interval_ms: float = 5_000
    """How often it asks how far its partitions are, while it does not read."""
    dead_letter_topic: str = ""
    dead_letter_headers: bool = True
    logs_errors: bool = False


@dataclass(frozen=True, slots=True)
class _Read:
    """Records that are not committed yet, as they were polled and as they were converted."""

    table: PartitionTable
    parts: Sequence[tuple[Rows, Indices]]


_STEPS: Final[Mapping[type, core.Step]] = {
    core.Open: core.Step.OPEN,
    core.Write: core.Step.WRITE,
    core.Prepare: core.Step.DEAD_LETTERS,
    core.SendDead: core.Step.DEAD_LETTERS,
    core.Commit: core.Step.COMMIT,
    core.Settle: core.Step.SETTLE,
    core.CommitGroup: core.Step.GROUP,
}


class SinkTask:
    """One task; ``run`` is its life. Satisfies ``GroupListener``."""

    def __init__(
        self,
        sink: Sink[Any],
        outside: SinkOutside,
        settings: SinkTaskSettings,
        *,
        on_open: Callable[[], None] = lambda: None,
        on_commit: Callable[[], None] = lambda: None,
        on_topic: Callable[[str], None] = lambda _: None,
        counts: Counts | None = None,
    ) -> None:
        """
        Args:
            on_open: called once, when the task has joined the group.
            on_commit: called after each commit.
            on_topic: called with the topic of records that were read.
            counts: what it adds to.
        """
        self._calls = Calls(sink)
        self._sink = sink
        self._outside = outside
        self._settings = settings
        self._on_open = on_open
        self._on_commit = on_commit
        self._on_topic = on_topic
        counts = counts or Counts()
        self._measure = SinkMeasure(counts, outside.clock)
        self._times = outside.times or StageTimes(counts, outside.clock)
        self._machine = SinkCommit(settings.rules)
        self._asked: deque[str] = deque()
        self._suspended = False
        self._rejoins = False
        self._lags: dict[TopicPartition, int | None] = {}
        """Of partitions that were heard of since they were assigned or sought."""
        self._asked_lags: dict[TopicPartition, int] = {}
        """Of partitions that were asked for since they were heard of."""
        self._hears = False
        """Records are waited for, which say how far their partitions are."""
        self._heard_ms = 0.0
        self._number = 0
        self._read: dict[int, _Read] = {}
        self._refused: dict[Row, Refusal] = {}
        self._writing: Indices = np.empty(0, np.int64)
        """Of the rows that the sink was given last: their indices in their table."""
        self._end: core.End | None = None

    def suspend(self) -> None:
        """Commit what was written, and read no more."""
        self._suspended = True
        self._asked.append("flush")

    def resume(self) -> None:
        """Read on."""
        self._suspended = False

    def close(self) -> None:
        """Commit what was written, and end."""
        self._asked.append("close")

    @property
    def is_idle(self) -> bool:
        """Whether everything that was in this task's partitions when they were last heard of is committed."""
        machine = self._machine
        ends = self._lags.keys() == machine.epochs.keys() and all(lag == 0 for lag in self._lags.values())
        return machine.reads and not machine.group and bool(self._lags) and ends

    async def run(self) -> None:
        """
        Until it was asked to close.

        Raises:
            TaskFailed: says whose fault it is.
            Exception: of the connector, the clients or the runtime.
        """
        try:
            await self._calls.call(self._sink.start)
            await self._settle_what_was_left()
            await self._outside.group.join(self)
            self._on_open()
            async with TaskRunner() as runner:
                runner.start(self._ask_lags(), name="lag")
                while self._end is None:
                    await self._turn()
        finally:
            self._untrace("its task has ended")
            with suppress(Exception):
                await self._calls.stop()
        if self._end.fault is not None:
            raise TaskFailed(self._end.fault, self._end.reason)

    async def _turn(self) -> None:
        while self._asked and self._end is None:
            asked = self._asked.popleft()
            await self._handle(core.CloseAsked() if asked == "close" else core.FlushAsked())
        if self._end is not None:
            return
        group, machine = self._outside.group, self._machine
        if self._rejoins:
            self._rejoins = False
            await self._outside.clock.sleep_ms(REJOIN_MS)
            await group.rejoin()
        group.pause(self._suspended or not machine.reads)
        due_ms = machine.due_ms()
        wait_ms = POLL_MS if due_ms is None else max(0, min(POLL_MS, ceil(due_ms - self._now_ms())))
        since_ms = self._now_ms()
        self._hears = not self._suspended and machine.reads
        try:
            tables = await group.poll(wait_ms, self._settings.rows_max, machine.room)
        finally:
            self._hears = False
        self._times.add("read", self._now_ms() - since_ms)
        if tables and self._end is None:
            await self._take(tables)
        elif self._end is None:
            await self._handle(core.Ticked(self._now_ms()))
        self._look()

    def _look(self) -> None:
        lags = self._lags | self._asked_lags
        self._measure.look(lags.values(), sum(read.table.table.num_rows for read in self._read.values()))

    async def _ask_lags(self) -> None:
        """While nothing is read, as the target is away or slow, more records come all the same."""
        while True:
            await self._outside.clock.sleep_ms(self._settings.lag_interval_ms)
            if self._hears or self._now_ms() - self._heard_ms < self._settings.lag_interval_ms:
                continue
            with suppress(HeadraceError):  # it is a display
                lags = await self._outside.group.lags()
                self._asked_lags = {
                    partition: lag for partition, lag in lags.items() if partition in self._machine.epochs
                }
                self._look()

    async def _settle_what_was_left(self) -> None:
        """What an earlier task has prepared, and did not live to decide."""
        dead = self._outside.dead_letters
        if dead is None or self._sink.guarantee is not Guarantee.POSITIONS:
            return
        token = await dead.undecided()
        if token is not None:
            await dead.decide(token, commit=await self._calls.call(self._sink.settle, token))

    def _now_ms(self) -> float:
        return self._outside.clock.monotonic_ms()

    # --- the group ------------------------------------------------------------------------------------------------

    async def on_assign(self, partitions: Collection[TopicPartition], epoch: int) -> None:
        """See ``GroupListener``."""
        await self._handle(core.Assigned(partitions, epoch))

    async def on_revoke(self, partitions: Collection[TopicPartition]) -> None:
        """See ``GroupListener``."""
        await self._handle(core.Revoked(partitions))
        self._unheard(partitions)

    async def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        """See ``GroupListener``."""
        self._untrace("its partition was lost", partitions)
        await self._handle(core.Lost(partitions))
        self._unheard(partitions)

    def _unheard(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._lags.pop(partition, None)
            self._asked_lags.pop(partition, None)

    # --- records --------------------------------------------------------------------------------------------------

    async def _take(self, tables: Sequence[PartitionTable]) -> None:
        self._measure.read(tables)
        with self._times.spend("convert"):
            taken = [self._convert(table) for table in tables]
        self._heard_ms = self._now_ms()
        for table in tables:
            self._asked_lags.pop(TopicPartition(table.topic, table.partition), None)
        self._lags |= {TopicPartition(table.topic, table.partition): table.lag for table in tables}
        drained = all(table.lag == 0 for table in tables)
        await self._handle(core.Polled(taken, drained, self._now_ms()))

    def _convert(self, table: PartitionTable) -> Records:
        self._number += 1
        converted = self._outside.pipeline.apply(table)
        if table.table.num_rows:
            self._read[self._number] = _Read(table, converted.parts)
            self._on_topic(table.topic)
        bad: dict[int, str] = {}
        for index, refusal in converted.refused.items():
            row = (self._number, index)
            self._refused[row] = refusal
            bad[index] = str(self._lost(row, refusal))
        return Records(
            self._number,
            TopicPartition(table.topic, table.partition),
            table.table.column("offset").to_numpy().tolist(),
            table.next_offset,
            table.table.nbytes,
            bad,
        )

    def _rows_of(self, piece: Piece) -> list[tuple[Rows, Indices]]:
        """The good rows of a piece, and their indices in the table."""
        number = piece.records.number
        bad = {index for of, index in self._machine.bad if of == number}
        chosen: list[tuple[Rows, Indices]] = []
        for rows, indices in self._read[number].parts:
            mask = (indices >= piece.start) & (indices < piece.start + piece.count)
            if bad:
                mask &= ~np.isin(indices, list(bad))
            if mask.all():
                chosen.append((rows, indices))
            elif mask.any():
                chosen.append((_filtered(rows, pa.array(mask)), indices[mask]))
        return chosen

    def _lost(self, row: Row, refusal: Refusal) -> Lost:
        number, index = row
        read = self._read[number].table
        record = read.table.slice(index, 1).to_pylist()[0]
        settings = self._settings
        plugin = type(self._sink)
        name = f"{plugin.__module__}.{plugin.__qualname__}"
        return Lost(
            Origin(settings.connector, settings.task, name, read.topic, read.partition, record["offset"]),
            refusal,
            record["key"],
            record["value"],
            [(header["key"], header["value"]) for header in record["headers"] or ()],
            record["timestamp_ms"],
        )

    def _letters(self, dead: Mapping[Row, str]) -> Outgoing | None:
        lost = [self._lost(row, self._refused[row]) for row in dead]
        for one in lost if self._settings.logs_errors or self._outside.dead_letters is None else ():
            _log.warning("%s", one)
        if self._outside.dead_letters is None:
            return None
        return dead_letters(self._settings.dead_letter_topic, lost, headers=self._settings.dead_letter_headers)

    # --- what is decided ------------------------------------------------------------------------------------------

    async def _handle(self, event: core.Event) -> None:
        left = deque(self._machine.handle(event))
        while left and self._end is None:
            effect = left.popleft()
            try:
                result = await self._do(effect)
            except Exception as error:  # of the connector; the machine decides what becomes of it
                if type(effect) not in _STEPS:
                    raise
                failed = self._failed(effect, error)
                left = deque(self._machine.handle(failed))
                for row in self._machine.bad.keys() - self._refused.keys():
                    self._refused[row] = Refusal(Stage.WRITE, self._machine.bad[row], type(error).__name__)
                continue
            if result is not None:
                left.extendleft(reversed(self._machine.handle(result)))
        if not self._machine.group and self._machine.reads:
            self._read.clear()
            self._refused.clear()

    async def _do(self, effect: core.Effect) -> core.Event | None:
        reach = self._outside.steps.reach
        match effect:
            case core.Open(epochs):
                positions = await self._open(epochs)
                await reach("connect.sink.opened")
                return core.Opened(positions)
            case core.Seek(positions):
                self._outside.group.seek(positions)
                self._unheard(positions)
            case core.Write(piece):
                since_ms = self._now_ms()
                try:
                    await self._write(piece)
                finally:
                    self._times.add("write", self._now_ms() - since_ms)
                await reach("connect.sink.written")
            case core.Prepare(dead):
                self._measure.begin_commit()
                return await self._prepare(dead)
            case core.SendDead(dead):
                self._measure.begin_commit()
                letters = self._letters(dead)
                if letters is not None and self._outside.dead_letters is not None:
                    await self._outside.dead_letters.send(letters)
                await reach("connect.sink.dead")
            case core.Commit(positions, token):
                self._measure.begin_commit()
                await self._commit(positions, token)
                await reach("connect.sink.committed")
                return core.Committed()
            case core.Settle(token):
                await self._settle(token)
                await reach("connect.sink.settled")
                return core.Settled()
            case core.CommitGroup(positions):
                await self._commit_group(positions)
                await reach("connect.sink.grouped")
                self._measure.commit(*self._machine.tried)
                self._on_commit()
                return core.GroupCommitted()
            case core.Show(positions):
                with suppress(HeadraceError):  # it is shown with the next commit
                    await self._outside.group.commit(positions)
            case core.Close(partitions):
                await self._calls.call(self._sink.close, list(partitions))
            case core.Rejoin():
                self._rejoins = True
            case core.End():
                self._end = effect
        return None

    async def _open(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        positions: dict[TopicPartition, int] = {}
        for epoch in sorted(set(epochs.values())):
            own = [partition for partition, at in epochs.items() if at == epoch]
            positions |= await self._calls.call(self._sink.open, own, epoch) or {}
        return positions if self._sink.guarantee is Guarantee.POSITIONS else {}

    async def _write(self, piece: Piece) -> None:
        parts, spans = self._rows_of(piece), self._outside.spans
        if not parts:
            return
        own = [rows for rows, _ in parts]
        with nullcontext() if spans is None else spans.write(piece.records.partition, own):
            for rows, indices in parts:
                self._writing = indices
                await self._calls.call(self._sink.write, rows)

    async def _commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        await self._calls.call(self._sink.commit, positions, token or None)
        if self._outside.spans is not None:
            self._outside.spans.commit(positions)

    def _untrace(self, reason: str, partitions: Collection[TopicPartition] | None = None) -> None:
        """What was written of these partitions, or of all, and is not committed is not done."""
        if self._outside.spans is not None:
            self._outside.spans.drop(reason, partitions)

    async def _prepare(self, dead: Mapping[Row, str]) -> core.Event:
        letters = self._letters(dead)
        token = b""
        if letters is not None and self._outside.dead_letters is not None:
            token = await self._outside.dead_letters.prepare(letters)
            await self._outside.steps.reach("connect.sink.prepared")
        return core.Prepared(token)

    async def _settle(self, token: bytes) -> None:
        dead = self._outside.dead_letters
        if token and dead is not None:
            await dead.decide(token, commit=await self._calls.call(self._sink.settle, token))

    async def _commit_group(self, positions: Mapping[TopicPartition, int]) -> None:
        try:
            await self._outside.group.commit(positions)
        except HeadraceError as error:
            if self._sink.guarantee is not Guarantee.POSITIONS:
                raise
            _log.info("the group's offsets are shown later: %s", error)

    def _failed(self, effect: core.Effect, error: Exception) -> core.Failed:
        self._measure.drop()
        self._untrace(reason_of(error))
        step = _STEPS[type(effect)]
        fault, retriable = fault_of(error), is_retriable(error)
        if step is core.Step.GROUP and isinstance(error, HeadraceError) and error.code in OUT_OF_GROUP:
            fault, retriable = Fault.FENCED, False
        if retriable:
            self._measure.retry()
        refused: dict[Row, str] = {}
        if isinstance(effect, core.Write) and isinstance(error, RowsRefused):
            number = effect.piece.records.number
            refused = {(number, int(self._writing[index])): why for index, why in error.reasons.items()}
        _log.warning("%s of %s has failed: %s", step.value, type(self._sink).__name__, reason_of(error))
        taken = isinstance(error, PartitionTaken)
        return core.Failed(step, fault, retriable, reason_of(error), self._now_ms(), refused, taken, after_ms_of(error))


def _filtered(rows: Rows, mask: pa.Array[Any]) -> Rows:
    arrays = (rows.values, rows.keys, rows.offsets, rows.timestamps_ms, rows.headers)
    values, keys, offsets, timestamps_ms, headers = (array.filter(mask) for array in arrays)
    return replace(rows, values=values, keys=keys, offsets=offsets, timestamps_ms=timestamps_ms, headers=headers)
