"""
A log with a history of all that can be in one, a disk of dictionaries, the cleaner as the engine will drive it, and a
naive model of compaction: plain lists, one record at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from services.broker.tests.kit.batches import NOW_MS

from headrace_broker.core.compaction.cleaning import Cleaning
from headrace_broker.core.compaction.dirty_keys import DirtyKeys
from headrace_broker.core.compaction.offset_map import OffsetMap
from headrace_broker.core.compaction.plan import dirty_range
from headrace_broker.core.compaction.rules import Rules, rules_of
from headrace_broker.core.compaction.steps import DropAborted, DropBatch, PutIndex, Step
from headrace_broker.core.controls import read_control_batch
from headrace_broker.core.epochs import Epochs
from headrace_broker.core.fences import fences_of
from headrace_broker.core.local_log import LocalLog
from headrace_broker.core.producers import Producers
from headrace_broker.core.rows import (
    AbortedRow,
    CleanPoint,
    IndexRow,
    LogId,
    LogWrite,
    PutAborted,
    PutBatch,
    PutSegment,
    SegmentRow,
)
from headrace_broker.core.segments import Segments
from headrace_common.core.batch import (
    Codec,
    RecordColumns,
    build_batch,
    build_fence_batch,
    build_marker_batch,
    build_row_batch,
    check_crc,
    decode_batch,
    read_header,
    stamp,
)
from headrace_common.core.configs import TopicConfig
from headrace_common.core.ids import Offset, PartitionId, TopicId

ID = PartitionId(TopicId(b"t" * 16), 0)
LOG = LogId(1)
DAY_MS = 86_400_000
SEED = 0x0123456789ABCDEF_FEDCBA9876543210
KeyValue = tuple[bytes | None, bytes | None]


@dataclass(frozen=True)
class Written:
    """One record as it was appended."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    producer: int = -1
    transactional: bool = False


@dataclass
class Disk:
    """What is stored of one log."""

    batches: dict[int, bytes] = field(default_factory=dict)
    index: dict[int, IndexRow] = field(default_factory=dict)
    segments: dict[Offset, SegmentRow] = field(default_factory=dict)
    aborted: dict[int, AbortedRow] = field(default_factory=dict)

    def copy(self) -> Disk:
        return Disk(dict(self.batches), dict(self.index), dict(self.segments), dict(self.aborted))

    def write(self, writes: list[LogWrite]) -> None:
        for write in writes:
            match write:
                case PutBatch(_, row, batch):
                    self.batches[row.base_offset], self.index[row.base_offset] = batch, row
                case PutSegment(_, row):
                    self.segments[row.base_offset] = row
                case PutAborted(_, row):
                    self.aborted[row.last] = row
                case _:
                    pass

    def apply(self, step: Step) -> None:
        for write in step.writes:
            match write:
                case PutBatch(_, row, batch):
                    self.batches[row.base_offset], self.index[row.base_offset] = batch, row
                case PutIndex(_, row):
                    assert row.base_offset in self.index
                    self.index[row.base_offset] = row
                case DropBatch(_, base):
                    del self.batches[base], self.index[base]
                case DropAborted(_, marker):
                    self.aborted.pop(marker, None)  # there is none where it had no records here
        self.segments.update(step.segments)

    def rows(self, start: int, end: int) -> list[IndexRow]:
        return [self.index[base] for base in sorted(self.index) if start <= base < end]

    def floor(self, offset: Offset) -> IndexRow | None:
        return max((row for row in self.index.values() if row.base_offset <= offset), default=None, key=_base)

    def records(self) -> list[Written]:
        found: list[Written] = []
        for row in self.rows(0, 2**60):
            batch = decode_batch(self.batches[row.base_offset])
            if batch.is_control:
                continue
            header = batch.header
            columns = batch.offsets(), batch.keys(), batch.values(), batch.timestamps()
            found += [Written(*each, header.producer_id, header.transactional) for each in zip(*columns, strict=True)]
        return found

    def check(self) -> None:
        """That it is a sound log: dense, rows and batches agree, segments have the bytes of their batches."""
        expected, sizes = 0, dict.fromkeys(self.segments, 0)
        assert self.batches.keys() == self.index.keys()
        for row in self.rows(0, 2**60):
            batch = self.batches[row.base_offset]
            header = read_header(batch)
            check_crc(batch, header)
            assert row.base_offset == header.base_offset == expected
            assert (row.size, row.record_count) == (len(batch), header.record_count)
            assert row.attributes & 0x3FFF == header.attributes
            assert (row.last_offset_delta, row.leader_epoch) == (header.last_offset_delta, header.leader_epoch)
            producer = header.producer_id, header.producer_epoch, header.base_sequence
            assert (row.producer_id, row.producer_epoch, row.base_sequence) == producer
            sizes[row.segment_base] += row.size
            expected = row.next_offset
        for base, segment in self.segments.items():
            if segment.sealed_at_ms is not None:
                assert segment.size == sizes[base]


