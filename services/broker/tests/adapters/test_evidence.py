"""The evidence file: what it says, when it rises, and that it falls before rows do."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_batches import Writer, partition

from headrace_broker.adapters import evidence_file
from headrace_broker.adapters.evidence_file import Evidence, EvidenceUnreadable
from headrace_broker.adapters.evidence_keeper import EvidenceKeeper
from headrace_broker.core.rows import DropLog, DropSuffix, EpochRow, LogId, PutEpoch
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import Offset, PartitionId, TopicId

from .conftest import RocksDisk

offsets = st.integers(0, 2**63 - 1)
entries = st.builds(
    Evidence,
    st.builds(PartitionId, st.binary(min_size=16, max_size=16).map(TopicId), st.integers(0, 2**31 - 1)),
    offsets,
    st.integers(-1, 2**31 - 1),
    offsets,
)


class Wals:
    """WAL numbers under a test's hand."""

    oldest, newest = 1, 1

    def oldest_wal(self) -> int:
        return self.oldest

    def newest_wal(self) -> int:
        return self.newest


LOG = LogId(1)


@pytest.fixture
def wals() -> Wals:
    return Wals()


@pytest.fixture
def keeper(tmp_path: Path, wals: Wals) -> EvidenceKeeper:
    made = EvidenceKeeper(tmp_path / "evidence", wals, {})
    made.note_created(LOG, partition(1))
    return made


def on_disk(keeper: EvidenceKeeper) -> tuple[int, int, int]:
    loaded = evidence_file.load(keeper._path)
    assert loaded is not None
    entry = loaded[0][LOG]
    return entry.end, entry.epoch, entry.verified


@given(st.dictionaries(st.integers(1, 2**32 - 1).map(LogId), entries, max_size=20), st.booleans())
def test_what_is_stored_is_loaded(whole: dict[LogId, Evidence], clean: bool) -> None:
    assert evidence_file.decode(evidence_file.encode(whole, clean)) == (whole, clean)


@given(st.data())
@settings(max_examples=150)
def test_a_changed_or_missing_byte_is_found(data: st.DataObject) -> None:
    whole = bytearray(evidence_file.encode({LOG: Evidence(partition(1), Offset(5), 1, Offset(2))}, False))
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[at] ^= data.draw(st.integers(1, 255))
    else:
        del whole[at:]
    with pytest.raises(EvidenceUnreadable):
        evidence_file.decode(bytes(whole))


def test_it_rises_with_a_sync_and_never_falls_by_one(keeper: EvidenceKeeper) -> None:
    keeper.note_synced(LOG, Offset(100), 3)
    keeper.note_synced(LOG, Offset(50), 2)
    keeper.tick()
    assert on_disk(keeper) == (100, 3, 0)


def test_it_is_written_only_when_it_changed(keeper: EvidenceKeeper, tmp_path: Path) -> None:
    keeper.tick()
    first = (tmp_path / "evidence").stat().st_ino
    keeper.note_synced(LOG, Offset(0), -1)
    keeper.tick()
    assert (tmp_path / "evidence").stat().st_ino == first


def test_without_syncs_it_rises_when_the_memtable_was_flushed(keeper: EvidenceKeeper, wals: Wals) -> None:
    wals.newest = 7
    keeper.note_written([(LOG, Offset(100), 3)])
    keeper.tick()
    keeper.note_written([(LOG, Offset(200), 3)])
    wals.oldest = 7
    keeper.tick()
    assert on_disk(keeper) == (0, -1, 0), "WAL 7 is still needed"
    wals.oldest, wals.newest = 8, 8
    keeper.tick()
    assert on_disk(keeper) == (100, 3, 100)
    wals.oldest = 9
    keeper.tick()
    assert on_disk(keeper) == (200, 3, 200)


def test_lowering_is_durable_at_once_and_forgets_what_was_on_its_way(keeper: EvidenceKeeper, wals: Wals) -> None:
    keeper.note_synced(LOG, Offset(100), 3)
    keeper.note_written([(LOG, Offset(200), 3)])
    keeper.tick()
    keeper.note_written([(LOG, Offset(300), 3)])
    keeper.lower([(LOG, Offset(60), 2)])
    assert on_disk(keeper) == (60, 2, 0)
    wals.oldest = 99
    keeper.tick()
    assert on_disk(keeper) == (60, 2, 0)
    keeper.lower([(LOG, Offset(0), -1)])
    assert on_disk(keeper) == (0, -1, 0)
    keeper.note_dropped(LOG, None)
    keeper.tick()
    assert evidence_file.load(keeper._path) == ({}, False)


def test_lowering_also_lowers_what_is_verified(keeper: EvidenceKeeper) -> None:
    keeper.note_flushed([(LOG, Offset(100), 3)])
    keeper.lower([(LOG, Offset(60), 2)])
    assert on_disk(keeper) == (60, 2, 60)


