"""What a broker tells of its disk, as a process: after kills, and when the metadata knows less than the logs."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from pathlib import Path

import pytest
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.processes import Cluster, running_cluster

from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.adapters.topic_notes_file import DAMAGED, FILE
from headrace_common.runtime.clock import SystemClock
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import cluster_pb2, controller_pb2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

NOW_MS = SystemClock().now_ms()


async def inventory(cluster: Cluster) -> tuple[dict[str, pb.HeldTopic], dict[bytes, dict[int, pb.HeldLog]]]:
    """Topics by name, and logs by topic id and partition."""
    topics, logs = dict[str, pb.HeldTopic](), dict[bytes, dict[int, pb.HeldLog]]()
    async for answer in cluster.broker_stub().Inventory(pb.InventoryRequest()):
        topics |= {one.topic.name: one for one in answer.topics}
        for log in answer.logs:
            logs.setdefault(log.topic_id, {})[log.partition] = log
    return topics, logs


async def produce(cluster: Cluster, topic_id: bytes, count: int) -> None:
    """One batch of ``count`` records to partition 0, acknowledged."""
    call = cluster.broker_stub().Produce()
    entry = pb.ProducePartition(topic_id=topic_id, partition=0, batch=batch_of(count, timestamp_ms=NOW_MS))
    await call.write(pb.ProduceRequest(correlation_id=1, acks=-1, timeout_ms=10_000, partitions=[entry]))
    [result] = (await asyncio.wait_for(call.read(), 20)).partitions
    assert result.error == 0, result.message
    call.cancel()


async def until_noted(cluster: Cluster, expected: dict[str, cluster_pb2.Topic]) -> None:
    """The broker serves a moment before it has taken its first image in."""
    async with asyncio.timeout(30):
        while {name: one.topic for name, one in (await inventory(cluster))[0].items()} != expected:
            await asyncio.sleep(0.05)


async def program(cluster: Cluster, name: str, *arguments: str) -> None:
    """Run ``backup`` or ``restore`` of the controller to its end."""
    at = cluster.controller.argv.index("--etcd")
    etcd = cluster.controller.argv[at : at + 2]
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"headrace_controller.{name}", *etcd, *arguments, stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(running.communicate(), 60)
    assert running.returncode == 0, said.decode()


async def more_partitions(cluster: Cluster, topic: str, count: int) -> None:
    """All of them, those that are there included."""
    request = controller_pb2.CreatePartitionsRequest(name=topic, partition_count=count)
    answer = await cluster.controller_stub().CreatePartitions(request)
    assert answer.result.error == 0, answer


async def until_held(cluster: Cluster, topic_id: bytes, count: int) -> None:
    """The broker has this many logs of the topic."""
    async with asyncio.timeout(30):
        while len((await inventory(cluster))[1][topic_id]) < count:
            await asyncio.sleep(0.05)


async def test_topics_that_an_older_etcd_does_not_know_are_told_with_all_that_was_noted(tmp_path: Path) -> None:
    """The volume of etcd comes back as it was an hour ago."""
    async with running_cluster(tmp_path) as cluster:
        old = await cluster.create_topic("old", 2)
        await produce(cluster, old, 3)
        await cluster.etcd.kill()
        shutil.copytree(tmp_path / "etcd", tmp_path / "etcd-an-hour-ago")
        await cluster.etcd.start()
        young = await cluster.create_topic("young", 3, retention_ms="77000000")
        await produce(cluster, young, 5)
        before = await inventory(cluster)
        for process in (cluster.broker, cluster.controller, cluster.etcd):
            await process.kill()
        shutil.rmtree(tmp_path / "etcd")
        (tmp_path / "etcd-an-hour-ago").rename(tmp_path / "etcd")
        for process in (cluster.etcd, cluster.controller, cluster.broker):
            await process.start()
        assert await cluster.known_topics() == {"old"}, "or this shows nothing"
        topics, logs = await inventory(cluster)
    assert topics == before[0], "an older image of the same metadata changes no note"
    note = topics["young"].topic
    assert (note.topic_id, note.partition_count, dict(note.configs)) == (young, 3, {"retention.ms": "77000000"})
    assert {number: log.written_end for number, log in logs[young].items()} == {0: 5, 1: 0, 2: 0}
    assert {number: log.written_end for number, log in logs[old].items()} == {0: 3, 1: 0}
    assert logs[young] == before[1][young]


async def test_while_a_backup_is_restored_the_inventory_is_what_was_before_and_what_follows_is_noted(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path) as cluster:
        old = await cluster.create_topic("old", 2, retention_ms="1000000000")
        await produce(cluster, old, 3)
        await program(cluster, "backup", "--to", str(tmp_path / "backups"))
        young = await cluster.create_topic("young", 3, retention_ms="77000000")
        await produce(cluster, young, 5)
        await more_partitions(cluster, "old", 4)
        await until_held(cluster, old, 4)
        before = await inventory(cluster)
        for process in (cluster.broker, cluster.controller):
            await process.stop()
        await program(cluster, "restore", "--brokers", "1,7", "--replace", str(tmp_path / "backups"))
        for process in (cluster.controller, cluster.broker):
            await process.start()
        assert await cluster.known_topics() == {"old"}
        assert await inventory(cluster) == before, "nobody leads before broker 7 has said what it has"
        for process in (cluster.broker, cluster.controller):
            await process.kill()
        await program(cluster, "restore", "--brokers", "1", "--replace", str(tmp_path / "backups"))
        for process in (cluster.controller, cluster.broker):
            await process.start()
        for topic_id, count in ((old, 4), (young, 3)):
            await cluster.until_led(topic_id, count)
        await until_noted(cluster, {name: one.topic for name, one in before[0].items()})
        topics, logs = await inventory(cluster)
        assert not {one.incarnation for one in topics.values()} & {one.incarnation for one in before[0].values()}
        for topic_id, numbered in before[1].items():
            assert {n: log.written_end for n, log in logs[topic_id].items()} == {
                n: log.written_end for n, log in numbered.items()
            }
        await produce(cluster, young, 1)


async def test_no_log_is_without_its_note_whenever_the_broker_is_killed(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        made = 0

        async def make_topics() -> None:
            nonlocal made
            stub = cluster.controller_stub()
            while True:
                topics = [
                    controller_pb2.NewTopic(name=f"t{made}-{n}", partition_count=2, replication_factor=1)
                    for n in range(3)
                ]
                await stub.CreateTopics(controller_pb2.CreateTopicsRequest(topics=topics, timeout_ms=1_000))
                made += 1

        for _ in range(5):
            making, enough = asyncio.ensure_future(make_topics()), made + 8
            async with asyncio.timeout(60):
                while made < enough:
                    assert not making.done(), making
                    await asyncio.sleep(0.005)
            await cluster.broker.kill()
            making.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await making
            await cluster.broker.start()
            topics, logs = await inventory(cluster)
            assert logs.keys() <= {topic.topic.topic_id for topic in topics.values()}
            assert len(logs) > 0
        assert not (tmp_path / "data" / DAMAGED).exists(), "a crash damages no note"


async def test_notes_that_are_lost_or_damaged_stop_no_broker_and_come_back(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.create_topic("t", 1)
        await cluster.create_topic("u", 1)
        before, _ = await inventory(cluster)
        file = tmp_path / "data" / FILE
        whole = file.read_bytes()
        for harm in (None, b"", whole[:-9], whole.replace(b'"t"', b'"x"'), b"\0" * len(whole)):
            assert await cluster.broker.stop() == 0
            file.unlink()
            if harm is not None:
                file.write_bytes(harm)
            await cluster.broker.start()
            await until_noted(cluster, {name: one.topic for name, one in before.items()})
        assert (tmp_path / "data" / DAMAGED).read_bytes() == b"\0" * len(whole)
        assert "set aside in" in cluster.broker.log()


async def test_a_disk_that_refuses_a_note_stops_the_broker_before_the_log_is_made(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        kept = await cluster.create_topic("t", 1)
        await produce(cluster, kept, 2)
        file = tmp_path / "data" / FILE
        file.unlink()
        file.mkdir()  # nothing can be appended to it
        topics = [controller_pb2.NewTopic(name="u", partition_count=1, replication_factor=1)]
        await cluster.controller_stub().CreateTopics(
            controller_pb2.CreateTopicsRequest(topics=topics, timeout_ms=5_000)
        )
        assert cluster.broker.running is not None
        assert await asyncio.wait_for(cluster.broker.running.wait(), 30) == 1
        assert f"{FILE} cannot be written" in cluster.broker.log()
        data = DataDirectory.open(tmp_path / "data")
        store = RocksDbLogs.open(data)
        assert [log.state.partition.topic_id for log in store.list_recovered()] == [kept]
        await store.close(None)
        data.close()
        await cluster.broker.start()
        async with asyncio.timeout(30):
            while (await inventory(cluster))[0].keys() != {"t", "u"}:
                await asyncio.sleep(0.05)
        assert (tmp_path / "data" / DAMAGED).is_dir()
