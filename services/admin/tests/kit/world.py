"""
An admin service over a cluster of the lab: its adapters, its engines and its clock as ``main`` makes them, in the test.

A test that needs an answer which no real node gives replaces a method of an adapter: ``world.brokers.fetch = ...``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from libs.common.tests.kit.as_node import as_node
from libs.common.tests.kit.lab_node import open_tie
from libs.sdk.tests.kit.cluster import LabCluster
from services.admin.tests.kit.calls import Calls

from headrace import TopicPartition, aio
from headrace_admin.adapters.grpc_brokers import GrpcBrokers
from headrace_admin.adapters.grpc_controllers import GrpcCluster, GrpcControllers
from headrace_admin.adapters.grpc_coordinators import GrpcCoordinators
from headrace_admin.adapters.grpc_nodes import GrpcNodes
from headrace_admin.adapters.grpc_workers import GrpcWorkers
from headrace_admin.adapters.headrace_messages import HeadraceMessages
from headrace_admin.config import Limits, TransactionLimits
from headrace_admin.engine.administration import Administration
from headrace_admin.engine.messages import Messages
from headrace_admin.ports import CoordinatorPlace
from headrace_admin.rpc.engines import Engines
from headrace_common.adapters.controller_client import ControllerClient
from headrace_common.core.batch import RecordColumns, build_batch
from headrace_common.core.ids import Endpoint, NodeId, PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, ClusterImage, Role, ShardKind
from headrace_common.rpc.channels import open_channel
from headrace_common.runtime.clock import SystemClock
from headrace_coordinator.core.transactions.records import transaction_key
from headrace_lab.machine import BEGAN_NS
from headrace_lab.nodes import address
from headrace_proto.v1 import broker_pb2, controller_pb2, coordinator_pb2, transaction_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

LIMITS: Final = Limits(body_bytes_max=64_000, records_max=100)
TIME_ZERO_MS: Final = BEGAN_NS // 10**6 - 1_000_000
"""Of the first record that ``fill`` writes; the others follow, a second apart."""
SHARDS: Final = 4
"""Of groups, and of transactions."""
SESSION_S: Final = 10.0
"""After which a node that is not heard of any more is held for away."""
_TYPES: Final = {ShardKind.GROUPS: broker_pb2.GROUP, ShardKind.TRANSACTIONS: broker_pb2.TRANSACTION}


@dataclass
class World:
    """Made by ``opened``; it runs in the test's task, and asks nodes of the lab."""

    lab: LabCluster
    client: ControllerClient
    cluster: GrpcCluster
    controllers: GrpcControllers
    brokers: GrpcBrokers
    coordinators: GrpcCoordinators
    workers: GrpcWorkers
    log: HeadraceMessages
    clock: SystemClock
    engines: Engines
    producers: dict[str, aio.Producer] = field(default_factory=dict)
    """With transactions, by their ids."""

    @property
    def image(self) -> ClusterImage:
        """As this service follows it."""
        return self.cluster.image

    # --- single calls, to be made or replaced -----------------------------------------------------------------------

    @property
    def controller_calls(self) -> Calls:
        return Calls(self.controllers)

    @property
    def broker_calls(self) -> Calls:
        return Calls(self.brokers)

    @property
    def group_calls(self) -> Calls:
        return Calls(self.coordinators, "ask_group")

    @property
    def transaction_calls(self) -> Calls:
        return Calls(self.coordinators, "ask_transaction")

    # --- topics ---------------------------------------------------------------------------------------------------

    async def fill(self, topic: str, partition: int, count: int) -> None:
        """So many records, one a second."""
        times = [TIME_ZERO_MS + n * 1_000 for n in range(count)]
        batch = build_batch(RecordColumns([b"x"] * count, timestamps_ms=times))
        self.lab.append(topic, partition, batch)

    # --- groups ---------------------------------------------------------------------------------------------------

    async def place(self, key: str, kind: ShardKind = ShardKind.GROUPS) -> CoordinatorPlace:
        """Who has a group or a transactional id; its shards are made if they are not there, and loaded."""
        request = broker_pb2.FindCoordinatorRequest(keys=[key], type=_TYPES[kind])
        while True:
            [found] = (await self.brokers.ask(self._broker(), lambda stub: stub.FindCoordinator, request)).coordinators
            if not found.error:
                return CoordinatorPlace(NodeId(found.coordinator), Endpoint(found.endpoint.host, found.endpoint.port))
            await asyncio.sleep(0.02)

    def _broker(self) -> NodeId:
        return next(node.key.id for node in self.image.brokers() if not node.fenced)

    async def make_shards(self, kind: ShardKind = ShardKind.GROUPS) -> None:
        """All of them are served when this returns."""
        await self.place("any", kind)
        while self.image.topic(INTERNAL_TOPICS[kind]) is None or await self._missing(kind):
            await asyncio.sleep(0.02)

    async def _missing(self, kind: ShardKind) -> bool:
        if kind is ShardKind.GROUPS:
            return bool((await self.engines.groups.listing()).unanswered)
        return bool((await self.engines.transactions.listing(transaction_pb2.ListTransactionsRequest())).unanswered)

    async def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """As a group without members does."""
        request = coordinator_pb2.CommitOffsetsRequest(group_id=group, generation=-1)
        for (topic, partition), offset in offsets.items():
            request.offsets.add(topic=topic, partition=partition, offset=offset, leader_epoch=-1)
        done = await self.coordinators.ask_group(await self.place(group), lambda stub: stub.CommitOffsets, request)
        assert not any(each.error for each in done.results), done

    async def committed(self, group: str) -> dict[TopicPartition, int]:
        """What is committed now."""
        request = coordinator_pb2.FetchOffsetsRequest(group_id=group)
        found = await self.coordinators.ask_group(await self.place(group), lambda stub: stub.FetchOffsets, request)
        return {TopicPartition(each.topic, each.partition): each.offset for each in found.offsets}

    async def join(self, group: str, *topics: str, client: str = "reader") -> aio.Consumer:
        """A member that holds all partitions of the topics, until it is closed."""
        consumer = self.lab.aio_consumer(
            *topics, group_id=group, client_id=client, enable_auto_commit=False, auto_offset_reset="latest"
        )
        while not consumer.assignment():
            await consumer.poll(timeout_ms=100)
        return consumer

    # --- transactions ---------------------------------------------------------------------------------------------

    async def begin(self, i: str, *partitions: tuple[str, int], timeout_ms: int = 900_000) -> None:
        """A transaction is open, and has a record in each of the partitions. Its producer is closed with the world."""
        producer = self.producers.get(i)
        if producer is None:
            self.producers[i] = producer = self.lab.aio_producer(
                transactional_id=i,
                transaction_timeout_ms=timeout_ms,
                linger_ms=0,
                owner_epoch=await self._owner_epoch(i),
            )
        await producer.begin_transaction()
        for topic, partition in partitions:
            await (await producer.send(topic, b"x", partition=partition))

    async def _owner_epoch(self, i: str) -> int | None:
        """Of an id that belongs to an owner of units."""
        if "/" not in i:
            return None
        async with aio.UnitOwner(self.lab.bootstrap_servers, i.partition("/")[0]) as owner:
            await owner.init()
            return owner.epoch

    async def prepare(self, i: str) -> transaction_pb2.PreparedToken:
        """It is prepared."""
        return (await self.producers[i].prepare_transaction()).message()

    async def lose(self, i: str) -> None:
        """The coordinators forget an id, as by a bug: a tombstone stands in their log when they start again."""
        request = broker_pb2.FindCoordinatorRequest(type=broker_pb2.TRANSACTION, keys=[i])
        [found] = (await self.brokers.ask(self._broker(), lambda stub: stub.FindCoordinator, request)).coordinators
        numbers = [node.key.id for node in self.image.nodes.values() if node.key.role is Role.COORDINATOR]
        for number in numbers:
            self.lab.kill_coordinator(number)
        await self._write_state(build_batch(RecordColumns([None], keys=[transaction_key(i)])), found)
        for number in numbers:
            self.lab.restart_coordinator(number)
        await self.make_shards(ShardKind.TRANSACTIONS)

    async def _write_state(self, batch: bytes, shard: broker_pb2.CoordinatorOfKey) -> None:
        topic = self.image.topic(INTERNAL_TOPICS[ShardKind.TRANSACTIONS])
        assert topic is not None
        leader = self.image.partitions[PartitionId(topic.topic_id, shard.shard)].leader
        request = broker_pb2.ProduceRequest(acks=-1, timeout_ms=10_000)
        request.partitions.add(
            topic_id=topic.topic_id, partition=shard.shard, batch=batch, fencing_token=shard.shard_epoch
        )
        shown = as_node(self.lab.nodes.token.parent, Role.COORDINATOR)
        async with open_channel(str(address(f"broker-{leader}")), shown) as channel:
            call: Any = BrokerStub(channel).Produce()
            await call.write(request)
            [answer] = (await call.read()).partitions
            call.cancel()
        assert answer.error == 0, answer

    async def hang(self, topic: str, partition: int) -> int:
        """A transaction is open in the log, and no coordinator knows of it; the producer's id."""
        i = f"lost-{topic}-{partition}-{len(self.producers)}"
        await self.begin(i, (topic, partition))
        one = await self.engines.transactions.one(i)
        await self.lose(i)
        return one.transaction.producer_id


