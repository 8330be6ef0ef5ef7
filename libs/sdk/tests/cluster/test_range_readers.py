"""Ranges and watches on a real cluster: leaders that are killed, records and topics that go while they are read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pyarrow as pa
import pytest

from headrace import TopicPartition
from headrace.errors import PositionOutOfRange, UnknownTopicOrPartition
from headrace.testing import TestCluster, started_cluster

pytestmark = pytest.mark.integration

PARTITIONS = 3
PER_PARTITION = 4_000
NUMBERS = count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with started_cluster(tmp_path_factory.mktemp("ranges"), brokers=3, restart=True, restart_delay_ms=500) as running:
        yield running


def written(cluster: TestCluster, replicas: int = 3) -> str:
    """A topic with numbered records, those of each partition in many batches."""
    topic = f"ranges-{next(NUMBERS)}"
    with cluster.admin() as admin:
        admin.create_topic(topic, PARTITIONS, replicas)
    with cluster.producer(batch_size=2_000) as producer:
        for partition in range(PARTITIONS):
            values = [b"%d" % n for n in range(PER_PARTITION)]
            numbers = pa.array([partition] * PER_PARTITION, pa.int32())
            producer.send_table(topic, pa.table({"value": values, "partition": numbers}))
        producer.flush(60)
    return topic


def whole(cluster: TestCluster, topic: str) -> list[tuple[str, int, int, int]]:
    with cluster.log_watch() as watch:
        assert watch.topics()[topic].partitions == PARTITIONS
        bounds = watch.bounds([(topic, number) for number in range(PARTITIONS)])
    return [(tp.topic, tp.partition, each.start, each.end) for tp, each in bounds.items()]


def gather(table: pa.Table, found: dict[int, list[tuple[int, bytes]]]) -> None:
    rows = table.to_pydict()
    for partition, offset, value in zip(rows["partition"], rows["offset"], rows["value"], strict=True):
        found.setdefault(partition, []).append((offset, value))


def test_ranges_are_read_whole_while_leaders_are_killed(cluster: TestCluster) -> None:
    topic = written(cluster)
    ranges = whole(cluster, topic)
    assert ranges == [(topic, number, 0, PER_PARTITION) for number in range(PARTITIONS)]
    found: dict[int, list[tuple[int, bytes]]] = {}
    small = {"max_partition_fetch_bytes": 4_096, "fetch_max_bytes": 16_384}
    doomed = ["broker-1", "broker-2"]
    with cluster.range_reader(ranges, columns=["partition", "offset", "value"], **small) as reader:
        for table in reader:
            gather(table, found)
            if doomed and sum(map(len, found.values())) > PER_PARTITION * (3 - len(doomed)):
                cluster.local.wait_ready()
                cluster.local.kill(doomed.pop(0))
    assert not doomed
    everything = [(n, b"%d" % n) for n in range(PER_PARTITION)]
    assert found == dict.fromkeys(range(PARTITIONS), everything)
    cluster.local.wait_ready()


def test_a_watch_goes_on_over_a_leader_that_is_killed(cluster: TestCluster) -> None:
    topic = written(cluster)
    tps = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with cluster.log_watch() as watch, cluster.producer(acks="all") as producer:
        for name in ("broker-2", "broker-3"):
            ends = {tp: each.end for tp, each in watch.bounds(tps).items()}
            cluster.local.kill(name)
            more = threading.Thread(target=lambda: producer.send(topic, b"more", partition=0).result(60))
            more.start()
            while watch.bounds(tps, newer_than=ends, wait_ms=500)[tps[0]].end == ends[tps[0]]:
                pass  # each look waits on the brokers
            more.join(60)
            assert {tp: each.end for tp, each in watch.bounds(tps).items()} == ends | {tps[0]: ends[tps[0]] + 1}
            cluster.local.wait_ready()


def test_two_readers_share_a_partition(cluster: TestCluster) -> None:
    topic = written(cluster)
    middle = PER_PARTITION // 2 + 7
    halves = [[(topic, 0, 0, middle)], [(topic, 0, middle, PER_PARTITION)]]
    found: dict[int, list[tuple[int, bytes]]] = {}
    for ranges in halves:
        with cluster.range_reader(ranges, columns=["value", "offset", "partition"]) as reader:
            for table in reader:
                gather(table, found)
    assert found == {0: [(n, b"%d" % n) for n in range(PER_PARTITION)]}


def test_committed_records_alone_are_read(cluster: TestCluster) -> None:
    topic = written(cluster)
    with cluster.producer(transactional_id=f"{topic}-writer") as producer:
        for value, commit in [(b"no", False), (b"yes", True), (b"never", False)]:
            producer.begin_transaction()
            producer.send(topic, value, partition=1)
            if commit:
                producer.commit_transaction()
            else:
                producer.flush(30)
                producer.abort_transaction()
    level = {"isolation_level": "read_committed"}
    one = TopicPartition(topic, 1)
    with cluster.log_watch(**level) as watch:
        end = PER_PARTITION
        while end < PER_PARTITION + 6:  # three records and three markers
            end = watch.bounds([one], newer_than={one: end}, wait_ms=1_000)[one].end
    found: dict[int, list[tuple[int, bytes]]] = {}
    with cluster.range_reader([(topic, 1, PER_PARTITION, end)], **level) as reader:
        for table in reader:
            gather(table, found)
    assert found == {1: [(PER_PARTITION + 2, b"yes")]}


def test_what_is_deleted_in_the_middle_is_told(cluster: TestCluster) -> None:
    topic = written(cluster)
    small = {"max_partition_fetch_bytes": 4_096, "fetch_max_bytes": 4_096}
    one = TopicPartition(topic, 0)
    with cluster.range_reader([(topic, 0, 0, PER_PARTITION)], **small) as reader, cluster.admin() as admin:
        read = [len(next(reader))]
        admin.delete_records({one: PER_PARTITION - 10})
        with pytest.raises(PositionOutOfRange) as told:
            read.extend(map(len, reader))
        error = told.value
        assert (error.partition, error.offset, error.log_start) == (one, sum(read), PER_PARTITION - 10)
        assert reader.remaining() == [(topic, 0, sum(read), PER_PARTITION)]
    with cluster.range_reader([(topic, 0, error.log_start, PER_PARTITION)]) as rest:
        assert sum(map(len, rest)) == 10


def test_a_topic_that_is_deleted_in_the_middle_is_told(cluster: TestCluster) -> None:
    topic = written(cluster)
    small = {"max_partition_fetch_bytes": 4_096, "fetch_max_bytes": 4_096}
    ids = {}
    with cluster.log_watch() as watch:
        ids[topic] = watch.topics()[topic].topic_id
    with cluster.range_reader(whole(cluster, topic), topic_ids=ids, **small) as reader, cluster.admin() as admin:
        next(reader)
        admin.delete_topic(topic)
        with pytest.raises(UnknownTopicOrPartition):
            list(reader)
