"""The asyncio producer, where all is well and where it is not; over sockets see ``test_producer_sync``."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

from headrace import bulk_partitioner
from headrace.aio import Producer
from headrace.delivery import DeliveredBatch
from headrace.errors import (
    BufferExhausted,
    ClientClosed,
    DeliveryTimedOut,
    ErrorCode,
    HeadraceError,
    Internal,
    InvalidConfig,
    InvalidPartitions,
    NetworkFailed,
    RecordTooLarge,
    Rejected,
    SerializationFailed,
    UnknownTopicOrPartition,
    WaitTimedOut,
)
from headrace.settings import ProducerSettings, read_settings
from headrace_common.core.batch import DecodedBatch, decode_batch
from headrace_common.core.murmur2 import partition_for

DROP_BEFORE, DROP_AFTER = Fault(Does.DROP), Fault(Does.DROP, after=True)
SILENT, SILENT_AFTER = Fault(Does.SILENCE), Fault(Does.SILENCE, after=True)


@pytest.fixture
def cluster(labs: Labs) -> LabCluster:
    made = labs(brokers=2)
    made.create_topic("one", 1)
    made.create_topic("t", 3)
    return made


def producer(cluster: LabCluster, **settings: Any) -> Producer:
    return Producer(_transport=cluster.transport(), **{"linger_ms": 0, "retry_backoff_ms": 1, **settings})


def batches(cluster: LabCluster, topic: str, partition: int = 0) -> list[DecodedBatch]:
    return [decode_batch(batch) for batch in cluster.log(topic, partition).batches]


# --- where all is well ------------------------------------------------------------------------------------------


@pytest.fixture
async def anywhere(cluster: LabCluster) -> AsyncIterator[Producer]:
    async with Producer(_transport=cluster.transport()) as producer:
        yield producer


async def test_a_record_is_acknowledged(anywhere: Producer) -> None:
    delivery = await anywhere.send("one", b"value", key=b"key", headers={"h": b"1"}, timestamp_ms=1_700_000_000_123)
    metadata = await delivery
    assert metadata == ("one", 0, 0, 1_700_000_000_123)
    assert delivery.done()
    assert delivery.exception() is None


async def test_keys_go_where_every_kafka_client_sends_them(anywhere: Producer) -> None:
    keys = [b"key-%d" % n for n in range(200)]
    deliveries = [await anywhere.send("t", key, key=key) for key in keys]
    placed = [(await delivery).partition for delivery in deliveries]
    assert placed == [partition_for(key, 3) for key in keys]


async def test_offsets_follow_the_order_of_the_calls(anywhere: Producer) -> None:
    deliveries = [await anywhere.send("t", b"%d" % n, key=b"%d" % (n % 7)) for n in range(5_000)]
    by_partition: dict[int, list[int]] = {}
    for delivery in deliveries:
        metadata = await delivery
        by_partition.setdefault(metadata.partition, []).append(metadata.offset)
    for offsets in by_partition.values():
        assert offsets == list(range(len(offsets)))


async def test_many_records_in_lists_arrays_and_tables(anywhere: Producer) -> None:
    values = [b"%05d" % n for n in range(3_000)]
    as_lists = await anywhere.send_many("one", values, [b"k"] * len(values))
    as_arrays = await anywhere.send_many("one", pa.array(values, pa.binary()))
    table = pa.table({"value": values, "key": pa.array(["k"] * 3_000), "timestamp_ms": list(range(3_000))})
    as_table = await anywhere.send_table("one", table)
    for nth, deliveries in enumerate([as_lists, as_arrays, as_table]):
        assert len(deliveries) == 3_000
        assert [m.offset for m in await deliveries] == list(range(nth * 3_000, (nth + 1) * 3_000))
    assert (await as_table[-1]).timestamp_ms == 2_999
    assert [(await d).offset for d in as_lists[2:5]] == [2, 3, 4]
    assert as_lists.done()


async def test_flush_waits_for_what_was_sent(anywhere: Producer) -> None:
    deliveries = [await anywhere.send("t", b"x") for _ in range(100)]
    await anywhere.flush()
    assert all(delivery.done() for delivery in deliveries)


# --- batches ----------------------------------------------------------------------------------------------------


async def test_records_of_one_linger_share_a_batch(cluster: LabCluster) -> None:
    async with producer(cluster, linger_ms=60_000, delivery_timeout_ms=100_000) as p:
        for n in range(10):
            await p.send("one", b"%d" % n)
        assert cluster.faults.produced == []
        await p.flush()
    [batch] = batches(cluster, "one")
    assert batch.values() == [b"%d" % n for n in range(10)]
    assert batch.header.base_sequence == 0


async def test_keyless_records_stay_with_a_partition_until_batch_size(cluster: LabCluster) -> None:
    async with producer(cluster, linger_ms=60_000, delivery_timeout_ms=100_000, batch_size=10_000) as p:
        for _ in range(300):
            await p.send("t", b"x" * 84)
        await p.flush()
    assert [sum(b.record_count for b in batches(cluster, "t", n)) for n in range(3)] == [100, 100, 100]
    assert all(len(batches(cluster, "t", n)) == 1 for n in range(3))


async def test_keys_headers_nulls_and_timestamps_arrive(cluster: LabCluster) -> None:
    async with producer(cluster) as p:
        await p.send("one", None, key="schlüssel", headers=[("a", b"1"), ("a", None)], timestamp_ms=5)
        await p.send("one", "wert")
        await p.flush()
    rows = [
        row
        for b in batches(cluster, "one")
        for row in zip(b.keys(), b.values(), b.headers(), b.timestamps(), strict=True)
    ]
    assert rows[0] == ("schlüssel".encode(), None, [("a", b"1"), ("a", None)], 5)
    assert rows[1][:3] == (None, b"wert", [])
    assert rows[1][3] > 1_700_000_000_000


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_batches_are_compressed(cluster: LabCluster, codec: str) -> None:
    async with producer(cluster, compression_type=codec) as p:
        await (await p.send_many("one", [b"a" * 1_000] * 50))
    [batch] = batches(cluster, "one")
    assert batch.header.codec.name.lower() == codec
    assert len(cluster.log("one", 0).batches[0]) < 5_000
    assert batch.values() == [b"a" * 1_000] * 50


async def test_log_append_time_is_told(cluster: LabCluster) -> None:
    cluster.create_topic("stamped", 1, message_timestamp_type="LogAppendTime")
    async with producer(cluster) as p:
        told = (await (await p.send("stamped", b"x", timestamp_ms=5))).timestamp_ms
    assert [told] == batches(cluster, "stamped")[0].timestamps()
    assert told > 1_700_000_000_000


async def test_acks_0_is_settled_when_it_left(cluster: LabCluster) -> None:
    async with producer(cluster, acks=0) as p:
        metadata = await (await p.send("one", b"x"))
        assert metadata.offset == -1
        await asyncio.sleep(1)
        assert cluster.values("one", 0) == [b"x"]


def test_one_size_of_batches_settles_the_other() -> None:
    def sizes(**given: int) -> tuple[int, int]:
        settings = read_settings(ProducerSettings, given)
        return settings.batch_size, settings.batch_size_max

    assert sizes() == (131_072, 1_000_000)
    assert sizes(batch_size=5_000) == (5_000, 5_000)
    assert sizes(batch_size_max=5_000) == (5_000, 5_000)
    assert sizes(batch_size_max=200_000) == (131_072, 200_000)
    with pytest.raises(InvalidConfig, match=r"batch_size_max .5. is below batch_size .6."):
        sizes(batch_size=6, batch_size_max=5)


async def test_idempotence_is_off_where_settings_rule_it_out(cluster: LabCluster) -> None:
    async with producer(cluster, acks=1) as p:
        await (await p.send("one", b"x"))
    assert batches(cluster, "one")[0].header.producer_id == -1


async def test_on_delivery_gets_whole_batches(cluster: LabCluster) -> None:
    reports: list[DeliveredBatch] = []
    async with producer(cluster, linger_ms=60_000, delivery_timeout_ms=100_000, on_delivery=reports.append) as p:
        for n in range(50):
            await p.send("one", b"%d" % n, timestamp_ms=n + 1)
        await p.flush()
    assert reports == [DeliveredBatch("one", 0, 0, 50, 1, None)]


async def test_a_raising_on_delivery_does_not_stop_the_producer(
    cluster: LabCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: DeliveredBatch) -> None:
        raise ValueError("mine")

    async with producer(cluster, on_delivery=broken) as p:
        assert (await (await p.send("one", b"a"))).offset == 0
        assert (await (await p.send("one", b"b"))).offset == 1
    assert "broken raised, called for one-0" in caplog.text


async def test_callbacks_are_called_once(cluster: LabCluster) -> None:
    seen: list[Any] = []
    async with producer(cluster) as p:
        delivery = await p.send("one", b"x")
        delivery.add_done_callback(seen.append)
        await delivery
        delivery.add_done_callback(seen.append)
    assert seen == [delivery, delivery]


@pytest.mark.real_time
async def test_a_task_that_only_sends_lets_others_run(cluster: LabCluster) -> None:
    async with producer(cluster) as p:
        await p.send("one", b"x")
        ran = asyncio.Event()
        asyncio.get_running_loop().call_soon(ran.set)
        for _ in range(1_000_000):
            await p.send("one", b"x")
            if ran.is_set():
                break
        assert ran.is_set()


# --- partitioners -----------------------------------------------------------------------------------------------


async def test_a_named_partition_counts_most(cluster: LabCluster) -> None:
    async with producer(cluster) as p:
        deliveries = [await p.send("t", b"x", key=b"same", partition=n % 3) for n in range(30)]
        assert [(await d).partition for d in deliveries] == [n % 3 for n in range(30)]
        many = await p.send_many("t", [b"x"] * 3, partition=[2, 1, 0])
        assert [m.partition for m in await many] == [2, 1, 0]
        assert {m.partition for m in await (await p.send_many("t", [b"x"] * 40, partition=1))} == {1}


async def test_partitioners_per_record_and_per_batch(cluster: LabCluster) -> None:
    def last(topic: str, key: bytes | None, partitions: int) -> int:
        return partitions - 1

    @bulk_partitioner
    def by_length(topic: str, keys: Any, partitions: int) -> list[int]:
        return [len(key) % partitions for key in keys]

    async with producer(cluster, partitioner=last) as p:
        assert (await (await p.send("t", b"x", key=b"a"))).partition == 2
        assert [m.partition for m in await (await p.send_many("t", [b"x"] * 2))] == [2, 2]
    async with producer(cluster, partitioner=by_length) as p:
        deliveries = [await p.send("t", b"x", key=b"a" * n) for n in range(30)]
        assert [(await d).partition for d in deliveries] == [n % 3 for n in range(30)]


async def test_wrong_partitioners_are_told(cluster: LabCluster) -> None:
    async with producer(cluster, partitioner=lambda *_: 99) as p:
        with pytest.raises(InvalidPartitions, match="99"):
            await p.send("t", b"x")
    wrong = bulk_partitioner(lambda topic, keys, partitions: [99] * len(keys))
    async with producer(cluster, partitioner=wrong) as p:
        with pytest.raises(InvalidPartitions, match="99"):
            await (await p.send("t", b"x"))


async def test_a_partitioner_that_calls_sys_exit_ends_no_client(cluster: LabCluster) -> None:
    ended = bulk_partitioner(lambda topic, keys, partitions: sys.exit(3))
    async with producer(cluster, partitioner=ended) as p:
        with pytest.raises(Internal, match="SystemExit"):
            await (await p.send("t", b"x"))
        assert (await (await p.send("t", b"x", partition=0))).partition == 0


async def test_partitions_that_were_added_are_found(cluster: LabCluster) -> None:
    async with producer(cluster) as p:
        await (await p.send("one", b"x"))
        cluster.add_partitions("one", 2)
        assert (await (await p.send("one", b"x", partition=2))).partition == 2
        assert await p.partitions_for("one") == 3


# --- wrong use --------------------------------------------------------------------------------------------------


async def test_wrong_records_are_refused_at_once(cluster: LabCluster) -> None:
    cluster.create_topic("small", 1, max_message_bytes=2_000)
    async with producer(cluster) as p:
        with pytest.raises(RecordTooLarge, match="max_request_size"):
            await p.send("one", b"x" * (1 << 20))
        with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
            await p.send("small", b"x" * 2_000)
        with pytest.raises(RecordTooLarge):
            await p.send_many("small", [b"", b"x" * 2_000])
        with pytest.raises(RecordTooLarge):
            await p.send_many("small", pa.array([b"", b"x" * 2_000]))
        with pytest.raises(UnknownTopicOrPartition, match="0 to 2"):
            await p.send("t", b"x", partition=3)
        with pytest.raises(Rejected):
            await p.send("t", b"x", partition="0")  # on purpose
        with pytest.raises(SerializationFailed, match="value_serializer"):
            await p.send("t", {"a": 1})
        with pytest.raises(SerializationFailed, match="key"):
            await p.send("t", b"x", key=1)
        with pytest.raises(Rejected, match="header"):
            await p.send("t", b"x", headers={"a": 1})  # on purpose
        with pytest.raises(Rejected, match="timestamp"):
            await p.send("t", b"x", timestamp_ms=-1)
        with pytest.raises(Rejected, match="one for each"):
            await p.send_many("t", [b"x"] * 2, [b"k"])
        with pytest.raises(SerializationFailed, match="list"):
            await p.send_many("t", b"xyz")
        with pytest.raises(Rejected, match="value"):
            await p.send_table("t", pa.table({"data": [b"x"]}))
        assert cluster.faults.produced == []


async def test_a_topic_that_does_not_exist_is_told_with_what_to_do(
    cluster: LabCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.aio._client.UNKNOWN_TOPIC_GRACE_MS", 0)
    async with producer(cluster) as p:
        with pytest.raises(UnknownTopicOrPartition, match=r"nobody.* headrace topic create"):
            await p.send("nobody", b"x")
        with pytest.raises(Rejected, match="characters"):
            await p.send("no body", b"x")


async def test_a_topic_that_is_just_being_made_is_waited_for(cluster: LabCluster) -> None:
    async with producer(cluster) as p:
        sending = asyncio.ensure_future(p.send("late", b"x"))
        await asyncio.sleep(0)
        cluster.create_topic("late", 1)
        assert (await (await sending)).offset == 0


async def test_brokers_that_cannot_be_reached_are_told_after_max_block_ms(cluster: LabCluster) -> None:
    for broker in cluster.brokers:
        cluster.kill(broker)
    async with producer(cluster, max_block_ms=50) as p:
        with pytest.raises(NetworkFailed, match="no broker answered"):
            await p.send("one", b"x")


async def test_serializers_run_at_once(cluster: LabCluster) -> None:
    async with producer(cluster, value_serializer="json", key_serializer=lambda key: str(key).encode()) as p:
        await (await p.send("one", {"a": [1, None]}, key=5))
        await (await p.send_many("one", [{"b": 2}], [6]))
        with pytest.raises(SerializationFailed, match="raised"):
            await p.send("one", object())
    assert cluster.values("one", 0) == [b'{"a":[1,null]}', b'{"b":2}']


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"linger_mss": 1}, "did you mean linger_ms"),
        ({"acks": 2}, "acks"),
        ({"acks": 1, "enable_idempotence": True}, "acks='all'"),
        ({"enable_idempotence": True, "max_in_flight_requests_per_connection": 6}, "at most 5"),
        ({"compression_type": "brotli"}, "zstd"),
        ({"delivery_timeout_ms": 10}, "delivery_timeout_ms"),
        ({"batch_size": "big"}, "number"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"enable_idempotence": 1}, "True or False"),
        ({"bootstrap_servers": "nowhere"}, "host:port"),
        ({"bootstrap_servers": ""}, "bootstrap_servers"),
        ({"value_serializer": "xml"}, "json"),
    ],
)
async def test_wrong_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        Producer(**{"bootstrap_servers": "127.0.0.1:1", **settings})


# --- the end ----------------------------------------------------------------------------------------------------


async def test_a_closed_producer_refuses(cluster: LabCluster) -> None:
    p = producer(cluster)
    await (await p.send("one", b"x"))
    await p.close()
    await p.close()
    for call in (p.send("one", b"x"), p.send_many("one", [b"x"]), p.flush()):
        with pytest.raises(ClientClosed):
            await call


async def test_waiting_where_it_could_never_end_is_refused(cluster: LabCluster) -> None:
    async with producer(cluster) as p:
        delivery = await p.send("one", b"x")
        with pytest.raises(Rejected, match="await it"):
            delivery.result()
        await delivery
        assert delivery.result().offset == 0


async def test_close_delivers_what_was_accepted(cluster: LabCluster) -> None:
    p = producer(cluster, linger_ms=60_000, delivery_timeout_ms=100_000)
    delivery = await p.send("one", b"x")
    await p.close()
    assert (await delivery).offset == 0


async def test_close_in_time_fails_what_is_left(cluster: LabCluster) -> None:
    p = producer(cluster)
    await (await p.send("one", b"first"))
    cluster.inject("produce", SILENT)
    delivery = await p.send("one", b"x")
    with pytest.raises(WaitTimedOut):
        await p.close(timeout=0.05)
    with pytest.raises(ClientClosed):
        await delivery


async def test_forgetting_to_close_warns(cluster: LabCluster) -> None:
    p = producer(cluster, linger_ms=1)
    delivery = await p.send("one", b"x")
    holders = [p]
    del p
    with pytest.warns(ResourceWarning, match="never closed"):
        _forget(holders)
    assert (await delivery).offset == 0, "what was accepted is delivered nevertheless"


def _forget(holders: list[Any]) -> None:
    holders.clear()
    gc.collect()


async def _send_until_full(p: Producer) -> None:
    for _ in range(100):
        await p.send("one", b"x" * 1_000)


async def test_a_full_buffer_waits_and_then_says_so(cluster: LabCluster) -> None:
    async with producer(cluster, buffer_memory=1 << 16, max_request_size=1 << 15, max_block_ms=50) as p:
        await (await p.send("one", b"first"))
        release = asyncio.Event()
        cluster.inject("produce", *[Fault(Does.HOLD, until=release)] * 10)
        with pytest.raises(BufferExhausted, match="buffer_memory"):
            await _send_until_full(p)
        release.set()
        await p.flush()
        assert p._intake.within(lambda: p._intake.available) == 1 << 16, "all was given back"
        assert (await (await p.send("one", b"again"))).offset > 0


async def test_a_send_that_is_cancelled_as_it_is_woken_ends(cluster: LabCluster) -> None:
    async with producer(cluster, buffer_memory=1 << 16, max_request_size=1 << 15) as p:
        await (await p.send("one", b"first"))
        release = asyncio.Event()
        cluster.inject("produce", *[Fault(Does.HOLD, until=release)] * 10)
        sends = asyncio.create_task(_send_until_full(p))
        while not p._intake.within(lambda: bool(p._intake.waiters)):
            await asyncio.sleep(0)
        p._intake.within(p._intake._wake)
        sends.cancel()
        await asyncio.wait([sends], timeout=5)
        release.set()
        assert sends.cancelled()


async def test_a_full_buffer_goes_on_when_there_is_room(cluster: LabCluster) -> None:
    async with producer(cluster, buffer_memory=1 << 16, max_request_size=1 << 15) as p:
        deliveries = [await p.send("t", b"x" * 1_000, key=b"%d" % n) for n in range(1_000)]
        many = await p.send_many("t", [b"y" * 1_000] * 1_000)
        await p.flush()
        assert all(d.done() for d in deliveries)
        assert many.done()
        assert p._intake.within(lambda: p._intake.available) == 1 << 16


# --- where it is not well ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [
        [DROP_BEFORE],
        [DROP_AFTER],
        [DROP_AFTER, DROP_BEFORE, DROP_AFTER],
        [SILENT],
        [SILENT_AFTER],
        [Fault(Does.ERROR, code=ErrorCode.NOT_LEADER_OR_FOLLOWER)],
        [Fault(Does.ERROR, code=ErrorCode.NOT_ENOUGH_REPLICAS), Fault(Does.ERROR, code=ErrorCode.DISK_FULL)],
        [Fault(Does.ERROR, after=True, code=ErrorCode.REQUEST_TIMED_OUT)],
        [Fault(Does.ERROR, partition=1, code=ErrorCode.OVERLOADED)],
    ],
    ids=lambda faults: "+".join(f"{f.does.name}{'-after' if f.after else ''}" for f in faults),
)
async def test_whatever_happens_each_record_is_there_once_and_in_order(
    cluster: LabCluster, faults: list[Fault]
) -> None:
    async with producer(cluster, request_timeout_ms=50, delivery_timeout_ms=20_000, batch_size=500) as p:
        await asyncio.gather(*[(await p.send("t", b"000", partition=n)) for n in range(3)])
        cluster.inject("produce", *faults)
        deliveries = []
        for n in range(1, 200):
            deliveries.append(await p.send("t", b"%03d" % n, key=b"%d" % (n % 5)))
            if n % 20 == 0:
                await asyncio.sleep(0)
        for delivery in deliveries:
            await delivery
    for partition in range(3):
        values = cluster.values("t", partition)
        assert values == sorted(set(values))
    assert sum(len(cluster.values("t", n)) for n in range(3)) == 202


async def test_a_moved_leader_is_followed_by_its_hint(cluster: LabCluster) -> None:
    async with producer(cluster) as p:
        await (await p.send("one", b"a"))
        cluster.move_leader("one", 0, 2)
        assert (await (await p.send("one", b"b"))).offset == 1


async def test_nobody_leads_for_a_while(cluster: LabCluster) -> None:
    async with producer(cluster) as p:
        cluster.create_topic("lone", on=[[2]])
        await (await p.send("lone", b"a"))
        cluster.stop(2)
        assert cluster.leader("lone")[0] is None
        delivery = await p.send("lone", b"b")
        await asyncio.sleep(1)
        assert not delivery.done()
        cluster.restart(2)
        assert (await delivery).offset == 1


async def test_a_batch_in_time_or_not_at_all(cluster: LabCluster) -> None:
    async with producer(cluster, request_timeout_ms=20, delivery_timeout_ms=6_000) as p:
        await (await p.send("one", b"first"))
        cluster.inject("produce", *[SILENT] * 60)
        delivery = await p.send("one", b"lost")
        with pytest.raises(DeliveryTimedOut, match="may have been written"):
            await delivery
        cluster.faults.queued.clear()
        assert (await (await p.send("one", b"next"))).offset == 1
    assert [b.header.producer_epoch for b in batches(cluster, "one")] == [0, 1], "a new epoch after a gap"


async def test_a_topic_that_takes_less_than_was_known(cluster: LabCluster) -> None:
    async with producer(cluster, linger_ms=60_000, delivery_timeout_ms=100_000) as p:
        await p.send("one", b"x")
        await p.flush()
        cluster.configure("one", max_message_bytes=3_000)
        deliveries = await p.send_many("one", [b"%04d" % n + b"x" * 96 for n in range(200)])
        await p.flush()
        assert [m.offset for m in await deliveries] == list(range(1, 201))
    assert [v[:4] for v in cluster.values("one", 0)[1:] if v] == [b"%04d" % n for n in range(200)]


async def test_a_failed_batch_tells_all_its_records(cluster: LabCluster) -> None:
    reports: list[DeliveredBatch] = []
    async with producer(cluster, linger_ms=5, on_delivery=reports.append) as p:
        await (await p.send("one", b"a"))
        cluster.inject("produce", Fault(Does.ERROR, code=ErrorCode.INVALID_TIMESTAMP))
        deliveries = await p.send_many("one", [b"x"] * 3)
        errors = []
        for delivery in deliveries:
            with pytest.raises(HeadraceError) as caught:
                await delivery
            errors.append(caught.value.code)
        assert errors == [ErrorCode.INVALID_TIMESTAMP] * 3
        assert (await (await p.send("one", b"b"))).offset == 1
    assert reports[1].records == 3
    assert isinstance(reports[1].error, HeadraceError)


async def test_a_producer_id_is_asked_for_until_there_is_one(cluster: LabCluster) -> None:
    cluster.inject("init_producer_id", *[Fault(Does.ERROR, code=ErrorCode.METADATA_UNAVAILABLE)] * 3)
    async with producer(cluster) as p:
        assert (await (await p.send("one", b"x"))).offset == 0


async def test_a_bug_in_the_background_fails_everything_instead_of_hanging(
    cluster: LabCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    p = producer(cluster)
    await (await p.send("one", b"x"))

    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(p._engine._core, "drain", broken)
    delivery = await p.send("one", b"y")
    with pytest.raises(HeadraceError, match="bug"):
        await delivery
    with pytest.raises(HeadraceError, match="bug"):
        await p.send("one", b"z")
    monkeypatch.undo()
    await p.close()
    assert "crashed" in caplog.text


async def test_the_active_span_goes_along(cluster: LabCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import trace
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
    async with producer(cluster) as p:
        with trace.use_span(span):
            await (await p.send("one", b"x", headers={"a": b"b"}))
        await (await p.send("one", b"y"))
    async with producer(cluster, trace=False) as p:
        with trace.use_span(span):
            await (await p.send("one", b"z"))
    rows = [headers for b in batches(cluster, "one") for headers in b.headers()]
    assert rows == [[("a", b"b"), ("traceparent", f"00-{0xABC:032x}-{0xDEF:016x}-01".encode())], [], []]


async def test_a_cancelled_task_does_not_wait_for_a_broker_that_is_silent(
    cluster: LabCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.aio.producer.INTERRUPTED_SECONDS", 0.05)
    sent = asyncio.Event()
    deliveries: list[Any] = []

    async def body() -> None:
        async with producer(cluster) as p:
            await (await p.send("one", b"x"))
            cluster.inject("produce", SILENT)
            deliveries.append(await p.send("one", b"y"))
            sent.set()
            await deliveries[0]

    task = asyncio.create_task(body())
    await sent.wait()
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=20)
    assert done, "leaving the producer waited for the delivery timeout of two minutes"
    assert task.cancelled()
    with pytest.raises(ClientClosed):
        await deliveries[0]
