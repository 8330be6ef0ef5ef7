"""A log that is being compacted, as it stands after each step and after each loss of power: sound, no key lost."""

from __future__ import annotations

import asyncio
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from compacted_log import CompactedLog, faults, put
from storage_batches import SMALL

from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.core.compaction import cleaning
from headrace_broker.core.rows import LogId
from headrace_broker.ports import BytesLost
from headrace_common.core.ids import Offset

KEYS = 300
RECORDS = 6_000


async def problems(path: Path, synced: int) -> list[str]:
    """What is wrong with the log in ``path``; it must reach up to ``synced``."""
    directory = DataDirectory.open(path)
    logs = RocksDbLogs.open(directory, SMALL)
    try:
        (found,) = logs.list_recovered()
        wrong = await faults(logs, found.log, found.log_end, KEYS)
        sizes = {row.base_offset: row.size for row in found.segments if row.sealed_at_ms is not None}
        for row in logs.index(found.log, Offset(0), found.log_end):
            if row.segment_base in sizes:
                sizes[row.segment_base] -= row.size
        wrong += [f"segment {base} says {off} bytes too many" for base, off in sizes.items() if off]
        if found.damage is not None or found.log_end < synced:
            wrong.append(f"ends at {found.log_end} instead of {synced}: {found.damage}")
        return wrong
    finally:
        await logs.close(None)
        directory.close()


async def written(path: Path, *, flushed: bool) -> tuple[DataDirectory, RocksDbLogs, CompactedLog]:
    """A log of which the first half is compacted, synced, with evidence of it."""
    directory = DataDirectory.open(path)
    logs = RocksDbLogs.open(directory, SMALL)
    log = CompactedLog(logs, logs.new_log_id(), KEYS, segment_bytes=60_000)
    await put(logs, log.create())
    while log.end < RECORDS:
        await put(logs, log.append(20 + log.end % 30))
        if log.cleaned_to == 0 and log.end > RECORDS // 2:
            await log.clean()
    await put(logs, log.roll())
    if flushed:
        logs._store.flush()
    await logs.sync()
    logs.note_synced(log.log, Offset(log.end), 1)
    logs._keeper.save(clean=False)
    return directory, logs, log


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_crash_after_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed: bool) -> None:
    monkeypatch.setattr(cleaning, "STEP_BYTES_MAX", 4_000)
    directory, logs, log = await written(tmp_path / "live", flushed=flushed)
    copies: list[Path] = []

    def copy() -> None:
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(tmp_path / "live", copies[-1])

    await log.clean(copy)
    await logs.close(None)
    directory.close()
    assert len(copies) > 10, "it was interrupted often enough"
    for path in copies:
        assert await problems(path, log.end) == []
        shutil.rmtree(path)


@pytest.mark.parametrize("seed", range(6))
async def test_a_loss_of_power_while_it_is_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The last pass was not synced: of its write-ahead log anything may be missing or wrong."""
    monkeypatch.setattr(cleaning, "STEP_BYTES_MAX", 4_000)
    chance = random.Random(seed)
    directory, logs, log = await written(tmp_path / "live", flushed=seed % 2 == 0)
    wal = max((tmp_path / "live" / "db").glob("*.log"), key=lambda one: int(one.stem))
    synced = wal.stat().st_size
    await log.clean()
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    await logs.close(None)
    directory.close()
    path = tmp_path / "copy" / "db" / wal.name
    data = bytearray(path.read_bytes())
    assert len(data) > synced + 5_000, "the pass is in this file"
    at = chance.randrange(synced, len(data))
    match seed % 3:
        case 0:
            del data[at:]
        case 1:
            data[at:] = bytes(len(data) - at)
        case _:
            data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    assert await problems(tmp_path / "copy", log.end) == []


async def test_a_pass_that_was_cut_off_is_done_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "STEP_BYTES_MAX", 4_000)
    directory, logs, log = await written(tmp_path / "live", flushed=True)
    left = 5

    def stop() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await log.clean(stop)
    await logs.close(None)
    directory.close()
    directory = DataDirectory.open(tmp_path / "live")
    logs = RocksDbLogs.open(directory, SMALL)
    again = CompactedLog(logs, LogId(log.log), KEYS, segment_bytes=60_000)
    again.resume(logs.list_recovered()[0])
    before = again.cleaned_to
    await again.clean()
    assert again.cleaned_to > before
    assert await faults(logs, log.log, log.end, KEYS) == []
    kept = sum(row.record_count for row in logs.index(log.log, Offset(0), Offset(again.cleaned_to)))
    await logs.close(None)
    directory.close()
    assert kept <= KEYS * 2, "of each key one record, and deletions once more"


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A directory whose log was compacted and flushed; nothing of it is in a write-ahead log."""
    path = tmp_path_factory.mktemp("compacted") / "data"

    async def make() -> int:
        directory, logs, log = await written(path, flushed=True)
        await log.clean()
        await logs.reclaim()
        await logs.wait_until_reclaimed()
        await logs.close(None)
        directory.close()
        return log.end

    return path, asyncio.run(make())


@pytest.mark.parametrize("seed", range(10))
async def test_a_flipped_bit_in_what_was_compacted_is_never_served(
    compacted: tuple[Path, int], tmp_path: Path, seed: int
) -> None:
    """It is found, or it was in bytes that nothing refers to; whatever is served is what was written."""
    chance = random.Random(seed)
    whole, end = compacted
    shutil.copytree(whole, tmp_path / "copy")
    files = [one for one in (tmp_path / "copy" / "db").iterdir() if one.suffix in (".blob", ".sst")]
    assert files
    path = files[seed % len(files)]
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    directory = DataDirectory.open(tmp_path / "copy")
    logs = RocksDbLogs.open(directory, SMALL)
    try:
        (found,) = logs.list_recovered()
        with suppress(BytesLost):  # found
            assert found.damage is not None or await faults(logs, found.log, end, KEYS) == []
    finally:
        await logs.close(None)
        directory.close()