def _base(row: IndexRow) -> int:
    return row.base_offset


class World:
    """One log with everything that happened to it."""

    def __init__(self, segment_bytes: int = 1200) -> None:
        config = replace(TopicConfig.effective({}, {}), segment_bytes=segment_bytes)
        zero = Offset(0)
        segments = Segments.fresh(zero, NOW_MS)
        self.log = LocalLog(
            ID, LOG, config, segments, zero, zero, zero, zero, Epochs(), Producers(), fences=fences_of(-1)
        )
        self.disk = Disk()
        self.now_ms = NOW_MS
        self.epoch = 1
        self.written: list[Written] = []
        self.decided: dict[int, bool] = {}
        """By offset of a record of a transaction that ended: whether it was committed."""
        self._undecided: dict[int, list[int]] = {}
        self.log.begin_epoch(1)

    @property
    def points(self) -> tuple[CleanPoint, ...]:
        return self.log.clean_points

    def append(
        self,
        records: list[KeyValue],
        *,
        producer: int = -1,
        transactional: bool = False,
        codec: Codec = Codec.NONE,
        rows: bool = False,
    ) -> None:
        epoch, sequence = self._next_of(producer)
        base = self.log.log_end
        batch = (build_row_batch if rows else build_batch)(
            RecordColumns([v for _, v in records], [k for k, _ in records], timestamps_ms=self.now_ms),
            codec=codec,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        self._take(batch)
        offsets = range(base, base + len(records))
        if transactional:
            self._undecided.setdefault(producer, []).extend(offsets)
        self.written += [
            Written(offset, key, value, self.now_ms, producer, transactional)
            for offset, (key, value) in zip(offsets, records, strict=True)
        ]

    def end(self, producer: int, commit: bool) -> None:
        epoch, _ = self._next_of(producer)
        batch = build_marker_batch(producer, epoch + 1, commit=commit, timestamp_ms=self.now_ms)
        self._take(batch, commit)
        self.decided.update(dict.fromkeys(self._undecided.pop(producer, ()), commit))

    def fence(self) -> None:
        base, token = self.log.log_end, self.log.fences.token + 2
        self._take(build_fence_batch(max(1, token), timestamp_ms=self.now_ms))
        self.disk.write([*self.log.fence(base, max(1, token))])

    def begin_epoch(self) -> None:
        self.epoch += 1
        self.log.begin_epoch(self.epoch)

    def roll(self) -> None:
        if self.log.segments.active.size:
            self.disk.write(self.log.roll(self.now_ms))

    def commit_all(self) -> None:
        self.log.written_end = self.log.high_watermark = self.log.log_end
        self.log.settle()

    def _next_of(self, producer: int) -> tuple[int, int]:
        known = {row.producer_id: row for row in self.log.producers.snapshot()}.get(producer)
        if producer < 0:
            return -1, -1
        if known is None:
            return 0, 0
        return known.epoch, (known.batches[-1].last_sequence + 1) % 2**31 if known.batches else 0

    def _take(self, batch: bytes, commit: bool | None = None) -> None:
        stamped = stamp(batch, self.log.log_end, self.epoch)
        header = read_header(stamped)
        self.disk.write(self.log.append(header, stamped, self.log.log_end, self.epoch, self.now_ms, commit))

    # --- compaction, as the engine drives it --------------------------------------------------------------

    def rules(self, end: Offset, retention_ms: int) -> Rules:
        return rules_of(self.log, end, self.points, retention_ms, self.now_ms)

    def steps(self, *, map_bytes: int = 1 << 20, lag_ms: int = 0, retention_ms: int = DAY_MS) -> list[Step]:
        """All that one compaction would write, with nothing applied. No step: nothing is dirty."""
        dirty = dirty_range(self.log, self.disk.floor, lag_ms, self.now_ms)
        if dirty.end <= dirty.start:
            return []
        rules = self.rules(dirty.end, retention_ms)
        keys = DirtyKeys(dirty.start, OffsetMap(map_bytes, SEED), rules, "t-0")
        for row in self.disk.rows(dirty.start, dirty.end):
            if not keys.take(row, self.disk.batches[row.base_offset] if keys.wants(row) else None):
                break
        keys.map.complete()
        return self.passes(rules, keys.map, dirty.start, keys.end)

    def passes(self, rules: Rules, map: OffsetMap, start: Offset, end: Offset) -> list[Step]:
        cleaning = Cleaning(LOG, "t-0", rules, map, start, self.disk.segments.values())
        steps: list[Step] = []
        for row in self.disk.rows(0, end):
            step = cleaning.take(row, self.disk.batches[row.base_offset] if cleaning.wants(row) else None)
            if step is not None:
                steps.append(step)
        return [*steps, cleaning.finish(self.points)]

    def apply(self, step: Step) -> None:
        assert step.applies(self.log.first_batch)
        self.disk.apply(step)
        written = self.log.compact(step)
        assert written[: len(step.writes)] == step.writes
        assert {row.base_offset: row for row in self.log.segments.sealed} | self.disk.segments == self.disk.segments
        assert self.log.aborted.rows() == [self.disk.aborted[at] for at in sorted(self.disk.aborted)]

    def copied(self) -> World:
        """A follower that began anew and copied the log as it is on this disk."""
        copy = World(self.log.config.segment_bytes)
        for row in self.disk.rows(0, 2**60):
            batch = self.disk.batches[row.base_offset]
            header = read_header(batch)
            said = read_control_batch(header, batch)
            header = header._replace(record_count=header.last_offset_delta + 1)  # sequences go by offsets
            copy.disk.write(
                copy.log.append(header, batch, copy.log.log_end, row.leader_epoch, self.now_ms, said.commit)
            )
            if said.token is not None:
                copy.log.fence(row.base_offset, said.token)
        copy.commit_all()
        return copy

    # --- what readers see ---------------------------------------------------------------------------------

    def committed(self) -> list[Written]:
        """All that was ever appended and is not aborted or undecided."""
        return [each for each in self.written if not each.transactional or self.decided.get(each.offset, False)]

    def seen(self, disk: Disk) -> list[Written]:
        """What a reader of committed records sees: hidden by the aborted rows, and above the last stable offset."""
        aborted = list(disk.aborted.values())

        def hidden(each: Written) -> bool:
            return each.transactional and any(
                row.producer_id == each.producer and row.first <= each.offset <= row.last for row in aborted
            )

        return [each for each in disk.records() if each.offset < self.log.last_stable and not hidden(each)]


def final(records: list[Written], start: int) -> dict[bytes, bytes]:
    """What a table made from ``start`` on has in the end."""
    table: dict[bytes, bytes] = {}
    for each in records:
        if each.offset >= start and each.key is not None:
            if each.value is None:
                table.pop(each.key, None)
            else:
                table[each.key] = each.value
    return table


@dataclass
class Model:
    """Compaction of a list of records, told in Kafka's words."""

    records: list[Written]
    clean: int = 0

    def compact(self, world: World, end: int, tombstones_below: int) -> None:
        newest: dict[bytes, int] = {}
        for each in self.records:
            if self.clean <= each.offset < end and each.key is not None and self._committed(world, each):
                newest[each.key] = each.offset
        self.records = [
            each
            for each in self.records
            if each.offset >= end
            or (
                self._committed(world, each)
                and each.key is not None
                and newest.get(each.key, -1) <= each.offset
                and (each.value is not None or each.offset >= tombstones_below)
            )
        ]
        self.clean = end

    @staticmethod
    def _committed(world: World, each: Written) -> bool:
        return not each.transactional or world.decided.get(each.offset, False)
