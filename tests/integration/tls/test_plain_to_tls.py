"""
A cluster in plain text is moved to TLS under load, node by node, and nothing of it stops: first all nodes answer both,
then they call each other by TLS, then, when the clients have moved, they answer nothing else.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from libs.common.tests.kit.ports import free_port
from services.coordinator.tests.kit.processes import Cluster, Process, processes, until_answered
from tests.compat import wire
from tests.compat.record import LASTING
from tests.compat.test_upgrade import PARTITIONS, TOPIC, Load

from headrace import Producer
from headrace.errors import ClusterUnreachable
from headrace_cli.local.certificate_files import NodeFiles
from headrace_cli.local.certificates import renew_nodes
from headrace_cli.local.plan import tls_flags
from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.core.node_rules import host_of
from headrace_common.rpc.channels import Security, open_channel
from headrace_common.rpc.credentials import Pem
from headrace_common.rpc.node_gate import NODE_KEY, TOKEN_KEY
from headrace_common.runtime.token_file import make_file, read_tokens
from headrace_proto.v1 import controller_pb2
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TOKEN: Final = "node-token"
ADMIN: Final = (NODE_KEY, str(NodeKey(Role.ADMIN, NodeId(1))))
ROLES: Final = [role.value for role in Role]


def role_of(process: Process) -> str:
    return process.name.partition("-")[0]


def with_tls(process: Process, files: NodeFiles, mode: str) -> list[str]:
    """Its arguments with certificates, and ``mode``."""
    argv = list(process.argv)
    if "--tls-mode" in argv:
        argv[argv.index("--tls-mode") + 1] = mode
        return argv
    return [*argv, *tls_flags(files, role_of(process)), "--tls-mode", mode]


def asked_as_admin(cluster: Cluster, files: NodeFiles, mode: str) -> Callable[[], Any]:
    """Asks the controller for the cluster, in plain text while that is answered."""
    at, request = cluster.controller.address, controller_pb2.DescribeClusterRequest()
    if mode == "require":
        pair = files.of("admin")
        pem = Pem(files.ca.read_bytes(), pair.read_bytes(), files.key(pair).read_bytes())
        channel = open_channel(at, Security(pem=pem, server_name=lambda _: host_of("controller")), own_connection=True)
        cluster.channels[f"tls {at}"] = channel
        shown = (ADMIN,)
    else:
        channel = cluster.channel(at)
        shown = (ADMIN, (TOKEN_KEY, read_tokens(cluster.directory / TOKEN)[0].decode()))
    stub: Any = ControllerStub(channel)
    return lambda: stub.DescribeCluster(request, metadata=shown, timeout=10)


async def whole(cluster: Cluster, ask: Callable[[], Any]) -> None:
    """Return when every node takes part and every replica is in sync."""

    async def holds() -> bool:
        found = await until_answered(ask)
        awaited = len(cluster.brokers) + len(cluster.coordinators) + 1
        return (
            len(found.nodes) == awaited
            and not any(node.fenced for node in found.nodes)
            and not found.offline_partition_count
            and not found.under_replicated_partition_count
        )

    await wire.settled(60, holds)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Cluster]:
    """Two brokers, a coordinator and a controller, all in plain text."""
    make_file(directory / TOKEN)
    cluster = processes(directory, 2, 1, LASTING)
    nodes = [cluster.controller, *cluster.brokers, *cluster.coordinators]
    for process in (*cluster.brokers, *cluster.coordinators):  # as a Service keeps its address
        process.argv = [f"127.0.0.1:{free_port()}" if word == "127.0.0.1:0" else word for word in process.argv]
    for process in nodes:
        internal = () if process is cluster.controller else ("--internal-listen", "127.0.0.1:0")
        process.argv = [*process.argv, "--node-token-file", str(directory / TOKEN), *internal]
    try:
        for process in (cluster.etcd, *nodes):
            await process.start()
        ask = asked_as_admin(cluster, NodeFiles(directory), "")
        await whole(cluster, ask)
        topic = controller_pb2.NewTopic(name=TOPIC, partition_count=PARTITIONS, replication_factor=2)
        stub: Any = ControllerStub(cluster.channel(cluster.controller.address))
        shown = (ADMIN, (TOKEN_KEY, read_tokens(directory / TOKEN)[0].decode()))
        made = await stub.CreateTopics(
            controller_pb2.CreateTopicsRequest(topics=[topic], timeout_ms=30_000), metadata=shown
        )
        assert made.topics[0].error == 0, made
        yield cluster
    finally:
        for channel in cluster.channels.values():
            await channel.close()
        for process in (*nodes, cluster.etcd):
            if process.running is not None and process.running.returncode is None:
                await process.stop(signal.SIGKILL)


async def test_a_cluster_in_plain_text_is_moved_to_tls_and_nothing_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = NodeFiles(tmp_path / "nodes")
    renew_nodes(files, ROLES, ["127.0.0.1"], datetime.now(UTC))
    async with running(tmp_path) as cluster:

        async def roll(mode: str) -> None:
            for process in (cluster.controller, *cluster.brokers, *cluster.coordinators):
                await process.stop()
                process.argv = with_tls(process, files, mode)
                await process.start()
                await whole(cluster, asked_as_admin(cluster, files, mode))

        plain = Load(bootstrap(cluster))
        plain.start()
        await plain.more()
        await roll("allow")
        await plain.more()
        await roll("prefer")
        await plain.more()
        await plain.stop()
        secure = Load(bootstrap(cluster), "moved", ssl_ca_location=str(files.ca))
        secure.start()  # the next program is started with the file of the CA
        await secure.more()
        await roll("require")
        await secure.more()
        await secure.stop()
        for load in (plain, secure):
            assert {value for value, _ in load.sent} <= load.read
        monkeypatch.setattr("headrace._core.phases.UNREACHABLE_MS", 300)
        with (
            pytest.raises(ClusterUnreachable, match="that speaks TLS"),
            Producer(bootstrap(cluster)) as late,
        ):
            late.send(TOPIC, b"late").result(20)


def bootstrap(cluster: Cluster) -> str:
    return ",".join(broker.address for broker in cluster.brokers)
