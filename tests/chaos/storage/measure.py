"""
Figures for ``docs/storage.md``, by hand: ``python tests/chaos/storage/measure.py WHAT DIRECTORY [SIZE]``.

WHAT is ``group`` (cost of a write group and of a sync), ``open`` (SIZE partitions, after a kill and a clean stop),
``read`` (a log of SIZE GiB from start, middle and tail) ``space`` (what deletions give back, SIZE GiB) or
``amplification`` (bytes written for SIZE GiB with retention), ``pace`` (loop delay, SIZE seconds), ``compaction`` (SIZE
million updates of 100,000 keys, each time compacted when half is dirty) or ``deletion`` (of one of two logs of SIZE
GiB, while the other is written).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "services" / "broker" / "tests" / "adapters"))

from compacted_log import CompactedLog
from storage_batches import Writer, make_batch, make_row, partition

from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.core.rows import DropLog, DropPrefix, LogId, LogWrite, PutBatch, PutState, StateRow
from headrace_broker.ports import WriteStalled
from headrace_common.core.ids import Offset


def opened(path: Path) -> tuple[DataDirectory, RocksDbLogs]:
    directory = DataDirectory.open(path)
    return directory, RocksDbLogs.open(directory)


async def put(logs: RocksDbLogs, group: list[LogWrite]) -> None:
    while True:
        try:
            logs.write(group)
            return
        except WriteStalled:
            await asyncio.sleep(0.01)


def batches_of(log: LogId, body: bytes, start: int, count: int) -> list[LogWrite]:
    """Batches with one body: making random bytes would cost more than writing them."""
    group: list[LogWrite] = []
    for base in range(start, start + count * 10, 10):
        batch = base.to_bytes(8, "big") + body[8:]
        group.append(PutBatch(log, make_row(base, batch), batch))
    return group


def percentiles(name: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    print(f"{name}: p50 {p50 * 1e6:.0f} us, p99 {p99 * 1e6:.0f} us, n {len(ordered)}")


async def measure_group(path: Path, _: float) -> None:
    directory, logs = opened(path)
    writers = [Writer(logs.new_log_id()) for _ in range(64)]
    await put(logs, [one for writer in writers for one in writer.create()])
    body = make_batch(0, 10, 16 << 10)
    at = 0
    for name, count in (("one batch of 16 KiB", 1), ("64 batches of 16 KiB", 64)):
        writes, syncs = [], []
        for _turn in range(200):
            group = [one for writer in writers[:count] for one in batches_of(writer.log, body, at, 1)]
            at += 10
            began = time.perf_counter()
            await put(logs, group)
            wrote = time.perf_counter()
            await logs.sync()
            writes.append(wrote - began)
            syncs.append(time.perf_counter() - wrote)
        percentiles(f"write, {name}", writes)
        percentiles(f"sync after {name}", syncs)
    await logs.close(1)
    directory.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def fill_partitions(path: Path, count: int) -> None:
    _directory, logs = opened(path)
    writers = [Writer(logs.new_log_id()) for _ in range(count)]
    for first in range(0, count, 100):
        await put(logs, [one for writer in writers[first : first + 100] for one in writer.create()])
    body = make_batch(0, 10, 8 << 10)
    for turn in range(12):
        for first in range(0, count, 50):
            await put(
                logs,
                [one for w in writers[first : first + 50] for one in batches_of(w.log, body, turn * 10, 1)],
            )
    await logs.sync()
    for writer in writers:
        logs.note_synced(writer.log, Offset(120), 1)
    await asyncio.sleep(2.5)
    os.kill(os.getpid(), 9)


async def measure_open(path: Path, size: float) -> None:
    count = int(size)
    child = subprocess.run([sys.executable, __file__, "fill", str(path), str(count)], check=False)
    assert child.returncode == -9
    for name, epoch in (("after a kill", None), ("after an orderly unclean stop", 1), ("after a clean stop", None)):
        began = time.perf_counter()
        directory, logs = opened(path)
        seconds = time.perf_counter() - began
        report = logs.report
        assert report.logs == count
        assert not report.damaged
        checked = report.bytes_checked / 1e6
        print(
            f"open {name}: {seconds:.2f} s, {checked:.0f} MB checked, {descriptors()} descriptors, cuts {report.cuts}"
        )
        resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
        print(f"  {resident}")
        await logs.close(epoch)
        directory.close()


async def measure_read(path: Path, size: float) -> None:
    directory, logs = opened(path)
    body = make_batch(0, 10, 128 << 10)
    log = logs.new_log_id()
    await put(logs, [PutState(log, StateRow(partition(1), Offset(0), Offset(0)))])
    count, began = int(size * 8192), time.perf_counter()
    for at in range(0, count, 8):
        await put(logs, batches_of(log, body, at * 10, 8))
    print(f"wrote {count * 128 / 1024:.0f} MiB in {time.perf_counter() - began:.1f} s")
    await logs.close(1)
    directory.close()
    directory, logs = opened(path)
    window = min(count // 4, 4096)
    for turn in ("first", "second"):
        for name, first in (("start", 0), ("middle", count // 2 - window // 2), ("tail", count - window)):
            began = time.perf_counter()
            rows = list(logs.index(log, Offset(first * 10), Offset((first + window) * 10)))
            walked = time.perf_counter() - began
            for at in range(0, len(rows), 64):
                await logs.read(log, rows[at : at + 64])
            spent = time.perf_counter() - began
            rate = window * 128 / 1024 / spent
            print(f"{turn} read from the {name}: {rate:.0f} MiB/s; index {walked / len(rows) * 1e6:.1f} us a row")
    print(f"{descriptors()} descriptors")
    await logs.close(1)
    directory.close()


def used(path: Path) -> str:
    files = [one.stat() for one in (path / "db").iterdir()]
    return f"{sum(one.st_blocks for one in files) * 512 / 2**20:.0f} MiB"


async def measure_space(path: Path, size: float) -> None:
    directory, logs = opened(path)
    body = make_batch(0, 10, 128 << 10)
    one, other = logs.new_log_id(), logs.new_log_id()
    await put(logs, [PutState(log, StateRow(partition(log), Offset(0), Offset(0))) for log in (one, other)])
    count = int(size * 8192 / 2)
    for at in range(0, count, 4):
        await put(logs, batches_of(one, body, at * 10, 4) + batches_of(other, body, at * 10, 4))
    await asyncio.to_thread(logs._store.flush)
    print(f"two logs written side by side: {used(path)}")
    end = Offset(count // 2 * 10)
    state = StateRow(partition(one), end, end)
    steps: list[tuple[str, list[LogWrite]]] = [
        ("half of one dropped", [PutState(one, state), DropPrefix(one, end)]),
        ("that log dropped", [DropLog(one)]),
        ("the other dropped", [DropLog(other)]),
    ]
    for name, group in steps:
        await logs.lower_evidence([(write.log, Offset(0), -1) for write in group if isinstance(write, DropLog)])
        await put(logs, group)
        await asyncio.sleep(2)
        before = used(path)
        began = time.perf_counter()
        await logs.reclaim()
        await logs.reclaimed()
        spent = time.perf_counter() - began
        await asyncio.sleep(1)
        print(f"{name}: {before} before reclaim, {used(path)} after it ({spent:.1f} s)")
    await logs.close(1)
    directory.close()


async def measure_pace(path: Path, size: float) -> None:
    """80 MB/s for SIZE seconds over 2,000 partitions, 16 KiB batches, a sync after each group: is the loop late?"""
    directory, logs = opened(path)
    ids = [logs.new_log_id() for _ in range(2000)]
    await put(logs, [PutState(log, StateRow(partition(log), Offset(0), Offset(0))) for log in ids])
    body = make_batch(0, 10, 16 << 10)
    delays: list[float] = []
    stop = asyncio.Event()

    async def probe() -> None:
        while not stop.is_set():
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            delays.append(time.perf_counter() - began - 0.001)

    async def sync() -> None:
        while not stop.is_set():
            await logs.sync()
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(probe()), asyncio.create_task(sync())]
    began, sent, waits = time.perf_counter(), 0, 0
    while (spent := time.perf_counter() - began) < size:
        due = min(int(spent * 80e6 / len(body)) - sent, 8)
        group: list[LogWrite] = []
        for number in range(sent, sent + due):
            group += batches_of(ids[number % 2000], body, number // 2000 * 10, 1)
        if group:
            try:
                logs.write(group)
                sent += due
            except WriteStalled:
                waits += 1
                await asyncio.sleep(0.005)
        await asyncio.sleep(0)
    stop.set()
    await asyncio.gather(*tasks)
    percentiles("loop delay", delays)
    print(f"{sent * len(body) / 1e6 / size:.0f} MB/s, {waits} stalls")
    await logs.close(1)
    directory.close()


def written_bytes() -> int:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["write_bytes"])


async def measure_amplification(path: Path, size: float) -> None:
    """Four logs with a sync per group, a tenth kept, retention twenty times on the way."""
    directory, logs = opened(path)
    body = make_batch(0, 10, 64 << 10)
    ids = [logs.new_log_id() for _ in range(4)]
    await put(logs, [PutState(log, StateRow(partition(log), Offset(0), Offset(0))) for log in ids])
    turns = int(size * 16384 / 4 / 4)
    began, before, most = time.perf_counter(), written_bytes(), 0
    for turn in range(turns):
        await put(logs, [one for log in ids for one in batches_of(log, body, turn * 40, 4)])
        await logs.sync()
        if turn % (turns // 20) == 0 and turn > turns // 10:
            start = Offset((turn - turns // 10) * 40)
            await put(
                logs,
                [w for i in ids for w in (PutState(i, StateRow(partition(i), start, start)), DropPrefix(i, start))],
            )
            await logs.reclaim()
            most = max(most, sum(one.stat().st_blocks for one in (path / "db").iterdir()) * 512)
    await logs.reclaimed()
    spent = time.perf_counter() - began
    factor = (written_bytes() - before) / (size * 2**30)
    print(f"{size * 1024 / spent:.0f} MiB/s, write amplification {factor:.2f}, at most {most >> 20} MiB on disk")
    print(f"at the end: {used(path)}, live data {size * 1024 / 10:.0f} MiB")
    await logs.close(1)
    directory.close()


def on_disk(path: Path) -> int:
    """Bytes that the store takes of the disk."""
    total = 0
    for one in (path / "db").iterdir():
        with suppress(FileNotFoundError):
            total += one.stat().st_blocks * 512
    return total


async def measure_compaction(path: Path, size: float) -> None:
    """Batches of 500 records; everything is compacted in the end."""
    directory, logs = opened(path)
    log = CompactedLog(logs, logs.new_log_id(), keys=100_000, segment_bytes=8 << 20, tombstones=False)
    await put(logs, log.create())
    before, most, passes = written_bytes(), 0, 0
    while log.end < size * 1e6:
        writes = log.append(500)
        await put(logs, writes)
        dirty = sum(row.size for row in log.segments.values() if row.base_offset >= log.cleaned_to)
        if len(writes) > 1 and dirty * 2 >= sum(row.size for row in log.segments.values()):
            await log.clean()
            await logs.reclaim()
            passes, most = passes + 1, max(most, on_disk(path))
    await put(logs, log.roll())
    await log.clean()
    await logs.reclaim()
    await logs.reclaimed()
    await asyncio.sleep(1)
    live = sum(row.size for row in logs.index(log.log, Offset(0), Offset(log.end)))
    used_now = on_disk(path)
    print(f"{passes} passes, {live / 1e6:.1f} MB live, {used_now / 1e6:.1f} on disk: {used_now / live:.2f} times")
    print(f"at most {most / 1e6:.0f} MB on disk, {(written_bytes() - before) / 1e6:.0f} MB written")
    await logs.close(1)
    directory.close()


async def measure_deletion(path: Path, size: float) -> None:
    """When the space is back, and what a writer of 30 MB/s notices."""
    directory, logs = opened(path)
    body = make_batch(0, 10, 64 << 10)
    kept, gone = logs.new_log_id(), logs.new_log_id()
    await put(logs, [PutState(log, StateRow(partition(log), Offset(0), Offset(0))) for log in (kept, gone)])
    end = int(size * 2**30 / len(body)) * 10
    for at in range(0, end, 80):
        await put(logs, [one for log in (kept, gone) for one in batches_of(log, body, at, 8)])
        await logs.sync()
    delays: list[float] = []
    writes: list[float] = []
    stop = asyncio.Event()

    async def probe() -> None:
        while not stop.is_set():
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            delays.append(time.perf_counter() - began - 0.001)

    async def produce() -> None:
        nonlocal end
        began, sent = time.perf_counter(), 0
        while not stop.is_set():
            if sent < (time.perf_counter() - began) * 30e6:
                wrote = time.perf_counter()
                await put(logs, batches_of(kept, body, end, 1))
                writes.append(time.perf_counter() - wrote)
                end, sent = end + 10, sent + len(body)
            await asyncio.sleep(0.0005)

    async def sync() -> None:
        while not stop.is_set():
            await logs.sync()
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(probe()), asyncio.create_task(produce()), asyncio.create_task(sync())]
    for what in ("before", "while space is given back"):
        delays.clear()
        writes.clear()
        began = time.perf_counter()
        if what == "before":
            await asyncio.sleep(5)
        else:
            await logs.lower_evidence([(gone, Offset(0), -1)])
            await put(logs, [DropLog(gone)])
            await logs.reclaim()
            await logs.reclaimed()
        print(f"{what}: {time.perf_counter() - began:.1f} s, {on_disk(path) >> 20} MiB on disk")
        percentiles("loop delay", delays)
        percentiles("write", writes)
    stop.set()
    await asyncio.gather(*tasks)
    print(f"live data {end // 10 * len(body) >> 20} MiB")
    await logs.close(1)
    directory.close()


MEASURES: dict[str, Callable[[Path, float], object]] = {
    "group": measure_group,
    "open": measure_open,
    "read": measure_read,
    "space": measure_space,
    "amplification": measure_amplification,
    "pace": measure_pace,
    "compaction": measure_compaction,
    "deletion": measure_deletion,
}


def main() -> None:
    what, path = sys.argv[1], Path(sys.argv[2])
    size = float(sys.argv[3]) if len(sys.argv) > 3 else 1
    if what == "fill":
        asyncio.run(fill_partitions(path, int(size)))
        return
    shutil.rmtree(path, ignore_errors=True)
    asyncio.run(MEASURES[what](path, size))
    shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
