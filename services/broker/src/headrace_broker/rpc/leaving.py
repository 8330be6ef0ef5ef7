"""
Has this broker leave when it is asked through a unix socket, by ``prestop``.

A socket and no port: with a service mesh every connection to a port seems to come from this machine. The file is for
this user alone, so only who could as well send this process a signal is heard.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from headrace_broker.core import leaving
from headrace_common.rpc.interceptor import ErrorInterceptor
from headrace_common.rpc.options import server_options
from headrace_common.runtime.service import bind_socket

_CALLS_MAX: Final = 16


class LeavingServicer:
    """``leave`` has the broker leave and returns when it has; whether nothing depends on it."""

    def __init__(self, leave: Callable[[], Awaitable[bool]]) -> None:
        self._leave = leave

    async def handle(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return leaving.LEFT if await self._leave() else leaving.LATE


@asynccontextmanager
async def serve_leave_requests(path: Path | None, leave: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
    """
    Hear who asks at ``path`` until the block ends; nobody without one.

    Raises:
        OSError: there can be no socket.
    """
    if path is None:
        yield
        return
    server = grpc.aio.server(
        interceptors=[ErrorInterceptor()], options=server_options(), maximum_concurrent_rpcs=_CALLS_MAX
    )
    _add_leaving_servicer(LeavingServicer(leave), server)
    bind_socket(server, path)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)  # which removes the socket


def _add_leaving_servicer(servicer: LeavingServicer, server: Any) -> None:
    """As the generated ``add_..._to_server``; requests and answers are plain bytes."""
    leave: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(servicer.handle)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(leaving.SERVICE, {leaving.METHOD: leave})])
