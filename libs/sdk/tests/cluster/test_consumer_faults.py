"""Consumers on a real cluster whose processes die."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import headrace
from headrace.testing import TestCluster, started_cluster

pytestmark = pytest.mark.integration

PER_PARTITION = 3_000


@pytest.fixture(scope="module")
def two_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with started_cluster(
        tmp_path_factory.mktemp("two"), brokers=2, flush="group", restart=True, restart_delay_ms=100
    ) as cluster:
        yield cluster


def produce(cluster: TestCluster, topic: str, partitions: int, start: int, end: int) -> None:
    with cluster.producer() as producer:
        for number in range(start, end):
            for partition in range(partitions):
                producer.send(topic, b"%d" % number, partition=partition)
        producer.flush(60)


def check(seen: dict[int, list[headrace.Record]], partitions: int, count: int) -> None:
    """Every record once, in order, offsets without a gap."""
    assert sorted(seen) == list(range(partitions))
    for records in seen.values():
        assert [r.offset for r in records] == list(range(count))
        assert [r.value for r in records] == [b"%d" % n for n in range(count)]


def test_reading_goes_on_over_a_broker_that_is_killed(two_brokers: TestCluster) -> None:
    topic = two_brokers.unique_topic("killed", partitions=4)
    produce(two_brokers, topic, 4, 0, PER_PARTITION)
    seen: dict[int, list[headrace.Record]] = {}
    count = 0
    with two_brokers.consumer(topic, max_partition_fetch_bytes=4096, fetch_max_bytes=16384) as consumer:
        for record in consumer:
            seen.setdefault(record.partition, []).append(record)
            count += 1
            if count == PER_PARTITION:
                two_brokers.local.kill("broker-1")
            if count == 4 * PER_PARTITION:
                break
        assert consumer.poll(timeout_ms=100) == []
    check(seen, 4, PER_PARTITION)
    two_brokers.local.wait_ready()


def test_reading_follows_writing_over_kills_of_everything(two_brokers: TestCluster) -> None:
    topic = two_brokers.unique_topic("follow", partitions=2)
    half = PER_PARTITION // 2
    seen: dict[int, list[headrace.Record]] = {}
    with two_brokers.consumer(topic) as consumer:
        consumer.poll(timeout_ms=0)
        writer = threading.Thread(target=produce, args=(two_brokers, topic, 2, 0, half))
        writer.start()
        for name in ("broker-2", "controller-1"):
            two_brokers.local.kill(name)
        writer.join(60)
        assert not writer.is_alive()
        two_brokers.local.wait_ready()
        produce(two_brokers, topic, 2, half, PER_PARTITION)
        while sum(map(len, seen.values())) < 2 * PER_PARTITION:
            for record in consumer.poll(timeout_ms=1000):
                seen.setdefault(record.partition, []).append(record)
    check(seen, 2, PER_PARTITION)


def test_a_topic_made_anew_is_read_from_its_beginning_and_told(
    two_brokers: TestCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = two_brokers.unique_topic("anew")
    produce(two_brokers, topic, 1, 0, 10)
    with two_brokers.consumer(topic) as consumer, two_brokers.admin() as admin:
        old = []
        while len(old) < 10:
            old += consumer.poll(timeout_ms=1000)
        admin.delete_topic(topic)
        admin.create_topic(topic)
        produce(two_brokers, topic, 1, 100, 103)
        new: list[headrace.Record] = []
        while len(new) < 3:
            new += consumer.poll(timeout_ms=1000)
    assert [(r.offset, r.value) for r in new] == [(0, b"100"), (1, b"101"), (2, b"102")]
    assert "was deleted and created again" in caplog.text


def test_thousand_partitions_are_read_by_one_consumer(two_brokers: TestCluster) -> None:
    topic = two_brokers.unique_topic("thousand", partitions=1000)
    produce(two_brokers, topic, 1000, 0, 3)
    seen: dict[int, list[headrace.Record]] = {}
    with two_brokers.consumer(topic) as consumer:
        while sum(map(len, seen.values())) < 3000:
            for record in consumer.poll(timeout_ms=1000, max_records=10_000):
                seen.setdefault(record.partition, []).append(record)
        assert consumer.health().ok
    check(seen, 1000, 3)
