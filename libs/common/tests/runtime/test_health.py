"""What a process says of its health, asked over a real connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_common.core.ids import Endpoint
from headrace_common.rpc.channels import open_channel, open_sync_channel
from headrace_common.runtime.health import HealthPort
from headrace_common.runtime.service import ServerConfig

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
CONFIG = ServerConfig(health_listen=Endpoint("127.0.0.1", 0))


class Prober:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = health_pb2_grpc.HealthStub(channel)

    async def ask(self, name: str) -> int:
        return (await self._stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)).status

    async def all(self) -> tuple[int, int, int]:
        return await self.ask("live"), await self.ask("ready"), await self.ask("")


@asynccontextmanager
async def probed() -> AsyncIterator[tuple[HealthPort, Prober]]:
    async with HealthPort.open(CONFIG) as port:
        assert port.endpoint is not None
        async with open_channel(str(port.endpoint)) as channel:
            yield port, Prober(channel)


async def test_it_lives_at_once_and_is_ready_when_it_says_so() -> None:
    async with probed() as (port, prober):
        assert await prober.all() == (SERVING, NOT_SERVING, NOT_SERVING)
        assert not port.is_ready
        await port.reached()
        assert await prober.all() == (SERVING, SERVING, SERVING)
        assert port.is_ready


async def test_a_process_that_leaves_lives_but_is_not_ready_any_more() -> None:
    async with probed() as (port, prober):
        await port.reached()
        await port.leaving()
        assert await prober.all() == (SERVING, NOT_SERVING, NOT_SERVING)
        await port.reached()  # what was under way when it began to leave
        assert await prober.all() == (SERVING, NOT_SERVING, NOT_SERVING)
        assert not port.is_ready


async def test_a_name_that_nobody_gave_is_not_found() -> None:
    async with probed() as (_, prober):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await prober.ask("lively")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_blocked_event_loop_is_not_live() -> None:
    """A probe is answered only by the loop that does the work, so a loop that hangs is seen."""
    async with HealthPort.open(CONFIG) as port:
        codes: list[grpc.StatusCode] = []
        probed_it = threading.Event()

        def probe() -> None:
            with open_sync_channel(str(port.endpoint)) as channel:
                try:
                    health_pb2_grpc.HealthStub(channel).Check(
                        health_pb2.HealthCheckRequest(service="live"), timeout=0.3, wait_for_ready=True
                    )
                except grpc.RpcError as error:
                    codes.append(error.code())
            probed_it.set()

        prober = threading.Thread(target=probe)
        prober.start()
        assert probed_it.wait(10)  # blocks the loop meanwhile
        prober.join(10)
        assert codes == [grpc.StatusCode.DEADLINE_EXCEEDED]


async def test_without_an_address_there_is_no_port() -> None:
    async with HealthPort.open(ServerConfig()) as port:
        assert port.endpoint is None
        await port.reached()
        assert port.is_ready
        await port.leaving()
        assert not port.is_ready


async def test_it_says_the_address_that_others_reach() -> None:
    config = ServerConfig(health_listen=Endpoint("0.0.0.0", 0), advertise_host="broker-0.example")
    async with HealthPort.open(config) as port:
        assert port.endpoint is not None
        assert port.endpoint.host == "broker-0.example"
        async with open_channel(f"127.0.0.1:{port.endpoint.port}") as channel:
            assert await Prober(channel).ask("live") == SERVING


async def test_a_taken_port_is_an_error_that_says_so() -> None:
    async with HealthPort.open(CONFIG) as port:
        assert port.endpoint is not None
        taken = ServerConfig(health_listen=port.endpoint)
        with pytest.raises(OSError, match="cannot listen on"):
            async with HealthPort.open(taken):
                pass


async def test_many_watchers_hear_the_change() -> None:
    async with probed() as (port, _), open_channel(str(port.endpoint)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [aiter(stub.Watch(health_pb2.HealthCheckRequest(service="ready"))) for _ in range(3)]
        assert [(await anext(w)).status for w in watches] == [NOT_SERVING] * 3
        await port.reached()
        assert [m.status for m in await asyncio.gather(*(anext(w) for w in watches))] == [SERVING] * 3
