"""
Serves ``/metrics`` over HTTP in one thread, however many connect. Called by ``open_metrics``.

Anybody may connect, so everything has a bound: so many connections, each with so long for its request and its answer
together, and a small head. When there is no room the oldest that still owes its request gives way: who scrapes sends it
at once. Every answer ends its connection. On loopback it answers as localhost and by addresses alone, so that no page
reads it by a name of its own; elsewhere scrapers have names for it that nobody told it.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from email.parser import BytesParser
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from headrace_common.core.host_names import is_nobodys, name_of
from headrace_common.core.ids import Endpoint, is_loopback
from headrace_common.runtime.clock import call_later_ms
from headrace_common.runtime.held_ports import shared
from headrace_common.runtime.service import CannotListen

CONNECTIONS_MAX: Final = 16
SECONDS_MAX: Final = 5.0
_HEAD_BYTES_MAX: Final = 8 << 10
_HEAD_END: Final = b"\r\n\r\n"
_JOIN_SECONDS: Final = 5.0
_SAFE: Final = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}


class _Metrics(NamedTuple):
    """What is served."""

    registry: CollectorRegistry
    local: bool
    """This machine alone reaches it."""


@contextmanager
def serve_metrics(registry: CollectorRegistry, listen: Endpoint) -> Iterator[Endpoint]:
    """
    Serve until the block ends; where, with the real port.

    Raises:
        CannotListen: the address is taken or not of this machine.
    """
    listening = _listening(listen)
    endpoint = Endpoint(listen.host, listening.getsockname()[1])
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(
        target=_run,
        args=(loop, _serve(_Metrics(registry, is_loopback(str(listen))), listening, stop)),
        name="metrics",
        daemon=True,
    )
    thread.start()
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(_JOIN_SECONDS)  # a reading that never returns does not keep the process from leaving


def _run(loop: asyncio.AbstractEventLoop, serving: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(serving)


async def _serve(metrics: _Metrics, listening: socket.socket, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    open_ones: dict[_Scrape, None] = {}
    server = await loop.create_server(lambda: _Scrape(metrics, loop, open_ones), sock=listening)
    await stop.wait()
    server.close()
    for scrape in list(open_ones):
        scrape.end()


class _Scrape(asyncio.Protocol):
    """One connection."""

    def __init__(self, metrics: _Metrics, loop: asyncio.AbstractEventLoop, open_ones: dict[_Scrape, None]) -> None:
        self._metrics = metrics
        self._loop = loop
        self._open = open_ones
        self._head = bytearray()
        self._asked = False
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "it is a stream"
        self._transport = transport
        if len(self._open) >= CONNECTIONS_MAX:
            next((one for one in self._open if not one._asked), next(iter(self._open))).end()
        self._open[self] = None
        self._deadline = call_later_ms(SECONDS_MAX * 1_000, self.end)

    def data_received(self, data: bytes) -> None:
        if self._asked or self._transport is None:
            return
        self._head += data
        if _HEAD_END in self._head:
            self._asked = True
            self._transport.write(_answer(bytes(self._head), self._metrics))
            self._transport.close()
        elif len(self._head) > _HEAD_BYTES_MAX:
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.end()

    def end(self) -> None:
        """Close it at once, whatever it still owes or is owed."""
        self._open.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._transport is not None:
            self._transport.abort()


def _listening(listen: Endpoint) -> socket.socket:
    try:
        family = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0][0]
        with shared(listen) as is_shared:
            return socket.create_server((listen.host, listen.port), family=family, reuse_port=is_shared)
    except OSError as error:
        raise CannotListen.at(listen) from error


def _answer(head: bytes, metrics: _Metrics) -> bytes:
    line, _, rest = head.partition(b"\r\n")
    headers = BytesParser().parsebytes(rest, headersonly=True)
    host = headers.get("host")
    if metrics.local and host is not None and not is_nobodys(name_of(host)):
        return _response(HTTPStatus.MISDIRECTED_REQUEST, b"ask by an address, or as localhost\n", {})
    method, path = [*line.decode("latin-1").split(" "), "", ""][:2]
    if path.partition("?")[0] not in {"/metrics", "/"}:
        return _response(HTTPStatus.NOT_FOUND, b"metrics are at /metrics\n", {})
    if method not in {"GET", "HEAD"}:
        return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n", {"Allow": "GET, HEAD"})
    encode, content_type = choose_encoder(headers.get("accept", ""))
    body = encode(metrics.registry)
    extra = {"Content-Type": content_type}
    if gzip_accepted(headers.get("accept-encoding", "")):
        body, extra["Content-Encoding"] = gzip.compress(body, compresslevel=1), "gzip"
    return _response(HTTPStatus.OK, body, extra, with_body=method == "GET")


def _response(status: HTTPStatus, body: bytes, extra: dict[str, str], *, with_body: bool = True) -> bytes:
    headers = {"Content-Type": "text/plain; charset=utf-8", **_SAFE, **extra, "Content-Length": str(len(body))}
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")
    return head + body if with_body else head
