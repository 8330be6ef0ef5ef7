"""What the tests of retention share: waiting, writing, and looking at the replicas of a topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace import AdminClient, Producer
from headrace.admin_types import LogInfo
from headrace.testing import TestCluster

HURRIED = {"log.retention.check.interval.ms": "500", "log.cleaner.backoff.ms": "500"}
RECORD = b"x" * 1_000


def until(true: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def write(producer: Producer, topic: str, count: int, *, partition: int = 0, each: bool = True) -> None:
    """Records of 1,000 bytes; ``each``: acknowledged one by one, so that each is a batch."""
    deliveries = []
    for _ in range(count):
        deliveries.append(producer.send(topic, RECORD, partition=partition))
        if each:
            deliveries[-1].result(30)
    producer.flush()
    for delivery in deliveries:
        delivery.result(30)


def logs(admin: AdminClient, topic: str, *, segments: bool = False) -> Sequence[LogInfo]:
    """Every replica of the topic that is to be seen."""
    return [log for broker in admin.describe_logs(topics=[topic], segments=segments) for log in broker.logs or ()]


def starts(admin: AdminClient, topic: str) -> list[int]:
    """Where each replica begins."""
    return [log.log_start_offset for log in logs(admin, topic)]


def within(admin: AdminClient, topic: str, retention_bytes: int) -> bool:
    """Whether each of three replicas is so small that it would be too small without its oldest segment."""
    found = logs(admin, topic, segments=True)
    return len(found) == 3 and all(
        log.size_bytes - min(log.segments, key=lambda one: one.base_offset).size_bytes < retention_bytes
        for log in found
    )


def used_bytes(cluster: TestCluster) -> int:
    """What the brokers' data directories take on the disk."""
    files = Path(cluster.local.directory.path).glob("broker-*/**/*")
    total = 0
    for file in files:
        try:
            total += file.stat().st_blocks * 512
        except FileNotFoundError:  # compactions remove files meanwhile
            continue
    return total
