"""One hop over a real socket: what is sent to the leader, what comes back, and by which name it is known by TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest
from libs.common.tests.kit.authority import Authority
from opentelemetry.metrics import NoOpMeterProvider

from headrace_common.core.errors import NetworkFailed
from headrace_common.runtime.certificates import Leaf, leaf_of
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.service_tls import ServiceTls, open_tls
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.tls_config import TlsConfig
from headrace_common.runtime.tls_contexts import make_server_context
from headrace_connect_worker.adapters import http_forwarding
from headrace_connect_worker.adapters.http_forwarding import HttpForwarding
from headrace_connect_worker.core.refusals import NotLeader
from headrace_connect_worker.ports import Forwarded

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def leader(answer: Answer, context: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that reads one request of each connection, and its URL."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        got.append(head + await reader.readexactly(length))
        await answer(got[-1], writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"{'http' if context is None else 'https'}://127.0.0.1:{port}", got


async def test_a_request_and_its_answer() -> None:
    async def created(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nLocation: /connectors/a\r\n\r\n{}")
        await writer.drain()

    async with leader(created) as (url, got), HttpForwarding.open(5_000) as forwarding:
        answer = await forwarding.send(
            url, "PUT", "/connectors/a%2Fb%20%C3%BC/config", [("x", "1 &"), ("forward", "false")], b'{"a": 1}'
        )
    assert answer == Forwarded(201, b"{}", "/connectors/a")
    head, _, body = got[0].partition(b"\r\n\r\n")
    assert head.startswith(b"PUT /connectors/a%2Fb%20%C3%BC/config?x=1+%26&forward=false HTTP/1.1\r\n")
    assert b"content-type: application/json" in head.lower()
    assert body == b'{"a": 1}'
    assert b"authorization" not in head.lower()


async def test_without_a_body() -> None:
    async def done(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()

    async with leader(done) as (url, got), HttpForwarding.open(5_000) as forwarding:
        assert await forwarding.send(url, "PUT", "/connectors/a/stop", [], b"", "Ticket x") == Forwarded(204, b"")
    assert b"content-type" not in got[0].lower()
    assert b"\r\nauthorization: ticket x\r\n" in got[0].lower()


async def test_nobody_is_there() -> None:
    async with leader(lambda *_: asyncio.sleep(0)) as (url, _):
        pass
    async with HttpForwarding.open(5_000) as forwarding:
        with pytest.raises(NotLeader, match="no worker leads for now"):
            await forwarding.send(url, "PUT", "/", [], b"")


async def test_who_is_silent_is_waited_for_so_long() -> None:
    silent = asyncio.Event()

    async def wait(_: bytes, writer: asyncio.StreamWriter) -> None:
        await silent.wait()

    async with leader(wait) as (url, _), HttpForwarding.open(20) as forwarding:
        with pytest.raises(NetworkFailed, match="did not answer: ReadTimeout; it may have carried it out"):
            await forwarding.send(url, "PUT", "/", [], b"")
        silent.set()


async def test_an_answer_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_forwarding, "ANSWER_BYTES_MAX", 1_000)

    async def flood(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2_000)
        await writer.drain()

    async with leader(flood) as (url, _), HttpForwarding.open(5_000) as forwarding:
        with pytest.raises(NetworkFailed, match="more than 1000 bytes"):
            await forwarding.send(url, "GET", "/", [], b"")


async def test_a_redirection_is_an_answer_and_not_followed() -> None:
    async def elsewhere(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 307 Elsewhere\r\nContent-Length: 0\r\nLocation: http://127.0.0.1:1/\r\n\r\n")
        await writer.drain()

    async with leader(elsewhere) as (url, got), HttpForwarding.open(5_000) as forwarding:
        assert (await forwarding.send(url, "GET", "/", [], b"")).status == 307
    assert len(got) == 1


# --- by TLS --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def worker(authority: Authority, directory: Path, leaf: Leaf) -> AsyncIterator[ServiceTls]:
    """The certificates of one."""
    files = authority.files(directory, leaf)
    meter = NoOpMeterProvider().get_meter("test")
    async with (
        TaskRunner() as tasks,
        open_tls(TlsConfig(files.cert, files.key, files.ca), None, SystemClock(), meter, tasks) as tls,
    ):
        assert tls is not None
        yield tls


BY_KIND, BY_HOST = leaf_of("connect", (), "headrace"), Leaf("worker", frozenset({"127.0.0.1"}))


@pytest.mark.parametrize(
    ("own", "of_leader", "known"),
    [
        (BY_KIND, BY_KIND, True),
        (BY_KIND, BY_HOST, False),
        (BY_KIND, leaf_of("streams", ["127.0.0.1"], "headrace"), False),
        (BY_HOST, BY_HOST, True),
        (BY_HOST, BY_KIND, False),
    ],
)
async def test_the_leader_is_known_by_the_name_that_this_worker_has_itself(
    tmp_path: Path, own: Leaf, of_leader: Leaf, known: bool
) -> None:
    async def done(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()

    authority = Authority()
    async with (
        worker(authority, tmp_path / "own", own) as tls,
        worker(authority, tmp_path / "leader", of_leader) as theirs,
        leader(done, make_server_context(theirs.live.bundle)) as (url, got),
        HttpForwarding.open(5_000, tls) as forwarding,
    ):
        with nullcontext() if known else pytest.raises(NotLeader):
            await forwarding.send(url, "GET", "/", [], b"")
    assert len(got) == known


async def test_a_leader_of_another_ca_is_not_known(tmp_path: Path) -> None:
    async with (
        worker(Authority(), tmp_path / "own", BY_KIND) as tls,
        worker(Authority("another"), tmp_path / "leader", BY_KIND) as theirs,
        leader(lambda *_: asyncio.sleep(0), make_server_context(theirs.live.bundle)) as (url, got),
        HttpForwarding.open(5_000, tls) as forwarding,
    ):
        with pytest.raises(NotLeader):
            await forwarding.send(url, "GET", "/", [], b"")
    assert got == []
