"""
One broker's engine over ports that a test drives by hand: alone on a clock that a test moves, or behind its gRPC.

How brokers and a controller get on is for ``trio`` and ``tests/lab`` to show.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import grpc.aio
from libs.common.tests.kit.clock import FakeClock
from services.broker.tests.kit.cluster import (
    BROKER_ID,
    CLUSTER_ID,
    INCARNATION,
    FakeCluster,
    image_of,
    topic_id_of,
    with_coordinator,
)
from services.broker.tests.kit.transactions import FakeTransactions

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.adapters.memory_topic_notes import MemoryTopicNotes
from headrace_broker.config import REQUEST_BYTES_MAX
from headrace_broker.engine.broker import Broker, EngineSettings, Who
from headrace_broker.engine.fetch import FetchAsk, Fetched, FetchEntry
from headrace_broker.engine.produce import Appended, ProduceEntry, ProduceSession
from headrace_broker.engine.replication import NoLeaders
from headrace_broker.engine.storage_queue import Flush
from headrace_broker.ports import Disk, LogStore, TopicNotes, TransactionCoordinators
from headrace_broker.rpc.servicer import BrokerServicer
from headrace_broker.rpc.tickets import TicketsServicer
from headrace_common.core.ids import Endpoint, Offset, PartitionId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, Listener
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_common.runtime.listeners import UNGUARDED, Guard
from headrace_common.runtime.service import GrpcService, ServerConfig, Servicer
from headrace_common.runtime.tasks import TaskRunner
from headrace_proto.v1 import broker_pb2_grpc, tickets_pb2_grpc

DEFAULT: Final = EMPTY_IMAGE
"""In place of an image: the one in which the engine leads its topics."""


@dataclass
class Engine:
    """A broker and everything around it."""

    broker: Broker
    store: MemoryLogs
    notes: MemoryTopicNotes
    cluster: FakeCluster
    clock: FakeClock
    tasks: TaskRunner
    session: ProduceSession
    transactions: FakeTransactions
    _correlation: int = 0

    def send(
        self,
        batches: Mapping[int, bytes] | Sequence[tuple[int, bytes]] | bytes,
        *,
        topic: str = "t",
        acks: int = -1,
        timeout_ms: int = 30_000,
        session: ProduceSession | None = None,
        transactional_id: str | None = None,
    ) -> int:
        """Send one request, batches with their partitions; its correlation id."""
        if isinstance(batches, bytes):
            batches = {0: batches}
        self._correlation += 1
        pairs = batches.items() if isinstance(batches, Mapping) else batches
        entries = [ProduceEntry(PartitionId(topic_id_of(topic), number), batch, None) for number, batch in pairs]
        (session or self.session).accept(self._correlation, acks, timeout_ms, entries, transactional_id)
        return self._correlation

    async def answer(self, session: ProduceSession | None = None) -> tuple[int, Sequence[Appended]]:
        """The next answer of the stream: correlation id and results."""
        session = session or self.session
        async with asyncio.timeout(5):
            while not session.answers:
                session.changed.clear()
                await session.changed.wait()
        call = session.answers.popleft()
        session.check_room()
        return call.correlation_id, [result for result in call.results if result is not None]

    async def produce(
        self,
        batches: Mapping[int, bytes] | Sequence[tuple[int, bytes]] | bytes,
        *,
        topic: str = "t",
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> list[Appended]:
        """Send one request and wait for its answer."""
        sent = self.send(batches, topic=topic, acks=acks, transactional_id=transactional_id)
        got, results = await self.answer()
        assert got == sent, "nothing else is under way"
        return list(results)

    async def fetch(
        self,
        offset: int = 0,
        *,
        topic: str = "t",
        partition: int = 0,
        bytes_min: int = 0,
        bytes_max: int = 1 << 20,
        committed: bool = False,
    ) -> Fetched:
        """Fetch from one partition; waits for ``bytes_min`` for up to five seconds."""
        entry = FetchEntry(PartitionId(topic_id_of(topic), partition), Offset(offset), bytes_max, None)
        [result] = await self.broker.fetches.fetch(FetchAsk([entry], bytes_min, bytes_max, 5_000, None, committed))
        return result

    async def settle(self) -> None:
        """Let everything that can run now do so."""
        for _ in range(30):
            await asyncio.sleep(0)


def broker_over(
    store: LogStore,
    cluster: FakeCluster,
    clock: Clock,
    tasks: TaskRunner,
    *,
    settings: EngineSettings | None = None,
    transactions: TransactionCoordinators | None = None,
    notes: TopicNotes | None = None,
) -> Broker:
    """Broker 1, not started."""
    return Broker(
        Who(BROKER_ID, INCARNATION, CLUSTER_ID),
        settings or EngineSettings(flush=Flush.OS),
        disk=Disk(store, notes or MemoryTopicNotes()),
        cluster=cluster,
        leaders=NoLeaders(),
        transactions=transactions or FakeTransactions(),
        clock=clock,
        tasks=tasks,
    )


@asynccontextmanager
async def running_engine(
    topics: Mapping[str, int] | None = None,
    *,
    configs: Mapping[str, Mapping[str, str]] | None = None,
    store: MemoryLogs | None = None,
    settings: EngineSettings | None = None,
    fails: bool = False,
    coordinator: bool = False,
    notes: MemoryTopicNotes | None = None,
    image: ClusterImage | None = DEFAULT,
) -> AsyncIterator[Engine]:
    """
    An engine that leads ``topics`` (``{"t": 2}``). Unless it ``fails``, no background task may have crashed.

    With a ``coordinator`` the image has one for all transactional ids. ``image``: another to begin with; None: none.
    """
    store, cluster, clock = store or MemoryLogs(), FakeCluster(), FakeClock()
    transactions, notes = FakeTransactions(), notes or MemoryTopicNotes()
    async with TaskRunner() as tasks:
        broker = broker_over(store, cluster, clock, tasks, settings=settings, transactions=transactions, notes=notes)
        broker.start()
        if image is DEFAULT:
            image = image_of(topics or {"t": 2}, configs=configs)
        if image is not None:
            cluster.show(with_coordinator(image) if coordinator else image)
            await broker.follower.changed.wait()
        engine = Engine(broker, store, notes, cluster, clock, tasks, broker.produce_session(), transactions)
        yield engine
        if not fails and tasks.failure is not None:
            raise tasks.failure
        assert fails or not broker.measures.cleaner_crashes, "the cleaner met an error that nobody expected"


# --- over gRPC ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running_broker(
    store: LogStore,
    cluster: FakeCluster,
    *,
    settings: EngineSettings | None = None,
    clock: Clock | None = None,
    transactions: TransactionCoordinators | None = None,
    notes: TopicNotes | None = None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    guard: Guard = UNGUARDED,
) -> AsyncIterator[tuple[Broker, GrpcService]]:
    """A broker over ``store`` that follows ``cluster`` and serves whom ``guard`` lets in on a port of the loopback."""
    async with TaskRunner() as tasks:
        broker = broker_over(
            store, cluster, clock or SystemClock(), tasks, settings=settings, transactions=transactions, notes=notes
        )
        draining = asyncio.Event()
        servicer = BrokerServicer(broker, draining, guard.gate, request_bytes_max=REQUEST_BYTES_MAX)
        servicers: list[Servicer] = [(broker_pb2_grpc.add_BrokerServicer_to_server, servicer)]
        if guard.access is not None:
            tickets = TicketsServicer(BROKER_ID, guard.access, SystemClock())
            servicers.append((tickets_pb2_grpc.add_TicketsServicer_to_server, tickets))
        config = ServerConfig(drain_ms_max=1_000, request_bytes_max=REQUEST_BYTES_MAX)
        inner = [*interceptors, *guard.interceptors(Listener.CLIENT)]
        async with GrpcService.open(config, servicers, interceptors=inner) as server:
            broker.start()
            try:
                yield broker, server
            finally:
                draining.set()
                broker.drain()


@asynccontextmanager
async def serving_broker(
    topics: Mapping[str, int],
    *,
    configs: Mapping[str, Mapping[str, str]] | None = None,
    store: LogStore | None = None,
    settings: EngineSettings | None = None,
) -> AsyncIterator[Endpoint]:
    """The address of a broker that leads ``topics`` (name to partition count), in memory unless told otherwise."""
    cluster = FakeCluster()
    async with running_broker(store or MemoryLogs(), cluster, settings=settings) as (broker, server):
        endpoint = Endpoint("127.0.0.1", server.port)
        cluster.show(image_of(topics, configs=configs, endpoint=endpoint))
        await broker.follower.changed.wait()
        yield endpoint
