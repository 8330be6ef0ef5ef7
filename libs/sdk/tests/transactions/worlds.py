"""What the tests of transactional producers share: a cluster of the lab, and quick settings."""

from __future__ import annotations

from typing import Any

from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace import aio

QUICK = {"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 5}
IMPATIENT = {**QUICK, "request_timeout_ms": 100, "delivery_timeout_ms": 200, "max_block_ms": 200}


def made(labs: Labs, **settings: Any) -> LabCluster:
    cluster = labs(brokers=2, **settings)
    cluster.create_topic("in", 2)
    cluster.create_topic("one", 1)
    cluster.create_topic("t", 3)
    cluster.await_coordinator("billing")
    return cluster


def producer(cluster: LabCluster, key: str | None = "billing", **settings: Any) -> aio.Producer:
    return aio.Producer(_transport=cluster.transport(), transactional_id=key, **{**QUICK, **settings})


def consumer(cluster: LabCluster, *topics: str, **settings: Any) -> aio.Consumer:
    defaults = {"group_id": "g", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    return aio.Consumer(*topics, _transport=cluster.transport(), **{**defaults, **settings})


async def fill(cluster: LabCluster, topic: str, *values: bytes, partition: int = 0) -> None:
    async with aio.Producer(_transport=cluster.transport(), **QUICK) as plain:
        for value in values:
            await plain.send(topic, value, partition=partition)
