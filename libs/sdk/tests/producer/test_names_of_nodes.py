"""Certificates name nodes by their role where clients are told so: addresses of pods come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from libs.common.tests.kit.authority import BROKER, Authority
from libs.common.tests.kit.secure import Secure

from headrace._transport.grpc import GrpcTransport
from headrace.errors import TlsFailed, UnsupportedVersion
from headrace.finding import ClusterAddress
from headrace_common.core.ids import NodeId
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import cluster_pb2

ONE = NodeId(1)
ELSEWHERE = replace(BROKER, hosts=frozenset({"broker.headrace"}))
"""A broker whose address nobody knew when its certificate was made."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Secure]:
    async with Secure.open(Authority(), tmp_path, leaf=ELSEWHERE) as secure:
        yield secure


@pytest.fixture
async def transport(node: Secure, tmp_path: Path) -> AsyncIterator[GrpcTransport]:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(node.authority.ca.certificate_pem)
    client = GrpcTransport(ClusterAddress(("127.0.0.1:1",), ca=str(ca)))
    yield client
    await client.close()


def told(node: Secure, server_name: str, *, epoch: int = 1) -> pb.MetadataResponse:
    """One broker, at the address of ``node``."""
    answer = pb.MetadataResponse(cluster_id="c", revision=epoch)
    at = answer.nodes.add(role=cluster_pb2.BROKER, id=ONE, epoch=epoch).grpc
    at.host, at.port, at.server_name = "127.0.0.1", node.service.port, server_name
    return answer


async def ask(transport: GrpcTransport) -> None:
    """It is answered by a server that has no such method, if by any."""
    with pytest.raises(UnsupportedVersion):
        await transport.list_offsets(ONE, pb.ListOffsetsRequest())


async def test_a_node_is_known_by_the_name_that_the_cluster_says(node: Secure, transport: GrpcTransport) -> None:
    await transport._learn(told(node, "broker.headrace"))
    await ask(transport)
    twin = transport.sibling()
    await ask(twin)
    await twin.close()


@pytest.mark.parametrize("name", ["", "admin.headrace"])
async def test_no_other_will_do(name: str, node: Secure, transport: GrpcTransport) -> None:
    await transport._learn(told(node, name))
    with pytest.raises(TlsFailed, match="does not have the name"):
        await transport.list_offsets(ONE, pb.ListOffsetsRequest())


async def test_a_broker_comes_to_where_a_coordinator_was(node: Secure, transport: GrpcTransport) -> None:
    transport._nodes.coordinator_at(ONE, node.target, "coordinator.headrace")
    await transport._leave_others()
    await transport._learn(told(node, "coordinator.headrace"))
    with pytest.raises(TlsFailed):
        await transport.list_offsets(ONE, pb.ListOffsetsRequest())
    await transport._learn(told(node, "broker.headrace", epoch=2))
    await ask(transport)
    await transport._learn(told(node, "coordinator.headrace"))
    await ask(transport)  # who lags has said that
