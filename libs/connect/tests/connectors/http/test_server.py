"""The web hook behind its server, over real sockets: floods, slow and large bodies, and an address that is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from libs.connect.tests.connectors.http.senders import SPLIT

from headrace_connect.connectors.http import HttpSource
from headrace_connect.connectors.http.settings import SourceSettings
from headrace_connect.plugin import Chunk, RetriableError

NEVER_MS = 3_600_000


@asynccontextmanager
async def listening(**values: Any) -> AsyncIterator[tuple[HttpSource, AsyncIterator[Chunk], httpx.AsyncClient]]:
    source = HttpSource(SourceSettings(**{"listen": "127.0.0.1:0"} | values))
    chunks = source.read(SPLIT, None)
    try:
        await anext(chunks)
        async with httpx.AsyncClient(base_url=f"http://{source.endpoint}", timeout=60, verify=False) as client:
            yield source, chunks, client
    finally:
        await source.stop()


async def raw(source: HttpSource, request: bytes) -> bytes:
    """What is answered to a request that may never end."""
    assert source.endpoint is not None
    reader, writer = await asyncio.open_connection(source.endpoint.host, source.endpoint.port)
    writer.write(request)
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()


async def test_a_flood_is_bounded_and_what_was_taken_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(queue_requests=20, answer_timeout_ms=NEVER_MS, body_timeout_ms=NEVER_MS) as (
        source,
        chunks,
        client,
    ):
        flood = [asyncio.ensure_future(client.post("/", content=b'{"n":1}')) for _ in range(90)]
        refused: list[httpx.Response] = []
        while len(refused) < 70:
            done, _ = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
            refused += [await one for one in done]
            flood = [one for one in flood if one not in done]
        assert {answer.status_code for answer in refused} == {429}
        assert {answer.headers["retry-after"] for answer in refused} == {"1"}
        rows = 0
        while source._intakes[0].waits:
            chunk = await anext(chunks)
            rows += len(chunk.rows)
            await source.committed(SPLIT, chunk.position)
        assert [(await one).status_code for one in flood] == [202] * 20
        assert rows == 20
        assert (source._room.requests, source._room.bytes) == (0, 0)
    assert "takes records of whoever reaches it" in caplog.text


async def test_a_body_that_is_slow() -> None:
    async with listening(body_timeout_ms=100) as (source, _, _client):
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
        assert (await raw(source, head + b"{")).startswith(b"HTTP/1.1 408 ")
        assert (source._room.requests, source._room.bytes) == (0, 0)


async def test_bodies_that_are_large() -> None:
    async with listening(body_timeout_ms=NEVER_MS, body_bytes_max=4_096) as (source, _, client):
        assert (await client.post("/", content=b"x" * 4_097)).status_code == 413

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 1_000

        assert (await client.post("/", content=endless())).status_code == 413
        assert (source._room.requests, source._room.bytes) == (0, 0)


async def test_an_address_that_is_taken_is_tried_again() -> None:
    async with listening() as (source, _, _client):
        other = HttpSource(SourceSettings(listen=str(source.endpoint)))
        assert other.check() == [], "it may be this connector that listens there"
        with pytest.raises(RetriableError, match="cannot listen"):
            await anext(other.read(SPLIT, None))
        await other.stop()


async def test_whoever_waits_is_told_before_the_server_ends() -> None:
    async with listening() as (source, chunks, client):
        sent = asyncio.ensure_future(client.post("/", content=b"1"))
        await anext(chunks)
        await source.stop()
        assert (await sent).status_code == 503
        with pytest.raises(httpx.ConnectError):
            await client.post("/", content=b"1")
