"""The clients on real replicated partitions: brokers die, stop and are drained, and programs notice nothing."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace import Producer, TopicPartition
from headrace.admin_types import PartitionInfo
from headrace.delivery import Delivery
from headrace.testing import TestCluster, started_cluster

pytestmark = pytest.mark.integration

PARTITIONS = 6
TOPIC = "flights"


class Load:
    """Numbers to every partition, one after the other, until the block ends."""

    def __init__(self, producer: Producer) -> None:
        self.deliveries: list[list[Delivery]] = [[] for _ in range(PARTITIONS)]
        self._producer = producer
        self._over = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._over.wait(0.005):
            for partition, deliveries in enumerate(self.deliveries):
                deliveries.append(self._producer.send(TOPIC, b"%d" % number, partition=partition))
            number += 1

    def end(self) -> None:
        self._over.set()

    def goes_on(self) -> None:
        """Return once a record sent from now on was acknowledged in each partition."""
        started = [len(deliveries) for deliveries in self.deliveries]
        until(lambda: all(len(d) > start for d, start in zip(self.deliveries, started, strict=True)))
        for deliveries, start in zip(self.deliveries, started, strict=True):
            deliveries[start].result(timeout=60)


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


@contextmanager
def under_load(cluster: TestCluster) -> Iterator[Load]:
    """Writes meanwhile; at the end all was acknowledged, and is read once and in order from its offsets."""
    with cluster.admin() as admin:
        admin.create_topic(TOPIC, PARTITIONS, 3)
    with cluster.producer(linger_ms=0) as producer:
        load = Load(producer)
        thread = threading.Thread(target=load.run)
        thread.start()
        try:
            load.goes_on()
            yield load
        finally:
            load.end()
            thread.join()
        offsets = [[d.result(timeout=60).offset for d in deliveries] for deliveries in load.deliveries]
    for partition_offsets in offsets:
        assert partition_offsets == list(range(len(partition_offsets)))
    total = sum(map(len, offsets))
    read: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
    with cluster.consumer(TOPIC) as consumer:
        while sum(map(len, read)) < total:
            records = consumer.poll(timeout_ms=30_000, max_records=10_000)
            assert records, "all that was acknowledged can be read"
            for record in records:
                read[record.partition].append(record.value)
    for values, partition_offsets in zip(read, offsets, strict=True):
        assert values == [b"%d" % n for n in range(len(partition_offsets))]


def leaders(cluster: TestCluster) -> list[PartitionInfo]:
    with cluster.admin() as admin:
        return list(admin.describe_topic(TOPIC).partitions)


def test_a_broker_is_killed(cluster: TestCluster) -> None:
    with under_load(cluster) as load:
        cluster.local.kill("broker-2")
        load.goes_on()
        assert all(partition.leader in (1, 3) for partition in leaders(cluster))
        cluster.local.restart("broker-2")
        until(lambda: all(len(partition.isr) == 3 for partition in leaders(cluster)))
        load.goes_on()


def test_a_broker_is_stopped_for_longer_than_its_session_and_goes_on(cluster: TestCluster) -> None:
    with under_load(cluster) as load:
        cluster.local.signal("broker-1", signal.SIGSTOP)
        load.goes_on()
        cluster.local.signal("broker-1", signal.SIGCONT)
        until(lambda: all(len(partition.isr) == 3 for partition in leaders(cluster)))
        load.goes_on()


def test_a_broker_is_drained_and_leads_again(cluster: TestCluster) -> None:
    with under_load(cluster) as load, cluster.admin() as admin:
        until(lambda: admin.drain_broker(3) == 0)
        assert admin.describe_broker(3).drained
        assert all(partition.leader != 3 for partition in leaders(cluster))
        load.goes_on()
        admin.drain_broker(3, drained=False)
        moved = admin.elect_leaders()
        assert all(isinstance(state, PartitionInfo) and state.leader == 3 for state in moved.values())
        assert admin.describe_cluster().not_preferred_partitions == 0
        load.goes_on()


def test_replicas_move_while_records_are_written(cluster: TestCluster) -> None:
    with cluster.admin() as admin:
        admin.create_topic("moving", assignments=[[1, 2]])
        moving = TopicPartition("moving", 0)
        with cluster.producer() as producer:
            for number in range(1_000):
                producer.send("moving", b"%d" % number)
            producer.flush(30)
            told = admin.alter_reassignments({moving: [3, 2]})[moving]
            assert isinstance(told, PartitionInfo)
            for number in range(1_000, 2_000):
                producer.send("moving", b"%d" % number)
            producer.flush(30)
        until(lambda: not admin.list_reassignments([moving]))
        [partition] = admin.describe_topic("moving").partitions
        assert partition.replicas == (3, 2)
        assert partition.leader in (3, 2)
    values: list[bytes | None] = []
    with cluster.consumer("moving") as consumer:
        while len(values) < 2_000:
            records = consumer.poll(timeout_ms=30_000)
            assert records
            values += [record.value for record in records]
    assert values == [b"%d" % n for n in range(2_000)]


def test_a_consumer_reads_from_its_rack_and_from_the_leader_when_that_broker_dies(tmp_path: Path) -> None:
    with started_cluster(tmp_path / "data", brokers=3, restart=False, racks=["a", "b", "c"]) as cluster:
        near = TopicPartition("near", 0)
        with cluster.admin() as admin:
            admin.create_topic("near", assignments=[[1, 2, 3]])
        with cluster.producer() as producer, cluster.consumer("near", client_rack="b") as consumer:
            read: list[bytes | None] = []
            core = consumer._reading.out.core.partitions

            def take(end: int) -> None:
                while len(read) < end:
                    records = consumer.poll(timeout_ms=30_000)
                    assert records
                    read.extend(record.value for record in records)

            for number in range(100):
                producer.send("near", b"%d" % number)
            producer.flush(30)
            take(100)
            assert core[near].source == 2, "the follower in its rack"
            cluster.local.kill("broker-2")
            for number in range(100, 200):
                producer.send("near", b"%d" % number)
            producer.flush(30)
            take(200)
            assert core[near].source == 1
        assert read == [b"%d" % n for n in range(200)]
