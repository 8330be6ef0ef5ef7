"""Transactions against real processes: copying records while coordinators and brokers are killed; rivals; timeouts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from headrace import Consumer, Producer, aio
from headrace.errors import HeadraceError, ProducerFenced, Then
from headrace.testing import TestCluster, started_cluster

pytestmark = pytest.mark.integration

RECORDS = 3_000
PER_TRANSACTION = 25
KILLED = ("coordinator-1", "broker-1", "coordinator-2", "broker-1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with started_cluster(tmp_path_factory.mktemp("transactions"), coordinators=2, restart=True) as running:
        yield running


def committed(cluster: TestCluster, topic: str, count: int) -> list[bytes]:
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    with cluster.consumer(topic, isolation_level="read_committed") as reader:
        while len(values) < count and time.monotonic() < deadline:
            values += [record.value for record in reader.poll(timeout_ms=200)]
        values += [record.value for record in reader.poll(timeout_ms=500)]
    return values


def copy_one(writer: Producer, reader: Consumer, results: str) -> int:
    with writer.transaction(reader):
        records = reader.poll(timeout_ms=1_000, max_records=PER_TRANSACTION)
        for record in records:
            writer.send(results, record.value)
    return len(records)


def settle(writer: Producer) -> None:
    """The next block begins by asking what became of the last."""
    while True:
        try:
            with writer.transaction():
                return
        except HeadraceError as error:
            if error.then is Then.FENCED:
                raise


def test_each_record_is_copied_once_while_processes_are_killed(cluster: TestCluster) -> None:
    source, results = cluster.unique_topic(partitions=3), cluster.unique_topic(partitions=3)
    with cluster.producer() as producer:
        producer.send_many(source, [b"%d" % n for n in range(RECORDS)], partition=[n % 3 for n in range(RECORDS)])
    copied, killed = 0, 0
    deadline = time.monotonic() + 100
    settings = {"group_id": f"g-{source}", "enable_auto_commit": False}
    with cluster.producer(transactional_id=f"copy-{source}") as writer, cluster.consumer(source, **settings) as reader:
        while copied < RECORDS:
            assert time.monotonic() < deadline, (copied, killed, reader.health())
            if killed < len(KILLED) and copied > RECORDS * (killed + 1) // (len(KILLED) + 1):
                cluster.local.kill(KILLED[killed])
                killed += 1
            try:
                copied += copy_one(writer, reader, results)
            except HeadraceError as error:
                if error.then is Then.FENCED:
                    raise
                settle(writer)
                copied = sum(at.offset for at in reader.committed([(source, n) for n in range(3)]).values() if at)
    assert killed == len(KILLED)
    values = committed(cluster, results, RECORDS)
    assert sorted(map(int, values)) == list(range(RECORDS))


def test_a_rival_takes_over_and_what_was_open_is_gone(cluster: TestCluster) -> None:
    topic = cluster.unique_topic()
    with cluster.producer(transactional_id="rivals") as old, cluster.producer(transactional_id="rivals") as new:
        old.begin_transaction()
        old.send(topic, b"old").result(timeout=30)
        with new.transaction():
            new.send(topic, b"new")
        with pytest.raises(HeadraceError) as raised:
            old.commit_transaction()
        assert raised.value.then is Then.FENCED
        with pytest.raises(ProducerFenced):
            old.begin_transaction()
    assert committed(cluster, topic, 1) == [b"new"]


def test_a_transaction_that_took_too_long_is_aborted_and_its_producer_goes_on(cluster: TestCluster) -> None:
    topic = cluster.unique_topic()
    with cluster.producer(transactional_id="slow", transaction_timeout_ms=300) as writer:
        writer.begin_transaction()
        writer.send(topic, b"early").result(timeout=30)
        with cluster.producer() as plain:
            behind = plain.send(topic, b"behind it").result(timeout=30).offset
        with cluster.consumer(topic, isolation_level="read_committed") as reader:
            records = []
            while not records:
                records = reader.poll(timeout_ms=10_000)
            assert [record.offset for record in records] == [behind], "readers wait for its end, not longer"
        with pytest.raises(HeadraceError) as raised:
            writer.commit_transaction()
        assert raised.value.then is Then.ABORT
        writer.abort_transaction()
        with writer.transaction():
            writer.send(topic, b"again")
    assert committed(cluster, topic, 2) == [b"behind it", b"again"]


async def test_the_asyncio_twin(cluster: TestCluster) -> None:
    source, results = cluster.unique_topic(), cluster.unique_topic()
    servers = cluster.bootstrap_servers
    async with aio.Producer(servers) as plain:
        await (await plain.send_many(source, [b"%d" % n for n in range(100)]))
    settings = {"group_id": f"g-{source}", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    async with (
        aio.Producer(servers, transactional_id=f"copy-{source}") as writer,
        aio.Consumer(source, bootstrap_servers=servers, **settings) as reader,
    ):
        copied = 0
        while copied < 100:
            async with writer.transaction(reader):
                table = await reader.poll_table(timeout_ms=5_000, max_records=30)
                await writer.send_table(results, table.select(["value"]))
            copied += len(table)
    values = await asyncio.to_thread(committed, cluster, results, 100)
    assert values == [b"%d" % n for n in range(100)]


def test_what_the_batches_of_a_poll_tell_of_positions_reaches_the_high_watermark(cluster: TestCluster) -> None:
    topic = cluster.unique_topic(partitions=2)
    with cluster.producer(transactional_id=f"by-{topic}") as writer:
        for number in range(6):
            writer.begin_transaction()
            writer.send_many(topic, [b"%d" % number] * 50, partition=[n % 2 for n in range(50)])
            (writer.commit_transaction if number % 2 else writer.abort_transaction)()
        writer.begin_transaction()
        writer.send(topic, b"open", partition=0).result(timeout=30)
        with cluster.consumer() as plain:
            ends = {tp.partition: end for tp, end in plain.end_offsets([(topic, 0), (topic, 1)]).items()}
        at, rows, is_open = {0: 0, 1: 0}, 0, True
        deadline = time.monotonic() + 60
        with cluster.consumer(topic, isolation_level="read_committed") as reader:
            while any(at[number] < end for number, end in ends.items()):
                assert time.monotonic() < deadline, at
                for part in reader.poll_batches(timeout_ms=200, max_rows=20):
                    at[part.partition], rows = part.next_offset, rows + len(part.table)
                if is_open and at == {0: ends[0] - 1, 1: ends[1]}:
                    writer.abort_transaction()  # it alone holds the reader back
                    is_open = False
        assert rows == 150
