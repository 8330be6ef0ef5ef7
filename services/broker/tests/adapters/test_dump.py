"""The dump of a stopped broker's directory: what is there, nothing changed, and who may not."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from storage_batches import Writer, make_row, rewrite

from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.rocksdb_dump import dump_logs
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.core.compaction.rules import HORIZON_BIT
from headrace_broker.core.rows import (
    CleanPoint,
    DropBatch,
    EpochRow,
    IndexRow,
    PutBatch,
    PutEpoch,
    PutSegment,
    PutState,
    SegmentRow,
    StateRow,
)
from headrace_common.core.batch import RecordColumns, build_batch, build_marker_batch, read_header, stamp
from headrace_common.core.batch.header import replace_header
from headrace_common.core.errors import Conflict, NotFound
from headrace_common.core.ids import Offset, PartitionId, TopicId

PARTITION = PartitionId(TopicId(b"t" * 16), 3)


def digest(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


async def write_two_batches(path: Path) -> None:
    directory = DataDirectory.open(path)
    logs = RocksDbLogs.open(directory)
    log = logs.new_log_id()
    logs.write([PutState(log, StateRow(PARTITION, Offset(0), Offset(0))), PutSegment(log, SegmentRow(Offset(0), 1))])
    logs.write([PutEpoch(log, EpochRow(7, Offset(0)))])
    for base in (0, 2):
        batch = build_batch(RecordColumns([b"a", b"b"], timestamps_ms=5), base_offset=base, leader_epoch=7)
        header = read_header(batch)
        row = IndexRow(Offset(base), 1, len(batch), 2, header.attributes, 7, -1, -1, -1, Offset(0), 0, 5, 5)
        logs.write([PutBatch(log, row, batch)])
    await logs.sync()
    await logs.close(None)
    directory.close()


async def test_a_stopped_brokers_logs_are_told_and_nothing_changes(tmp_path: Path) -> None:
    await write_two_batches(tmp_path)
    before = digest(tmp_path)
    (found,) = dump_logs(tmp_path, batches=1)
    assert digest(tmp_path) == before
    assert (found["topic_id"], found["partition"]) == (PARTITION.topic_id.hex(), 3)
    assert (found["log_start_offset"], found["log_end_offset"]) == (0, 4)
    assert found["epochs"] == [{"epoch": 7, "start": 0}]
    assert [(b["base_offset"], b["last_offset"], b["records"]) for b in found["batches"]] == [(2, 3, 2)]
    (everything,) = dump_logs(tmp_path, batches=10)
    assert [b["base_offset"] for b in everything["batches"]] == [0, 2]


async def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    await write_two_batches(tmp_path)
    directory = DataDirectory.open(tmp_path)
    try:
        with pytest.raises(Conflict, match="running"):
            list(dump_logs(tmp_path))
    finally:
        directory.close()


def test_another_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no data directory"):
        list(dump_logs(tmp_path))


async def test_a_compacted_log_is_told_with_its_gaps_and_what_is_kept_for_a_while(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path)
    logs = RocksDbLogs.open(directory)
    writer = Writer(logs.new_log_id(), size=400)
    logs.write([*writer.create(), *writer.append(6)])
    marker = kept_marker(writer.end, kept_until_ms=1_234)
    header = read_header(marker)
    row = replace(make_row(writer.end, marker, 1), attributes=header.attributes, segment_base=Offset(40))
    sealed = SegmentRow(Offset(0), 1000, 2000, Offset(40), 777, 5, 9)
    state = StateRow(PARTITION, Offset(0), Offset(60), (), Offset(40), (CleanPoint(Offset(40), 99),), Offset(20))
    logs.write(
        [
            rewrite(writer.log, 0, 30),
            DropBatch(writer.log, Offset(10)),
            DropBatch(writer.log, Offset(20)),
            rewrite(writer.log, 30, 40, 300, 4),
            PutSegment(writer.log, sealed),
            PutSegment(writer.log, SegmentRow(Offset(40), 2000)),
            PutBatch(writer.log, row, marker),
            PutState(writer.log, state),
        ]
    )
    await logs.close(None)
    directory.close()
    (found,) = dump_logs(tmp_path, batches=10)
    assert found["compacted"] == {
        "to_offset": 40,
        "forgotten_to_offset": 20,
        "points": [{"end_offset": 40, "at_ms": 99}],
    }
    assert found["segments"] == [
        segment(0, 40, 777, 1000, 2000, 5, 9),
        segment(40, 61, row.segment_bytes, 2000, None, row.segment_min_timestamp, row.segment_max_timestamp),
    ]
    told = [(b["base_offset"], b["offsets"], b["records"], b.get("compacted")) for b in found["batches"]]
    assert told == [(0, 30, 0, "gap"), (30, 10, 4, "sparse"), (40, 10, 10, None), (50, 10, 10, None), (60, 1, 1, None)]
    assert [(b.get("marker"), b.get("kept_until_ms")) for b in found["batches"]][-2:] == [
        (None, None),
        ("commit", 1_234),
    ]


async def test_an_active_segment_without_batches_is_empty(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path)
    logs = RocksDbLogs.open(directory)
    writer = Writer(logs.new_log_id())
    logs.write([*writer.create(), *writer.append(1), PutSegment(writer.log, SegmentRow(Offset(10), 2000))])
    await logs.close(None)
    directory.close()
    (found,) = dump_logs(tmp_path)
    assert found["segments"][-1] == segment(10, 10, 0, 2000, None, -1, -1)
    assert "compacted" not in found


def segment(base: int, end: int, size: int, created: int, sealed: int | None, low: int, high: int) -> dict[str, object]:
    return {
        "base_offset": base,
        "end_offset": end,
        "size_bytes": size,
        "created_at_ms": created,
        "sealed_at_ms": sealed,
        "min_timestamp": low,
        "max_timestamp": high,
    }


def kept_marker(base: int, *, kept_until_ms: int) -> bytes:
    """A marker of which compaction has noted until when it stays."""
    batch = stamp(build_marker_batch(7, 2, commit=True, timestamp_ms=5), Offset(base), 1)
    header = read_header(batch)
    fields = header._replace(attributes=header.attributes | HORIZON_BIT, base_timestamp=kept_until_ms)
    return replace_header(batch, fields)
