"""
Nodes of two versions in one cluster, under load: the level rises with the last node and not before, nothing is lost,
and the way back is open until then and closed, with a sentence, afterwards.

A node with ``--feature-level-max 0`` registers as one of a version before levels does: the field is absent on the wire.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.compat import wire
from tests.compat.record import LASTING, read_records

from headrace import Consumer, Producer
from headrace.delivery import Delivery
from headrace_coordinator.testing.processes import START_S, Cluster, Process, processes, until_answered
from headrace_proto.v1 import broker_pb2, controller_pb2
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

pytestmark = [pytest.mark.integration, pytest.mark.timeout(480)]

TOPIC: Final = "load"
PARTITIONS: Final = 3
OLD: Final = ("--feature-level-max", "0")
REFUSED: Final = "knows feature levels up to 0, the cluster is at level 1 and does not go back: start the newer version"


class Load:
    """One producer and one member of a group, each in a thread, from ``start`` to ``stop``."""

    def __init__(self, at: str) -> None:
        self._at = at
        self._stopping, self._written = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        self.sent: list[tuple[str, Delivery]] = []
        self.read: set[str] = set()
        """A member that joins again is given some a second time."""
        self.failure: BaseException | None = None

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    async def more(self, count: int = 60) -> None:
        """Return when so many more records were acknowledged."""
        target = len(self.sent) + count

        async def reached() -> bool:
            assert self.failure is None, repr(self.failure)
            return len(self.sent) >= target

        await wire.settled(60, reached)

    async def stop(self) -> None:
        """Stop writing; returns when the reader has everything."""
        self._stopping.set()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, 120)
            assert not thread.is_alive()
        assert self.failure is None, repr(self.failure)

    def _write(self) -> None:
        try:
            with Producer(self._at, acks="all") as producer:
                while not self._stopping.is_set():
                    first = len(self.sent)
                    batch = [
                        (str(n), producer.send(TOPIC, str(n).encode(), partition=n % PARTITIONS))
                        for n in range(first, first + 3 * PARTITIONS)
                    ]
                    producer.flush()
                    for _, delivery in batch:
                        delivery.result()
                    self.sent += batch
        except BaseException as error:  # noqa: BLE001 - it is raised where the test waits
            self.failure = error
        finally:
            self._written.set()

    def _read(self) -> None:
        try:
            with Consumer(
                TOPIC, bootstrap_servers=self._at, group_id="through-it-all", auto_offset_reset="earliest"
            ) as consumer:
                while not self._written.is_set() or len(self.read) < len(self.sent):
                    self.read.update(r.value.decode() for r in consumer.poll(timeout_ms=500))
        except BaseException as error:  # noqa: BLE001 - it is raised where the test waits
            self.failure = error
            self._stopping.set()


async def described(cluster: Cluster) -> Any:
    stub: Any = ControllerStub(cluster.channel(cluster.controller.address))
    return await until_answered(lambda: stub.DescribeCluster(controller_pb2.DescribeClusterRequest(), timeout=10))


async def whole(cluster: Cluster) -> None:
    """Return when every node takes part and every replica is in sync."""

    async def holds() -> bool:
        found = await described(cluster)
        awaited = len(cluster.brokers) + len(cluster.coordinators) + 1
        fenced = sum(node.fenced for node in found.nodes)
        return (
            len(found.nodes) == awaited
            and not fenced
            and not found.offline_partition_count
            and not found.under_replicated_partition_count
        )

    await wire.settled(60, holds)


async def replace(cluster: Cluster, process: Process, *, old: bool) -> None:
    """End it as an upgrade does, start it as a node of the other version, and wait until all is whole."""
    await process.stop(signal.SIGTERM)
    process.argv = [word for word in process.argv if word not in OLD] + [*(OLD if old else ())]
    await process.start()
    await whole(cluster)


async def refusal(process: Process) -> str:
    """Start it as a node of the older version; what it says at its end."""
    await process.stop(signal.SIGTERM)
    process.argv = [*process.argv, *OLD]
    before = len(process.log())
    try:
        await process.start()
    except AssertionError:
        pass  # it ended before it was ready
    assert process.running is not None
    code = await asyncio.wait_for(process.running.wait(), START_S)
    assert code not in {0, None}
    return process.log()[before:]


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Cluster]:
    """Three brokers, two coordinators and a controller, all of the older version."""
    cluster = processes(directory, 3, 2, LASTING)
    nodes = [cluster.controller, *cluster.brokers, *cluster.coordinators]
    for process in nodes:
        process.argv = [*process.argv, *OLD]
    try:
        for process in (cluster.etcd, *nodes):
            await process.start()
        await whole(cluster)
        await cluster.create_topic(TOPIC, PARTITIONS)
        await cluster.find("through-it-all")
        yield cluster
    finally:
        for channel in cluster.channels.values():
            await channel.close()
        for process in reversed((cluster.etcd, *nodes)):
            if process.running is not None:
                await process.stop(signal.SIGKILL)


async def level(cluster: Cluster) -> int:
    return int((await described(cluster)).feature_level)


async def test_an_upgrade_under_load_and_the_way_back(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        load = Load(cluster.brokers[0].address)
        load.start()
        await load.more()
        (first, second), (one, two, three) = cluster.coordinators, cluster.brokers
        nodes = [first, one, cluster.controller, second, two, three]
        for process in nodes:
            assert await level(cluster) == 0, f"{process.name} is of the older version"
            await replace(cluster, process, old=False)
            await load.more()
            if process is one:  # the way back is open
                await replace(cluster, process, old=True)
                await load.more()
                assert await level(cluster) == 0
                await replace(cluster, process, old=False)

        async def risen() -> bool:
            return await level(cluster) == 1

        await wire.settled(30, risen)
        await load.more()
        await load.stop()

        at = cluster.brokers[0].address
        stored = [await asyncio.to_thread(read_records, at, TOPIC, n) for n in range(PARTITIONS)]
        values = [[value for _, _, value, _, _ in records] for records in stored]
        acknowledged = [value for value, _ in load.sent]
        assert values == [acknowledged[n::PARTITIONS] for n in range(PARTITIONS)], "none lost, doubled or moved"
        assert load.read == set(acknowledged), "and the group was given each"
        metadata = broker_pb2.MetadataResponse.FromString(
            await wire.send(cluster.channel(at), "Broker", "Metadata", broker_pb2.MetadataRequest().SerializeToString())
        )
        assert metadata.feature_level == 1, "clients are told"

        for process in (cluster.coordinators[1], cluster.brokers[2]):
            said = await refusal(process)
            assert REFUSED in said, said[-2000:]
            assert await level(cluster) == 1
        assert REFUSED in await refusal(cluster.controller)
        cluster.controller.argv = [word for word in cluster.controller.argv if word not in OLD]
        await cluster.controller.start()
        assert await level(cluster) == 1, "it is in etcd"
