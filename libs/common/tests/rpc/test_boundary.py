"""What a handler raises, seen by a real client over a real connection: every kind of call, asyncio and sync."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from headrace_common.core.errors import (
    ErrorCode,
    HeadraceError,
    Internal,
    NetworkFailed,
    NotController,
    OffsetOutOfRange,
    Overloaded,
    RecordTooLarge,
    Rejected,
    RequestTimedOut,
    UnsupportedVersion,
)
from headrace_common.rpc.calls import never_sent
from headrace_common.rpc.channels import open_channel, open_sync_channel
from headrace_common.rpc.options import MESSAGE_BYTES_MAX
from headrace_common.rpc.status import error_from_rpc
from headrace_common.runtime.service import GrpcService, ServerConfig

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def _outcome(text: str) -> None:
    match text:
        case "fine":
            return
        case "moved":
            raise NotController("ask the other one", endpoint_hint="10.0.0.2:9393")
        case "range":
            raise OffsetOutOfRange("offset 7 is above the end, 5; seek to 5")
        case "long":
            raise Overloaded("é" * 10_000)
        case "bug":
            raise KeyError("the secret inside")
        case "cancelled":
            raise asyncio.CancelledError


class Target:
    """A service with one method of each kind; the request says how it ends, and its first half is answered."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    async def unary_unary(self, request: BytesValue, context: Any) -> BytesValue:
        _outcome(request.value.decode())
        return request

    async def unary_stream(self, request: BytesValue, context: Any) -> AsyncIterator[BytesValue]:
        try:
            yield request
            _outcome(request.value.decode())
            yield request
        finally:
            self.closed.append("unary_stream")

    async def stream_unary(self, requests: Any, context: Any) -> BytesValue:
        async for request in requests:
            _outcome(request.value.decode())
        return BytesValue(value=b"fine")

    async def stream_stream(self, requests: Any, context: Any) -> None:
        async for request in requests:
            await context.write(request)
            _outcome(request.value.decode())

    def add_to(self, server: Any) -> None:
        handlers = {
            kind: getattr(grpc, f"{kind}_rpc_method_handler")(
                getattr(self, kind), BytesValue.FromString, BytesValue.SerializeToString
            )
            for kind in KINDS
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Target", handlers)])


@pytest.fixture
async def target() -> AsyncIterator[tuple[Target, grpc.aio.Channel, int]]:
    servicer = Target()
    config = ServerConfig(drain_ms_max=0, request_bytes_max=32 << 20)
    servicers = [(lambda s, server: s.add_to(server), servicer)]
    async with (
        GrpcService.open(config, servicers, ["test.Target"]) as server,
        open_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield servicer, channel, server.port


async def call(channel: grpc.aio.Channel, kind: str, text: str) -> list[bytes]:
    async def requests() -> AsyncIterator[BytesValue]:
        yield BytesValue(value=text.encode())

    method = getattr(channel, kind)(f"/test.Target/{kind}", BytesValue.SerializeToString, BytesValue.FromString)
    answer = method(requests() if kind.startswith("stream") else BytesValue(value=text.encode()))
    if kind.endswith("stream"):
        return [message.value async for message in answer]
    return [(await answer).value]


async def failure(channel: grpc.aio.Channel, kind: str, text: str) -> tuple[HeadraceError, grpc.aio.AioRpcError]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call(channel, kind, text)
    return error_from_rpc(raised.value), raised.value


@pytest.mark.parametrize("kind", KINDS)
async def test_what_succeeds_passes_unchanged(target: Any, kind: str) -> None:
    _, channel, _ = target
    expected = {"unary_stream": [b"fine", b"fine"]}.get(kind, [b"fine"])
    assert await call(channel, kind, "fine") == expected


@pytest.mark.parametrize("kind", KINDS)
async def test_a_typed_error_arrives_as_itself(target: Any, kind: str) -> None:
    _, channel, _ = target
    error, status = await failure(channel, kind, "moved")
    assert type(error) is NotController
    assert str(error) == "ask the other one"
    assert error.endpoint_hint == "10.0.0.2:9393"
    assert error.retriable
    assert status.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_code_with_a_status_of_its_own(target: Any) -> None:
    _, channel, _ = target
    error, status = await failure(channel, "unary_unary", "range")
    assert type(error) is OffsetOutOfRange
    assert status.code() is grpc.StatusCode.OUT_OF_RANGE
    assert error.endpoint_hint is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_bug_is_internal_logged_and_not_told(target: Any, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    _, channel, _ = target
    with caplog.at_level(logging.ERROR):
        error, status = await failure(channel, kind, "bug")
    assert type(error) is Internal
    assert "secret" not in str(error)
    assert status.code() is grpc.StatusCode.INTERNAL
    assert any(r.exc_info and "secret" in str(r.exc_info[1]) for r in caplog.records)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_handler_that_is_cancelled_says_so(target: Any, kind: str) -> None:
    """A call that ends without a word is one that no handler got, and goes out again whatever it asks."""
    error, _ = await failure(target[1], kind, "cancelled")
    assert isinstance(error, NetworkFailed)
    assert "off; the outcome is unknown" in str(error)
    assert not never_sent(error)


async def test_a_long_text_is_cut_between_characters(target: Any) -> None:
    _, channel, _ = target
    error, _ = await failure(channel, "unary_unary", "long")
    assert type(error) is Overloaded
    assert len(str(error).encode()) <= 4096
    assert str(error).strip("é") == "..."


async def test_a_streaming_generator_is_closed_after_a_failure(target: Any) -> None:
    servicer, channel, _ = target
    await failure(channel, "unary_stream", "moved")
    assert servicer.closed == ["unary_stream"]


@pytest.mark.parametrize("kind", KINDS)
async def test_bytes_that_are_no_message_are_refused(target: Any, kind: str) -> None:
    _, channel, _ = target
    rubbish = b"\xff\xff\xff"
    answer = getattr(channel, kind)(f"/test.Target/{kind}")(iter([rubbish]) if kind.startswith("stream") else rubbish)
    with pytest.raises(grpc.aio.AioRpcError, match="no message of this operation") as raised:
        await (answer.read() if kind.endswith("stream") else answer)
    assert type(error_from_rpc(raised.value)) is Rejected
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_unknown_method_is_an_unsupported_version(target: Any) -> None:
    _, channel, _ = target
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary("/test.Target/absent")(b"")
    assert type(error_from_rpc(raised.value)) is UnsupportedVersion


async def test_a_message_above_the_limit_is_too_large(target: Any) -> None:
    _, channel, _ = target
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary("/test.Target/unary_unary")(bytes(MESSAGE_BYTES_MAX + 1))
    assert type(error_from_rpc(raised.value)) is RecordTooLarge


async def test_a_message_of_sixteen_mebibytes_passes(target: Any) -> None:
    _, channel, _ = target
    large = "x" * (16 << 20)
    assert await call(channel, "unary_unary", large) == [large.encode()]


def test_a_stream_that_ended_before_its_status_came_is_a_broken_connection() -> None:
    status = grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error from Core"
    )
    assert type(error_from_rpc(status)) is NetworkFailed


async def test_nobody_listens() -> None:
    async with open_channel("127.0.0.1:1") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary("/test.Target/unary_unary")(b"")
    error = error_from_rpc(raised.value)
    assert type(error) is NetworkFailed
    assert error.code is ErrorCode.NETWORK_EXCEPTION


async def test_no_answer_in_time(target: Any) -> None:
    _, channel, _ = target
    stream = channel.stream_unary("/test.Target/stream_unary")(timeout=0.05)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stream
    assert type(error_from_rpc(raised.value)) is RequestTimedOut


async def test_a_sync_client_sees_the_same(target: Any) -> None:
    _, _, port = target

    def ask() -> HeadraceError:
        with open_sync_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary("/test.Target/unary_unary", BytesValue.SerializeToString)(BytesValue(value=b"moved"))
        return error_from_rpc(raised.value)

    error = await asyncio.to_thread(ask)
    assert type(error) is NotController
    assert error.endpoint_hint == "10.0.0.2:9393"
