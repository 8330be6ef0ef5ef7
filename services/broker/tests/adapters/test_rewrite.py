"""A store with a file that cannot be read is written anew: sound logs stay, damaged ones can begin anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from storage_batches import SMALL, Writer, partition
from storage_image import Image, make_image
from storage_processes import inspect

from headrace_broker.adapters import rocksdb_rewrite
from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.adapters.rocksdb_store import RocksDbStore
from headrace_broker.core.rows import DropSuffix, LogId, PutSegment, PutState, SegmentRow, StateRow
from headrace_broker.ports import BytesLost
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import Offset


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return make_image(tmp_path_factory.mktemp("rewrite"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def anew(log: LogId) -> list[DropSuffix | PutSegment | PutState]:
    """What a follower writes that begins its log anew."""
    zero = Offset(0)
    return [
        DropSuffix(log, zero),
        PutSegment(log, SegmentRow(zero, 0)),
        PutState(log, StateRow(partition(log), zero, zero)),
    ]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7])
async def test_damaged_logs_begin_anew_beside_sound_ones(whole: Image, tmp_path: Path, share: float) -> None:
    image = whole.copy(tmp_path / "data")
    path = next((image.path / "db").glob("*.sst"))
    flip(path, int(path.stat().st_size * share))
    directory = DataDirectory.open(image.path)
    logs = RocksDbLogs.open(directory, SMALL)
    damaged = {one.log for one in logs.list_recovered() if one.damage is not None}
    assert damaged
    assert (image.path / "db.damaged" / path.name).exists()
    await logs.lower_evidence([(log, Offset(0), -1) for log in damaged])
    for log in damaged:
        logs.write(anew(log))
        logs.write(Writer(log).append(5))
    await logs.sync()
    logs._store.compact(b"", b"\xff" * 16)  # every file is read
    await logs.close(7)
    directory.close()
    found = inspect(image.path)
    assert found.wrong == []
    assert not found.refused
    assert not found.damaged
    assert all(found.logs[log][1] >= end for log, end in image.synced.items() if log not in damaged)
    assert all(found.logs[log][1] == 50 for log in damaged)


async def test_a_store_that_failed_over_such_a_file_is_written_anew_at_the_next_start(
    whole: Image, tmp_path: Path
) -> None:
    image = whole.copy(tmp_path / "data")
    path = max((image.path / "db").glob("*.blob"), key=lambda one: one.stat().st_size)
    flip(path, path.stat().st_size // 2)
    directory = DataDirectory.open(image.path)
    logs = RocksDbLogs.open(directory, SMALL)
    assert not logs.report.damaged, "nothing of it was read yet"
    logs._store.fail(StorageFailed("compacting: stored bytes are not what was written (Corruption: a test says so)"))
    await logs.close(None)
    directory.close()
    found = inspect(image.path)
    assert len(found.damaged) == 1
    assert "not readable" in found.damaged[0][3]
    assert found.wrong == []
    assert not (image.path / rocksdb_rewrite.SUSPECT).exists()


@pytest.mark.parametrize("harm", ["flip", "cut", "gone"])
@pytest.mark.parametrize("room", [True, False])
async def test_a_batch_that_is_lost_is_found_when_it_is_read_and_its_log_begins_anew(
    whole: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str, room: bool
) -> None:
    image = whole.copy(tmp_path / "data")
    path = max((image.path / "db").glob("*.blob"), key=lambda one: one.stat().st_size)
    if harm == "flip":
        flip(path, path.stat().st_size // 2)
    elif harm == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.unlink()
    directory = DataDirectory.open(image.path)
    logs = RocksDbLogs.open(directory, SMALL)
    assert not logs.report.damaged, "nothing of it was read yet"
    lost = []
    for one in logs.list_recovered():
        try:
            await logs.read(one.log, list(logs.index(one.log, one.state.log_start, one.log_end)))
        except BytesLost:
            lost.append(one.log)
            logs.distrust(one.log)
    assert lost
    await logs.close(None)
    directory.close()
    monkeypatch.setattr(rocksdb_rewrite, "_has_room", lambda _: room)
    directory = DataDirectory.open(image.path)
    logs = RocksDbLogs.open(directory, SMALL)
    assert {one.log for one in logs.list_recovered() if one.damage is not None} == set(lost)
    await logs.lower_evidence([(log, Offset(0), -1) for log in lost])
    for log in lost:
        logs.write(anew(log))
        logs.write(Writer(log).append(5))
    await logs.sync()
    for one in logs.list_recovered():
        await logs.read(one.log, list(logs.index(one.log, one.state.log_start, one.log_end)))
    await logs.close(7)
    directory.close()
    found = inspect(image.path)
    assert (found.wrong, found.damaged) == ([], []), "once it began anew it is sound"
    assert all(found.logs[log][1] == 50 for log in lost)


async def test_a_store_that_cannot_be_closed_after_a_compaction_failed_is_replaced(
    whole: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = RocksDbStore.close

    def refused(store: RocksDbStore) -> None:
        close(store)
        if store.path.name == "db":
            raise BytesLost("closing: stored bytes are not what was written (Corruption: a compaction met them)")

    image = whole.copy(tmp_path / "data")
    directory = DataDirectory.open(image.path)
    rocksdb_rewrite.suspect(directory, LogId(1))
    with monkeypatch.context() as patch:
        patch.setattr(RocksDbStore, "close", refused)
        logs = RocksDbLogs.open(directory, SMALL)
    assert [one.log for one in logs.list_recovered() if one.damage is not None] == [1]
    await logs.close(None)
    directory.close()
    assert inspect(image.path).wrong == []


@pytest.mark.parametrize("renamed", [False, True])
def test_a_rewrite_that_a_crash_interrupts_is_undone_or_finished(whole: Image, tmp_path: Path, renamed: bool) -> None:
    image = whole.copy(tmp_path / "data")
    database, fresh = image.path / "db", image.path / "db.rewritten"
    if renamed:
        os.rename(database, fresh)
    else:
        fresh.mkdir()
    image.assert_synced_is_there(inspect(image.path))
    assert not fresh.exists()
