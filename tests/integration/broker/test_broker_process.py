"""The broker as a process, with a real controller and etcd: kills, clean ends, deletions, absent controllers."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.processes import Cluster, running_cluster

from headrace_common.core.batch import decode_batch, read_header
from headrace_common.core.errors import ErrorCode
from headrace_common.runtime.clock import SystemClock
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import cluster_pb2, controller_pb2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

NOW_MS = SystemClock().now_ms()
PARTITIONS = 3
RETRIED = {
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
}
OFFLINE = {ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REPLICA_DAMAGED}


async def read_all(cluster: Cluster, topic_id: bytes, partition: int) -> dict[int, bytes]:
    """Every record of a partition by offset; offsets must be dense."""
    stub = cluster.broker_stub()
    ask = pb.ListOffsetsPartition(topic_id=topic_id, partition=partition, timestamp_ms=-1)
    [latest] = (await stub.ListOffsets(pb.ListOffsetsRequest(partitions=[ask]))).partitions
    assert latest.error == 0
    call = stub.Fetch()
    records: dict[int, bytes] = {}
    offset = 0
    while offset < latest.offset:
        part = pb.FetchPartition(topic_id=topic_id, partition=partition, fetch_offset=offset, max_bytes=1 << 20)
        await call.write(
            pb.FetchRequest(correlation_id=1, min_bytes=1, max_wait_ms=500, max_bytes=1 << 20, partitions=[part])
        )
        [result] = (await asyncio.wait_for(call.read(), 20)).partitions
        assert result.error == 0, result.message
        for batch in result.batches:
            decoded = decode_batch(batch)
            assert decoded.offsets()[0] == offset, "no gap, no overlap"
            records.update(zip(decoded.offsets(), decoded.values(), strict=True))  # no nulls
            offset = read_header(batch).next_offset
    call.cancel()
    return records


class Writer:
    """An idempotent producer that sends one batch after the other to each partition, again until it is acknowledged."""

    def __init__(self, cluster: Cluster, topic_id: bytes) -> None:
        self._cluster = cluster
        self._topic_id = topic_id
        self._producer_id = -1
        self._sent: dict[int, int] = defaultdict(int)
        self.acknowledged: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.stop = False

    async def run(self) -> None:
        """Until told to stop; connections may break at any time."""
        while not self.stop:
            try:
                await self._connected()
            except (grpc.RpcError, grpc.aio.BaseError, FileNotFoundError):
                await asyncio.sleep(0.05)

    async def _connected(self) -> None:
        stub = self._cluster.broker_stub()
        if self._producer_id < 0:
            self._producer_id = (await stub.InitProducerId(pb.InitProducerIdRequest())).producer_id
        call = stub.Produce()
        while not self.stop:
            for partition in range(PARTITIONS):
                await self._one(call, partition)

    async def _one(self, call: Any, partition: int) -> None:
        sequence = self._sent[partition]
        values = [b"%d-%d" % (partition, sequence + index) for index in range(3)]
        batch = batch_of(values, timestamp_ms=NOW_MS, producer_id=self._producer_id, epoch=0, sequence=sequence)
        entry = pb.ProducePartition(topic_id=self._topic_id, partition=partition, batch=batch)
        await call.write(pb.ProduceRequest(correlation_id=1, acks=-1, timeout_ms=5_000, partitions=[entry]))
        answer = await call.read()
        if answer is grpc.aio.EOF:
            raise grpc.aio.InternalError("the stream ended")
        [result] = answer.partitions
        if result.error == ErrorCode.NONE:
            for index, value in enumerate(values):
                self.acknowledged[partition][result.base_offset + index] = value
            self._sent[partition] += 3
        else:
            assert result.error in RETRIED, result.message
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("flush", ["group", "os", "always"])
async def test_kill_nine_again_and_again_loses_and_doubles_nothing(tmp_path: Path, flush: str) -> None:
    async with running_cluster(tmp_path, flush=flush) as cluster:
        topic_id = await cluster.create_topic("t", PARTITIONS, segment_bytes="4096")
        writer = Writer(cluster, topic_id)
        writing = asyncio.ensure_future(writer.run())
        for _ in range(5):
            enough = len(writer.acknowledged[0]) + 60
            async with asyncio.timeout(60):
                while len(writer.acknowledged[0]) < enough:
                    assert not writing.done(), writing
                    await asyncio.sleep(0.01)
            await cluster.broker.kill()
            await cluster.broker.start()
        writer.stop = True
        await asyncio.wait_for(writing, 30)
        await cluster.until_led(topic_id, PARTITIONS)
        for partition in range(PARTITIONS):
            records = await read_all(cluster, topic_id, partition)
            assert list(records) == list(range(len(records)))
            values = list(records.values())
            assert values == [b"%d-%d" % (partition, number) for number in range(len(values))], "each once, in order"
            assert writer.acknowledged[partition].items() <= records.items()


async def test_a_clean_end_leaves_a_token_and_the_next_start_checks_nothing(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        topic_id = await cluster.create_topic("t", 1)
        await produce(cluster, topic_id, batch_of(5, timestamp_ms=NOW_MS))
        assert await cluster.broker.stop() == 0
        await cluster.broker.start()
        await cluster.until_led(topic_id, 1)
        logs = await cluster.broker_stub().DescribeLogs(pb.DescribeLogsRequest())
        assert logs.recovery_report.startswith("clean start: 1 logs, 0 bytes checked")
        assert len(await read_all(cluster, topic_id, 0)) == 5


async def test_a_broker_waits_until_the_process_before_it_has_ended(tmp_path: Path) -> None:
    """As after ``kubectl delete pod --force``: the next pod is there while the old process still writes."""
    async with running_cluster(tmp_path) as cluster:
        topic_id = await cluster.create_topic("t", 1)
        await produce(cluster, topic_id, batch_of(5, timestamp_ms=NOW_MS))
        before = cluster.broker
        after = replace(before, name="next", running=None)
        starting = asyncio.ensure_future(after.start())
        try:
            async with asyncio.timeout(30):
                while not (tmp_path / "next.log").exists() or "for it to end" not in after.log():
                    assert not starting.done(), starting
                    await asyncio.sleep(0.02)
            assert before.running is not None
            assert f"in use by process {before.running.pid};" in after.log()
            assert await before.stop() == 0
            await starting
            cluster.broker = after
            await cluster.until_led(topic_id, 1)
            assert len(await read_all(cluster, topic_id, 0)) == 5
        finally:
            starting.cancel()
            if after.running is not None:
                await after.kill()


async def test_two_brokers_never_use_one_directory(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        argv = [*cluster.broker.argv, "--lock-wait-ms-max", "0"]
        second = replace(cluster.broker, name="second", argv=argv, ready=None, running=None)
        await second.start()
        assert second.running is not None
        assert await asyncio.wait_for(second.running.wait(), 30) == 1
        assert "stop it, or give this broker another directory" in second.log()


@pytest.mark.parametrize("flush", ["group", "os"])
async def test_a_store_that_cannot_be_opened_leaves_a_lone_replica_offline(tmp_path: Path, flush: str) -> None:
    """Nobody else has what is lost: an operator decides; a new, empty log must not take its place."""
    async with running_cluster(tmp_path, flush=flush) as cluster:
        topic_id = await cluster.create_topic("t", 1)
        await produce(cluster, topic_id, batch_of(5, timestamp_ms=NOW_MS))
        assert await cluster.broker.stop() == 0
        [identity] = tmp_path.glob("**/identity")
        database = identity.with_name("db")
        for table in database.glob("*.sst"):
            os.truncate(table, table.stat().st_size - 10)
        await cluster.broker.start()
        assert list((database.parent / "db.damaged").glob("*.sst"))
        assert not (database.parent / "emptied").exists(), "the cluster was told"
        assert await cluster.known_topics() == {"t"}
        assert (await produce(cluster, topic_id, batch_of(1, timestamp_ms=NOW_MS))).error in OFFLINE
        await cluster.broker.kill()
        await cluster.broker.start()
        assert await cluster.known_topics() == {"t"}
        assert (await produce(cluster, topic_id, batch_of(1, timestamp_ms=NOW_MS))).error in OFFLINE
        election = controller_pb2.ElectLeadersRequest(
            type=controller_pb2.UNCLEAN, partitions=[cluster_pb2.PartitionRef(topic_id=topic_id, partition=0)]
        )
        [elected] = (await cluster.controller_stub().ElectLeaders(election)).partitions
        assert elected.error == 0
        await cluster.until_led(topic_id, 1)
        assert (await produce(cluster, topic_id, batch_of(1, timestamp_ms=NOW_MS))).base_offset == 0


async def produce(cluster: Cluster, topic_id: bytes, batch: bytes) -> Any:
    """One batch to partition 0; its result."""
    call = cluster.broker_stub().Produce()
    entry = pb.ProducePartition(topic_id=topic_id, partition=0, batch=batch)
    await call.write(pb.ProduceRequest(correlation_id=1, acks=-1, timeout_ms=5_000, partitions=[entry]))
    [result] = (await asyncio.wait_for(call.read(), 20)).partitions
    call.cancel()
    return result


async def test_the_data_path_goes_on_without_controller_and_etcd(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        topic_id = await cluster.create_topic("t", 1)
        await cluster.controller.kill()
        cluster.etcd.usage().suspend()
        for number in range(20):
            result = await produce(cluster, topic_id, batch_of(1, timestamp_ms=NOW_MS))
            assert (result.error, result.base_offset) == (0, number)
        assert len(await read_all(cluster, topic_id, 0)) == 20
        cluster.etcd.usage().resume()
        await cluster.controller.start()
        second = await cluster.create_topic("u", 1)
        assert (await produce(cluster, second, batch_of(1, timestamp_ms=NOW_MS))).error == 0
        assert (await produce(cluster, topic_id, batch_of(1, timestamp_ms=NOW_MS))).base_offset == 20


async def test_a_deleted_topic_goes_from_the_disk_and_its_name_is_free(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        topic_id = await cluster.create_topic("t", 2)
        await produce(cluster, topic_id, batch_of(5, timestamp_ms=NOW_MS))
        answer = await cluster.controller_stub().DeleteTopics(controller_pb2.DeleteTopicsRequest(names=["t"]))
        assert answer.topics[0].error == 0
        stub = cluster.broker_stub()
        async with asyncio.timeout(20):
            while (await stub.DescribeLogs(pb.DescribeLogsRequest())).logs:
                await asyncio.sleep(0.02)
        again = await cluster.create_topic("t", 1)
        assert again != topic_id
        assert (await produce(cluster, again, batch_of(1, timestamp_ms=NOW_MS))).base_offset == 0
        assert (await produce(cluster, topic_id, batch_of(1, timestamp_ms=NOW_MS))).error == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_data_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.broker.stop()
        cluster.broker.argv += ["--node-id", "2"]
        with pytest.raises(AssertionError, match="belongs to broker 1"):
            await cluster.broker.start()
        assert cluster.broker.running is not None
        assert await cluster.broker.running.wait() == 1


async def test_a_broker_whose_session_ended_joins_again_and_leads_on(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        topic_id = await cluster.create_topic("t", 1)
        await produce(cluster, topic_id, batch_of(2, timestamp_ms=NOW_MS))
        cluster.broker.usage().suspend()
        stub = cluster.controller_stub()
        async with asyncio.timeout(30):
            while not (await stub.DescribeCluster(controller_pb2.DescribeClusterRequest())).offline_partition_count:
                await asyncio.sleep(0.05)
        cluster.broker.usage().resume()
        # The first may be taken before the broker knows that its session has ended: then it steps down after it.
        async with asyncio.timeout(30):
            while (await produce(cluster, topic_id, batch_of(1, timestamp_ms=NOW_MS))).error:
                await asyncio.sleep(0.02)
            while (await stub.DescribeCluster(controller_pb2.DescribeClusterRequest())).offline_partition_count:
                await asyncio.sleep(0.05)
            while (last := await produce(cluster, topic_id, batch_of(1, timestamp_ms=NOW_MS))).error:
                await asyncio.sleep(0.02)
        records = await read_all(cluster, topic_id, 0)
        # A try that was refused while the broker stepped down may have been appended: its fate was unknown.
        assert last.base_offset >= 3
        assert list(records) == list(range(last.base_offset + 1))


async def test_a_disk_that_refuses_ends_the_process_and_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        topic_id = await cluster.create_topic("t", 1)
        running = cluster.broker.running
        assert running is not None
        cluster.broker.usage().rlimit(psutil.RLIMIT_FSIZE, (2 << 20, -1))
        batch = batch_of([b"x" * 100_000], timestamp_ms=NOW_MS)
        entry = pb.ProducePartition(topic_id=topic_id, partition=0, batch=batch)
        call = cluster.broker_stub().Produce()
        acknowledged, refused = 0, []
        for number in range(40):
            await call.write(pb.ProduceRequest(correlation_id=number, acks=-1, timeout_ms=5_000, partitions=[entry]))
            answer = await asyncio.wait_for(call.read(), 20)
            if answer is grpc.aio.EOF or answer.partitions[0].error:
                refused = [] if answer is grpc.aio.EOF else [answer.partitions[0].error]
                break
            acknowledged += 1
        assert 0 < acknowledged < 40
        assert refused == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert await asyncio.wait_for(running.wait(), 20) == 1
        assert not (tmp_path / "data" / "clean-shutdown").exists()
        await cluster.broker.start()
        await cluster.until_led(topic_id, 1)
        assert len(await read_all(cluster, topic_id, 0)) >= acknowledged


async def test_a_broker_that_finds_no_controller_can_be_stopped_and_stays_clean(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, shutdown_ms_max="500") as cluster:
        topic_id = await cluster.create_topic("t", 1)
        await produce(cluster, topic_id, batch_of(5, timestamp_ms=NOW_MS))
        await cluster.controller.kill()
        assert await cluster.broker.stop() == 0, "without a controller to hand over to"
        ready, cluster.broker.ready = cluster.broker.ready, None
        await cluster.broker.start()
        async with asyncio.timeout(20):
            while "no controller took the registration yet" not in cluster.broker.log():
                await asyncio.sleep(0.05)
        assert await cluster.broker.stop() == 0, "before it has joined"
        cluster.broker.ready = ready
        await cluster.controller.start()
        await cluster.broker.start()
        await cluster.until_led(topic_id, 1)
        logs = await cluster.broker_stub().DescribeLogs(pb.DescribeLogsRequest())
        assert logs.recovery_report.startswith("clean start")
        assert len(await read_all(cluster, topic_id, 0)) == 5
