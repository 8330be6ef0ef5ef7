"""
Controllers' engines over one store in memory, on a clock that a test moves: for dialogues.

Brokers are what a test says: what they claim, whether they listen, what their logs hold. How real ones get on with a
controller is for ``tests/lab`` to show.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from libs.common.tests.kit.clock import FakeClock

from headrace_common.core.errors import RequestTimedOut
from headrace_common.core.ids import Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import Node, NodeKey, Partition, Role
from headrace_common.runtime.tasks import TaskRunner
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_controller.config import ControllerConfig
from headrace_controller.core.election import LogEnd
from headrace_controller.core.held import Inventory
from headrace_controller.core.issuing import Fetched, WantedIssuer
from headrace_controller.core.records import Cluster
from headrace_controller.core.sessions import Heartbeat
from headrace_controller.core.store import Changes, KeyValue, Listing, Outcome, Transaction
from headrace_controller.core.topics import Wanted
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.nodes import Joined, Joining, Vitals
from headrace_controller.engine.term import Outside
from headrace_controller.engine.topics import Described
from headrace_controller.ports import KeysUnavailable, ProbeResult, StoreUnavailable


class FakeProbe:
    """Answers what a test says; everyone is alive by default."""

    def __init__(self) -> None:
        self.results: dict[NodeKey, ProbeResult] = {}
        self.looks: list[NodeKey] = []
        self.deaf: set[Endpoint] = set()
        """Addresses where nobody listens."""

    async def probe(self, node: Node) -> ProbeResult:
        self.looks.append(node.key)
        seen = self.results.get(node.key, ProbeResult.SAME)
        await asyncio.sleep(0)
        return seen

    async def listens(self, endpoint: Endpoint) -> ProbeResult:
        await asyncio.sleep(0)
        return ProbeResult.REFUSED if endpoint in self.deaf else ProbeResult.ANSWERS


class FakeLogEnds:
    """Each broker's logs as a test says; an empty log for every partition by default."""

    def __init__(self) -> None:
        self.ends: dict[NodeId, dict[PartitionId, LogEnd]] = {}
        """Brokers with an entry hold these logs and no others."""
        self.silent: set[NodeId] = set()
        self.asked: list[tuple[NodeId, tuple[PartitionId, ...]]] = []
        self.open = asyncio.Event()
        """Answers are on their way until it is set."""
        self.open.set()

    async def log_ends(self, node: Node, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, LogEnd]:
        held = self.ends.get(node.key.id)
        self.asked.append((node.key.id, tuple(partitions)))
        await asyncio.sleep(0)
        if node.key.id in self.silent:
            raise RequestTimedOut("the test says that it does not answer")
        await self.open.wait()
        return {i: (0, 0) if held is None else held[i] for i in partitions if held is None or i in held}


class FakeInventories:
    """What each broker has, as a test says; nothing by default."""

    def __init__(self) -> None:
        self.held: dict[NodeId, Inventory] = {}
        self.silent: set[NodeId] = set()
        self.asked: list[NodeId] = []
        self.on_asked: Callable[[NodeId], Awaitable[None]] | None = None
        """Called while a broker is being asked."""

    async def inventory(self, node: Node, topic_ids: Sequence[TopicId]) -> Inventory:
        self.asked.append(node.key.id)
        await asyncio.sleep(0)
        if self.on_asked is not None:
            await self.on_asked(node.key.id)
        if node.key.id in self.silent:
            raise RequestTimedOut("the test says that it does not answer")
        held = self.held.get(node.key.id, Inventory())
        wanted = set(topic_ids)
        if not wanted:
            return held
        topics = tuple(t for t in held.topics if t.topic.topic_id in wanted)
        return Inventory(topics, {i: log for i, log in held.logs.items() if i.topic_id in wanted})


class FakeIssuers:
    """What each issuer publishes, as a test says; nothing by default."""

    def __init__(self) -> None:
        self.published: dict[str, Fetched] = {}
        """By alias; when it was fetched does not count."""
        self.asked: list[str] = []

    async def fetch(self, wanted: WantedIssuer) -> Fetched:
        alias = wanted.issuer.alias
        self.asked.append(alias)
        await asyncio.sleep(0)
        if alias not in self.published:
            raise KeysUnavailable("the test says that it does not answer")
        return self.published[alias]


class Link:
    """One controller's way to the store; it can be cut, or lead to another store."""

    def __init__(self, target: MemoryStore) -> None:
        self.target = target
        self.up = True

    async def list_all(self) -> Listing:
        return await self._store().list_all()

    async def get(self, key: str) -> KeyValue | None:
        return await self._store().get(key)

    async def commit(self, transaction: Transaction) -> Outcome:
        return await self._store().commit(transaction)

    def watch(self, from_revision: int) -> AbstractAsyncContextManager[AsyncIterator[Changes]]:
        return self._store().watch(from_revision)

    async def grant_lease(self, ttl_s: int) -> int:
        return await self._store().grant_lease(ttl_s)

    async def keep_lease(self, lease: int) -> None:
        await self._store().keep_lease(lease)

    async def revoke_lease(self, lease: int) -> None:
        await self._store().revoke_lease(lease)

    def _store(self) -> MemoryStore:
        if not self.up:
            raise StoreUnavailable("the test cut this controller off; nothing was changed")
        return self.target


