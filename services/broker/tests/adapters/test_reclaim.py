"""Deleted data leaves the disk when it is asked for; what lives stays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from compacted_log import CompactedLog, faults, put
from storage_batches import Writer, partition

from headrace_broker.adapters import rocksdb_reclaim
from headrace_broker.core.rows import DropLog, DropPrefix, DropSuffix, LogWrite, PutState, StateRow
from headrace_broker.ports import WriteStalled
from headrace_common.core.ids import Offset

from .conftest import RocksDisk


def on_disk(path: Path, *suffixes: str) -> int:
    total = 0
    for one in (path / "db").iterdir():
        if one.suffix in suffixes:
            with suppress(FileNotFoundError):  # RocksDB deletes what is dead whenever it likes
                total += one.stat().st_size
    return total


async def used(disk: RocksDisk) -> int:
    """Bytes on the disk, once RocksDB has deleted the blob files that it does not need: it does that silently."""
    async with asyncio.timeout(20):
        while on_disk(disk.path, ".blob") > disk.logs._store.blob_bytes()[0]:
            await asyncio.sleep(0.01)
    return on_disk(disk.path, ".blob", ".sst")


def write(disk: RocksDisk, writes: Sequence[LogWrite]) -> None:
    """On a busy machine what waits is flushed first."""
    try:
        disk.logs.write(writes)
    except WriteStalled:
        disk.logs._store.flush()
        disk.logs.write(writes)


async def filled(disk: RocksDisk, logs: int, batches: int, *, flush_every: int = 200) -> list[Writer]:
    writers = [Writer(disk.logs.new_log_id(), size=32_000) for _ in range(logs)]
    write(disk, [one for writer in writers for one in writer.create()])
    for number in range(1, batches + 1):
        for writer in writers:
            write(disk, writer.append(1))
        if number % flush_every == 0:
            disk.logs._store.flush()
    disk.logs._store.flush()
    return writers


async def test_retention_gives_space_back(rocks: RocksDisk) -> None:
    writers = await filled(rocks, 3, 100)
    before = await used(rocks)
    for writer in writers:
        start = Offset(writer.end // 2)
        state = StateRow(partition(writer.log), start, start)
        write(rocks, [PutState(writer.log, state), DropPrefix(writer.log, start)])
    await rocks.logs.reclaim()
    await rocks.logs.wait_until_reclaimed()
    assert await used(rocks) < before * 0.65
    for writer in writers:
        rows = list(rocks.logs.index(writer.log, Offset(0), Offset(9999)))
        assert rows == writer.rows[50:]
        assert await rocks.logs.read(writer.log, rows) == list(writer.batches.values())[50:]


async def test_what_is_only_in_the_write_ahead_log_goes_too(rocks: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocksdb_reclaim, "DEAD_BYTES_MIN", 1 << 16)
    writer = Writer(rocks.logs.new_log_id(), size=8_000)
    write(rocks, [*writer.create(), *writer.append(80)])
    start = Offset(700)
    write(rocks, [PutState(writer.log, StateRow(partition(1), start, start)), DropPrefix(writer.log, start)])
    assert on_disk(rocks.path, ".log") > 600_000
    await rocks.logs.reclaim()
    await rocks.logs.wait_until_reclaimed()
    await used(rocks)
    assert on_disk(rocks.path, ".log", ".blob", ".sst") < 1.5 * 10 * 8_000
    assert await rocks.logs.read(writer.log, writer.rows[70:]) == list(writer.batches.values())[70:]


async def test_deleted_logs_give_space_back(rocks: RocksDisk) -> None:
    writers = await filled(rocks, 4, 60)
    before = await used(rocks)
    gone = [writers[0].log, writers[1].log, writers[3].log]
    await rocks.logs.lower_evidence([(log, Offset(0), -1) for log in gone])
    write(rocks, [DropLog(log) for log in gone])
    await rocks.logs.reclaim()
    await rocks.logs.wait_until_reclaimed()
    assert await used(rocks) < before * 0.9, "live blobs lie between dead ones: the rest goes as files age"
    assert await rocks.logs.read(writers[2].log, writers[2].rows) == list(writers[2].batches.values())
    await rocks.logs.lower_evidence([(writers[2].log, Offset(0), -1)])
    write(rocks, [DropLog(writers[2].log)])
    await rocks.logs.reclaim()
    await rocks.logs.wait_until_reclaimed()
    assert await used(rocks) < 10_000


async def test_what_short_lived_logs_leave_between_long_lived_ones_goes_too(
    rocks: RocksDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_reclaim, "DEAD_BYTES_MIN", 1 << 20)
    kept, short = await filled(rocks, 2, 200, flush_every=10)
    for row in short.rows[20::20]:
        state = StateRow(partition(short.log), row.base_offset, row.base_offset)
        write(rocks, [PutState(short.log, state), DropPrefix(short.log, row.base_offset)])
        await rocks.logs.reclaim()
        await rocks.logs.wait_until_reclaimed()
    size, dead = rocks.logs._store.blob_bytes()
    assert dead < 0.45 * size, "half of all was written for the log that went"
    assert await used(rocks) < 1.8 * sum(map(len, kept.batches.values()))
    assert await rocks.logs.read(kept.log, kept.rows) == list(kept.batches.values())


async def test_reclaim_without_drops_does_nothing_and_closing_waits_for_one(rocks: RocksDisk) -> None:
    await rocks.logs.reclaim()
    await rocks.logs.wait_until_reclaimed()
    (writer,) = await filled(rocks, 1, 50)
    write(
        rocks,
        [PutState(writer.log, StateRow(partition(1), Offset(200), Offset(0))), DropPrefix(writer.log, Offset(200))],
    )
    await rocks.logs.reclaim()
    await rocks.logs.reclaim()
    await rocks.restart()
    assert rocks.logs.list_recovered()[0].log_end == writer.end


async def test_logs_that_share_a_table_are_compacted_together(
    rocks: RocksDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = await filled(rocks, 40, 20)
    before = await used(rocks)
    store = rocks.logs._store
    compact, compacted = store.compact, []
    monkeypatch.setattr(store, "compact", lambda low, high: (compacted.append(low), compact(low, high)))
    for writer in writers[::2]:
        start = writer.rows[10].base_offset
        state = StateRow(partition(writer.log), start, start)
        write(rocks, [PutState(writer.log, state), DropPrefix(writer.log, start)])
    await rocks.logs.reclaim()
    await rocks.logs.wait_until_reclaimed()
    assert len(compacted) <= 4, "the first makes the table that all share"
    assert await used(rocks) < 0.85 * before, "a quarter was dropped"
    for writer in writers[1::2]:
        assert await rocks.logs.read(writer.log, writer.rows) == list(writer.batches.values())


async def test_a_cut_that_drops_nothing_costs_nothing(rocks: RocksDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower cuts each log to where its new leader's ends: mostly that is its own end."""
    (writer,) = await filled(rocks, 1, 50)
    compacted: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(rocks.logs._store, "compact", lambda low, high: compacted.append((low, high)))
    for restarted in (False, True):
        if restarted:
            await rocks.restart()
            monkeypatch.setattr(rocks.logs._store, "compact", lambda low, high: compacted.append((low, high)))
        await rocks.logs.lower_evidence([(writer.log, writer.end, 0)])
        write(rocks, [DropSuffix(writer.log, writer.end)])
        await rocks.logs.reclaim()
        await rocks.logs.wait_until_reclaimed()
        assert compacted == []
    await rocks.logs.lower_evidence([(writer.log, writer.rows[-1].base_offset, 0)])
    write(rocks, [DropSuffix(writer.log, writer.rows[-1].base_offset)])
    await rocks.logs.reclaim()
    await rocks.logs.wait_until_reclaimed()
    assert compacted, "what was dropped goes"


