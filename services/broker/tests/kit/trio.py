"""
Three brokers of the lab and their controller, for tests that look into the brokers while they replicate.

What happens to them has real causes: connections are cut, processes die, an admin client moves replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

from headrace.aio import AdminClient
from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.config import BrokerConfig
from headrace_broker.core.partition import Partition
from headrace_broker.engine.broker import Broker
from headrace_broker.engine.fetch import FetchAsk, Fetched, FetchEntry
from headrace_broker.engine.produce import Appended, ProduceEntry, ProduceSession
from headrace_common.core.ids import NodeId, Offset, PartitionId
from headrace_common.core.image import Partition as Metadata
from headrace_controller.config import ControllerConfig, LivenessConfig
from headrace_lab.adopting import adopt_loop
from headrace_lab.cluster import Cluster
from headrace_lab.lab import laboratory
from headrace_lab.nodes import Configs

ONE, TWO, THREE = ALL = NodeId(1), NodeId(2), NodeId(3)
TOPIC: Final = "t"
PATIENCE_S: Final = 120.0
"""Virtual seconds; a follower that is not heard of is out of the ISR after 30."""


async def until(condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


class Client:
    """Produces to one broker."""

    def __init__(self, broker: Broker, id: PartitionId) -> None:
        self.session: ProduceSession = broker.produce_session()
        self._id = id

    def send(self, batch: bytes, *, acks: int = -1, id: PartitionId | None = None) -> None:
        """Do not wait for the answer."""
        self.session.accept(1, acks, 60_000, [ProduceEntry(id or self._id, batch, None)])

    async def answer(self) -> Appended:
        """The next one."""
        await until(lambda: bool(self.session.answers))
        [result] = self.session.answers.popleft().results
        assert result is not None
        return result

    async def produce(self, batch: bytes, *, acks: int = -1) -> Appended:
        """Send and wait."""
        self.send(batch, acks=acks)
        return await self.answer()


@dataclass
class Trio:
    """See the module's text. All brokers have all partitions of topic ``t``; broker 1 leads them at first."""

    cluster: Cluster
    admin: AdminClient
    brokers: dict[NodeId, Broker]
    """The last process of each."""
    crashes: dict[str, BaseException] = field(default_factory=dict)
    """Of processes that ended with an error, by their names."""

    @property
    def id(self) -> PartitionId:
        """The first partition."""
        images = [broker.replicas.image for broker in self.brokers.values()]
        return PartitionId(max(images, key=lambda image: image.revision).topic_ids[TOPIC], 0)

    @property
    def now(self) -> Metadata:
        """The first partition, as the brokers know it that heard of it last."""
        known = [broker.replicas.image.partitions.get(self.id) for broker in self.brokers.values()]
        return max((one for one in known if one is not None), key=lambda one: one.partition_epoch)

    def core(self, broker: NodeId, number: int = 0) -> Partition:
        """What a broker makes of a partition."""
        replica = self.brokers[broker].replicas.get(PartitionId(self.id.topic_id, number))
        assert replica is not None
        return replica.core

    def store(self, broker: NodeId) -> MemoryLogs:
        """The logs of its process, or of its next one."""
        return self.cluster.disk(broker).logs

    def client(self, broker: NodeId) -> Client:
        """For the first partition."""
        return Client(self.brokers[broker], self.id)

    async def fetch(self, broker: NodeId, offset: int = 0, *, rack: str | None = None, wait_ms: int = 0) -> Fetched:
        """From the first partition; in ``rack`` of the broker it need not lead."""
        ask = FetchAsk(
            [FetchEntry(self.id, Offset(offset), 1 << 20, None)], 1 if wait_ms else 0, 1 << 20, wait_ms, rack
        )
        [result] = await self.brokers[broker].fetches.fetch(ask)
        return result

    async def stored(self, broker: NodeId) -> list[bytes]:
        """The batches of its log."""
        log = self.core(broker).log
        rows = list(self.store(broker).index(log, Offset(0), self.core(broker).log_end))
        return list(await self.store(broker).read(log, rows))

    def all_in_sync(self) -> bool:
        """Whether every broker is in the ISR of the first partition."""
        return set(self.now.isr) == set(ALL)

    def cut(self, broker: NodeId) -> None:
        """It hears no other broker, and none hears it; the controller does."""
        for other in set(ALL) - {broker}:
            self.cluster.cut(broker, other)

    def silence(self, broker: NodeId) -> None:
        """The controller does not hear it, and fences it; the others do."""
        self.cluster.cut(broker, "controller-1")

    async def restart(self, *brokers: NodeId) -> None:
        """They run again, and have opened their logs when this returns."""
        before = {broker: self.brokers[broker] for broker in brokers}
        for broker in brokers:
            self.cluster.restart(broker)
        await until(lambda: all(self.brokers[broker] is not one for broker, one in before.items()))

    async def assign(self, *brokers: NodeId) -> None:
        """From now on these have the first partition; returns when it is so."""
        await self.admin.alter_reassignments({(TOPIC, 0): list(brokers)})
        await until(lambda: set(self.now.replicas) == set(brokers) and not (self.now.adding or self.now.removing))

    async def lead(self, broker: NodeId) -> None:
        """It leads the first partition, and knows it."""
        await self.assign(broker, *(each for each in self.now.replicas if each != broker))
        async with asyncio.timeout(PATIENCE_S):
            while self.core(broker).leading is None:
                await self.admin.elect_leaders([(TOPIC, 0)])
                await asyncio.sleep(0.02)


@contextmanager
def _noted(brokers: dict[NodeId, Broker]) -> Iterator[None]:
    """Every broker that is made meanwhile is in ``brokers``."""
    init = Broker.__init__

    def note(one: Broker, *args: Any, **rest: Any) -> None:
        init(one, *args, **rest)
        brokers[one.who.broker_id] = one

    with patch.object(Broker, "__init__", note):
        yield


@asynccontextmanager
async def running_trio(
    *, partitions: int = 1, broker: BrokerConfig | None = None, seed: int = 7, **configs: str
) -> AsyncIterator[Trio]:
    """Three brokers that have topic ``t``; its settings are given with underscores."""
    nodes = Configs(
        broker=broker or BrokerConfig(flush="os"),
        controller=ControllerConfig(liveness=LivenessConfig(1_000, 3_000)),
        racks={number: f"rack-{number}" for number in ALL},
    )
    brokers: dict[NodeId, Broker] = {}
    with _noted(brokers), adopt_loop(seed) as loop, laboratory(loop) as lab:
        cluster = Cluster(lab, brokers=3, controllers=1, coordinators=0, configs=nodes)
        try:
            await cluster.start()
            admin = cluster.admin()
            trio = Trio(cluster, admin, brokers)
            cluster.on_crash = trio.crashes.__setitem__
            settings = {name.replace("_", "."): value for name, value in configs.items()}
            await admin.create_topic(TOPIC, assignments=[list(ALL)] * partitions, configs=settings)
            await until(lambda: all(_has(each, partitions) for each in brokers.values()))
            yield trio
            assert not trio.crashes, "a test that expects one takes it out"
            for each in brokers.values():
                assert not each.measures.cleaner_crashes, "a cleaner met an error that nobody expected"
            await admin.close()
        finally:
            await loop.end_tasks()
            await cluster.end()


def _has(broker: Broker, partitions: int) -> bool:
    topic_id = broker.replicas.image.topic_ids.get(TOPIC)
    return topic_id is not None and all(
        broker.replicas.get(PartitionId(topic_id, number)) is not None for number in range(partitions)
    )
