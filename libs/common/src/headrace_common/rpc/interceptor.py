"""
The RPC boundary of every server: what a handler raises becomes a status.

A ``HeadraceError`` goes to the caller with its details, and so does that a handler was cancelled: a call that ends
without a word was never begun (``calls.never_sent``). Anything else is our bug: it is logged with its trace, and
the caller gets INTERNAL without the inner text. The handler is wrapped once per call; a streamed message passes
through no frame of ours, because the wrapper takes the place of gRPC's own sending loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from headrace_common.core.errors import HeadraceError, Internal, NetworkFailed, Rejected, UnsupportedVersion
from headrace_common.rpc.counts import Deserialize, counting
from headrace_common.rpc.status import abort_with

_NO_MESSAGE: Final = "the request's bytes are no message of this operation; use the generated client of this version"

_log = logging.getLogger(__name__)

Handler: TypeAlias = "Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Any]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]]"


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Install it as the first interceptor, so that what other interceptors raise passes it too."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's handler with the boundary around it; None for a method that does not exist, as gRPC wants."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        guarded: Any = with_behavior(handler, lambda inner, streams: _guard(inner, streams, method))
        if guarded.request_deserializer is None:
            return guarded  # type: ignore[no-any-return]  # gRPC's handler is a named tuple
        read = counting(method, guarded.request_deserializer)
        read = _of_stream(read) if guarded.request_streaming else _of_call(read)
        return guarded._replace(request_deserializer=read)  # type: ignore[no-any-return]  # as above


def with_behavior(
    handler: grpc.RpcMethodHandler[Any, Any], wrap: Callable[[Handler, bool], Handler]
) -> grpc.RpcMethodHandler[Any, Any]:
    """``handler`` with its function replaced by ``wrap(function, whether it streams responses)``."""
    functions: Any = handler  # an asyncio server has asyncio functions; the stubs know the sync ones only
    codec = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }
    if functions.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(wrap(functions.unary_unary, False), **codec)
    if functions.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(wrap(functions.unary_stream, True), **codec)
    if functions.stream_unary is not None:
        return grpc.stream_unary_rpc_method_handler(wrap(functions.stream_unary, False), **codec)
    return grpc.stream_stream_rpc_method_handler(wrap(functions.stream_stream, True), **codec)


def refusing(
    error: HeadraceError, told: Callable[[grpc.aio.ServicerContext[Any, Any]], None] | None = None
) -> grpc.RpcMethodHandler[Any, Any]:
    """
    A handler for interceptors inside of ``ErrorInterceptor`` that reads nothing of a call and ends it.

    Args:
        told: called with whom it refuses.
    """

    handler: Any = grpc.stream_stream_rpc_method_handler(_Refusal(error, told))
    return handler  # type: ignore[no-any-return]  # gRPC's handler is a named tuple


def refuses(handler: grpc.RpcMethodHandler[Any, Any]) -> bool:
    """Whether it is one of ``refusing``."""
    function: Any = handler.stream_stream
    return isinstance(function, _Refusal)


class _Refusal:
    """To gRPC the handler of a stream, so that not even a unary request is read."""

    def __init__(self, error: HeadraceError, told: Callable[[grpc.aio.ServicerContext[Any, Any]], None] | None) -> None:
        self._error = error
        self._told = told

    async def __call__(self, requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if self._told is not None:
            self._told(context)
        raise self._error


class _Unread:
    """In place of a request that cannot be taken: gRPC itself would answer UNKNOWN, without details."""

    def __init__(self, error: HeadraceError) -> None:
        self.error = error


def _of_call(deserialize: Deserialize) -> Deserialize:
    """gRPC reads the request of a call before the handler is called: what went wrong takes the request's place."""
    read = _of_stream(deserialize)

    def read_or_error(raw: bytes) -> Any:
        try:
            return read(raw)
        except HeadraceError as error:
            return _Unread(error)

    return read_or_error


def _of_stream(deserialize: Deserialize) -> Deserialize:
    """Who reads a stream reads in its handler: what went wrong is raised there."""

    def read(raw: bytes) -> Any:
        try:
            return deserialize(raw)
        except DecodeError:
            raise Rejected(_NO_MESSAGE) from None

    return read


def _guard(inner: Handler, streams: bool, method: str) -> Handler:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            if isinstance(request, _Unread):
                raise request.error
            if streams:
                return await send_all(inner(request, context), context)
            return await inner(request, context)
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError:
            if context.cancelled():
                raise  # the caller, or the connection to it, is gone
            # Without a word it would look like a call that no handler got, which callers send again.
            await abort_with(context, NetworkFailed(f"the server broke {method} off; the outcome is unknown"))
        except HeadraceError as error:
            await abort_with(context, error)
        except NotImplementedError:  # what generated servicers raise for a method that nobody wrote
            await abort_with(context, UnsupportedVersion(f"this server does not offer {method}; is it older?"))
        except Exception as error:  # noqa: BLE001 - the boundary: nothing a handler raises may end the server
            await _abort_unexpected(context, error, method)

    return guarded


async def send_all(responses: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Send what a streaming handler yields; a handler that writes by itself is only awaited."""
    if not hasattr(responses, "__aiter__"):
        await responses
        return
    if hasattr(responses, "aclose"):
        async with aclosing(responses):
            async for response in responses:
                await context.write(response)
    else:
        async for response in responses:
            await context.write(response)


async def _abort_unexpected(context: grpc.aio.ServicerContext[Any, Any], error: Exception, method: str) -> NoReturn:
    if context.cancelled() or (isinstance(error, grpc.aio.BaseError) and context.done()):
        raise error  # the caller is gone; nobody reads an answer
    _log.error("unexpected failure in an RPC", exc_info=error, extra={"method": method})
    await abort_with(context, Internal(f"{method} failed inside the server; its log has the details"))
