"""What strangers do to a listener: many calls, large requests, connections that say nothing; and who is served yet."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from headrace_common.core.errors import InvalidConfig, Overloaded, RecordTooLarge, Rejected
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.options import CALLS_PER_CONNECTION_MAX
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime import admission
from headrace_common.runtime.admission import Places, address_of
from headrace_common.runtime.descriptors import connections_max, raise_descriptor_limit
from headrace_common.runtime.service import ENVELOPE_BYTES, GrpcService, ServerConfig

CODEC = (BytesValue.SerializeToString, BytesValue.FromString)


class Target(grpc.GenericRpcHandler):
    """``fast`` answers with the size of the request, ``slow`` when it is let, ``stream`` never."""

    def __init__(self) -> None:
        self.began = 0
        self.let = asyncio.Event()
        self._changed = asyncio.Event()

    def service(self, details: Any) -> Any:
        codec = (BytesValue.FromString, BytesValue.SerializeToString)
        name = details.method.rsplit("/", 1)[1]
        if name == "stream":
            return grpc.stream_stream_rpc_method_handler(self.stream, *codec)
        return grpc.unary_unary_rpc_method_handler(getattr(self, name), *codec)

    async def fast(self, request: BytesValue, _: Any) -> BytesValue:
        return BytesValue(value=str(len(request.value)).encode())

    async def slow(self, request: BytesValue, _: Any) -> BytesValue:
        self._begin()
        await self.let.wait()
        return request

    async def stream(self, requests: Any, _: Any) -> AsyncIterator[BytesValue]:
        self._begin()
        async for request in requests:
            yield request

    def _begin(self) -> None:
        self.began += 1
        self._changed.set()

    async def until_begun(self, calls: int) -> None:
        while self.began < calls:
            self._changed.clear()
            await self._changed.wait()


@asynccontextmanager
async def serve(**settings: Any) -> AsyncIterator[tuple[Target, int]]:
    target = Target()
    config = ServerConfig(drain_ms_max=0, **settings)
    async with GrpcService.open(config, [(lambda t, s: s.add_generic_rpc_handlers((t,)), target)]) as server:
        yield target, server.port


@asynccontextmanager
async def from_elsewhere(port: int) -> AsyncIterator[str]:
    """An address whose connections reach the server from 127.0.0.9, as those of another client."""
    pumps: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.9", 0))
        pumps.add(asyncio.create_task(pump(reader, back)))
        pumps.add(asyncio.create_task(pump(there, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def unary(channel: grpc.aio.Channel, name: str, size: int = 0) -> Any:
    return channel.unary_unary(f"/test.Target/{name}", *CODEC)(BytesValue(value=bytes(size)), timeout=60)


def stream(channel: grpc.aio.Channel) -> Any:
    return channel.stream_stream("/test.Target/stream", *CODEC)(timeout=60)


async def test_idle_streams_of_one_client_leave_room_for_another() -> None:
    """A client that opens streams on many connections and says nothing on them."""
    async with serve(calls_per_address_max=300) as (target, port), AsyncExitStack() as stack:
        calls = []
        for _ in range(5):
            channel = await stack.enter_async_context(open_channel(f"127.0.0.1:{port}", own_connection=True))
            calls += [stream(channel) for _ in range(CALLS_PER_CONNECTION_MAX)]
        await target.until_begun(300)
        ends = [asyncio.ensure_future(call.read()) for call in calls]
        refused, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in refused:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await end
            error = error_from_rpc(raised.value)
            assert type(error) is Overloaded
            assert "calls_per_address_max" in str(error)
        elsewhere = await stack.enter_async_context(from_elsewhere(port))
        other = await stack.enter_async_context(open_channel(elsewhere))
        assert (await unary(other, "fast", 3)).value == b"3"
        assert target.began == 300
        for call in calls:
            call.cancel()
        await asyncio.gather(*ends, return_exceptions=True)


async def test_behind_a_proxy_addresses_are_not_told_apart() -> None:
    async with serve(calls_per_address_max=0) as (target, port), open_channel(f"127.0.0.1:{port}") as channel:
        calls = [stream(channel) for _ in range(CALLS_PER_CONNECTION_MAX)]
        await target.until_begun(CALLS_PER_CONNECTION_MAX)
        for call in calls:
            call.cancel()


async def test_calls_that_ended_are_not_counted() -> None:
    async with serve(calls_per_address_max=2) as (_, port), open_channel(f"127.0.0.1:{port}") as channel:
        for size in range(10):
            assert (await unary(channel, "fast", size)).value == str(size).encode()


async def test_a_connection_has_a_bounded_number_of_calls() -> None:
    async with serve() as (target, port), open_channel(f"127.0.0.1:{port}") as channel:
        calls = [stream(channel) for _ in range(CALLS_PER_CONNECTION_MAX)]
        await target.until_begun(CALLS_PER_CONNECTION_MAX)
        late = unary(channel, "fast")
        calls.pop().cancel()
        assert (await late).value == b"0"
        for call in calls:
            call.cancel()


async def test_large_requests_wait_for_a_place_and_small_ones_do_not_keep_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "REQUESTS_MAX", 2)
    monkeypatch.setattr(admission, "REQUESTS_PER_ADDRESS_MAX", 2)
    monkeypatch.setattr(admission, "WAIT_S_MAX", 0.05)
    async with serve() as (target, port), open_channel(f"127.0.0.1:{port}") as channel:
        small = [asyncio.ensure_future(unary(channel, "slow")) for _ in range(5)]
        await target.until_begun(5)
        large = [asyncio.ensure_future(unary(channel, "slow", admission.LARGE_BYTES)) for _ in range(2)]
        await target.until_begun(7)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await unary(channel, "slow", admission.LARGE_BYTES)
        assert type(error_from_rpc(raised.value)) is Overloaded
        target.let.set()
        assert len(await asyncio.gather(*small, *large)) == 7
        assert len((await unary(channel, "slow", admission.LARGE_BYTES)).value) == admission.LARGE_BYTES


async def test_a_request_above_the_limit_is_too_large_and_one_at_it_is_not() -> None:
    async with serve(request_bytes_max=1 << 20) as (_, port), open_channel(f"127.0.0.1:{port}") as channel:
        assert (await unary(channel, "fast", 1 << 20)).value == str(1 << 20).encode()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await unary(channel, "fast", (1 << 20) + ENVELOPE_BYTES + 1)
        assert type(error_from_rpc(raised.value)) is RecordTooLarge


async def test_a_request_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "READ_S_MAX", 0.05)
    async with serve() as (_, port), open_channel(f"127.0.0.1:{port}") as channel:
        silent = channel.stream_unary("/test.Target/fast", *CODEC)(timeout=60)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await silent
        assert "did not arrive" in str(error_from_rpc(raised.value))
        ended = channel.stream_unary("/test.Target/fast", *CODEC)(timeout=60)
        await ended.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await ended
        assert type(error_from_rpc(raised.value)) is Rejected


def is_closed(stranger: socket.socket) -> bool:
    """Whether the server closed the connection instead of greeting with its settings."""
    stranger.settimeout(30)
    try:
        return stranger.recv(1) == b""
    except ConnectionError:
        return True


async def test_connections_are_bounded_and_who_is_connected_goes_on() -> None:
    async with serve(connections_max=20) as (_, port), open_channel(f"127.0.0.1:{port}") as channel:
        assert (await unary(channel, "fast")).value == b"0"
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        refused = await asyncio.to_thread(lambda: sum(map(is_closed, strangers)))
        assert refused >= 80, "the others were greeted"
        assert (await unary(channel, "fast")).value == b"0"
        for stranger in strangers:
            stranger.close()


async def test_a_client_that_was_idle_for_long_goes_on_without_an_error() -> None:
    async with (
        serve(connection_idle_ms_max=1_000) as (_, port),
        open_channel(f"127.0.0.1:{port}", own_connection=True) as channel,
    ):
        assert (await unary(channel, "fast")).value == b"0"
        state = channel.get_state()
        while state is not grpc.ChannelConnectivity.IDLE:  # the server has asked it to go
            await channel.wait_for_state_change(state)
            state = channel.get_state()
        assert (await unary(channel, "fast")).value == b"0"


async def test_places_are_given_in_order_of_arrival_and_to_other_addresses_first() -> None:
    places = Places(2, 1)
    await places.take("a")
    second = asyncio.ensure_future(places.take("a"))
    await asyncio.sleep(0)
    await places.take("b")
    third = asyncio.ensure_future(places.take("c"))
    await asyncio.sleep(0)
    places.give_back("b")
    await third
    assert not second.done(), "its address has all it may have"
    places.give_back("a")
    await second
    waiting = asyncio.ensure_future(places.take("d"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    places.give_back("a")
    places.give_back("c")
    await places.take("d")
    await places.take("e")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:4711", "10.0.0.1"),
        ("ipv6:%5B::1%5D:4711", "::/64"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2::9%5D:80", "2001:db8:1:2::/64"),
        ("ipv6:[::ffff:10.0.0.1]:80", "10.0.0.1"),
        ("ipv6:[fe80::1%25eth0]:80", "fe80::/64"),
        ("unix:/run/x", "unix"),
        ("", ""),
    ],
)
def test_whose_call_it_is(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_descriptors_are_raised_and_connections_take_a_quarter() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 512), hard))
    try:
        assert connections_max() == min(hard, 512) // 4
        assert raise_descriptor_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 512
        assert connections_max() == raise_descriptor_limit() // 4
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "wrong",
    [
        {"calls_per_address_max": -1},
        {"calls_per_connection_max": 0},
        {"request_bytes_max": 1},
        {"request_bytes_max": (64 << 20) + 1},
        {"connections_max": 0},
        {"connection_idle_ms_max": -1},
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(wrong))):
        ServerConfig(listen=Endpoint("127.0.0.1", 0), **wrong)
