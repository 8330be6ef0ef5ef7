"""What both consumers see of a log that is compacted while they read: gaps, sparse batches, headers alone."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread
from libs.sdk.tests.kit.cluster import LabCluster, Labs

import headrace
from headrace import Record, TopicPartition, aio
from headrace_common.core.batch import (
    Codec,
    RecordColumns,
    build_batch,
    build_row_batch,
    read_header,
)

T0 = TopicPartition("c", 0)
T = TopicPartition("t", 0)
NOW_MS = 1_700_000_000_000
PATIENCE_S = 20
Written = tuple[bytes, bytes | None]


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    thread = BrokerThread({"c": 1}, {"c": {"cleanup.policy": "compact"}})
    yield thread
    thread.stop()


class Filled:
    """A topic of few keys, written in all the ways there are."""

    def __init__(self, broker: BrokerThread, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.written: list[Written] = []

    def append(self, batches: int) -> None:
        choose = self.random
        for _ in range(batches):
            records = [
                (b"k%d" % choose.randrange(12), None if choose.random() < 0.2 else b"v%d" % len(self.written))
                for _ in range(choose.choice([1, 1, 2, 40]))
            ]
            build = choose.choice([build_batch, build_row_batch])
            headers = [[("h", b"%d" % n)] for n in range(len(records))] if choose.random() < 0.3 else None
            keys, values = [key for key, _ in records], [value for _, value in records]
            times = [NOW_MS + len(self.written) + n for n in range(len(records))]
            columns = RecordColumns(values, keys, times, headers)
            self.broker.append_batch("c", 0, build(columns, codec=choose.choice(list(Codec))))
            self.written += records

    def compact(self) -> None:
        self.broker.compact("c", 0)

    @property
    def end(self) -> int:
        return len(self.written)

    def final(self, start: int = 0) -> dict[bytes, bytes]:
        return final(self.written[start:])


def final(records: Sequence[Written]) -> dict[bytes, bytes]:
    table: dict[bytes, bytes | None] = dict(records)
    return {key: value for key, value in table.items() if value is not None}


def seen(records: Sequence[Record]) -> dict[bytes, bytes]:
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets)), "each offset once, and in order"
    return final([(record.key, record.value) for record in records])


def read_to_end(consumer: headrace.Consumer, end: int) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + PATIENCE_S
    while consumer.position(T0) < end:
        records += consumer.poll(timeout_ms=50)
        assert time.monotonic() < deadline, consumer.position(T0)
    return records


def open_consumer(broker: BrokerThread, **settings: object) -> headrace.Consumer:
    given = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100} | settings
    return headrace.Consumer("c", bootstrap_servers=broker.address, **given)


@pytest.mark.parametrize(
    "settings", [{}, {"max_partition_fetch_bytes": 1}, {"fetch_min_bytes": 1 << 20}, {"check_crcs": False}]
)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_reader_sees_the_last_value_of_each_key_whenever_the_log_is_compacted(
    broker: BrokerThread, settings: dict[str, object], isolation: str
) -> None:
    filled = Filled(broker, 1)
    filled.append(40)
    with open_consumer(broker, isolation_level=isolation, max_poll_records=30, **settings) as consumer:
        records = list(consumer.poll(timeout_ms=5_000, max_records=5))
        for _ in range(4):
            filled.compact()
            records += consumer.poll(timeout_ms=100)
            filled.append(10)
        filled.compact()
        records += read_to_end(consumer, filled.end)
        assert seen(records) == filled.final()
        assert consumer.lag() == {T0: 0}
        assert consumer.health().resets == 0


def test_from_each_offset_also_where_nothing_is_left(broker: BrokerThread) -> None:
    filled = Filled(broker, 2)
    filled.append(30)
    filled.compact()
    with open_consumer(broker) as consumer:
        for offset in range(0, filled.end + 1, 7):
            consumer.seek(T0, offset)
            assert consumer.position(T0) == offset, "a place in a gap is one"
            records = read_to_end(consumer, filled.end)
            assert all(record.offset >= offset for record in records)
            assert seen(records) == filled.final(offset)


def test_tables_and_loops_go_over_gaps_too(broker: BrokerThread) -> None:
    filled = Filled(broker, 3)
    filled.append(40)
    filled.compact()
    filled.append(3)
    with open_consumer(broker) as consumer:
        rows: list[tuple[int, bytes, bytes | None]] = []
        while consumer.position(T0) < filled.end:
            table = consumer.poll_table(timeout_ms=50, max_records=9)
            rows += zip(*(table.column(name).to_pylist() for name in ("offset", "key", "value")), strict=True)
        offsets = [offset for offset, _, _ in rows]
        assert offsets == sorted(set(offsets))
        assert final([(key, value) for _, key, value in rows]) == filled.final()
        consumer.seek_to_beginning()
        looped: list[Record] = []
        for record in consumer:
            looped.append(record)
            if len(looped) == len(rows):
                break
        assert [record.offset for record in looped] == offsets
        assert looped[-1].offset == filled.end - 1


async def test_the_asyncio_consumer_sees_the_same(broker: BrokerThread) -> None:
    filled = Filled(broker, 4)
    filled.append(30)
    filled.compact()
    filled.append(5)
    async with aio.Consumer("c", bootstrap_servers=broker.address, auto_offset_reset="earliest") as consumer:
        records: list[Record] = []
        async for record in consumer:
            records.append(record)
            if record.offset == filled.end - 1:
                break
        assert seen(records) == filled.final()
        assert await consumer.lag() == {T0: 0}


def test_times_are_found_behind_what_is_gone(broker: BrokerThread) -> None:
    filled = Filled(broker, 5)
    filled.append(30)
    filled.compact()
    with open_consumer(broker) as consumer:
        consumer.seek(T0, 0)
        left = [record.offset for record in read_to_end(consumer, filled.end)]
        for offset in range(0, filled.end, 11):
            found = consumer.offsets_for_times({T0: NOW_MS + offset})[T0]
            assert (None if found is None else found.offset) == next((o for o in left if o >= offset), None)


# --- groups ---------------------------------------------------------------------------------------------------------

KEPT = (3, 11, 12)
END = 30


async def sparse_log(cluster: LabCluster, segment_ms: int) -> None:
    """``KEPT`` is left of ``t-0``, and behind it nothing up to ``END``."""
    cleaned = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0, "delete_retention_ms": 0}
    cluster.create_topic("t", segment_ms=segment_ms, **cleaned)
    async with cluster.aio_producer(linger_ms=0) as producer:
        for number in range(END):
            key, value = (b"%d" % number if number in KEPT else b"k"), None if number == END - 1 else b"v"
            await (await producer.send("t", value, key=key))
    cluster.pass_time(60)


@pytest.mark.parametrize(("segment_ms", "least", "most"), [(10_000, 3, 10), (1, 20, 27)], ids=["gaps", "headers"])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
async def test_a_group_commits_behind_what_compaction_left_nothing_of(
    labs: Labs, segment_ms: int, least: int, most: int, isolation: str
) -> None:
    cluster = labs()
    await sparse_log(cluster, segment_ms)
    left = [read_header(batch).record_count for batch in cluster.log("t").batches]
    assert left.count(1) == len(KEPT)
    assert least <= left.count(0) <= most, "long segments have gaps, those of one batch its header"

    async def read(start: int | None) -> tuple[list[int], int]:
        async with cluster.aio_consumer("t", group_id="g", isolation_level=isolation) as consumer:
            if start is not None:
                await consumer.poll(timeout_ms=10_000, max_records=1)
                consumer.seek(T, start)
            found: list[int] = []
            async with asyncio.timeout(PATIENCE_S):
                while not consumer.assignment() or await consumer.position(T) < END:
                    found += [record.offset for record in await consumer.poll(timeout_ms=50)]
            await consumer.commit()
            assert await consumer.lag() == {T: 0}
            return found, (await consumer.committed([T]))[T].offset

    assert await read(None) == ([*KEPT], END)
    assert await read(None) == ([], END), "the next member has nothing to read again"
    assert await read(5) == ([11, 12], END)
    assert await read(20) == ([], END)
