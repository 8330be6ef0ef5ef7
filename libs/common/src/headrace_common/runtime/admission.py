"""
Decides which calls a listener takes: how many of one address, and how many requests are in memory at one time.

An interceptor outside of all others, so that it sees a call before its request is read. A request is read while one of
a few places is held; one that is large keeps its place until it is answered, so the memory of requests is bounded by
places times the largest request, while a small one that waits for something keeps nobody out. An IPv6 client is its
/64: whoever has one address there has them all.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import unquote

import grpc
import grpc.aio

from headrace_common.core.errors import HeadraceError, Overloaded, Rejected, RequestTimedOut
from headrace_common.rpc.interceptor import Continuation, Handler
from headrace_common.rpc.peers import peer_of
from headrace_common.rpc.status import abort_with
from headrace_common.runtime.clock import limit_s

REQUESTS_MAX: Final = 128
"""Unary requests of one listener that are read, or are large and not answered yet, at one time."""
REQUESTS_PER_ADDRESS_MAX: Final = REQUESTS_MAX // 4
LARGE_BYTES: Final = 64 << 10
"""From this size on a request keeps its place until it is answered."""
WAIT_S_MAX: Final = 5.0
"""How long a call waits for a place."""
READ_S_MAX: Final = 10.0
"""How long a unary request may take to arrive once it has its place."""


def host_of_peer(peer: str) -> str:
    """The address itself, whole, of gRPC's text for it; of a unix socket its kind."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]").partition("%")[0] if kind in {"ipv4", "ipv6"} else kind


def address_of(peer: str) -> str:
    """
    Whose call it is, from gRPC's ``ipv4:HOST:PORT``, ``ipv6:[HOST]:PORT`` (percent-encoded) or ``unix:PATH``.

    Two addresses of one /64 are one; an IPv4 address inside of IPv6 is the IPv4 address.
    """
    return network_of(host_of_peer(peer))


def network_of(host: str) -> str:
    """The same of an address alone."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


class Places:
    """A number of places, of which one address has at most some; who finds none waits, in order of arrival."""

    def __init__(self, places_max: int, per_address_max: int) -> None:
        self._free = places_max
        self._per_address_max = per_address_max
        self._held: Counter[str] = Counter()
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    async def take(self, address: str) -> None:
        """Return with a place. Raises: TimeoutError: there was none for ``WAIT_S_MAX``."""
        if self._may(address):
            self._grant(address)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (address, future)
        self._waiting.append(entry)
        try:
            async with limit_s(WAIT_S_MAX):
                await future
        except BaseException:
            if future.done() and not future.cancelled():
                self.give_back(address)  # it was granted in the same moment
            else:
                self._waiting.remove(entry)
            raise

    def give_back(self, address: str) -> None:
        """The place is free for the first who may have it."""
        self._free += 1
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]
        for entry in self._waiting:
            waiting, future = entry
            if not future.done() and self._may(waiting):
                self._waiting.remove(entry)
                self._grant(waiting)
                future.set_result(None)
                return

    def _may(self, address: str) -> bool:
        return self._free > 0 and self._held[address] < self._per_address_max

    def _grant(self, address: str) -> None:
        self._free -= 1
        self._held[address] += 1


class Admission(grpc.aio.ServerInterceptor):
    """One for each listener. ``calls_per_address_max`` 0: addresses are not told apart, as behind a proxy."""

    def __init__(self, calls_per_address_max: int) -> None:
        self._calls_max = calls_per_address_max
        self._calls: Counter[str] = Counter()
        self._places = Places(REQUESTS_MAX, REQUESTS_PER_ADDRESS_MAX if calls_per_address_max else REQUESTS_MAX)

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's handler, which begins when the call is admitted."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        # To gRPC every method takes a stream here: of a unary one the server would read the request by itself.
        inner = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if not handler.request_streaming:
            codec["request_deserializer"] = _add_size(handler.request_deserializer)
        begin = self._streaming(inner) if handler.request_streaming else self._unary(inner)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(begin, **codec)
        return grpc.stream_unary_rpc_method_handler(begin, **codec)

    def _streaming(self, inner: Handler) -> Handler:
        async def begin(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            async with self._count_call(context):
                return await inner(requests, context)

        return begin

    def _unary(self, inner: Handler) -> Handler:
        async def begin(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            async with self._count_call(context) as address:
                try:
                    await self._places.take(address)
                except TimeoutError:
                    await abort_with(context, _NO_PLACE)
                keeps = True
                try:
                    size, request = await _read(requests, context)
                    if size < LARGE_BYTES:
                        self._places.give_back(address)
                        keeps = False
                    return await inner(request, context)
                finally:
                    if keeps:
                        self._places.give_back(address)

        return begin

    @asynccontextmanager
    async def _count_call(self, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[str]:
        """The call counts among those of its address until the block ends; one too many is refused."""
        address = address_of(peer_of(context)) if self._calls_max else ""
        if self._calls_max and self._calls[address] >= self._calls_max:
            await abort_with(context, _too_many(self._calls_max))
        self._calls[address] += 1
        try:
            yield address
        finally:
            self._calls[address] -= 1
            if not self._calls[address]:
                del self._calls[address]


_NO_PLACE: Final = Overloaded("the server reads as many requests as it can at one time; wait and try again")


def _too_many(calls_max: int) -> HeadraceError:
    return Overloaded(
        f"your address has {calls_max} calls under way here and may have no more (calls_per_address_max); close "
        "clients that are not needed, or raise it, or set it to 0 where a proxy stands before the server"
    )


async def _read(
    requests: AsyncIterator[tuple[int, Any]], context: grpc.aio.ServicerContext[Any, Any]
) -> tuple[int, Any]:
    """The one request, as ``_add_size`` made it."""
    try:
        async with limit_s(READ_S_MAX):
            async for sized in requests:
                return sized
        error: HeadraceError = Rejected("the call ended without a request; send one")
    except TimeoutError:
        error = RequestTimedOut(f"the request did not arrive within {READ_S_MAX:g} s; send it again")
    return await abort_with(context, error)


def _add_size(deserialize: Any) -> Any:
    def read(raw: bytes) -> tuple[int, Any]:
        return len(raw), raw if deserialize is None else deserialize(raw)

    return read
