"""A port that answers plain text and TLS, over real connections: who gets which, and what becomes of their bytes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from libs.common.tests.kit.authority import BROKER, Authority
from libs.common.tests.kit.secure import Secure, shown

from headrace_common.core.ids import Endpoint
from headrace_common.rpc.peers import PEERS, text_of
from headrace_common.runtime import plain_or_tls
from headrace_common.runtime.plain_or_tls import PlainOrTls
from headrace_common.runtime.port_claims import listen_alone
from headrace_common.runtime.service import CannotListen, GrpcService, ServerConfig
from headrace_common.runtime.tasks import TaskRunner

MIB = 1 << 20


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
async def both(authority: Authority, tmp_path: Path) -> AsyncIterator[Secure]:
    async with Secure.open(authority, tmp_path, also_plain=True) as opened:
        yield opened


async def test_one_port_answers_both_and_tells_them_apart(both: Secure, authority: Authority) -> None:
    seen = [(await both.ask(pem, what="peer")).decode() for pem in (None, shown(authority), None)]
    assert [text.split()[1] for text in seen] == ["plain", "TLS", "plain"]


async def test_where_a_call_comes_from_is_the_caller(both: Secure, authority: Authority) -> None:
    for pem in (None, shown(authority)):
        async with both.channel(pem) as channel:
            call: Any = channel.unary_unary("/t.T/peer")
            address = (await call(b"", timeout=20)).decode().split()[0]
            assert address in PEERS.values()
            inner = next(key for key, value in PEERS.items() if value == address)
            assert inner != address, "gRPC itself sees another"
    while PEERS:  # they go with their connections
        await asyncio.sleep(0)


async def test_certificates_are_asked_for_where_tls_is_spoken(authority: Authority, tmp_path: Path) -> None:
    async with Secure.open(authority, tmp_path, also_plain=True, client_certificates=True) as nodes:
        assert await nodes.ask(None) == b"word"
        assert await nodes.ask(shown(authority, authority.make(BROKER))) == b"word"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await nodes.ask(shown(authority))
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert nodes.told == [b"word", b"word"]


async def test_much_goes_both_ways_and_none_of_it_changes(both: Secure, authority: Authority) -> None:
    words = [os.urandom(MIB) for _ in range(24)]
    for pem in (None, shown(authority)):
        async with both.channel(pem) as channel:
            stream: Any = channel.stream_stream("/t.T/echoes")()

            async def write(stream: Any = stream) -> None:
                for word in words:
                    await stream.write(word)
                await stream.done_writing()

            writing = asyncio.create_task(write())
            assert [bytes(word) async for word in stream] == words
            await writing


async def test_who_does_not_read_is_not_read_from() -> None:
    """What lies between caller and server is bounded, however much the server has to say."""
    said = os.urandom(MIB) * 32
    held: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(said)
        held.set_result(writer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, TaskRunner() as tasks:
        at = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
        listening = listen_alone(Endpoint("127.0.0.1", 0), frozenset())
        async with PlainOrTls.open(listening, at, at, Nothing(), connections_max=10, tasks=tasks) as front:
            reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
            writer.write(b"?")
            answering, before = await held, -1
            while (left := answering.transport.get_write_buffer_size()) != before:  # until nothing moves any more
                before = left
                await asyncio.sleep(0.2)
            assert left > MIB, "the rest waits where it is said"
            [caller] = front._open
            assert caller._transport is not None
            assert caller._transport.get_write_buffer_size() < MIB
            assert await reader.read(-1) == said
            writer.close()


class Nothing:
    async def stop(self, grace: float | None) -> None:
        pass


async def test_certificates_are_changed_and_both_go_on(both: Secure, authority: Authority) -> None:
    async with both.channel(None) as plain, both.channel(shown(authority)) as secure:
        streams: list[Any] = [channel.stream_stream("/t.T/echoes")() for channel in (plain, secure)]
        for stream in streams:
            await stream.write(b"before")
            assert await stream.read() == b"before"
        await both.replace()
        for stream in streams:
            await stream.write(b"after")
            assert await stream.read() == b"after"
        assert await both.ask(None) == b"word"
        assert await both.ask(shown(authority)) == b"word"


async def test_who_says_nothing_is_sent_away(both: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_or_tls, "FIRST_BYTE_MS_MAX", 20)
    reader, writer = await asyncio.open_connection("127.0.0.1", both.port)
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()


async def test_nothing_known_is_answered_by_the_server_in_plain_text(both: Secure) -> None:
    for first in (b"GET / HTTP/1.1\r\n\r\n", b"\x00", bytes(100)):
        reader, writer = await asyncio.open_connection("127.0.0.1", both.port)
        writer.write(first)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 20)
        assert not answer.startswith(b"\x15"), "an alert of TLS"
        writer.close()


async def test_more_connections_than_there_may_be_are_closed(authority: Authority, tmp_path: Path) -> None:
    async with Secure.open(authority, tmp_path, also_plain=True, connections_max=6) as both:
        async with both.channel(None) as first, both.channel(shown(authority)) as second:
            for channel in (first, second):
                call: Any = channel.unary_unary("/t.T/echo")
                await call(b"", timeout=20)
            with pytest.raises(grpc.aio.AioRpcError):
                await both.ask(None)
        while PEERS:
            await asyncio.sleep(0)
        assert await both.ask(None) == b"word"


async def test_it_leaves_in_order(authority: Authority, tmp_path: Path) -> None:
    async with Secure.open(authority, tmp_path, also_plain=True) as both, both.channel(None) as channel:
        stream: Any = channel.stream_stream("/t.T/echoes")()
        await stream.write(b"word")
        assert await stream.read() == b"word"
        stopping = asyncio.create_task(both.service._server.stop(20))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", both.port)
        await stream.write(b"under way")
        assert await stream.read() == b"under way"
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        await stopping


async def test_a_port_that_is_taken_is_said(authority: Authority, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = Endpoint("127.0.0.1", other.getsockname()[1])
        with pytest.raises(CannotListen, match="is the port taken"):
            async with Secure.open(authority, tmp_path, listen=taken, also_plain=True):
                pass
    async with Secure.open(authority, tmp_path, also_plain=True) as both:
        with pytest.raises(CannotListen):
            async with GrpcService.open(ServerConfig(listen=Endpoint("127.0.0.1", both.port)), []):
                pass


async def test_every_address_of_the_machine_is_both_families(authority: Authority, tmp_path: Path) -> None:
    async with Secure.open(authority, tmp_path, also_plain=True, listen=Endpoint("0.0.0.0", 0)) as both:
        for host in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(host, both.port)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            assert (await asyncio.wait_for(reader.readexactly(9), 20))[3] == 4, "a SETTINGS frame of HTTP/2"
            writer.close()


def test_texts_of_addresses() -> None:
    assert text_of("10.0.0.1", 7) == "ipv4:10.0.0.1:7"
    assert text_of("::ffff:10.0.0.1", 7) == "ipv4:10.0.0.1:7"
    assert text_of("fd00::1", 7) == "ipv6:[fd00::1]:7"
    assert text_of("fe80::1%eth0", 7) == "ipv6:[fe80::1%eth0]:7"
