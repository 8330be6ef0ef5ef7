"""How long retention takes where every one of many partitions drops a segment, and how long others wait meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.cluster import BROKER_ID, INCARNATION, FakeCluster, image_of, topic_id_of
from services.broker.tests.kit.transactions import FakeTransactions

from bench.in_process import as_brokers_do, delays
from bench.rows import Row, compare, percentile
from bench.sizes import sized
from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.memory_topic_notes import MemoryTopicNotes
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.engine.broker import Broker, EngineSettings, Who
from headrace_broker.engine.produce import ProduceEntry
from headrace_broker.engine.replication import NoLeaders
from headrace_broker.engine.storage_queue import Flush
from headrace_broker.ports import Disk
from headrace_common.core.ids import PartitionId
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.tasks import TaskRunner

PARTITIONS = 2_000
TOPIC = "t"
BATCH_BYTES = 4_096
"""More than a segment takes, so each batch is one; more than 2 KiB, so each is a blob."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look of retention at all partitions."""

    milliseconds: float
    cpu_ms: float
    """Of the thread that the event loop runs in; says more where others use the machine as well."""
    delay_p99_ms: float
    """How late a task was that wanted to run every millisecond meanwhile."""
    delay_max_ms: float
    dropped: int
    """Segments."""


def checking(runs: int) -> list[Row]:
    """One broker's engine on a real store, flush ``group``; in each run every partition drops one segment."""
    looks = measure(sized(PARTITIONS, 100), runs)
    name = f"retention, {sized(PARTITIONS, 100):,} partitions drop a segment"
    return [
        compare(name, "ms", [look.milliseconds for look in looks], target="≤ 100"),
        compare(f"{name}: CPU of the loop", "ms", [look.cpu_ms for look in looks]),
        compare(f"{name}: loop delay p99", "ms", [look.delay_p99_ms for look in looks], target="≤ 5"),
        compare(f"{name}: loop delay max", "ms", [look.delay_max_ms for look in looks]),
    ]


def measure(partitions: int, runs: int) -> list[Look]:
    """``runs`` looks at so many partitions; in each of them every partition has one segment to drop."""
    as_brokers_do()
    return asyncio.run(_measure(partitions, runs))


async def _measure(partitions: int, runs: int) -> list[Look]:
    async with _broker(partitions) as broker:
        looks: list[Look] = []
        await _write(broker, partitions)
        await _write(broker, partitions)
        for _ in range(runs):
            await _write(broker, partitions)
            looks.append(await _look(broker))
            assert looks[-1].dropped == partitions, looks
        return looks


class _Unreclaimed(RocksDbLogs):
    """Space is given back afterwards, in a thread; that would be measured with the next look."""

    async def reclaim(self) -> None:
        """Nothing, here."""


@asynccontextmanager
async def _broker(partitions: int) -> AsyncIterator[Broker]:
    folder = Path(tempfile.mkdtemp(prefix="bench-retention-"))
    directory = DataDirectory.open(folder)
    store = _Unreclaimed.open(directory)
    try:
        async with TaskRunner() as tasks:
            cluster = FakeCluster()
            broker = Broker(
                Who(BROKER_ID, INCARNATION, "c"),
                EngineSettings(flush=Flush.GROUP),
                disk=Disk(store, MemoryTopicNotes()),
                cluster=cluster,
                leaders=NoLeaders(),
                transactions=FakeTransactions(),
                clock=SystemClock(),
                tasks=tasks,
            )
            broker.start()
            configs = {"segment.bytes": "1024", "retention.bytes": str(BATCH_BYTES + 1_000), "retention.ms": "-1"}
            cluster.show(image_of({TOPIC: partitions}, configs={TOPIC: configs}))
            await broker.follower.changed.wait()
            yield broker
            if tasks.failure is not None:
                raise tasks.failure
    finally:
        await store.close(None)
        directory.close()
        shutil.rmtree(folder, ignore_errors=True)


async def _write(broker: Broker, partitions: int) -> None:
    """One batch, which is a segment, to each partition."""
    batch = batch_of([b"x" * BATCH_BYTES], timestamp_ms=SystemClock().now_ms())
    entries = [ProduceEntry(PartitionId(topic_id_of(TOPIC), number), batch, None) for number in range(partitions)]
    session = broker.produce_session()
    session.accept(1, -1, 60_000, entries)
    while not session.answers:
        session.changed.clear()
        await session.changed.wait()
    wrong = [result for result in session.answers.popleft().results if result is None or result.error is not None]
    assert not wrong, wrong[0]
    broker.end_session(session)


async def _look(broker: Broker) -> Look:
    before = _segments(broker)
    async with delays() as late:
        start, cpu = time.perf_counter(), time.thread_time()
        await broker.upkeep.check_retention()
        took, cpu = time.perf_counter() - start, time.thread_time() - cpu
    return Look(took * 1e3, cpu * 1e3, percentile(late, 0.99), late[-1], before - _segments(broker))


def _segments(broker: Broker) -> int:
    return sum(len(replica.core.segments.sealed) for replica in broker.replicas.all())