@asynccontextmanager
async def opened(lab: LabCluster) -> AsyncIterator[World]:
    """An admin service of the lab's cluster, which is not registered; what is open is closed behind it."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_tie(lab.nodes, Role.ADMIN, 1))
        world = _make_world(lab, client)
        for port in (world.brokers, world.coordinators, world.workers, world.log):
            stack.push_async_callback(port.close)
        await _few_shards(world)
        yield world
        for producer in world.producers.values():
            await producer.close()


async def _few_shards(world: World) -> None:
    names = ("offsets.topic.num.partitions", "transaction.state.log.num.partitions")
    changes = [controller_pb2.AlterConfig(name=name, value=str(SHARDS)) for name in names]
    resource = controller_pb2.ConfigResource(type=controller_pb2.BROKER_CONFIG)
    change = controller_pb2.AlterConfigsResource(resource=resource, changes=changes)
    done = await world.controllers.ask(
        lambda stub: stub.IncrementalAlterConfigs, controller_pb2.IncrementalAlterConfigsRequest(resources=[change])
    )
    assert not done.results[0].error, done
    await world.cluster.caught_up(60_000)


def _make_world(lab: LabCluster, client: ControllerClient) -> World:
    clock = SystemClock()
    cluster, controllers = GrpcCluster(client), GrpcControllers(client, LIMITS.call_ms_max)
    brokers = GrpcBrokers(cluster, LIMITS.call_ms_max, client.security)
    coordinators = GrpcCoordinators(8_000, client.security)
    workers = GrpcWorkers(LIMITS.call_ms_max, brokers.issue_ticket, clock)
    log = HeadraceMessages(cluster)
    engines = Engines.over(
        Administration(cluster, controllers, brokers),
        Messages(log, cluster, LIMITS),
        coordinators,
        workers,
        GrpcNodes(client.key, LIMITS.call_ms_max, client.security),
        TransactionLimits(),
        clock,
    )
    return World(lab, client, cluster, controllers, brokers, coordinators, workers, log, clock, engines)
