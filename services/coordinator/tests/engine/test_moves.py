"""
Shards that move at random between coordinators that hear of it late, over logs that lose answers and stand still.

Nothing that was acknowledged is ever lost, and no read, from whomever it comes, is older than what was acknowledged
before it was asked.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random

import pytest
from services.coordinator.tests.kit.dialogue import Running, running_engine
from services.coordinator.tests.kit.ports import MemoryCluster
from services.coordinator.tests.kit.shard_logs import MemoryShardLogs

from headrace_common.core.errors import Busy, NotCoordinator
from headrace_coordinator.core.events import OffsetToCommit
from headrace_coordinator.engine.coordinator import Committer

SHARDS = 2
NODES = (1, 2, 3)
GROUPS = tuple(f"g{n}" for n in range(4))
MOVES = 40
RETRIABLE = (Busy, NotCoordinator)
NOBODY = Committer("", None, -1)


@dataclass
class World:
    random: Random
    engines: list[Running]
    logs: MemoryShardLogs
    acked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, -1))
    tried: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, -1))
    reads: int = 0
    over: bool = False

    async def controller(self) -> None:
        """Move shards; each node hears of it when it hears of it, in order."""
        told: list[list[tuple[int, int, int]]] = [[] for _ in self.engines]
        epochs = dict.fromkeys(range(SHARDS), 0)
        for _ in range(MOVES):
            shard, owner = self.random.randrange(SHARDS), self.random.choice(NODES)
            epochs[shard] += 1
            for queue in told:
                queue.append((owner, shard, epochs[shard]))
            for running, queue in zip(self.engines, told, strict=True):
                for owner_, shard_, epoch in queue[: self.random.randrange(len(queue) + 1)]:
                    running.cluster.give(owner_, shard_, epoch=epoch)
                    queue.pop(0)
            self.harm(shard)
            await asyncio.sleep(self.random.random() * 0.01)
        for partition in self.logs.partitions.values():
            partition.open_gate()
        for running, queue in zip(self.engines, told, strict=True):
            for owner_, shard_, epoch in queue:
                running.cluster.give(owner_, shard_, epoch=epoch)

    def harm(self, shard: int) -> None:
        partition = self.logs.partition(shard)
        partition.lost_answers = self.random.choice((0, 0, 1, 2))
        if self.random.random() < 0.2:
            partition.shut_gate()
        else:
            partition.open_gate()

    async def committer(self, group_id: str) -> None:
        while not self.over:
            self.tried[group_id] += 1
            offset = self.tried[group_id]
            running = self.writer(group_id)
            try:
                found = await running.coordinator.commit(group_id, NOBODY, [OffsetToCommit("t", 0, offset)])
            except RETRIABLE:
                pass
            else:
                assert found.outcomes[0].error is None
                self.acked[group_id] = offset
            await asyncio.sleep(0)

    def writer(self, group_id: str) -> Running:
        """Mostly whoever has the newest epoch: zombies are to be asked, not woken by having to write."""
        if self.random.random() < 0.02:
            return self.random.choice(self.engines)
        shard = self.engines[0].coordinator.shard_of(group_id)
        newest = {r: h.epoch for r in range(len(NODES)) for h in self.engines[r].coordinator.hosts if h.number == shard}
        return self.engines[max(newest, key=lambda r: newest[r], default=0)]

    async def reader(self, group_id: str) -> None:
        while not self.over:
            await self.read(group_id, self.random.choice(self.engines))
            await asyncio.sleep(0)

    async def read(self, group_id: str, running: Running) -> bool:
        floor = self.acked[group_id]
        try:
            found = await running.coordinator.offsets(group_id, None, None, (("t", (0,)),))
        except RETRIABLE:
            return False
        (one,) = found.offsets
        offset = -1 if one.committed is None else one.committed.offset
        assert floor <= offset <= self.tried[group_id]
        self.reads += 1
        return True


@pytest.mark.parametrize("seed", range(12))
async def test_nothing_acknowledged_is_lost_and_no_read_is_old(seed: int) -> None:
    random, logs = Random(seed), MemoryShardLogs()
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        clusters = {node: MemoryCluster(shards=SHARDS, topics={"t": 1}) for node in NODES}
        for cluster in clusters.values():
            cluster.tenure_until_ms = random.choice((float("inf"), float("-inf")))
        engines = [
            await stack.enter_async_context(running_engine(cluster, logs, node_id=node, append_timeout_ms=50))
            for node, cluster in clusters.items()
        ]
        world = World(random, engines, logs)
        loops = [asyncio.ensure_future(f(g)) for g in GROUPS for f in (world.committer, world.reader)]
        await world.controller()
        for group_id in GROUPS:  # whoever has it now serves it, sooner or later
            while not any([await world.read(group_id, running) for running in engines]):
                await asyncio.sleep(0.005)
        world.over = True
        await asyncio.gather(*loops)
        assert world.reads > len(GROUPS)
        assert max(world.acked.values()) > 0