async def compacted(rocks: RocksDisk, records: int, batch: int) -> CompactedLog:
    """Updates of few keys, compacted each time that half of it is dirty, and all of it in the end."""
    log = CompactedLog(rocks.logs, rocks.logs.new_log_id(), keys=2000, segment_bytes=200_000, tombstones=False)
    write(rocks, log.create())
    while log.end < records:
        writes = log.append(batch)
        await put(rocks.logs, writes)
        if len(writes) > 1 and log.end - log.cleaned_to > 5_000:
            await log.clean()
    await put(rocks.logs, log.roll())
    await log.clean()
    return log


@pytest.mark.parametrize("batch", [10, 200])
async def test_what_compaction_leaves_behind_goes(
    rocks: RocksDisk, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Many times what lives was written, in batches that are kept in tables, and in some that are blobs."""
    monkeypatch.setattr(rocksdb_reclaim, "DEAD_BYTES_MIN", 1 << 17)
    rocks.logs._reclaimer._due_from = 1 << 17
    log = await compacted(rocks, 20_000 if batch == 10 else 100_000, batch)
    await rocks.logs.reclaim()
    await rocks.logs.wait_until_reclaimed()
    await used(rocks)
    live = sum(row.size for row in rocks.logs.index(log.log, Offset(0), Offset(log.end)))
    assert on_disk(rocks.path, ".blob", ".sst", ".log") < 1.5 * live
    assert await faults(rocks.logs, log.log, log.end, log.keys, tombstones=False) == []


async def test_much_that_is_dead_does_not_wait_until_somebody_asks(
    rocks: RocksDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_reclaim, "DEAD_BYTES_MIN", 1 << 17)
    rocks.logs._reclaimer._due_from = 1 << 17
    log = await compacted(rocks, 60_000, 200)
    await rocks.logs.wait_until_reclaimed()
    await used(rocks)
    live = sum(row.size for row in rocks.logs.index(log.log, Offset(0), Offset(log.end)))
    assert on_disk(rocks.path, ".blob", ".sst") < 3 * live, "thirty times that was written"


async def test_a_little_that_is_dead_waits(rocks: RocksDisk) -> None:
    log = await compacted(rocks, 4_000, 200)
    await rocks.logs.reclaim()
    await rocks.logs.wait_until_reclaimed()
    assert rocks.logs._store.count_stored_bytes() == 0, "nothing was flushed for it"
    assert await faults(rocks.logs, log.log, log.end, log.keys, tombstones=False) == []


async def test_what_is_dropped_while_space_is_given_back_comes_next(rocks: RocksDisk) -> None:
    first, second = await filled(rocks, 2, 100)
    for writer in (first, second):
        await rocks.logs.lower_evidence([(writer.log, Offset(0), -1)])
        write(rocks, [DropLog(writer.log)])
        await rocks.logs.reclaim()
    await rocks.logs.wait_until_reclaimed()
    assert await used(rocks) < 10_000
