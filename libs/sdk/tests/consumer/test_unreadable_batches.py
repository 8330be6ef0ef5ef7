"""Batches that are stored and that no consumer can read: what the application hears of them, and how it goes on."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress

import cramjam
import pytest
from grpc import insecure_channel
from libs.sdk.tests.kit.broker_thread import BrokerThread
from libs.sdk.tests.kit.cluster import Labs

import headrace
from headrace import TopicPartition, aio
from headrace.errors import CorruptBatch, Rejected
from headrace_common.core.batch import Codec, RecordColumns, build_batch, read_header
from headrace_common.core.batch.header import replace_header
from headrace_proto.v1 import broker_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
Poll = Callable[[headrace.Consumer], list[int]]


def poison(count: int) -> bytes:
    """A sound header and frame around columns that are none: a broker does not inflate, so it takes it."""
    columns = RecordColumns([b"value %d" % n for n in range(count)])
    batch = build_batch(columns)
    rubbish = struct.pack("<BBHI", 3, 0x82, 0, 999) + b"far less than 999 bytes" * 4
    body = struct.pack("<I", len(rubbish)) + bytes(cramjam.zstd.compress(rubbish))
    header = read_header(batch)._replace(batch_length=64 + len(body) - 12, attributes=Codec.ZSTD)
    return replace_header(batch[:64] + body, header)


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """Offsets 0 to 9 are good, 10 to 12 cannot be read, 13 to 14 are good."""
    running = BrokerThread({"t": 2})
    try:
        running.append("t", 0, [b"%d" % n for n in range(10)])
        assert running.append_batch("t", 0, poison(3)) == 10
        running.append("t", 0, [b"13", b"14"])
        yield running
    finally:
        running.stop()


def open_consumer(broker: BrokerThread, **settings: object) -> headrace.Consumer:
    return headrace.Consumer(
        bootstrap_servers=broker.address, auto_offset_reset="earliest", default_api_timeout_ms=20_000, **settings
    )


def described(broker: BrokerThread) -> dict[int, str]:
    """What the broker says of its logs, as the verdict on the cluster asks it."""
    stub = BrokerStub(insecure_channel(broker.address))
    logs = stub.DescribeLogs(broker_pb2.DescribeLogsRequest(only_stuck=True), timeout=10).logs
    return {log.partition: log.unreadable for log in logs}


def by_poll(consumer: headrace.Consumer) -> list[int]:
    return [record.offset for record in consumer.poll(timeout_ms=None)]


def by_table(consumer: headrace.Consumer) -> list[int]:
    return consumer.poll_table(timeout_ms=None).column("offset").to_pylist()


def by_batches(consumer: headrace.Consumer) -> list[int]:
    found: list[int] = []
    while not found:
        for part in consumer.poll_batches(timeout_ms=None):
            found += part.table.column("offset").to_pylist()
    return found


def by_iteration(consumer: headrace.Consumer) -> list[int]:
    found = []
    for record in consumer:
        found.append(record.offset)
        if record.offset in (9, 14):
            break
    return found


@pytest.mark.parametrize("poll", [by_poll, by_table, by_batches, by_iteration])
def test_the_error_says_where_and_why_and_a_skip_goes_on_behind_it(broker: BrokerThread, poll: Poll) -> None:
    with open_consumer(broker) as consumer:
        consumer.assign([ONE])
        assert poll(consumer) == list(range(10)), "what comes before it is handed out first"
        for _ in range(2):  # until somebody skips it, every call says so
            with pytest.raises(CorruptBatch) as raised:
                poll(consumer)
            assert str(raised.value) == (
                "t-0@10: column 3 of 999 bytes goes past the end, or comes twice; reading can go on at offset 13, see"
                " Consumer.skip_batch()"
            )
            assert consumer.position(ONE) == 10
        assert (consumer.state, consumer.health().ok) == ("stuck", False)
        assert consumer.health().troubled == {ONE: str(raised.value)}
        told = "offsets 10 to 12: column 3 of 999 bytes goes past the end, or comes twice"
        assert described(broker) == {ONE.partition: told}
        skipped = consumer.skip_batch()
        assert skipped == (ONE, range(10, 13), str(raised.value))
        assert str(skipped).startswith("t-0: offsets 10 to 12 were skipped: t-0@10: ")
        assert consumer.position(ONE) == 13
        assert poll(consumer) == [13, 14]
        assert (consumer.state, consumer.health().ok) == ("reading", True)


def test_other_partitions_are_read_meanwhile_and_which_one_is_skipped_is_said(broker: BrokerThread) -> None:
    broker.append_batch("t", 1, poison(1))
    broker.append("t", 1, [b"1"])
    with open_consumer(broker) as consumer:
        consumer.assign([ONE, TWO])
        with pytest.raises(Rejected, match="call it after a poll has raised"):
            consumer.skip_batch()
        found: list[int] = []
        failed: set[str] = set()
        while len(failed) < 2:
            try:
                found += by_poll(consumer)
            except CorruptBatch as error:
                failed.add(str(error)[:6])
        assert failed == {"t-0@10", "t-1@0:"}
        assert set(consumer.health().troubled) == {ONE, TWO}
        with pytest.raises(Rejected, match=r"t-0, t-1 cannot be read: say which|t-1, t-0 cannot be read: say which"):
            consumer.skip_batch()
        assert consumer.skip_batch(("t", 1)).offsets == range(0, 1)
        assert consumer.state == "reading", "one of the two is"
        further: list[headrace.Record] = []
        while not further:
            with suppress(CorruptBatch):  # of the other one
                further = consumer.poll(timeout_ms=None)
        assert [(r.partition, r.offset) for r in further] == [(1, 1)]
        with pytest.raises(Rejected, match="t-1 has stopped"):
            consumer.skip_batch(TWO)
        assert consumer.skip_batch().partition == ONE
        with pytest.raises(Rejected, match="not read by this consumer"):
            consumer.skip_batch(("t", 7))


def test_a_batch_that_was_trimmed_is_no_trouble_any_more(broker: BrokerThread) -> None:
    with open_consumer(broker) as consumer:
        consumer.assign([ONE])
        consumer.seek(ONE, 10)
        for _ in range(2):
            with pytest.raises(CorruptBatch):
                by_poll(consumer)
        assert described(broker)
        broker.trim("t", 0, 13)
        assert not described(broker)


def test_a_seek_elsewhere_forgets_it(broker: BrokerThread) -> None:
    with open_consumer(broker) as consumer:
        consumer.assign([ONE])
        consumer.seek(ONE, 11)
        with pytest.raises(CorruptBatch, match=r"t-0@11: .*go on at offset 13"):
            by_poll(consumer)
        consumer.seek(ONE, 9)
        assert consumer.health().ok
        with pytest.raises(Rejected, match="call it after a poll has raised"):
            consumer.skip_batch()
        assert by_poll(consumer) == [9]


def test_a_batch_whose_crc_is_wrong_is_skipped_too(labs: Labs) -> None:
    memory = labs()
    memory.create_topic("t", 1)
    with memory.producer() as producer:
        for n in range(3):
            producer.send("t", b"%d" % n)
            producer.flush()
    memory.damage("t", 0, 1)

    async def read() -> list[int]:
        async with memory.aio_consumer("t", auto_offset_reset="earliest") as consumer:
            assert isinstance(consumer, aio.Consumer)
            found = [r.offset for r in await consumer.poll(timeout_ms=None)]
            with pytest.raises(CorruptBatch, match=r"t-0@1: the batch's CRC is .*go on at offset 2"):
                await consumer.poll(timeout_ms=None)
            assert consumer.skip_batch().offsets == range(1, 2)
            return found + [r.offset for r in await consumer.poll(timeout_ms=None)]

    assert asyncio.run(read()) == [0, 2]
