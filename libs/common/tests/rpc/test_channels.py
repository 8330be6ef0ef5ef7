"""Every connection to a service is opened in one place, and what a process shows of itself goes with every call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from libs.common.tests.kit.silent_node import SilentNode

from headrace_common.core.ids import Endpoint
from headrace_common.rpc.channels import (
    PLAIN,
    Channels,
    Metadata,
    Security,
    SyncChannels,
    open_channel,
    open_sync_channel,
)
from headrace_common.runtime.service import GrpcService, ServerConfig

ROOT = Path(__file__).parents[4]
KINDS = ["unary_unary", "unary_stream", "stream_unary", "stream_stream"]
DIALS = re.compile(r"\b(insecure_channel|secure_channel|add_\w+_port)\b")
MAY_DIAL = {
    "libs/common/src/headrace_common/rpc/channels.py": "every connection to a service",
    "libs/common/src/headrace_common/runtime/service.py": "every port of a service: bind",
    "libs/lab/src/headrace_lab/library.py": "what stands in gRPC's place, without sockets",
    "libs/lab/src/headrace_lab/server.py": "the same",
    "services/controller/src/headrace_controller/adapters/etcd_channels.py": "connections to etcd",
}


def test_nobody_else_opens_channels_or_ports() -> None:
    sources = [file for part in ("libs", "services", "spark-jobs") for file in ROOT.glob(f"{part}/**/src/**/*.py")]
    assert len(sources) > 300, "the sources were not found"
    found = {str(file.relative_to(ROOT)) for file in sources if DIALS.search(file.read_text())}
    assert found == set(MAY_DIAL), "use rpc/channels.py to dial and runtime/service.py bind to listen"


class Echo(grpc.GenericRpcHandler):
    """Answers each call, of any kind, with the metadata under ``shown`` that came with it."""

    def service(self, details: Any) -> Any:
        kind = details.method.rsplit("/", 1)[1]
        handler = getattr(grpc, f"{kind}_rpc_method_handler")
        answer = self.stream if kind.endswith("stream") else self.unary
        return handler(answer, BytesValue.FromString, BytesValue.SerializeToString)

    async def unary(self, _: Any, context: Any) -> BytesValue:
        return BytesValue(value=shown(context))

    async def stream(self, _: Any, context: Any) -> AsyncIterator[BytesValue]:
        yield BytesValue(value=shown(context))


def shown(context: Any) -> bytes:
    return ",".join(str(value) for key, value in context.invocation_metadata() if key in {"shown", "own"}).encode()


@pytest.fixture
async def address() -> AsyncIterator[str]:
    def add(echo: Echo, server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((echo,))

    async with GrpcService.open(ServerConfig(drain_ms_max=0), [(add, Echo())]) as server:
        yield f"127.0.0.1:{server.port}"


class Shown:
    """What is shown changes from call to call, as a token that is rotated does."""

    def __init__(self) -> None:
        self.targets: list[str] = []

    def __call__(self, target: str) -> Metadata:
        self.targets.append(target)
        return (("shown", f"secret {len(self.targets)}"),)


def method(channel: Any, kind: str) -> Any:
    return getattr(channel, kind)(f"/test.Echo/{kind}", BytesValue.SerializeToString, BytesValue.FromString)


async def ask(channel: grpc.aio.Channel, kind: str, **options: Any) -> bytes:
    async def requests() -> AsyncIterator[BytesValue]:
        yield BytesValue()

    call = method(channel, kind)(requests() if kind.startswith("stream") else BytesValue(), timeout=30, **options)
    answers: list[BytesValue] = [one async for one in call] if kind.endswith("stream") else [await call]
    return answers[0].value


def ask_sync(channel: grpc.Channel, kind: str, **options: Any) -> bytes:
    def requests() -> Iterator[BytesValue]:
        yield BytesValue()

    call = method(channel, kind)(requests() if kind.startswith("stream") else BytesValue(), timeout=30, **options)
    answers: list[BytesValue] = list(call) if kind.endswith("stream") else [call]
    return answers[0].value


@pytest.mark.parametrize("kind", KINDS)
async def test_every_call_shows_what_is_to_be_shown(kind: str, address: str) -> None:
    said = Shown()
    async with open_channel(address, Security(said)) as channel:
        await channel.channel_ready()
        assert channel.get_state() is grpc.ChannelConnectivity.READY
        assert await ask(channel, kind) == b"secret 1"
        assert await ask(channel, kind, metadata=(("own", "mine"),)) == b"mine,secret 2"
    assert said.targets == [address, address]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_call_of_a_thread_shows_what_is_to_be_shown(kind: str, address: str) -> None:
    said = Shown()

    def talk() -> None:
        with open_sync_channel(address, Security(said)) as channel:
            assert ask_sync(channel, kind) == b"secret 1"
            assert ask_sync(channel, kind, metadata=(("own", "mine"),)) == b"mine,secret 2"
            if kind.endswith("unary"):
                argument: Any = iter([BytesValue()]) if kind.startswith("stream") else BytesValue()
                assert method(channel, kind).with_call(argument)[0].value == b"secret 3"
                argument = iter([BytesValue()]) if kind.startswith("stream") else BytesValue()
                assert method(channel, kind).future(argument).result().value == b"secret 4"

    await asyncio.to_thread(talk)
    assert set(said.targets) == {address}


async def test_what_is_not_to_be_shown_there_fails_the_call(address: str) -> None:
    def refuse(target: str) -> Metadata:
        raise ConnectionRefusedError(f"{target} is not of this cluster")

    async with open_channel(address, Security(refuse)) as channel:
        with pytest.raises(ConnectionRefusedError, match="not of this cluster"):
            await ask(channel, "unary_unary")


async def test_who_shows_nothing_speaks_to_grpc_itself(address: str) -> None:
    async with open_channel(address, PLAIN) as channel:
        assert type(channel).__module__.startswith("grpc.")
        assert await ask(channel, "unary_unary") == b""
    with open_sync_channel(address) as sync_channel:
        assert type(sync_channel).__module__.startswith("grpc.")


async def test_a_pool_has_one_channel_per_address(address: str) -> None:
    at = Endpoint.parse(address)
    async with SilentNode().serve() as other:
        channels: Channels[Endpoint] = Channels(Security(Shown()))
        assert channels.to(at) is channels.to(Endpoint.parse(address))
        assert await ask(channels.to(at), "unary_unary") == b"secret 1"
        waiting = asyncio.ensure_future(ask(channels.to(other.endpoint), "unary_unary"))
        await other.until_asked()
        channels.to(at)
        await channels.trim(1)  # the one used last stays
        assert list(channels) == [at]
        with pytest.raises(asyncio.CancelledError):
            await waiting
        channels.to(other.endpoint)
        await channels.keep({at})
        await channels.drop(other.endpoint)
        assert list(channels) == [at]
        await channels.close()
        assert not channels


async def test_a_pool_of_a_thread(address: str) -> None:
    def talk() -> None:
        channels: SyncChannels[str] = SyncChannels(Security(Shown()))
        assert channels.to(address) is channels.to(address)
        assert ask_sync(channels.to(address), "unary_unary") == b"secret 1"
        channels.close()
        assert not channels

    await asyncio.to_thread(talk)
