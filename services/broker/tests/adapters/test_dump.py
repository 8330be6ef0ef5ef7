"""The dump of a stopped broker's directory: what is there, nothing changed, and who may not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.rocksdb_dump import dump_logs
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.core.rows import EpochRow, IndexRow, PutBatch, PutEpoch, PutSegment, PutState, SegmentRow, StateRow
from headrace_common.core.batch import RecordColumns, build_batch, read_header
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
