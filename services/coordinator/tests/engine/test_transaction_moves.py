"""
Shards of transactions that move at random between coordinators that hear of it late, over logs that lose answers and
stand still, with producers that fence each other and repeat what was not answered.

Each transaction is seen in all of its partitions or in none; in all of them if its commit was acknowledged, in none if
its abort was; and none stays open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random

import pytest
from services.coordinator.tests.kit.dialogue import Brokers, Running, running_engine
from services.coordinator.tests.kit.ports import MemoryCluster, MemoryMarkers, topic_id_of
from services.coordinator.tests.kit.shard_logs import MemoryShardLogs

from headrace_common.core.errors import (
    Busy,
    Fenced,
    FencedOwner,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidTxnState,
    LeaderNotAvailable,
    NotCoordinator,
    NotEnoughReplicas,
    TransactionAbortable,
)
from headrace_common.core.ids import PartitionId
from headrace_common.core.image import ShardKind
from headrace_coordinator.core.transactions.values import Producer
from headrace_coordinator.engine.transactions import Enrolment
from headrace_coordinator.ports import Destination, Marker, MarkerErrors

SHARDS = 2
NODES = (1, 2, 3)
IDS = ("x", "y", "job/1", "job/2")
PARTITIONS = tuple(PartitionId(topic_id_of("t"), n) for n in range(3))
MOVES = 30
RETRIABLE = (Busy, NotCoordinator)
OVER = (Fenced, InvalidTxnState, TransactionAbortable)
"""This producer cannot go on with its transaction."""


@dataclass
class Log:
    """One partition as its leader keeps it: who has what open, and what readers may see."""

    known: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[int]] = field(default_factory=dict)
    verdicts: dict[int, bool] = field(default_factory=dict)
    visible: list[int] = field(default_factory=list)

    def append(self, producer: Producer, number: int) -> bool:
        """One record of transaction ``number``; False: the producer is late."""
        known = self.known.get(producer.producer_id, -1)
        if producer.epoch < known:
            return False
        assert producer.epoch == known or not self.open.get(producer.producer_id), "the end comes before the next"
        self.known[producer.producer_id] = producer.epoch
        self.open.setdefault(producer.producer_id, []).append(number)
        return True

    def end(self, marker: Marker) -> HeadraceError | None:
        """As ``WriteTxnMarkers`` has it."""
        open_ = self.open.get(marker.producer_id)
        known = self.known.get(marker.producer_id, -1)
        if marker.epoch <= known:
            repeat = marker.epoch == known and not open_ and self.verdicts.get(marker.producer_id) == marker.commit
            return None if repeat else InvalidProducerEpoch(f"{known} is known")
        self.known[marker.producer_id], self.verdicts[marker.producer_id] = marker.epoch, marker.commit
        if open_:
            self.visible += open_ if marker.commit else []
            del self.open[marker.producer_id]
        return None


@dataclass
class Leaders(MemoryMarkers):
    """All partitions; requests are slow, refused and unanswered at random."""

    random: Random = field(default_factory=Random)
    logs: dict[PartitionId, Log] = field(default_factory=lambda: {id: Log() for id in PARTITIONS})

    async def write(self, to: Destination, markers: Sequence[tuple[Marker, Sequence[PartitionId]]]) -> MarkerErrors:
        if self.random.random() < 0.3:
            await asyncio.sleep(self.random.random() * 0.01)
        results = [[self.end(marker, id) for id in ids] for marker, ids in markers]
        if self.random.random() < 0.2:
            raise LeaderNotAvailable("the answer was lost")
        return results

    def end(self, marker: Marker, id: PartitionId) -> HeadraceError | None:
        if self.random.random() < 0.1:
            return NotEnoughReplicas("too few")
        return self.logs[id].end(marker)


@dataclass
class World:
    random: Random
    engines: list[Running]
    shards: MemoryShardLogs
    leaders: Leaders
    wrote: dict[int, set[PartitionId]] = field(default_factory=dict)
    acked: dict[int, bool] = field(default_factory=dict)
    owner_epoch: int = -1
    claim: int = 0
    over: bool = False

    async def controller(self) -> None:
        """Move shards; each node hears of it when it hears of it, in order."""
        told: list[list[tuple[int, int, int]]] = [[] for _ in self.engines]
        epochs = dict.fromkeys(range(SHARDS), 0)
        for _ in range(MOVES):
            shard, owner = self.random.randrange(SHARDS), self.random.choice(NODES)
            epochs[shard] += 1
            for running, queue in zip(self.engines, told, strict=True):
                queue.append((owner, shard, epochs[shard]))
                for _ in range(self.random.randrange(len(queue) + 1)):
                    self.give(running, *queue.pop(0))
            partition = self.shards.partition(shard, ShardKind.TRANSACTIONS)
            partition.lost_answers = self.random.choice((0, 0, 1, 2))
            (partition.shut_gate if self.random.random() < 0.2 else partition.open_gate)()
            await asyncio.sleep(self.random.random() * 0.02)
        for partition in self.shards.partitions.values():
            partition.open_gate()
        for running, queue in zip(self.engines, told, strict=True):
            for news in queue:
                self.give(running, *news)

    def give(self, running: Running, owner: int, shard: int, epoch: int) -> None:
        running.cluster.give(owner, shard, epoch=epoch, kind=ShardKind.TRANSACTIONS)

    def coordinator(self, id: str) -> Running:
        """Mostly whoever has the newest epoch."""
        if self.random.random() < 0.05:
            return self.random.choice(self.engines)
        shard = self.engines[0].transactions.shard_of(id)
        newest = {
            number: host.epoch
            for number, running in enumerate(self.engines)
            for host in running.transactions.hosts
            if host.number == shard
        }
        return self.engines[max(newest, key=lambda number: newest[number], default=0)]

    async def init(self, id: str) -> Producer:
        """An identity; asked for until there is one."""
        while True:
            transactions = self.coordinator(id).transactions
            try:
                if not id.startswith("job/"):
                    return (await transactions.init(id, 60_000, None)).producer
                if self.owner_epoch < 0:
                    self.claim += self.random.random() < 0.3  # else it is the same owner as before
                    found = await transactions.init_owner("job", self.claim)
                    self.owner_epoch = max(self.owner_epoch, found.owner_epoch)
                return (await transactions.init(id, 60_000, self.owner_epoch)).producer
            except RETRIABLE:
                await asyncio.sleep(0.001)
            except FencedOwner:
                self.owner_epoch = -1

    async def produce(self, id: str) -> None:
        producer = await self.init(id)
        while not self.over:
            if self.random.random() < 0.05:
                producer = await self.init(id)
            try:
                producer = await self.transaction(id, producer)
            except OVER:
                await asyncio.sleep(self.random.random() * 0.1)  # else two of an id only fence each other
                producer = await self.init(id)

    async def transaction(self, id: str, producer: Producer) -> Producer:
        """Write to some partitions and end it; the next identity."""
        number = len(self.wrote)
        wrote = self.wrote[number] = set[PartitionId]()
        for partition in self.random.sample(PARTITIONS, self.random.randrange(1, 4)):
            while error := await self.enrol(id, producer, partition):
                if not isinstance(error, RETRIABLE):
                    raise error
                await asyncio.sleep(0.001)
            if not self.leaders.logs[partition].append(producer, number):
                raise InvalidProducerEpoch("the append is late")
            wrote.add(partition)
        commit = self.random.random() < 0.7
        while True:
            try:
                following = await self.coordinator(id).transactions.end(id, producer, commit=commit)
            except RETRIABLE:
                await asyncio.sleep(0.001)
            else:
                self.acked[number] = commit
                return following

    async def enrol(self, id: str, producer: Producer, partition: PartitionId) -> HeadraceError | None:
        (error,) = await self.coordinator(id).transactions.enrol([Enrolment(id, producer, [partition])])
        return error

    def check(self) -> None:
        for log in self.leaders.logs.values():
            assert not any(log.open.values()), "nothing stays open"
            assert len(set(log.visible)) == len(log.visible)
        for number, wrote in self.wrote.items():
            seen = {id for id, log in self.leaders.logs.items() if number in log.visible}
            assert seen in (set(), wrote), f"transaction {number} is seen in a part of its partitions"
            if number in self.acked:
                assert seen == (wrote if self.acked[number] else set()), f"transaction {number} is not as acknowledged"


@pytest.mark.parametrize("seed", range(6))
async def test_transactions_are_whole_wherever_their_coordinator_goes(seed: int) -> None:
    random, shards = Random(seed), MemoryShardLogs()
    leaders = Leaders(random=random)
    brokers = Brokers(leaders)
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        engines = []
        for node in NODES:
            cluster = MemoryCluster(shards=SHARDS, topics={"t": len(PARTITIONS)})
            cluster.tenure_until_ms = random.choice((float("inf"), float("-inf")))
            for partition in PARTITIONS:
                cluster.lead("t", partition.partition, 1)
            engines.append(
                await stack.enter_async_context(
                    running_engine(cluster, shards, node_id=node, append_timeout_ms=50, brokers=brokers)
                )
            )
        world = World(random, engines, shards, leaders)
        loops = [asyncio.ensure_future(world.produce(id)) for id in IDS for _ in range(2)]
        await world.controller()
        while sum(world.acked.values()) < 10:  # what goes wrong in moves shows in what comes after them, too
            await asyncio.sleep(0.01)
        world.over = True
        await asyncio.gather(*loops)
        for id in IDS:  # fences what is left open, and is answered when that is everywhere
            await world.init(id)
        while any(running.driver.endings for running in engines):
            await asyncio.sleep(0.005)
        world.check()
