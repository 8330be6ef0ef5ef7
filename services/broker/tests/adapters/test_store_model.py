"""Hypothesis drives both adapters beside a naive model: a dict of offsets, and what a restart must bring back."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from storage_batches import make_batch, make_row, partition, rewrite

from headrace_broker.core.rows import (
    AbortedRow,
    DropBatch,
    DropLog,
    DropPrefix,
    DropSuffix,
    EpochRow,
    FenceRow,
    IndexRow,
    LogId,
    LogWrite,
    ProducerRow,
    PutAborted,
    PutBatch,
    PutEpoch,
    PutProducers,
    PutSegment,
    PutState,
    SegmentRow,
    StateRow,
)
from headrace_common.core.ids import Offset

from .conftest import Disk, MemoryDisk, RocksDisk

T = TypeVar("T")


@dataclass
class Model:
    """What one log must look like."""

    start: int = 0
    end: int = 0
    epoch: int = 0
    synced: int = 0
    rows: dict[int, IndexRow] = field(default_factory=dict)
    batches: dict[int, bytes] = field(default_factory=dict)
    segments: dict[int, SegmentRow] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    snapshots: dict[int, tuple[ProducerRow, ...]] = field(default_factory=dict)
    fences: list[FenceRow] = field(default_factory=list)
    aborted: list[AbortedRow] = field(default_factory=list)

    def boundaries(self) -> list[int]:
        return [at for at in sorted({*self.rows, self.end}) if at >= self.start]


class StoreMachine(RuleBasedStateMachine):
    """Subclasses say which adapter."""

    logs = Bundle("logs")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.models: dict[LogId, Model] = {}
        self.disk = self.make_disk()

    def make_disk(self) -> Disk:
        raise NotImplementedError

    def run(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.run(self.disk.end())
        self.loop.close()

    @initialize(target=logs)
    def first(self) -> LogId:
        return self.create(0)

    @rule(target=logs, start=st.sampled_from([0, 70, 2**40]))
    def create(self, start: int) -> LogId:
        log = self.disk.logs.new_log_id()
        assert log not in self.models
        model = Model(start, start)
        model.segments[start] = SegmentRow(Offset(start), 1)
        model.epochs[0] = start
        self.models[log] = model
        self.disk.logs.write(
            [self.state(log), PutSegment(log, model.segments[start]), PutEpoch(log, EpochRow(0, Offset(start)))]
        )
        return log

    def state(self, log: LogId) -> PutState:
        model = self.models[log]
        return PutState(log, StateRow(partition(log), Offset(model.start), Offset(model.start), tuple(model.fences)))

    def appends(self, log: LogId, sizes: list[tuple[int, int]]) -> list[LogWrite]:
        model, group = self.models[log], []
        for records, size in sizes:
            batch = make_batch(model.end, records, size, model.epoch, log)
            row = make_row(model.end, batch, records, model.epoch)
            model.rows[model.end], model.batches[model.end] = row, batch
            model.end += records
            group.append(PutBatch(log, row, batch))
        return group

    sizes = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([64, 300, 2500, 9000])), min_size=1, max_size=4)

    @rule(one=logs, other=logs, first=sizes, second=sizes)
    def append(self, one: LogId, other: LogId, first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
        self.disk.logs.write([*self.appends(one, first), *self.appends(other, second)])

    @rule(log=logs)
    def fence(self, log: LogId) -> None:
        model = self.models[log]
        appended = self.appends(log, [(1, 90)])
        model.fences.append(FenceRow(Offset(model.end - 1), len(model.fences) + 1))
        self.disk.logs.write([*appended, self.state(log)])

    @rule(log=logs)
    def abort(self, log: LogId) -> None:
        model = self.models[log]
        appended = self.appends(log, [(1, 90)])
        row = AbortedRow(len(model.aborted), Offset(model.start), Offset(model.end - 1), Offset(model.end))
        model.aborted.append(row)
        self.disk.logs.write([*appended, PutAborted(log, row)])

    @rule(log=logs)
    def roll(self, log: LogId) -> None:
        model = self.models[log]
        last = model.segments.get(max(model.segments, default=-1))
        if last is None or last.base_offset == model.end:
            return
        group: list[LogWrite] = []
        if last.end_offset is None:
            sealed = SegmentRow(last.base_offset, last.created_at_ms, 9, Offset(model.end), 5, 1, 2)
            model.segments[sealed.base_offset] = sealed
            group.append(PutSegment(log, sealed))
        model.segments[model.end] = SegmentRow(Offset(model.end), 9)
        model.snapshots[model.end] = (ProducerRow(model.end, 1, (), 5),)
        group += [
            PutSegment(log, model.segments[model.end]),
            PutProducers(log, Offset(model.end), model.snapshots[model.end]),
        ]
        self.disk.logs.write(group)

    @rule(log=logs)
    def new_epoch(self, log: LogId) -> None:
        model = self.models[log]
        model.epoch += 1
        model.epochs[model.epoch] = model.end
        self.disk.logs.write([PutEpoch(log, EpochRow(model.epoch, Offset(model.end)))])

    @rule(log=logs, data=st.data())
    def drop_prefix(self, log: LogId, data: st.DataObject) -> None:
        model = self.models[log]
        start = data.draw(st.sampled_from(model.boundaries()))
        model.start = start
        for at in [at for at in model.rows if at < start]:
            del model.rows[at], model.batches[at]
        for base, row in list(model.segments.items()):
            later = [other for other in model.segments if base < other <= start]
            if later or (row.end_offset is not None and row.end_offset <= start):
                del model.segments[base]
        for at in sorted(at for at in model.snapshots if at <= start)[:-1]:
            del model.snapshots[at]
        model.aborted = [row for row in model.aborted if row.last >= start]
        self.disk.logs.write([self.state(log), DropPrefix(log, Offset(start))])

    @rule(log=logs, data=st.data(), sizes=sizes)
    def truncate_and_write_anew(self, log: LogId, data: st.DataObject, sizes: list[tuple[int, int]]) -> None:
        model = self.models[log]
        end = data.draw(st.sampled_from(model.boundaries()))
        before = [row.leader_epoch for at, row in model.rows.items() if at < end]
        self.run(self.disk.logs.lower_evidence([(log, Offset(end), before[-1] if before else -1)]))
        model.synced = min(model.synced, end)
        model.end = end
        for at in [at for at in model.rows if at >= end]:
            del model.rows[at], model.batches[at]
        model.segments = {base: row for base, row in model.segments.items() if base < end}
        if model.segments:
            base = max(model.segments)
            row = model.segments[base]
            if row.end_offset is not None and row.end_offset > end:
                model.segments[base] = SegmentRow(Offset(base), row.created_at_ms)
        model.epochs = {epoch: start for epoch, start in model.epochs.items() if start < end}
        model.snapshots = {at: rows for at, rows in model.snapshots.items() if at <= end}
        model.fences = [fence for fence in model.fences if fence.offset < end]
        model.aborted = [row for row in model.aborted if row.last < end]
        model.epoch += 1
        model.epochs[model.epoch] = end
        self.disk.logs.write(
            [DropSuffix(log, Offset(end)), PutEpoch(log, EpochRow(model.epoch, Offset(end))), *self.appends(log, sizes)]
        )

    @rule(log=logs, data=st.data(), count=st.integers(1, 4), size=st.sampled_from([0, 0, 70, 500, 9000]))
    def compact(self, log: LogId, data: st.DataObject, count: int, size: int) -> None:
        """One batch gets others in its place, or a run of them becomes a gap."""
        model = self.models[log]
        if not model.rows:
            return
        first = data.draw(st.sampled_from(sorted(model.rows)))
        epoch = model.rows[first].leader_epoch
        run = [at for at in sorted(model.rows) if at >= first][: 1 if size else count]
        run = [at for at in run if model.rows[at].leader_epoch == epoch]
        end = model.rows[run[-1]].next_offset
        put = rewrite(log, first, end, size, min(1, size), epoch)
        for at in run:
            del model.rows[at], model.batches[at]
        model.rows = dict(sorted({**model.rows, first: put.row}.items()))
        model.batches = dict(sorted({**model.batches, first: put.batch}.items()))
        self.disk.logs.write([put, *(DropBatch(log, Offset(at)) for at in run[1:])])

    @rule(log=consumes(logs))
    def delete(self, log: LogId) -> None:
        self.run(self.disk.logs.lower_evidence([(log, Offset(0), -1)]))
        self.disk.logs.write([DropLog(log)])
        del self.models[log]

    @rule()
    def sync(self) -> None:
        self.run(self.disk.logs.sync())
        for log, model in self.models.items():
            model.synced = model.end
            if model.rows:
                self.disk.logs.note_synced(log, Offset(model.end), model.rows[max(model.rows)].leader_epoch)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        logs = self.run(self.disk.restart(3 if clean else None))
        assert logs.report.damaged == ()
        assert logs.report.cuts == ()
        assert logs.read_token() == (3 if clean else None)
        found = {one.log: one for one in logs.list_recovered()}
        assert found.keys() == self.models.keys()
        for log, model in self.models.items():
            one = found[log]
            assert (one.state.log_start, one.log_end) == (model.start, model.end)
            assert one.state.fences == tuple(model.fences)
            assert one.aborted == tuple(model.aborted)
            assert one.last_row == (model.rows[max(model.rows)] if model.rows else None)
            assert {row.base_offset: row for row in one.segments} == model.segments
            assert {row.epoch: row.start for row in one.epochs} == model.epochs
            newest = max(model.snapshots, default=None)
            assert one.producers_at == (model.start if newest is None else newest)
            assert one.producers == (() if newest is None else model.snapshots[newest])

    @rule()
    def reclaim(self) -> None:
        self.run(self.disk.logs.reclaim())

    @invariant()
    def everything_is_served_as_it_was_written(self) -> None:
        for log, model in self.models.items():
            rows = list(self.disk.logs.index(log, Offset(0), Offset(2**62)))
            assert rows == list(model.rows.values())
            assert self.run(self.disk.logs.read(log, rows)) == list(model.batches.values())
            if rows:
                middle = rows[len(rows) // 2]
                assert self.disk.logs.floor(log, Offset(middle.next_offset - 1)) == middle


class MemoryMachine(StoreMachine):
    def make_disk(self) -> Disk:
        return MemoryDisk()


class RocksMachine(StoreMachine):
    def make_disk(self) -> Disk:
        self.path = Path(tempfile.mkdtemp(prefix="store-model-"))
        return RocksDisk(self.path / "data")

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.path)


_quick = settings(max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestMemory = MemoryMachine.TestCase
TestMemory.settings = _quick
TestRocks = RocksMachine.TestCase
TestRocks.settings = _quick
