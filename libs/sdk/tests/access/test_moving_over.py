"""What a client shows runs out by time: it has another one before, and its open streams are begun anew with that."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from libs.sdk.tests.kit.doors import Door, closed_broker

from headrace import _credentials, aio
from headrace._credentials import Granted
from headrace._transport.grpc import GrpcTransport
from headrace.errors import NetworkFailed
from headrace_common.core.ids import Endpoint
from headrace_common.core.secret import Secret
from headrace_common.runtime.clock import SystemClock

LIFE_MS = 3_000
"""Of what is shown."""
BELIEVED_MS = 1_000
"""What the client is told that it is, so that it is not too late beside other tests."""


@pytest.fixture
def door() -> Door:
    return Door(SystemClock())


@pytest.fixture
async def at(door: Door) -> AsyncIterator[Endpoint]:
    async with closed_broker(door, {"t": 1, "other": 1}) as endpoint:
        yield endpoint


async def write_and_read(at: Endpoint, **shown: Any) -> None:
    """For longer than what is shown is good; all that was written is read, in order and once."""
    settings = {"bootstrap_servers": str(at), **shown}
    until = time.monotonic() + LIFE_MS / 1_000 + 0.5
    values: list[bytes] = []

    async def write() -> int:
        async with aio.Producer(linger_ms=0, **settings) as writer, aio.Producer(**settings) as idle:
            await (await idle.send("other", b"first"))
            sent = []
            while time.monotonic() < until:
                sent.append(await writer.send("t", b"%d" % len(sent)))
                await asyncio.sleep(0.01)
            for each in sent:
                await each
            await (await idle.send("other", b"last"))
        return len(sent)

    async def read(writing: asyncio.Task[int]) -> None:
        reader = aio.Consumer("t", auto_offset_reset="earliest", fetch_max_wait_ms=50, **settings)
        while not writing.done() or len(values) < writing.result():
            values.extend(record.value or b"" for record in await reader.poll(500))
        await reader.close()

    writing = asyncio.create_task(write())
    async with asyncio.timeout(60):
        await read(writing)
    assert values == [b"%d" % number for number in range(writing.result())]


async def test_a_session_that_runs_out_costs_no_error_and_no_cut(
    at: Endpoint, door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logins: list[float] = []

    async def log_in(*_: Any) -> Granted:
        logins.append(time.monotonic())
        if len(logins) > 3 and len(logins) % 2:
            raise NetworkFailed("away")  # it is tried again while there is time
        return Granted(Secret(door.make_key(LIFE_MS)), BELIEVED_MS)

    monkeypatch.setattr(GrpcTransport, "_log_in", log_in)
    with caplog.at_level(logging.INFO, "headrace"):
        await write_and_read(at, username="alice", password="a quiet river bends")
    assert door.cut == 0
    assert len(logins) > 3, "and again"
    assert len(logins) < 60, "but not without a pause"
    assert not caplog.records


async def test_a_file_with_another_credential_is_seen_before_the_one_of_before_ends(
    at: Endpoint, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pod has its token: the file changes while nobody calls."""
    monkeypatch.setattr(_credentials, "LOOK_MS", 50.0)
    file = tmp_path / "token"
    file.write_text(door.make_key(LIFE_MS))
    asyncio.get_running_loop().call_later(BELIEVED_MS / 1_000, lambda: file.write_text(door.make_key()))
    await write_and_read(at, api_key_file=str(file))
    assert door.cut == 0
