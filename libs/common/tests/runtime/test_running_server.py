"""How a gRPC server stops: over real connections, and many times at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
import pytest

from headrace_common.core.ids import Endpoint
from headrace_common.rpc.channels import open_channel
from headrace_common.runtime.running_server import RunningServer
from headrace_common.runtime.service import bind

ROUNDS = 150
"""In these gRPC's own ``stop`` ended the process seven times of eight."""

STOPS = """
import asyncio, sys
from collections.abc import Sequence
from contextlib import suppress
import grpc.aio
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.channels import open_channel
from headrace_common.runtime.running_server import RunningServer
from headrace_common.runtime.service import bind

async def stop_with(graces: Sequence[float | None]) -> None:
    server = grpc.aio.server()
    port = bind(server, Endpoint("127.0.0.1", 0))
    await server.start()
    running = RunningServer(server)
    async with open_channel(f"127.0.0.1:{port}", own_connection=True) as channel:
        with suppress(grpc.aio.AioRpcError):
            await channel.unary_unary("/t.T/nothing")(b"")
        stops = []
        for grace in graces:
            stops.append(asyncio.create_task(running.stop(grace)))
            await asyncio.sleep(0)
        await asyncio.gather(*stops)

async def main() -> None:
    for _ in range(int(sys.argv[1])):
        for graces in [(0, 0), (600, 0, 0, 0.001, None), (600, None, None, None, None, None)]:
            await stop_with(graces)

asyncio.run(main())
"""


def test_many_stops_at_the_same_time_do_not_end_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STOPS, str(ROUNDS)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]


class Recording:
    """Where a server is."""

    def __init__(self) -> None:
        self.told: list[float | None] = []
        self.ended = asyncio.Event()

    async def stop(self, grace: float | None) -> None:
        self.told.append(grace)
        await self.ended.wait()


async def test_it_is_stopped_once_and_cut_off_once() -> None:
    server: Any = Recording()
    running = RunningServer(server)
    stops = [asyncio.create_task(running.stop(grace)) for grace in (0.01, 600, 0, None, 0, 0.02)]
    for _ in range(10):
        await asyncio.sleep(0.005)
    server.ended.set()
    await asyncio.gather(*stops)
    [waits, cut] = server.told
    assert waits > 1e6, "its time never ends"
    assert cut is None
    await running.stop(0)
    assert len(server.told) == 2


async def test_who_cuts_it_off_may_give_up_and_others_wait_on() -> None:
    server: Any = Recording()
    running = RunningServer(server)
    waits, cuts, also = (asyncio.create_task(running.stop(grace)) for grace in (600, 0, 0))
    for _ in range(5):
        await asyncio.sleep(0)
    cuts.cancel()
    await asyncio.wait([cuts])
    assert not waits.done()
    assert not also.done(), "its calls have not ended"
    server.ended.set()
    await asyncio.gather(waits, also)


async def test_one_that_has_ended_is_told_nothing_more() -> None:
    server: Any = Recording()
    server.ended.set()
    running = RunningServer(server)
    await running.stop(600)
    for grace in (0, None, 0.01, 600):
        await running.stop(grace)
        await asyncio.sleep(0)
    assert len(server.told) == 1


@dataclass
class Serving:
    running: RunningServer
    target: str
    call: Any
    """A stream that is open."""

    async def begin(self) -> str:
        """What a new connection is told."""
        async with open_channel(self.target, own_connection=True) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary("/t.T/nothing")(b"", timeout=20)
        return raised.value.code().name


@pytest.fixture
async def serving() -> AsyncIterator[Serving]:
    async with open_serving() as opened:
        yield opened


@asynccontextmanager
async def open_serving() -> AsyncIterator[Serving]:
    async def echoes(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    server = grpc.aio.server()
    handlers = {"echoes": grpc.stream_stream_rpc_method_handler(echoes)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.T", handlers)])
    target = f"127.0.0.1:{bind(server, Endpoint('127.0.0.1', 0))}"
    await server.start()
    running = RunningServer(server)
    async with open_channel(target, own_connection=True) as channel:
        call: Any = channel.stream_stream("/t.T/echoes")()
        await call.write(b"word")
        assert await call.read() == b"word"
        async with asyncio.timeout(20):
            yield Serving(running, target, call)
            await running.stop(None)


async def test_it_waits_for_calls_and_takes_no_new_connection(serving: Serving) -> None:
    assert await serving.begin() == "UNIMPLEMENTED"
    stopping = asyncio.create_task(serving.running.stop(600))
    while await serving.begin() != "UNAVAILABLE":
        pass
    await serving.call.write(b"more")
    assert await serving.call.read() == b"more"
    assert not stopping.done()
    await serving.call.done_writing()
    await stopping
    assert await serving.call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("grace", [None, 0, 0.05])
async def test_who_gives_less_decides(serving: Serving, grace: float | None) -> None:
    stopping = asyncio.create_task(serving.running.stop(600))
    await asyncio.sleep(0)
    later = asyncio.create_task(serving.running.stop(300))
    await serving.running.stop(grace)
    await asyncio.gather(stopping, later)
    assert await serving.call.code() is not grpc.StatusCode.OK


async def test_who_gives_more_later_changes_nothing(serving: Serving) -> None:
    stopping = asyncio.create_task(serving.running.stop(0.05))
    await asyncio.sleep(0)
    await serving.running.stop(600)
    await stopping
    assert await serving.call.code() is not grpc.StatusCode.OK


async def test_who_waits_may_give_up(serving: Serving) -> None:
    stopping = asyncio.create_task(serving.running.stop(600))
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait([stopping])
    await serving.call.write(b"more")
    assert await serving.call.read() == b"more"
    await serving.running.stop(0)
    assert await serving.call.code() is not grpc.StatusCode.OK
