"""Rot in a file that nobody reads: a real broker finds it by itself, and has its log from another one again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.admin_types import BrokerLogs
from headrace.errors import HeadraceError
from headrace.testing import TestCluster, started_cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SECONDS = 60.0
HURRIED = {"log.scrub.interval.ms": "1000", "log.scrub.max.bytes.per.second": str(1 << 40)}


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def rot(directory: Path) -> None:
    """In several places of the broker's largest file of records bytes are others; not all lie between two batches."""
    files = [*directory.glob("db/*.blob"), *directory.glob("db/*.sst")]
    largest = max(files, key=lambda file: file.stat().st_size)
    size = largest.stat().st_size
    with largest.open("r+b") as file:
        for at in range(size // 4, size * 3 // 4, size // 7):
            file.seek(at)
            old = file.read(8)
            file.seek(at)
            file.write(bytes(255 - each for each in old))


def told(cluster: TestCluster, broker: int) -> BrokerLogs | None:
    """What the broker says of its logs; None: it does not answer."""
    try:
        with cluster.admin() as admin:
            [answer] = admin.describe_logs(broker=broker)
    except HeadraceError:
        return None
    return None if answer.error is not None else answer


def is_whole(cluster: TestCluster, topic: str, broker: int) -> bool:
    with cluster.admin() as admin:
        partitions = admin.describe_topic(topic).partitions
    answer = told(cluster, broker)
    sound = answer is not None and answer.scrub is not None and answer.scrub.last_ended_ms is not None
    return sound and answer.scrub.lost_logs == 0 and all(broker in one.isr for one in partitions)


def test_rot_that_nobody_reads_is_found_and_mended_from_another_replica(tmp_path: Path) -> None:
    with started_cluster(tmp_path / "data", brokers=3, restart=True, settings=HURRIED) as cluster:
        topic, log = cluster.unique_topic(), tmp_path / "data" / "logs" / "broker-3.log"
        values = [os.urandom(50_000) for _ in range(60)]
        with cluster.producer() as producer:
            deliveries = [producer.send(topic, value, partition=0) for value in values]
            for delivery in deliveries:
                delivery.result(30)
        until(lambda: is_whole(cluster, topic, 3), "a pass ends on a sound broker")
        cluster.local.stop()
        rot(tmp_path / "data" / "broker-3")
        said = log.stat().st_size
        cluster.local.start()

        def found() -> bool:
            return "a scrub found a batch that cannot be read" in log.read_bytes()[said:].decode()

        until(found, "nobody reads it, and the broker finds it")
        until(lambda: is_whole(cluster, topic, 3), "the log is copied anew, and a pass finds nothing more")
        with cluster.consumer(topic, auto_offset_reset="earliest") as consumer:
            assert [record.value for record in consumer.read_to_end()] == values


def test_rot_without_another_replica_is_told_and_the_rest_is_served(tmp_path: Path) -> None:
    with started_cluster(tmp_path / "data", brokers=1, restart=True, settings=HURRIED) as cluster:
        topic = cluster.unique_topic()
        with cluster.producer(linger_ms=0) as producer:
            for _ in range(30):
                producer.send(topic, os.urandom(50_000), partition=0).result(30)
        cluster.local.stop()
        rot(tmp_path / "data" / "broker-1")
        cluster.local.start()

        def lost() -> bool:
            answer = told(cluster, 1)
            return answer is not None and answer.scrub is not None and answer.scrub.lost_logs > 0

        until(lost, "the status names it")
        with cluster.producer() as producer:
            producer.send(topic, b"goes on", partition=0).result(30)