def test_lowering_to_more_than_is_known_changes_nothing(keeper: EvidenceKeeper) -> None:
    keeper.note_synced(LOG, Offset(100), 3)
    keeper.lower([(LOG, Offset(500), 9)])
    assert on_disk(keeper) == (100, 3, 0)


def test_a_disk_that_refuses_to_lower_is_a_failure(keeper: EvidenceKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(evidence_file, "write_durably", refuse)
    with pytest.raises(StorageFailed, match=r"evidence file .* cannot be written"):
        keeper.lower([(LOG, Offset(0), -1)])


async def test_without_syncs_a_real_flush_raises_it(rocks: RocksDisk) -> None:
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(10)])
    keeper = rocks.logs._keeper
    keeper.stop()
    keeper.tick()
    rocks.logs.write(writer.append(1))
    keeper.tick()
    assert keeper.end_of(writer.log) == 0
    rocks.logs._store.flush()
    keeper.tick()
    assert keeper.end_of(writer.log) == 100
    keeper.tick()
    rocks.logs._store.flush()
    rocks.logs.write(writer.append(1))
    rocks.logs._store.flush()
    keeper.tick()
    assert keeper.end_of(writer.log) == 110
    assert evidence_file.load(rocks.directory.evidence) == (
        {writer.log: Evidence(partition(1), Offset(110), 1, Offset(110))},
        False,
    )


async def test_damage_ends_when_the_loss_is_accepted(rocks: RocksDisk) -> None:
    """Lowering to what is there, then writing: the rows behind the hole go, the log is sound."""
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(10)])
    await rocks.logs.sync()
    rocks.logs.note_synced(writer.log, Offset(100), 1)
    rocks.logs._store._db.delete(b"\x00\x00\x00\x01\x06" + (50).to_bytes(8, "big"))
    await rocks.restart()
    (found,) = rocks.logs.list_recovered()
    assert found.damage is not None
    assert (found.log_end, found.damage.evident_end) == (50, 100)
    assert "offsets 50 to 59 are missing before 60" in found.damage.reason
    assert rocks.logs.floor(writer.log, Offset(99)) == writer.rows[-1], "what is behind the hole is kept"
    await rocks.logs.lower_evidence([(writer.log, Offset(50), 1)])
    again = Writer(writer.log, end=50, epoch=2)
    rocks.logs.write([PutEpoch(writer.log, EpochRow(2, Offset(50))), *again.append(1)])
    await rocks.restart()
    (found,) = rocks.logs.list_recovered()
    assert (found.damage, found.log_end, found.last_row) == (None, 60, again.rows[0])
    assert found.epochs == (EpochRow(1, Offset(0)), EpochRow(2, Offset(50)))


async def test_a_hole_that_nobody_was_promised_is_cut(rocks: RocksDisk) -> None:
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(10)])
    rocks.logs._store._db.delete(b"\x00\x00\x00\x01\x06" + (50).to_bytes(8, "big"))
    await rocks.restart()
    (found,) = rocks.logs.list_recovered()
    # Closing flushed the memtable; that the ends are in table files was not noted yet.
    assert (found.damage, found.log_end) == (None, 50)
    assert rocks.logs.floor(writer.log, Offset(99)) == writer.rows[4]
    assert "offsets 50 to 59 are missing before 60" in rocks.logs.report.cuts[0]


async def test_a_log_rewritten_under_a_later_epoch_is_not_damaged(rocks: RocksDisk) -> None:
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(10)])
    await rocks.logs.sync()
    await rocks.logs.lower_evidence([(writer.log, Offset(30), 1)])
    again = Writer(writer.log, end=30, epoch=2)
    rocks.logs.write([DropSuffix(writer.log, Offset(30)), *again.append(2)])
    rocks.logs._keeper.note_synced(writer.log, Offset(100), 1)
    await rocks.restart()
    (found,) = rocks.logs.list_recovered()
    assert (found.damage, found.log_end) == (None, 50)


async def test_deleted_logs_leave_no_evidence(rocks: RocksDisk) -> None:
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(10)])
    await rocks.logs.sync()
    rocks.logs.note_synced(writer.log, Offset(100), 1)
    await rocks.logs.lower_evidence([(writer.log, Offset(0), -1)])
    rocks.logs.write([DropLog(writer.log)])
    await rocks.restart()
    assert rocks.logs.list_recovered() == []
    assert rocks.logs.report.damaged == ()


async def test_a_clean_shutdown_verifies_everything(rocks: RocksDisk) -> None:
    writer = Writer(rocks.logs.new_log_id())
    rocks.logs.write([*writer.create(), *writer.append(10)])
    await rocks.logs.close(5)
    loaded = evidence_file.load(rocks.directory.evidence)
    assert loaded == ({writer.log: Evidence(partition(1), Offset(100), 1, Offset(100))}, True)
    rocks.directory.close()
    rocks.open()
    assert rocks.logs.report.bytes_checked == 0
    await rocks.restart()
    assert rocks.logs.report.bytes_checked == 0, "nothing was written since it was verified"
