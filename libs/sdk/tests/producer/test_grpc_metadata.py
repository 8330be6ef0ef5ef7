"""Which broker is asked for metadata, and for how long a silent one is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import grpc.aio
import pytest

from headrace._transport.grpc import GrpcTransport
from headrace_common.runtime.service import GrpcService, ServerConfig
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import cluster_pb2

from .test_grpc_streams import Broker


class Member(Broker):
    """One of several brokers that all name each other; silent when told to be."""

    def __init__(self, number: int, members: list[Member]) -> None:
        super().__init__()
        self.number = number
        self.asked = 0
        self._members = members

    async def metadata(self, request: pb.MetadataRequest, context: object) -> pb.MetadataResponse:
        self.asked += 1
        if not self.answers:
            await asyncio.Event().wait()
        answer = pb.MetadataResponse(cluster_id="c", revision=self.number)
        for member in self._members:
            node = answer.nodes.add(role=cluster_pb2.BROKER, id=member.number)
            node.grpc.host, node.grpc.port = "127.0.0.1", member.port
        return answer


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[list[Member], GrpcTransport]]:
    members: list[Member] = []
    members += [Member(number, members) for number in (1, 2, 3)]
    async with AsyncExitStack() as stack:
        for member in members:
            await stack.enter_async_context(member.serve())
        transport = GrpcTransport([f"127.0.0.1:{members[0].port}"])
        stack.push_async_callback(transport.close)
        await transport.metadata(pb.MetadataRequest())
        yield members, transport


async def ask(transport: GrpcTransport, *, elsewhere: bool = False) -> int:
    return (await transport.metadata(pb.MetadataRequest(), elsewhere=elsewhere)).revision


async def test_the_one_that_answered_is_asked_again_or_with_elsewhere_each_in_turn() -> None:
    async with cluster() as (_, transport):
        assert [await ask(transport) for _ in range(3)] == [1, 1, 1]
        assert [await ask(transport, elsewhere=True) for _ in range(4)] == [2, 3, 1, 2]


async def test_beside_a_silent_broker_the_next_is_asked_and_the_silent_one_avoided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace._transport.grpc.METADATA_ATTEMPT_MS", 600_000)
    async with cluster() as (members, transport):
        members[0].answers = False
        async with asyncio.timeout(20):
            assert await ask(transport) == 2
            assert members[0].asked == 2
            assert [await ask(transport, elsewhere=True) for _ in range(4)] == [3, 2, 3, 2]
        assert members[0].asked == 2


async def test_the_last_that_is_left_is_asked_though_it_was_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace._transport.grpc.HEDGE_MS", 20)
    async with cluster() as (members, transport):
        members[0].answers = False
        assert await ask(transport) in (2, 3)
        members[0].answers, members[1].answers, members[2].answers = True, False, False
        async with asyncio.timeout(20):
            assert await ask(transport) == 1


async def test_each_client_of_a_process_has_connections_of_its_own() -> None:
    """A server bounds the calls of one connection: clients that shared one would wait for each other."""
    peers: set[str] = set()

    async def metadata(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        peers.add(context.peer())
        return b""

    def add(_: object, server: grpc.aio.Server) -> None:
        handlers = {"Metadata": grpc.unary_unary_rpc_method_handler(metadata)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("headrace.v1.Broker", handlers),))

    async with GrpcService.open(ServerConfig(drain_ms_max=0), [(add, None)]) as server:
        clients = [GrpcTransport([f"127.0.0.1:{server.port}"]) for _ in range(2)]
        for client in clients:
            await client.metadata(pb.MetadataRequest())
        for client in clients:
            await client.close()
    assert len(peers) == 2
