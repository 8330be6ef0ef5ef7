"""
The one thing besides health that is served on the health port: having this broker leave, for ``prestop``.

The port is plain text and open to probes, so only callers on this machine are heard.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import unquote

import grpc
import grpc.aio

from headrace_broker.core import leaving
from headrace_common.core.errors import ErrorCode, Rejected

REFUSAL: Final = "a broker is asked to leave from its own machine only: run `python -m headrace_broker.prestop` there"


class LeavingServicer:
    """``leave`` has the broker leave and returns when it has; whether nothing depends on it."""

    def __init__(self, leave: Callable[[], Awaitable[bool]]) -> None:
        self._leave = leave

    async def handle(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        """The RPC."""
        if not is_local(context.peer()):
            raise Rejected(REFUSAL, code=ErrorCode.POLICY_VIOLATION)
        return leaving.LEFT if await self._leave() else leaving.LATE


def add_leaving_servicer(servicer: LeavingServicer, server: Any) -> None:
    """As the generated ``add_..._to_server``; requests and answers are plain bytes."""
    leave: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(servicer.handle)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(leaving.SERVICE, {leaving.METHOD: leave})])


def is_local(peer: str) -> bool:
    """Whether a gRPC peer, such as ``ipv4:127.0.0.1:5`` or ``ipv6:%5B::1%5D:5``, is on this machine."""
    kind, _, address = unquote(peer).partition(":")
    if kind == "unix":
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        ip = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback
