"""How a broker that is to restart leaves: by the rolling rule, asked by a signal or by its pod's preStop hook."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from headrace_broker.core import leaving
from headrace_proto.v1 import broker_pb2, controller_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

from .site import START_S, Process, Site

pytestmark = pytest.mark.integration

WAITS = "waits until it may restart"


@asynccontextmanager
async def prestop(broker: Process) -> AsyncIterator[asyncio.subprocess.Process]:
    """The hook, under way."""
    argv = (sys.executable, "-m", "headrace_broker.prestop")
    hook = await asyncio.create_subprocess_exec(*argv, env={**os.environ, **broker.settings})
    try:
        yield hook
    finally:
        if hook.returncode is None:
            hook.kill()
            await hook.wait()


async def ended(process: asyncio.subprocess.Process) -> int:
    return await asyncio.wait_for(process.wait(), START_S)


async def three(site: Site, *, wait_ms_max: int) -> list[Process]:
    """Brokers 0 to 2 and a topic with a replica on each."""
    controller = site.controller()
    brokers = [site.broker(n, restart_wait_ms_max=str(wait_ms_max)) for n in range(3)]
    await site.start(site.etcd(), controller, *brokers)
    topic = controller_pb2.NewTopic(name="orders", partition_count=6, replication_factor=3)
    stub: Any = ControllerStub(site.channel(controller.address))
    answer = await stub.CreateTopics(controller_pb2.CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
    assert answer.topics[0].error == 0, answer
    await until_partitions(site, brokers[0], lambda p: len(p.isr) == 3)
    return brokers


async def until_partitions(site: Site, broker: Process, condition: Callable[[Any], bool]) -> None:
    """Until ``broker`` tells so of all partitions."""
    stub: Any = BrokerStub(site.channel(broker.address))
    async with asyncio.timeout(START_S):
        while True:
            found = await stub.Metadata(broker_pb2.MetadataRequest(topics=["orders"]), timeout=10)
            partitions = found.topics[0].partitions
            if partitions and all(map(condition, partitions)):
                return
            await asyncio.sleep(0.02)


async def test_prestop_waits_for_who_is_behind_and_ends_when_the_broker_leads_nothing(site: Site) -> None:
    first, other, behind = await three(site, wait_ms_max=60_000)
    behind.send(signal.SIGSTOP)
    await until_partitions(site, first, lambda p: len(p.isr) == 2)
    async with prestop(first) as hook, prestop(first) as second:
        await first.until_logged(WAITS)
        assert (hook.returncode, await first.health("ready")) == (None, "SERVING"), "it serves while it waits"
        behind.send(signal.SIGCONT)
        assert (await ended(hook), await ended(second)) == (0, 0)
    assert await first.health("ready") == "NOT_SERVING"
    assert await first.health("live") == "SERVING", "it ends with the signal"
    await until_partitions(site, other, lambda p: p.leader in (1, 2) and len(p.isr) == 2)
    async with prestop(first) as again:
        assert await ended(again) == 0
    assert await first.stop() == 0
    await site.start(first)
    assert first.logged("logs are open")[-1]["clean"], "the token was left"
    await until_partitions(site, other, lambda p: len(p.isr) == 3)


async def test_a_signal_waits_by_the_same_rule_and_a_second_ends_it(site: Site) -> None:
    first, other, behind = await three(site, wait_ms_max=60_000)
    behind.send(signal.SIGSTOP)
    await until_partitions(site, first, lambda p: len(p.isr) == 2)
    first.send(signal.SIGTERM)
    await first.until_logged(WAITS)
    assert await first.health("ready") == "SERVING"
    behind.send(signal.SIGCONT)
    assert await ended_of(first) == 0
    await until_partitions(site, other, lambda p: 0 not in p.isr)

    behind.send(signal.SIGSTOP)  # now nobody may go
    other.send(signal.SIGTERM)
    await other.until_logged(WAITS)
    assert await other.stop() == 130


async def test_a_signal_while_prestop_waits_means_that_the_time_is_over(site: Site) -> None:
    first, _, behind = await three(site, wait_ms_max=600_000)
    behind.send(signal.SIGSTOP)
    await until_partitions(site, first, lambda p: len(p.isr) == 2)
    async with prestop(first) as hook:
        await first.until_logged(WAITS)
        assert await first.stop() == 0
        assert await ended(hook) in {0, 1}, "it is answered, or the broker was quicker"
    assert first.logged("leaves though others have not caught up")


async def test_the_waiting_has_an_end(site: Site) -> None:
    first, _, behind = await three(site, wait_ms_max=500)
    behind.send(signal.SIGSTOP)
    await until_partitions(site, first, lambda p: len(p.isr) == 2)
    async with prestop(first) as hook:
        assert await ended(hook) == 0, "one leader is left to take over"
    assert first.logged("leaves though others have not caught up")
    assert await first.stop() == 0


async def test_a_broker_that_never_joined_leaves_at_once(site: Site) -> None:
    broker = site.broker(restart_wait_ms_max="600000")
    await broker.start()
    await broker.until("live")
    async with prestop(broker) as hook:
        assert await ended(hook) == 0
    await site.start(site.etcd(), site.controller())
    assert await broker.health("ready") == "NOT_SERVING"
    assert not broker.logged("registered"), "it does not join any more"
    assert await broker.stop() == 0


async def test_nobody_is_heard_on_the_health_port_however_near_he_seems(site: Site) -> None:
    """With a service mesh every connection comes from this machine, a stranger's too."""
    broker = site.broker()
    await broker.start()
    await broker.until("live")
    near = site.channel(f"127.0.0.1:{broker.health_port}")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await near.unary_unary(leaving.PATH)(b"", timeout=30)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await site.start(site.etcd(), site.controller())
    await broker.until("ready")
    socket = Path(broker.settings["HEADRACE_BROKER_LEAVE_SOCKET"])
    assert stat.S_ISSOCK(socket.stat().st_mode)
    assert socket.stat().st_mode & 0o777 == 0o600
    assert await broker.stop() == 0
    assert not socket.exists()


async def ended_of(process: Process) -> int:
    assert process.running is not None
    return await ended(process.running)
