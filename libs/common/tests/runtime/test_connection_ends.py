"""How long a node's connections last that were made while its certificate was good, over real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import grpc.aio
import pytest
from libs.common.tests.kit.authority import BROKER
from libs.common.tests.runtime.test_access_gate import KEY_TEXT, Streams, bearer, key_of
from libs.common.tests.runtime.test_mtls import Mtls, streams, world

from headrace_common.core.access.api_keys import format_key
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import CredentialsExpired, CredentialsRevoked, HeadraceError, NetworkFailed
from headrace_common.rpc.calls import never_sent
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.credentials import Pem
from headrace_common.rpc.node_gate import FORWARDED_KEY, NODE_KEY
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.certificates import Leaf
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import broker_pb2_grpc

__all__ = ["streams", "world"]  # fixtures

AS_BROKER = (NODE_KEY, "broker-1")
OTHER = format_key(b"\1" * 10, bytes(32))


class Node:
    """A node with one connection, which calls on it for as long as it can."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self.replicate = stub.Replicate
        self.replicating = stub.Replicate()

    @staticmethod
    @asynccontextmanager
    async def connected(world: Mtls, leaf: Leaf = BROKER, name: str = "broker-1") -> AsyncIterator[Node]:
        """50 ms of the clock before the end of its certificate, which TLS takes for good for another day."""
        world.show(leaf, world.nodes_ca, at="internal")
        assert world.shows_now is not None
        ends_ms = world.shows_now.certificate.not_valid_after_utc.timestamp() * 1_000
        await world.clock.advance(ends_ms - world.clock.now_ms() - 50)
        async with open_channel(world.address, world.shows((NODE_KEY, name)), own_connection=True) as channel:
            node = Node(broker_pb2_grpc.BrokerStub(channel))
            if leaf is BROKER:
                await node.replicates()
            yield node

    async def replicates(self) -> None:
        await self.replicating.write(pb.ReplicateRequest())
        assert isinstance(await self.replicating.read(), pb.ReplicateResponse)

    async def asks(self) -> HeadraceError | None:
        """What it is told."""
        try:
            await self._stub.Metadata(pb.MetadataRequest())
        except grpc.aio.AioRpcError as error:
            return error_from_rpc(error)
        return None

    async def ends(self) -> HeadraceError:
        async with asyncio.timeout(20):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await self.replicating.read()
        return error_from_rpc(raised.value)


@pytest.mark.parametrize("mode", Mode)
async def test_what_a_node_has_open_ends_with_its_certificate(
    world: Mtls, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[type[HeadraceError]] = []
    monkeypatch.setattr(world.access.auditing, "ended", ended.append)
    world.mode = mode
    world.told()
    async with Node.connected(world) as node:
        await world.clock.advance(49)
        assert await node.asks() is None
        await node.replicates()
        seen = len(world.seen)
        await world.clock.advance(1)
        error = await node.ends()
        assert isinstance(error, NetworkFailed)
        assert "the certificate of this connection was good until" in str(error)
        assert not never_sent(error)
        refused = await node.asks()
        assert isinstance(refused, NetworkFailed)
        assert never_sent(refused), "whoever asked may ask again, whatever it was"
        node.replicating = node.replicate()
        assert never_sent(await node.ends())
        assert len(world.seen) == seen
        assert ended == [CredentialsExpired], "a call that is refused had none"


async def test_a_node_that_has_another_by_then_goes_on_with_that(world: Mtls, streams: Streams) -> None:
    async with Node.connected(world) as node:
        await world.clock.advance(50)
        await node.ends()
        pair, ca = world.nodes_ca.make(BROKER, life=timedelta(days=2)), world.nodes_ca.ca.certificate_pem
        world.pem = Pem(ca, pair.certificate_pem, pair.key_pem)
        await streams.goes_on(await streams.open(AS_BROKER))
        assert await node.asks() is not None, "on the connection of before"


async def test_what_anybody_may_open_ends_too_where_a_node_has_opened_it(world: Mtls, streams: Streams) -> None:
    async with Node.connected(world):
        stream = await streams.open(AS_BROKER)
        await world.clock.advance(50)
        assert isinstance(await streams.ends(stream), NetworkFailed)
        assert isinstance(world.ended[0], asyncio.CancelledError)


async def test_what_an_admin_node_asks_for_another_ends_with_either(world: Mtls, streams: Streams) -> None:
    """With the credential that is asked for, and with the certificate of the connection."""
    world.keys.append(key_of(OTHER))
    world.told()
    async with Node.connected(world, replace(BROKER, uri="spiffe://headrace/admin"), "admin-1"):
        first, second = [
            await streams.open((NODE_KEY, "admin-1"), (FORWARDED_KEY, key.encode())) for key in (OTHER, KEY_TEXT)
        ]
        world.keys.pop()
        world.told()
        assert isinstance(await streams.ends(first), CredentialsRevoked)
        await streams.goes_on(second)
        await world.clock.advance(50)
        assert isinstance(await streams.ends(second), NetworkFailed)


async def test_a_client_ends_with_what_it_shows_alone(world: Mtls, streams: Streams) -> None:
    async with Node.connected(world):
        world.show(None, at="client")
        stream = await streams.open(bearer(KEY_TEXT))
        await world.clock.advance(50)
        await streams.goes_on(stream)
