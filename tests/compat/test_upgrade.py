"""
Nodes of two versions in one cluster, under load: the level rises with the last node and not before, nothing is lost,
and the way back is open until then and closed, with a sentence, afterwards.

A node with ``--feature-level-max 0`` registers as one of a version before levels does: the field is absent on the wire.
It knows of no node token either; the newer ones have one, and demand it from each other only once all do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from services.coordinator.tests.kit.processes import START_S, Cluster, Process, answered, processes, until_answered
from tests.compat import wire
from tests.compat.record import LASTING, read_records

from headrace import Consumer, Producer
from headrace.delivery import Delivery
from headrace_common.core.errors import ClusterAuthorizationFailed
from headrace_common.core.features import HIGHEST
from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.rpc.node_gate import NODE_KEY, TOKEN_KEY
from headrace_common.runtime.token_file import make_file, read_tokens
from headrace_proto.v1 import broker_pb2, cluster_pb2, controller_pb2
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

pytestmark = [pytest.mark.integration, pytest.mark.timeout(480)]

TOPIC: Final = "load"
PARTITIONS: Final = 3
OLD: Final = ("--feature-level-max", "0")
REFUSED: Final = (
    f"knows feature levels up to 0, the cluster is at level {HIGHEST} and does not go back: start the newer version"
)
TOKEN: Final = "node-token"
"""File beside the data of all processes."""


class Load:
    """One producer and one member of a group, each in a thread, from ``start`` to ``stop``."""

    def __init__(self, at: str, group: str = "through-it-all", **settings: Any) -> None:
        self._at, self._group, self._settings = at, group, settings
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
            with Producer(self._at, acks="all", **self._settings) as producer:
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
                TOPIC,
                bootstrap_servers=self._at,
                group_id=self._group,
                auto_offset_reset="earliest",
                **self._settings,
            ) as consumer:
                while not self._written.is_set() or len(self.read) < len(self.sent):
                    self.read.update(r.value.decode() for r in consumer.poll(timeout_ms=500))
        except BaseException as error:  # noqa: BLE001 - it is raised where the test waits
            self.failure = error
            self._stopping.set()


def new(cluster: Cluster) -> tuple[str, ...]:
    """What a node of the newer version is started with."""
    return ("--node-token-file", str(cluster.directory / TOKEN))


async def described(cluster: Cluster) -> Any:
    """Asked as the admin service asks."""
    stub: Any = ControllerStub(cluster.channel(cluster.controller.address))
    (token,) = read_tokens(cluster.directory / TOKEN)
    shown = ((NODE_KEY, str(NodeKey(Role.ADMIN, NodeId(1)))), (TOKEN_KEY, token.decode()))
    request = controller_pb2.DescribeClusterRequest()
    return await until_answered(lambda: stub.DescribeCluster(request, metadata=shown, timeout=10))


async def registers(cluster: Cluster, number: int) -> None:
    """
    A program without a token passes for a broker.

    Raises:
        HeadraceError: it is refused.
    """
    stub: Any = ControllerStub(cluster.channel(cluster.controller.address))
    node = cluster_pb2.Node(
        role=cluster_pb2.BROKER,
        id=number,
        grpc=cluster_pb2.Endpoint(host="127.0.0.1", port=9),
        incarnation=os.urandom(16),
        feature_level_max=HIGHEST,
    )
    await answered(stub.RegisterNode(controller_pb2.RegisterNodeRequest(node=node), timeout=30))


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
    newer = new(cluster)
    process.argv = [word for word in process.argv if word not in {*OLD, *newer}] + [*(OLD if old else newer)]
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
    make_file(directory / TOKEN)
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
            return await level(cluster) == HIGHEST

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
        assert metadata.feature_level == HIGHEST, "clients are told"
        with pytest.raises(ClusterAuthorizationFailed, match="--node-token-file"):
            await registers(cluster, 66)

        for process in (cluster.coordinators[1], cluster.brokers[2]):
            said = await refusal(process)
            assert REFUSED in said, said[-2000:]
            assert await level(cluster) == HIGHEST
        assert REFUSED in await refusal(cluster.controller)
        cluster.controller.argv = [word for word in cluster.controller.argv if word not in OLD]
        await cluster.controller.start()
        assert await level(cluster) == HIGHEST, "it is in etcd"
