"""The HTTP server under clients who do not finish what they begin, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import uvloop
from libs.common.tests.kit.authority import BROKER, Authority
from libs.common.tests.kit.clock import FakeClock

from headrace_common.core.ids import Endpoint
from headrace_common.http import json_gate, protocol
from headrace_common.http.foreign_pages import Hosts
from headrace_common.http.problems import refusal
from headrace_common.http.protocol import HEAD_BYTES_MAX, BoundedProtocol, HttpBounds
from headrace_common.http.server import HttpServer
from headrace_common.rpc.channels import Certificates
from headrace_common.runtime.metrics import open_metrics
from headrace_common.runtime.service_tls import ServiceTls
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.tls import Wanted
from headrace_common.runtime.tls_contexts import make_client_context
from headrace_common.runtime.tls_watch import LiveBundle, TlsMetrics

NEVER_MS = 3_600_000
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF_HEAD = b"GET / HTTP/1.1\r\nHost: local"
HALF_BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"


@dataclass
class App:
    """Answers with the size of the body; ``hold`` is waited for, and ``gone`` counts clients that left before."""

    hold: asyncio.Event = field(default_factory=asyncio.Event)
    asked: int = 0
    gone: int = 0
    answer: bytes = b""
    clients: list[str] = field(default_factory=list)
    schemes: list[str] = field(default_factory=list)
    came: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.clients.append(scope["client"][0])
        self.schemes.append(scope["scheme"])
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone += 1
                return
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        async with self.came:
            self.asked += 1
            self.came.notify_all()
        if scope["path"] == "/held":
            await self.hold.wait()
        body = self.answer or str(size).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    async def until_asked(self, count: int) -> None:
        async with self.came:
            await self.came.wait_for(lambda: self.asked >= count)


@dataclass
class Served:
    """A server, and connections to it that are closed in the end."""

    app: App
    server: HttpServer
    stack: AsyncExitStack

    async def connect(
        self, sent: bytes = b"", source: str = "127.0.0.1", context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, Any]:
        """From an address of this machine; by TLS with a ``context``."""
        at = self.server.endpoint
        reader, writer = await asyncio.open_connection(at.host, at.port, local_addr=(source, 0), ssl=context)
        self.stack.callback(lambda: writer.transport.abort())  # with the writer: it would close with it
        writer.write(sent)
        await writer.drain()
        return reader, writer


@asynccontextmanager
async def serving(gated: int | None = None, tls: ServiceTls | None = None, **bounds: int) -> AsyncIterator[Served]:
    """``gated``: the largest body, where one is refused."""
    app = App()
    entry = app if gated is None else json_gate.JsonGate(app, gated, Hosts())
    named = {
        "connections_max": 1_000,
        "connections_per_address_max": 64,
        "head_ms_max": NEVER_MS,
        "body_ms_max": NEVER_MS,
    } | bounds
    async with TaskRunner() as tasks, AsyncExitStack() as stack:
        opened = HttpServer.open(
            entry, Endpoint("127.0.0.1", 0), tasks, HttpBounds(**named, refusal=refusal), drain_ms_max=1_000, tls=tls
        )
        yield Served(app, await stack.enter_async_context(opened), stack)


async def status(reader: asyncio.StreamReader) -> int:
    """Of the next answer, whose body is read too."""
    async with asyncio.timeout(60):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line for line in head.splitlines() if line.lower().startswith("content-length"))
        await reader.readexactly(int(length.partition(":")[2]))
    return int(head.split()[1])


@pytest.mark.parametrize("header", [b"X-Forwarded-For: 10.9.9.9", b"Forwarded: for=10.9.9.9", b"X-Real-IP: 10.9.9.9"])
async def test_where_a_caller_is_its_connection_says_and_no_header(header: bytes) -> None:
    """Rules may name addresses."""
    async with serving() as served:
        reader, _ = await served.connect(WHOLE.replace(b"\r\n\r\n", b"\r\n" + header + b"\r\n\r\n"))
        assert await status(reader) == 200
        assert served.app.clients == ["127.0.0.1"]


@pytest.mark.parametrize("half", [b"", HALF_HEAD, HALF_BODY])
async def test_a_thousand_half_requests_keep_nobody_out(half: bytes) -> None:
    async with serving() as served:
        early, early_writer = await served.connect(WHOLE, source="127.0.0.2")
        assert await status(early) == 200
        for _ in range(1_000):
            await served.connect(half)
        for source in ("127.0.0.1", "127.0.0.2"):
            reader, _ = await served.connect(WHOLE, source)
            assert await status(reader) == 200
        early_writer.write(WHOLE)
        assert await status(early) == 200


async def test_from_many_addresses_neither() -> None:
    async with serving(connections_max=100) as served:
        for n in range(300):
            await served.connect(HALF_HEAD, source=f"127.0.1.{1 + n % 250}")
        reader, _ = await served.connect(WHOLE)
        assert await status(reader) == 200


async def test_descriptors_are_left_for_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 40))
    async with serving(connections_per_address_max=0) as served:
        held = [await served.connect(WHOLE.replace(b"/ ", b"/held ")) for _ in range(10)]
        await served.app.until_asked(10)
        refused, _ = await served.connect(WHOLE)
        assert await status(refused) == 503
        served.app.hold.set()
        assert {await status(reader) for reader, _ in held} == {200}


async def test_requests_under_way_are_not_ended_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(connections_per_address_max=2) as served:
        held = [await served.connect(WHOLE.replace(b"/ ", b"/held ")) for _ in range(2)]
        await served.app.until_asked(2)
        refused, _ = await served.connect(WHOLE)
        assert await status(refused) == 503
        assert await refused.read() == b""
        other, _ = await served.connect(WHOLE, source="127.0.0.2")
        assert await status(other) == 200
        served.app.hold.set()
        assert [await status(reader) for reader, _ in held] == [200, 200]
        after, _ = await served.connect(WHOLE)
        assert await status(after) == 200


@pytest.mark.parametrize("sent", [b"", b"\r\n", HALF_HEAD, WHOLE + b"GET"])
async def test_a_head_that_does_not_come_ends_the_connection(sent: bytes) -> None:
    async with serving(head_ms_max=30) as served:
        reader, _ = await served.connect(sent)
        if sent.startswith(WHOLE):
            assert await status(reader) == 200
        assert await status(reader) == 408
        assert await reader.read() == b""


async def test_what_begins_no_request_does_not_end_the_wait_for_one() -> None:
    async with serving(head_ms_max=30) as served:
        reader, writer = await served.connect(WHOLE)
        assert await status(reader) == 200
        writer.write(b"\r\n")
        assert await status(reader) == 408


async def test_a_body_that_does_not_come_ends_the_connection() -> None:
    async with serving(body_ms_max=30) as served:
        reader, _ = await served.connect(HALF_BODY)
        assert await status(reader) == 408
        assert await reader.read() == b""
        assert served.app.asked == 0
        reader, _ = await served.connect(WHOLE.replace(b"/ ", b"/held "))
        await served.app.until_asked(1)
        served.app.hold.set()
        assert await status(reader) == 200


async def test_a_head_without_an_end_is_cut_off() -> None:
    async with serving() as served:
        reader, writer = await served.connect(HALF_HEAD)
        answered = asyncio.ensure_future(status(reader))
        sent = 0
        while not answered.done() and sent < 64 * HEAD_BYTES_MAX:
            writer.write(b"x" * 4_096)
            sent += 4_096
            await asyncio.sleep(0)
        assert await answered == 431


async def test_pipelined_requests_and_large_bodies_are_answered_in_order() -> None:
    body = b"x" * 300_000
    post = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with serving(head_ms_max=5_000, body_ms_max=5_000) as served:
        reader, writer = await served.connect(WHOLE.replace(b"/ ", b"/held ") + WHOLE + post)
        await served.app.until_asked(1)
        served.app.hold.set()
        assert [await status(reader) for _ in range(3)] == [200, 200, 200]
        writer.write(post)
        assert await status(reader) == 200


async def test_a_client_that_never_reads_its_answer_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = asyncio.Event()
    monkeypatch.setattr(protocol, "FLUSH_SECONDS", 0.03)
    ended = BoundedProtocol.connection_lost

    def noted(protocol: BoundedProtocol, exc: Exception | None) -> None:
        ended(protocol, exc)
        lost.set()

    monkeypatch.setattr(BoundedProtocol, "connection_lost", noted)
    async with serving() as served:
        served.app.answer = b"x" * (64 << 20)
        _, writer = await served.connect(WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        writer.transport.pause_reading()
        async with asyncio.timeout(60):
            await lost.wait()


class Large:
    """A request with a body above the limit, sent by a client that reads nothing before it has sent all."""

    def __init__(self, served: Served, size: int) -> None:
        at = served.server.endpoint
        self._client = HTTPConnection(at.host, at.port, timeout=60)
        served.stack.callback(self._client.close)
        self._body = b" " * size

    def answer(self) -> tuple[int, str | None, Any]:
        """Status, content type and JSON; the rest is awaited too."""
        self._client.request("POST", "/", self._body, {"Content-Type": "application/json"})
        answer = self._client.getresponse()
        return answer.status, answer.getheader("content-type"), json.loads(answer.read())


async def test_who_sends_too_much_can_read_that() -> None:
    async with serving(gated=4 << 20) as served:
        status, kind, found = await asyncio.to_thread(Large(served, 30_000_000).answer)
        assert (status, kind) == (413, "application/problem+json")
        assert "larger than 4194304 bytes" in found["detail"]
        assert served.app.asked == 0


@pytest.mark.parametrize(("limit", "value"), [("DRAIN_BYTES_MAX", 1 << 20), ("DRAIN_SECONDS", 0.03)])
async def test_what_comes_after_that_is_not_read_for_ever(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    monkeypatch.setattr(json_gate, limit, value)
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000000\r\n\r\n"
    async with serving(gated=1_000) as served:
        reader, writer = await served.connect(head + b" " * 2_000)
        assert await status(reader) == 413
        if limit == "DRAIN_BYTES_MAX":
            writer.write(b" " * (4 << 20))
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(60):
                assert await reader.read() == b""


# --- by TLS --------------------------------------------------------------------------------------------------


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def tls(authority: Authority, tmp_path: Path) -> ServiceTls:
    files = authority.files(tmp_path / "tls")
    clock = FakeClock(int(authority.now.timestamp() * 1_000))
    with open_metrics("t", 1, None) as metrics:
        live = LiveBundle("service", files, Wanted(), clock, TlsMetrics(metrics.meter))
    return ServiceTls(live, Certificates(live.bundle.pem), Certificates(live.bundle.pem), "headrace", "", files.ca)


async def test_requests_over_tls_are_answered(tls: ServiceTls) -> None:
    context = make_client_context(tls.ca)
    async with serving(tls=tls) as served:
        assert served.server.scheme == "https"
        reader, writer = await served.connect(WHOLE, context=context)
        assert await status(reader) == 200
        writer.write(WHOLE)
        assert await status(reader) == 200
        plain, _ = await served.connect(WHOLE)
        async with asyncio.timeout(20):
            assert b"HTTP" not in await plain.read(), "plain text is not answered"


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_handshake_that_comes_before_the_loop_looks(
    tls: ServiceTls, new_loop: Callable[[], asyncio.AbstractEventLoop], pieces: int
) -> None:
    """A busy server finds the connection and what the client said in it at once."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = make_client_context(tls.ca).wrap_bio(incoming, outgoing, server_hostname="broker.headrace")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()

    async def connect() -> bytes:
        async with serving(tls=tls) as served:
            with socket.create_connection(("127.0.0.1", served.server.endpoint.port), timeout=20) as plain:
                for piece in range(pieces):
                    plain.sendall(hello[len(hello) * piece // pieces : len(hello) * (piece + 1) // pieces])
                    await asyncio.sleep(0)
                return await asyncio.to_thread(plain.recv, 3)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(connect()).hex() == "160303", "the answer of TLS to the client's first words"


async def test_who_connects_is_shown_new_certificates(tls: ServiceTls, authority: Authority) -> None:
    context = make_client_context(tls.ca)
    async with serving(tls=tls) as served:
        before, early = await served.connect(WHOLE, context=context)
        assert await status(before) == 200
        authority.write(tls_files(tls), authority.make(BROKER))
        await tls.live.look()
        _, late = await served.connect(WHOLE, context=context)
        shown = [one.get_extra_info("ssl_object").getpeercert(binary_form=True) for one in (early, late)]
        assert shown[0] != shown[1]
        assert shown[1] == ssl.PEM_cert_to_DER_cert(tls_files(tls).cert.read_text())
        early.write(WHOLE)
        assert await status(before) == 200, "who was there goes on"


def tls_files(tls: ServiceTls) -> Any:
    return tls.live._files


async def test_silent_ones_before_the_handshake_keep_nobody_out(tls: ServiceTls) -> None:
    context = make_client_context(tls.ca)
    async with serving(tls=tls, connections_per_address_max=8, connections_max=20) as served:
        silent = [await served.connect() for _ in range(100)]
        for source in ("127.0.0.1", "127.0.0.2"):
            reader, _ = await served.connect(WHOLE, source, context=context)
            assert await status(reader) == 200
        async with asyncio.timeout(20):
            assert await silent[0][0].read() == b"", "the oldest gave way"


async def test_a_handshake_has_an_end(tls: ServiceTls) -> None:
    async with serving(tls=tls, head_ms_max=200) as served:
        silent, _ = await served.connect()
        half, _ = await served.connect(b"\x16\x03\x01")
        async with asyncio.timeout(20):
            assert await silent.read() == await half.read() == b""


# --- while a cluster is moved to TLS -----------------------------------------------------------------------------


@pytest.fixture
def both(tls: ServiceTls) -> ServiceTls:
    return replace(tls, also_plain=True, dials=False)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_one_port_answers_both_and_tells_them_apart(
    both: ServiceTls, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def ask() -> None:
        async with serving(tls=both) as served:
            assert served.server.scheme == "http", "by which others are to ask while some have no TLS"
            for context, scheme in ((None, "http"), (make_client_context(both.ca), "https"), (None, "http")):
                reader, writer = await served.connect(WHOLE, context=context)
                assert await status(reader) == 200
                writer.write(WHOLE)
                assert await status(reader) == 200
                assert served.app.schemes[-2:] == [scheme] * 2
            split, writer = await served.connect(WHOLE[:1])
            writer.write(WHOLE[1:])
            assert await status(split) == 200

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask())


async def test_who_does_not_say_which_of_both_is_sent_away(both: ServiceTls) -> None:
    async with serving(tls=both, head_ms_max=200) as served:
        silent, _ = await served.connect()
        half, _ = await served.connect(b"\x16\x03\x01")
        async with asyncio.timeout(20):
            assert await silent.read() == await half.read() == b""


async def test_connections_of_both_count(both: ServiceTls) -> None:
    async with serving(tls=both, connections_per_address_max=2, connections_max=20) as served:
        kept = [await served.connect(WHOLE) for _ in range(2)]
        for reader, _ in kept:
            assert await status(reader) == 200
        for reader, writer in kept:
            writer.write(WHOLE)
            assert await status(reader) == 200, "two are not more than two"
        await served.connect()
        async with asyncio.timeout(20):
            assert await kept[0][0].read() == b"", "the oldest gave way"
