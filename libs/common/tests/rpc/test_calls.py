"""What whoever awaits a call is told when its channel is closed under it, wherever the call is at that moment."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from libs.common.tests.kit.silent_node import unreachable

from headrace_common.core.errors import NetworkFailed, Overloaded
from headrace_common.rpc.calls import CallTo, never_sent
from headrace_common.rpc.channels import open_channel
from headrace_common.rpc.status import abort_with

AT = "broker 1 at 10.0.0.1:9292"
Use = Callable[[grpc.aio.Channel], Awaitable[Any]]


class Silent:
    """Takes calls and answers none, except that ``busy`` is refused."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def unary(self, request: BytesValue, context: Any) -> BytesValue:
        if request.value == b"busy":
            await abort_with(context, Overloaded("come again"))
        self.asked.set()
        await asyncio.Event().wait()
        return request

    async def stream(self, requests: AsyncIterator[BytesValue], context: Any) -> AsyncIterator[BytesValue]:
        self.asked.set()
        async for request in requests:
            yield request

    async def serve(self) -> tuple[grpc.aio.Server, str]:
        server = grpc.aio.server()
        codec = (BytesValue.FromString, BytesValue.SerializeToString)
        handlers = {
            "unary": grpc.unary_unary_rpc_method_handler(self.unary, *codec),
            "stream": grpc.stream_stream_rpc_method_handler(self.stream, *codec),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Silent", handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, f"127.0.0.1:{port}"


@pytest.fixture
async def silent() -> AsyncIterator[tuple[Silent, str]]:
    service = Silent()
    server, address = await service.serve()
    yield service, address
    await server.stop(None)


@pytest.fixture
def nobody() -> Iterator[str]:
    with unreachable() as endpoint:
        yield str(endpoint)


def stream_of(channel: grpc.aio.Channel) -> Any:
    return channel.stream_stream("/Silent/stream", BytesValue.SerializeToString, BytesValue.FromString)()


async def unary(channel: grpc.aio.Channel, value: bytes = b"") -> BytesValue:
    call = channel.unary_unary("/Silent/unary", BytesValue.SerializeToString, BytesValue.FromString)
    with CallTo(AT):
        answer: BytesValue = await call(BytesValue(value=value))
        return answer


async def read(channel: grpc.aio.Channel) -> None:
    with CallTo(AT):
        await stream_of(channel).read()


async def iterate(channel: grpc.aio.Channel) -> None:
    with CallTo(AT):
        async for _ in stream_of(channel):
            pass


async def ended(task: asyncio.Task[Any], channel: grpc.aio.Channel) -> None:
    await channel.close()
    with pytest.raises(NetworkFailed, match=r"10\.0\.0\.1:9292 was closed.*outcome is unknown") as raised:
        await task
    assert not task.cancelled()
    assert not never_sent(raised.value)


async def under_way(use: Use, silent: tuple[Silent, str]) -> tuple[asyncio.Task[Any], grpc.aio.Channel]:
    service, address = silent
    channel = open_channel(address, own_connection=True)
    task = asyncio.ensure_future(use(channel))
    await service.asked.wait()
    return task, channel


@pytest.mark.parametrize("use", [unary, read, iterate])
async def test_a_call_under_way_fails_and_its_task_goes_on(use: Use, silent: tuple[Silent, str]) -> None:
    await ended(*await under_way(use, silent))


@pytest.mark.parametrize("use", [unary, read, iterate])
async def test_a_call_that_never_got_through_fails(use: Use, nobody: str) -> None:
    channel = open_channel(nobody, own_connection=True)
    task = asyncio.ensure_future(use(channel))
    while channel.get_state() is not grpc.ChannelConnectivity.CONNECTING:
        await asyncio.sleep(0)
    await ended(task, channel)


@pytest.mark.parametrize("use", [unary, read, iterate])
async def test_a_call_on_a_channel_that_is_closed_fails(use: Use, silent: tuple[Silent, str]) -> None:
    channel = open_channel(silent[1], own_connection=True)
    await channel.close()
    with pytest.raises(NetworkFailed, match="gone") as raised:
        await use(channel)
    assert never_sent(raised.value)


async def test_streams_that_have_ended_fail_when_they_are_used(silent: tuple[Silent, str]) -> None:
    channel = open_channel(silent[1], own_connection=True)
    call = stream_of(channel)
    await call.write(BytesValue())
    await channel.close()
    with pytest.raises(NetworkFailed, match="gone"), CallTo(AT):
        await call.write(BytesValue())
    with pytest.raises(NetworkFailed, match="closed"), CallTo(AT):
        await call.read()


@pytest.mark.parametrize("use", [unary, read, iterate])
async def test_a_task_that_is_cancelled_ends(use: Use, silent: tuple[Silent, str]) -> None:
    task, channel = await under_way(use, silent)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await channel.close()


async def test_a_request_that_nobody_took_was_never_sent() -> None:
    channel = open_channel("127.0.0.1:1", own_connection=True)
    with pytest.raises(NetworkFailed) as raised:
        await unary(channel)
    assert never_sent(raised.value)
    await channel.close()


async def test_a_time_limit_around_it_is_the_callers(silent: tuple[Silent, str]) -> None:
    channel = open_channel(silent[1], own_connection=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await unary(channel)
    with pytest.raises(Overloaded, match="come again"):
        await unary(channel, b"busy")
    await channel.close()


async def test_what_is_no_answer_and_what_is_no_failure_of_the_network(silent: tuple[Silent, str]) -> None:
    with pytest.raises(NetworkFailed, match="no answer"), CallTo(AT):
        BytesValue.FromString(b"\xff")
    with pytest.raises(KeyError), CallTo(AT):
        raise KeyError("ours")


async def test_an_error_that_somebody_keeps_holds_no_call(silent: tuple[Silent, str]) -> None:
    """A call that is held keeps its closed channel connecting, with what the channel was opened with."""
    _, address = silent
    channel = open_channel(address)
    begun = channel.unary_unary("/Silent/unary", BytesValue.SerializeToString, BytesValue.FromString)
    calls: list[weakref.ref[Any]] = []

    def ask() -> Any:
        call = begun(BytesValue(value=b"busy"))
        calls.append(weakref.ref(call))
        return call

    gc.disable()
    try:
        with pytest.raises(Overloaded) as told, CallTo(AT):
            await ask()
        assert isinstance(told.value.__cause__, grpc.RpcError)
        await channel.close()
        assert [call() for call in calls] == [None]
    finally:
        gc.enable()
