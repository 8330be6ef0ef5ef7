"""What clients do while faults befall a cluster of the lab, and what they remember of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

from headrace.delivery import Delivery
from headrace.errors import HeadraceError
from headrace.testing import Cluster

PAUSE_S = 0.5
"""Before a client that failed for good is made anew."""


@dataclass
class Sent:
    """What producers know."""

    deliveries: list[tuple[bytes, Delivery]] = field(default_factory=list)
    tried: dict[bytes, None] = field(default_factory=dict)
    """Values, in the order in which they were given away."""

    def acknowledged(self) -> list[tuple[bytes, int, int]]:
        """Value, partition and offset of each record that a broker has confirmed, in the order of sending."""
        done = [(value, each) for value, each in self.deliveries if each.done() and each.exception() is None]
        return [(value, each.result().partition, each.result().offset) for value, each in done]


@dataclass
class Held:
    """What writers know that take one partition from each other."""

    tokens: int = 0
    taken: list[tuple[int, int]] = field(default_factory=list)
    """Tokens that are set, as the writer was told, and at which offset."""
    sent: Sent = field(default_factory=Sent)


@dataclass
class Workload:
    """Clients of one cluster; producers work until ``over_writing``, others until ``over``."""

    cluster: Cluster
    random: Random
    partitions: int
    sent: Sent = field(default_factory=Sent)
    read: dict[bytes, None] = field(default_factory=dict)
    """What members of the group have read."""
    held: Held = field(default_factory=Held)
    over_writing: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def produce(self, name: str) -> None:
        """One idempotent producer after the other: the next where one failed for good."""
        number = 0
        while not self.over_writing.is_set():
            linger_ms = self.random.choice([0, 5])
            async with self.cluster.producer(
                delivery_timeout_ms=30_000, request_timeout_ms=10_000, linger_ms=linger_ms
            ) as producer:
                while not self.over_writing.is_set():
                    value = f"{name}-{number}".encode()
                    number += 1
                    self.sent.tried[value] = None
                    try:
                        where = self.random.randrange(self.partitions)
                        self.sent.deliveries.append((value, await producer.send("in", value, partition=where)))
                        await asyncio.sleep(self.random.expovariate(20))
                    except HeadraceError:
                        break
            await asyncio.sleep(PAUSE_S)

    async def hold(self) -> None:
        """Take the partition of ``held`` over, and write to it until another has."""
        held = self.held
        while not self.over_writing.is_set():
            try:
                async with self.cluster.producer(
                    delivery_timeout_ms=30_000, request_timeout_ms=10_000, linger_ms=0
                ) as producer:
                    token = held.tokens = held.tokens + 1
                    held.taken.append((token, (await producer.fence("held", 0, token)).offset))
                    for number in range(self.random.randrange(8)):
                        value = f"{token}-{number}".encode()
                        held.sent.tried[value] = None
                        held.sent.deliveries.append((value, await producer.send("held", value, partition=0)))
                        await asyncio.sleep(self.random.expovariate(20))
            except HeadraceError:
                await asyncio.sleep(PAUSE_S)

    async def copy(self, name: str) -> None:
        """Consume, transform, produce: each record of ``in`` exactly once to ``out``."""
        while not self.over.is_set():
            try:
                async with (
                    self.cluster.consumer("in", group_id="copiers", enable_auto_commit=False) as consumer,
                    self.cluster.producer(transactional_id=name, transaction_timeout_ms=10_000) as producer,
                ):
                    while not self.over.is_set():
                        async with producer.transaction(consumer):
                            for record in await consumer.poll(timeout_ms=500, max_records=20):
                                await producer.send("out", record.value, partition=record.partition)
                        await asyncio.sleep(self.random.expovariate(5))
            except HeadraceError:
                await asyncio.sleep(PAUSE_S)

    async def consume(self) -> None:
        """A member of a group; it commits what it has read."""
        while not self.over.is_set():
            try:
                async with self.cluster.consumer("in", group_id="readers") as consumer:
                    while not self.over.is_set():
                        self.read |= {record.value or b"": None for record in await consumer.poll(timeout_ms=500)}
            except HeadraceError:
                await asyncio.sleep(PAUSE_S)
