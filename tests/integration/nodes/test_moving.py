"""
Nodes that start again at other addresses, one after the other, while clients work: none of them sees an error.

As on Kubernetes, where pods advertise their IP and each new one has another, and a service's name leads clients to a
broker that lives. In the end nobody is left at any address where a node was at first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from libs.common.tests.kit.ports import free_port

from headrace import HeadraceError, aio
from headrace_proto.v1 import controller_pb2
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

from .forwarder import forwarding
from .site import Process, Site

pytestmark = pytest.mark.integration

ELSEWHERE = "127.0.0.2"
PATIENCE_S = 60
STEP = 40
"""Records that have to get through after each move."""


class Load:
    """A producer, a group that copies in transactions, and a group that reads the copies; until ``finish``."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.sent: list[bytes] = []
        self.read: list[bytes] = []
        self.aborted: list[str] = []
        """Transactions that were begun again: their application is told so."""
        self._finishing = False

    async def send(self) -> None:
        async with aio.Producer(self.bootstrap, acks="all") as producer:
            while not self._finishing:
                value = b"%d" % len(self.sent)
                await (await producer.send("orders", value, key=value))
                self.sent.append(value)
                await asyncio.sleep(0.005)

    async def copy(self) -> None:
        async with (
            aio.Producer(self.bootstrap, transactional_id="copier") as writer,
            self._consumer("orders", "copier", enable_auto_commit=False) as consumer,
        ):
            while not self._all_is_read:
                try:
                    async with writer.transaction(consumer):
                        for record in await consumer.poll(timeout_ms=100, max_records=50):
                            await writer.send("bills", record.value, key=record.key)
                except HeadraceError as error:
                    if error.then != "abort":
                        raise
                    self.aborted.append(str(error))

    async def check(self) -> None:
        async with self._consumer("bills", "checker") as consumer:
            while not self._all_is_read:
                self.read += [record.value for record in await consumer.poll(timeout_ms=100)]

    @property
    def _all_is_read(self) -> bool:
        return self._finishing and len(self.read) >= len(self.sent)

    def _consumer(self, topic: str, group: str, **settings: Any) -> aio.Consumer:
        reading = {"auto_offset_reset": "earliest", "isolation_level": "read_committed", **settings}
        return aio.Consumer(topic, bootstrap_servers=self.bootstrap, group_id=group, **reading)

    async def goes_on(self) -> None:
        """What is sent from now on arrives at the end."""
        wanted = len(self.sent) + STEP
        async with asyncio.timeout(PATIENCE_S):
            while len(self.sent) < wanted or len(self.read) < wanted:
                await asyncio.sleep(0.02)

    def finish(self) -> None:
        """Send no more; clients end when all has been read."""
        self._finishing = True


@asynccontextmanager
async def working(bootstrap: str) -> AsyncIterator[Load]:
    """A load; whatever one of its clients raises ends the block."""
    load = Load(bootstrap)
    async with asyncio.TaskGroup() as clients:
        for part in (load.send, load.copy, load.check):
            clients.create_task(part())
        yield load
        load.finish()


async def move(site: Site, old: Process, new: Process) -> None:
    """Stop it, and start it at its new address."""
    assert await old.stop() == 0
    await site.start(new)


async def create(site: Site, controller: str, *topics: str) -> None:
    stub: Any = ControllerStub(site.channel(controller))
    wanted = [controller_pb2.NewTopic(name=name, partition_count=4, replication_factor=2) for name in topics]
    answer = await stub.CreateTopics(controller_pb2.CreateTopicsRequest(topics=wanted, timeout_ms=30_000), timeout=40)
    assert not any(topic.error for topic in answer.topics), answer


async def test_every_node_moves_under_load(site: Site) -> None:
    controllers = [site.controller(0), site.controller(1)]
    brokers, coordinator = [site.broker(0), site.broker(1)], site.coordinator(0)
    await site.start(site.etcd(), controllers[0])
    await site.start(controllers[1], *brokers, coordinator)
    await create(site, controllers[0].address, "orders", "bills")
    async with (
        forwarding(brokers[1].grpc_port) as [service],
        working(f"127.0.0.1:{service.port}") as load,
    ):
        await load.goes_on()
        for number, broker in enumerate(brokers):
            moved = site.broker(number, advertise_host=ELSEWHERE)
            await move(site, broker, moved)
            service.forward_to(moved.grpc_port)
            await load.goes_on()
        await move(site, coordinator, site.coordinator(0, advertise_host=ELSEWHERE))
        await load.goes_on()
        ports = [free_port(), free_port()]
        for number, controller in enumerate(controllers):
            settings = {"listen": f"0.0.0.0:{ports[number]}", "advertise_host": ELSEWHERE}
            await move(site, controller, site.controller(number, **settings))
            await load.goes_on()
        await create(site, f"{ELSEWHERE}:{ports[0]}", "late")  # active since the other one moved
        async with aio.Producer(load.bootstrap) as producer:
            await (await producer.send("late", b"nodes hear of it from where the controllers are now"))
    counts = Counter(load.read)
    assert set(counts) == set(load.sent), "nothing is lost"
    assert max(counts.values()) == 1, "and nothing twice"
    for process in site.processes:
        if process.running is not None and process.running.returncode is None:
            assert not process.logged("a background task crashed"), process.name
