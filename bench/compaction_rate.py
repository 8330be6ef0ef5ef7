"""How fast a log is compacted, beside reading and decoding all of it; one process, a real store, flush ``os``."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from services.broker.tests.kit.cluster import topic_id_of
from services.broker.tests.kit.dialogue import Engine, running_engine

from bench.clients.values import random_values
from bench.in_process import as_brokers_do, delays
from bench.rows import Row, compare, percentile
from bench.sizes import sized
from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.core.rows import IndexRow
from headrace_common.core.batch import Codec, RecordColumns, build_batch, decode_batch
from headrace_common.core.ids import Offset, PartitionId

KEYS = 100_000
READ_BYTES = 1 << 20
_CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": str(64 << 20)}


def run(runs: int) -> list[Row]:
    """Updates of 100,000 keys, none of them compacted before."""
    shapes = [
        ("100 B records", 100, 1_000, sized(3_000_000, 100_000), Codec.NONE),
        ("1 KB records", 1_000, 100, sized(400_000, 20_000), Codec.NONE),
        ("100 B records, zstd", 100, 1_000, sized(3_000_000, 100_000), Codec.ZSTD),
    ]
    rows: list[Row] = []
    as_brokers_do()
    for name, size, per_batch, records, codec in shapes:
        compacted: list[float] = []
        scanned: list[float] = []
        late: list[float] = []
        for _ in range(runs):
            ours, plain, delay = asyncio.run(_measured(size, per_batch, records, codec))
            compacted.append(ours)
            scanned.append(plain)
            late.append(delay)
        target = "≥ 0.25" if codec is Codec.NONE else ""
        rows.append(compare(f"compaction / plain scan, {name}", "records/s", compacted, scanned, target=target))
        rows.append(compare(f"loop delay p99 while compacting, {name}", "ms", late, target="≤ 5"))
    return rows


async def _measured(size: int, per_batch: int, records: int, codec: Codec) -> tuple[float, float, float]:
    """Records a second that were compacted, and that were scanned; how late the event loop was meanwhile, in ms."""
    async with _engine() as engine:
        await _fill(engine, size, per_batch, records, codec)
        replica = engine.broker.replicas.get(PartitionId(topic_id_of("t"), 0))
        assert replica is not None
        end = replica.core.segments.active.base_offset
        rows = list(engine.store.index(replica.core.log, Offset(0), end))
        seconds = []
        for _ in range(2):  # the first brings all of it into the page cache
            start = time.perf_counter()
            count = await _scan(engine, rows)
            seconds.append(time.perf_counter() - start)
        assert count == end
        async with delays() as late:
            start = time.perf_counter()
            while replica.core.cleaned_to < end:
                assert await engine.broker.cleaner.look(), "there is something to compact"
            took = time.perf_counter() - start
        return count / took, count / seconds[-1], percentile(late, 0.99)


@asynccontextmanager
async def _engine() -> AsyncIterator[Engine]:
    folder = Path(tempfile.mkdtemp(prefix="bench-compaction-"))
    directory = DataDirectory.open(folder)
    store = RocksDbLogs.open(directory)
    try:
        async with running_engine({"t": 1}, configs={"t": _CONFIGS}, store=cast(Any, store)) as engine:
            yield engine
    finally:
        await store.close(None)
        directory.close()
        shutil.rmtree(folder, ignore_errors=True)


async def _fill(engine: Engine, size: int, per_batch: int, records: int, codec: Codec) -> None:
    names = [b"%010d" % number for number in range(KEYS)]
    values = random_values(size)
    now_ms = engine.clock.now_ms()
    for at in range(records // per_batch):
        first = at * per_batch % len(values)
        some = (values[first:] + values)[:per_batch]
        columns = RecordColumns(some, random.choices(names, k=per_batch), timestamps_ms=now_ms)
        await engine.produce(build_batch(columns, codec=codec))


async def _scan(engine: Engine, rows: list[IndexRow]) -> int:
    replica = engine.broker.replicas.get(PartitionId(topic_id_of("t"), 0))
    assert replica is not None
    count = at = 0
    while at < len(rows):
        chunk: list[IndexRow] = []
        room = READ_BYTES
        while at < len(rows) and room > 0:
            chunk.append(rows[at])
            room -= rows[at].size
            at += 1
        for batch in await engine.store.read(replica.core.log, chunk):
            count += decode_batch(batch).to_arrow().num_rows
    return count