def broker(number: int, *, start: int = 0, rack: str | None = None, level: int = 0) -> Node:
    """Broker ``number``; another ``start`` is another process."""
    return Node(
        key=NodeKey(Role.BROKER, NodeId(number)),
        grpc=Endpoint("127.0.0.1", 9000 + number),
        incarnation=bytes([number, start]) * 8,
        epoch=0,
        rack=rack,
        feature_level_max=level,
    )


class Cell:
    """Some controllers over one store."""

    def __init__(self, tasks: TaskRunner, config: ControllerConfig) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.probe = FakeProbe()
        self.log_ends = FakeLogEnds()
        self.inventories = FakeInventories()
        self.issuers = FakeIssuers()
        self.tasks = tasks
        self.config = config
        self.engines: dict[int, ControllerEngine] = {}
        self.links: dict[int, Link] = {}

    async def controller(self, number: int) -> ControllerEngine:
        engine = self.make(number)
        await self.until(lambda: engine.follower.mirror.loaded)
        return engine

    def make(self, number: int) -> ControllerEngine:
        """A controller that has just started."""
        engine = ControllerEngine(
            config=replace(self.config, node_id=number),
            outside=Outside(
                store=self.links.setdefault(number, Link(self.store)),
                probe=self.probe,
                log_ends=self.log_ends,
                inventories=self.inventories,
                issuers=self.issuers,
                clock=self.clock,
            ),
            endpoint=lambda: Endpoint("127.0.0.1", 9390 + number),
            new_cluster=lambda: Cluster("c1", b"i" * 16),
        )
        self.engines[number] = engine
        engine.start(self.tasks)
        return engine

    async def active(self, number: int = 1) -> ControllerEngine:
        """A controller that is elected."""
        engine = await self.controller(number)
        await self.until(lambda: engine.candidate.term is not None)
        return engine

    async def until(self, holds: Callable[[], bool], ms: int = 30_000) -> None:
        """Let everything run, moving the clock on where nothing else happens, until ``holds``."""
        for _ in range(ms // 100):
            for _ in range(60):
                if holds():
                    return
                await asyncio.sleep(0)
            assert self.tasks.failure is None, repr(self.tasks.failure)
            await self.pass_ms(100)
        raise AssertionError(f"it did not come to hold within {ms} ms")

    async def pass_ms(self, ms: float) -> None:
        """Time passes, in small steps."""
        for _ in range(max(1, int(ms // 100))):
            await self.clock.advance(min(100, ms))
            await self.store.expire_leases()

    async def join(self, engine: ControllerEngine, node: Node, **claims: object) -> Joined:
        """Register, see the image, be unfenced; on the disk it had, unless ``cluster_id=None`` says that it is new."""
        claims.setdefault("cluster_id", engine.image.cluster_id)
        joined = await engine.register(Joining(node, **claims))  # type: ignore[arg-type]  # passed through
        vitals = await self.beat(engine, node, joined.epoch)
        assert not vitals.fenced
        return joined

    async def beat(
        self,
        engine: ControllerEngine,
        node: Node,
        epoch: int,
        *,
        want_fenced: bool = False,
        want_shutdown: bool = False,
        disk_low: bool = False,
    ) -> Vitals:
        said = Heartbeat(node.key, epoch, engine.image.revision, want_fenced, want_shutdown, disk_low=disk_low)
        return await engine.heartbeat(said)

    async def beating(self, engine: ControllerEngine, members: dict[int, int], ms: int) -> None:
        """``members`` (broker number to epoch) send heartbeats for a while."""
        for _ in range(ms // 1_000):
            for number, epoch in members.items():
                await self.beat(engine, broker(number), epoch)
            await self.pass_ms(1_000)

    async def create(self, engine: ControllerEngine, name: str, count: int = 1, replicas: int = 1) -> Described:
        return await engine.create_topic(Wanted(name, count, replicas), validate_only=False, timeout_ms=30_000)

    def partition(self, engine: ControllerEngine, name: str, number: int = 0) -> Partition:
        topic = engine.image.topic(name)
        assert topic is not None
        return engine.image.partitions[PartitionId(topic.topic_id, number)]


@asynccontextmanager
async def cell(config: ControllerConfig | None = None) -> AsyncIterator[Cell]:
    """A cell whose loops end with the block."""
    async with TaskRunner() as tasks:
        made = Cell(tasks, config or ControllerConfig())
        try:
            yield made
        finally:
            for engine in made.engines.values():
                engine.candidate.leave()
