"""
A cluster of the lab as tests of clients steer it: topics, leaders, what is in logs, and faults of single requests.

The nodes are the real ones. A test with ``async def`` runs on the lab's own loop, so its time is virtual; one without
has the lab on a thread of its own, in real time. All methods here are plain calls: they return when it is done, and
meanwhile the cluster and the test's tasks go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import Any, Final, TypeVar

import pytest
from libs.sdk.tests.kit.faults import Does, Fault, Faults, OnRequest
from libs.sdk.tests.kit.logs import Log, append, read_log

from headrace import TopicPartition, WorkGroup, aio
from headrace._runtime import LoopThread
from headrace._transport.grpc import GrpcTransport
from headrace._transport.port import Coordinator
from headrace.consumer import Consumer
from headrace.errors import HeadraceError
from headrace.log_watch import LogWatch
from headrace.producer import Producer
from headrace.range_reader import RangeReader
from headrace.records import Committed
from headrace_broker.config import BrokerConfig
from headrace_controller.config import ControllerConfig, LivenessConfig
from headrace_coordinator.config import CoordinatorConfig
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_lab.cluster import Cluster
from headrace_lab.lab import Lab, install_lab, laboratory
from headrace_lab.live import LiveLoop
from headrace_lab.loop import LabLoop
from headrace_lab.nodes import Configs
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import coordinator_pb2 as group_pb

__all__ = ["Does", "Fault", "LabCluster", "Labs"]

T = TypeVar("T")
Labs = Callable[..., "LabCluster"]
"""What the fixture ``labs`` gives: it makes clusters, as ``LabCluster`` does, and closes them behind the test."""
PATIENCE_S: Final = 60.0
MARKERS_LOOKS: Final = 20
HEARD_S: Final = 0.1
"""Within which all nodes hear what the controller says."""


class LabCluster:
    """
    Real brokers, a controller, a coordinator and an admin service.

    Args:
        brokers: how many, with ids from 1.
        coordinators: how many.
        loop: the test's own; None: one in real time, on a thread.
        racks: where brokers are.
        settings: of groups.
        transactions: settings of transactions.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        coordinators: int = 1,
        loop: LabLoop | None = None,
        racks: dict[int, str] | None = None,
        transactions: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.brokers = list(range(1, brokers + 1))
        self._stack = ExitStack()
        self._loop = loop or LiveLoop()
        self._thread = None if loop else LoopThread(self._loop)
        self.lab: Lab = self._stack.enter_context(laboratory(self._loop, self._thread))
        self.faults = Faults(self._loop.test)
        self.lab.network.interceptors.append(self.faults)
        self._kit = self.lab.node("kit")
        given = {"group_initial_rebalance_delay_ms": 0} | settings
        configs = Configs(
            coordinator=CoordinatorConfig(
                groups=GroupSettings(**given), transactions=TransactionSettings(**(transactions or {}))
            ),
            controller=ControllerConfig(liveness=LivenessConfig(1_000, 3_000)),
            broker=BrokerConfig(),
            racks=racks or {},
        )
        self.nodes = Cluster(self.lab, brokers=brokers, controllers=1, coordinators=coordinators, configs=configs)
        self.bootstrap_servers = self.nodes.bootstrap_servers
        self._owned: list[Any] = []
        self.do(self._start())

    def own(self, client: Any) -> None:
        """It is closed with the cluster; a client for threads."""
        self._owned.append(client)

    async def _start(self) -> None:
        await self.nodes.start()
        self._admin = self.nodes.admin()
        self._transport = GrpcTransport(self.bootstrap_servers)

    def close(self) -> None:
        """End it all; idempotent."""
        if not self._loop.is_closed():
            for client in self._owned:
                client.close()
            self.do(self._end())
            self.do_here(self._loop.end_tasks())
            self.do_here(self.nodes.end())
            if self._thread is not None:
                self._thread.end(())
                self._thread._thread.join(PATIENCE_S)  # a loaded machine needs longer than a process that ends waits
                self._loop.close()
        with contextlib.suppress(ValueError):  # another context than that of the beginning
            self._stack.close()

    async def _end(self) -> None:
        await self._transport.close()
        await self._admin.close()

    # --- how its own calls are made -----------------------------------------------------------------------------

    def do(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run ``coro`` in the lab, as a node that no fault befalls, and wait for it."""

        async def run() -> T:
            return await self._loop.create_task(coro, context=self._kit.context.copy())

        return self.do_here(run())

    def do_here(self, coro: Coroutine[Any, Any, T]) -> T:
        """The same where clients are."""
        if self._thread is not None:
            return self._thread.call(coro, PATIENCE_S)
        if not self._loop.is_running():
            return self._loop.run_until_complete(coro)
        return self._go_on_until(self._loop.create_task(coro, context=self._loop.test.context.copy()))

    def _go_on_until(self, task: asyncio.Task[T]) -> T:
        """Everything else goes on meanwhile, but for the task that asks."""
        asking = asyncio.current_task()
        if asking is not None:
            _leave_task(self._loop, asking)
        try:
            while not task.done():
                self._loop._run_once()
        finally:
            if asking is not None:
                _enter_task(self._loop, asking)
        return task.result()

    def await_coordinator(self, transactional_id: str) -> None:
        """Return when the coordinator of this id has its shard; until then it refuses what it is asked."""

        async def wait() -> None:
            await self._found(
                lambda: self._transport.find_coordinator(transactional_id, pb.TRANSACTION)
            )  # makes shards
            while True:
                [found] = (await self._admin.describe_transactions([transactional_id])).values()
                if not (isinstance(found, HeadraceError) and found.retriable):
                    return
                await asyncio.sleep(0.01)

        self.do(wait())

    def pass_time(self, seconds: float) -> None:
        """So much time passes; virtual time costs little."""
        self.do(asyncio.sleep(seconds))

    def soon(self, call: Callable[..., object], *args: Any) -> None:
        """Have the lab call it, from any thread: to set an event that it waits for."""
        self._loop.call_soon_threadsafe(call, *args)

    # --- topics and partitions ----------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, *, on: Sequence[Sequence[int]] = (), **configs: Any) -> None:
        """
        A topic on all brokers; its leaders are spread over them, the first partition's on broker 1.

        Args:
            on: per partition the brokers that hold it, the leader first.
            configs: its settings, with underscores.
        """
        count = len(self.brokers)
        spread = [[*self.brokers[n % count :], *self.brokers[: n % count]] for n in range(partitions)]
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        self.do(self._admin.create_topic(name, assignments=on or spread, configs=settings))

    def add_partitions(self, name: str, count: int) -> None:
        """``count`` more."""

        async def add() -> None:
            total = len((await self._admin.describe_topic(name)).partitions) + count
            await self._admin.add_partitions(name, total)

        self.do(add())

    def delete_topic(self, name: str) -> None:
        """Gone when this returns, as all brokers know."""

        async def delete() -> None:
            await self._admin.delete_topic(name)
            while any(topic.name == name for topic in (await self._told()).topics):
                await asyncio.sleep(0.01)

        self.do(delete())

    async def _told(self) -> pb.MetadataResponse:
        return await self._transport.metadata(pb.MetadataRequest(all_topics=True))

    async def _described(self, name: str) -> Any:
        return await self._admin.describe_topic(name)

    def configure(self, topic: str, **configs: Any) -> None:
        """Settings of a topic, with underscores, which the brokers know when this returns."""

        async def configure() -> None:
            await self._admin.alter_configs(
                {key.replace("_", "."): str(value) for key, value in configs.items()}, topic=topic
            )
            await asyncio.sleep(HEARD_S)

        self.do(configure())

    def move_leader(self, name: str, partition: int, broker: int) -> None:
        """Another leader, one of the replicas, under the next epoch."""

        async def move() -> None:
            tp = TopicPartition(name, partition)
            replicas = (await self._described(name)).partitions[partition].replicas
            await self._admin.alter_reassignments({tp: [broker, *(each for each in replicas if each != broker)]})
            while (await self._described(name)).partitions[partition].leader != broker:
                await self._admin.elect_leaders([tp])
                await asyncio.sleep(0.01)

        self.do(move())

    def leader(self, name: str, partition: int = 0) -> tuple[int | None, int]:
        """Who leads, and its epoch; None: nobody."""
        state = self.do(self._described(name)).partitions[partition]
        return state.leader, state.leader_epoch

    def trim(self, name: str, partition: int, start: int) -> None:
        """Records below ``start`` are gone."""
        self.do(self._admin.delete_records({(name, partition): start}))

    # --- logs -----------------------------------------------------------------------------------------------------

    def log(self, name: str, partition: int = 0) -> Log:
        """What its leader has of a partition."""
        return self.do(read_log(self._transport, name, partition))

    def values(self, name: str, partition: int = 0) -> list[bytes | None]:
        """The values of a partition, in order, whatever became of their transactions."""
        return self.log(name, partition).values()

    def committed_values(self, name: str, partition: int = 0) -> list[bytes | None]:
        """Those that a reader of committed records sees, once what has ended is written, which takes a moment."""
        self.wait_until_decided(name, partition)
        return self.log(name, partition).committed_values()

    def wait_until_decided(self, name: str, partition: int = 0) -> None:
        """Wait for the markers of transactions that have ended, but not for ever: one may be open."""
        for _ in range(MARKERS_LOOKS):
            if not self.log(name, partition).undecided:
                break
            self.pass_time(0.05)

    def append(self, name: str, partition: int, batch: bytes, key: str | None = None) -> int:
        """Write one batch; the offset of its first record. ``key``: of the transaction that it belongs to."""
        return self.do(append(self._transport, name, partition, batch, key))

    def damage(self, name: str, partition: int, number: int) -> None:
        """The last byte of a batch, the so many-th of its log, is lost on its leader's disk; the leader restarts."""
        log = self.log(name, partition)
        sound = log.batches[number]
        logs = self.nodes._disks[f"broker-{log.leader}"].logs
        for held in (logs._live, logs._durable):
            for each in held.values():
                for base, batch in each.batches.items():
                    if batch == sound:
                        each.batches[base] = sound[:-1] + b"\0"
        self.restart(log.leader)

    # --- what befalls nodes and requests --------------------------------------------------------------------------

    def inject(self, api: str, *faults: Fault) -> None:
        """The next requests of ``api`` ("produce", "fetch", "metadata", "list_offsets", …) fail so."""
        self.faults.inject(api, faults)

    @property
    def on_request(self) -> OnRequest | None:
        """Asked before each request of a client: (api, broker, request)."""
        return self.faults.on_request

    @on_request.setter
    def on_request(self, ask: OnRequest | None) -> None:
        self.faults.on_request = ask

    def kill(self, broker: int) -> None:
        """Its process stops in its midst; others lead what it led once its session has ended."""
        self.do(_called(lambda: self.nodes.kill(broker)))

    def stop(self, broker: int) -> None:
        """It leaves the cluster and ends; others lead what it led, or nobody."""
        self.do(self.nodes.stop(broker))

    def restart(self, broker: int) -> None:
        """It runs again when this returns, on the disk that it had."""

        async def again() -> None:
            self.nodes.restart(broker)
            while not any(each.id == broker and not each.fenced for each in await self._brokers()):
                await asyncio.sleep(0.02)

        self.do(again())

    async def _brokers(self) -> Sequence[Any]:
        with contextlib.suppress(HeadraceError):
            return (await self._admin.describe_cluster()).brokers
        return ()

    def kill_coordinator(self, number: int = 1) -> None:
        """Its process stops in its midst; its shards go to another once its session has ended."""
        self.do(_called(lambda: self.nodes.kill(coordinator=number)))

    def restart_coordinator(self, number: int = 1) -> None:
        """It starts again."""
        self.do(_called(lambda: self.nodes.restart(coordinator=number)))

    def pause_coordinator(self) -> None:
        """The first one says nothing any more; its shards go to another once its session has ended."""
        self.do(_called(lambda: self.nodes.pause(coordinator=1)))

    def resume_coordinator(self) -> None:
        """It goes on."""
        self.do(_called(lambda: self.nodes.resume(coordinator=1)))

    def pause(self, broker: int) -> None:
        """It keeps its connections and says nothing, until ``resume``."""
        self.do(_called(lambda: self.nodes.pause(broker)))

    def resume(self, broker: int) -> None:
        """It goes on with what it was asked."""
        self.do(_called(lambda: self.nodes.resume(broker)))

    def refuse(self, node: str = "coordinator-1") -> None:
        """A node takes no calls of clients until ``accept``, and their connections to it break."""

        async def refuse() -> None:
            self.faults.refusing.add(node)
            self.lab.network.reset("test", node)

        self.do(refuse())

    def accept(self, node: str = "coordinator-1") -> None:
        """It takes them again."""
        self.do(_called(lambda: self.faults.refusing.discard(node)))

    @property
    def asked(self) -> list[str]:
        """What coordinators were asked for transactions, with what was asked several times in a row once."""
        known = {"init_transactional_id": "init", "enrol": "enrol", "end_txn": "end"}
        return [name for name, _ in groupby(known[api] for api in self.faults.asked if api in known)]

    # --- groups ---------------------------------------------------------------------------------------------------

    def await_group(self, group: str = "g") -> None:
        """Return when the coordinator of this group has its shard; until then it refuses what it is asked."""

        async def wait() -> None:
            while True:
                with contextlib.suppress(HeadraceError):
                    await self._offsets(group, stable=False)
                    return
                await asyncio.sleep(0.01)

        self.do(wait())

    def committed(self, group: str = "g") -> dict[TopicPartition, Committed]:
        """The offsets that a group has committed."""
        return {
            TopicPartition(each.topic, each.partition): Committed(each.offset, each.leader_epoch, each.metadata)
            for each in self.do(self._offsets(group, stable=False)).offsets
            if each.offset >= 0
        }

    def unstable(self, group: str = "g") -> set[TopicPartition]:
        """Whose offsets a transaction is about to decide."""
        offsets = self.do(self._offsets(group, stable=True)).offsets
        return {TopicPartition(each.topic, each.partition) for each in offsets if each.error}

    async def _offsets(self, group: str, *, stable: bool) -> group_pb.FetchOffsetsResponse:
        coordinator = await self._found(lambda: self._transport.find_coordinator(group))
        topics = {topic.name: topic.partitions for topic in await self._admin.list_topics()}
        request = group_pb.FetchOffsetsRequest(group_id=group, require_stable=stable)
        for name, count in topics.items():
            request.partitions.add(topic=name, partitions=range(count))
        return await self._transport.group_call(lambda stub: stub.FetchOffsets, request)(coordinator, 10_000)

    async def _found(self, find: Callable[[], Coroutine[Any, Any, Coordinator]]) -> Coordinator:
        while True:
            try:
                return await find()
            except HeadraceError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(0.02)

    def members(self, group: str = "g") -> set[str]:
        """The ids of its members."""

        async def ask() -> set[str]:
            described = await self._admin.describe_group(group)
            return {member.member_id for member in described.members}

        return self.do(ask())

    def all_members(self) -> set[str]:
        """The ids of members of all groups, without static ones, who stay."""

        async def ask() -> set[str]:
            groups = [group.group_id for group in (await self._admin.list_groups()).groups]
            described = [await self._admin.describe_group(group) for group in groups]
            return {each.member_id for group in described for each in group.members if each.group_instance_id is None}

        return self.do(ask())

    def evict(self, group: str, member_id: str) -> None:
        """Put a member out, as if it had been silent for too long."""

        async def evict() -> None:
            found = await self._found(lambda: self._transport.find_coordinator(group))
            leave = group_pb.LeaveGroup(member_id=member_id, permanently=True)
            stream = self._transport.membership(found)
            stream.send(group_pb.MembershipRequest(group_id=group, leave=leave))
            await stream.receive()
            await stream.close()

        self.do(evict())

    # --- clients --------------------------------------------------------------------------------------------------

    def transport(self) -> GrpcTransport:
        """Connections for one client; to be used in the test's own context."""
        return GrpcTransport(self.bootstrap_servers)

    def lead_here(self, patch: pytest.MonkeyPatch) -> None:
        """Clients come here, whatever addresses they are given."""
        servers = self.bootstrap_servers

        class Here(GrpcTransport):
            def __init__(self, bootstrap: Sequence[str], *args: Any, **settings: Any) -> None:
                del bootstrap
                super().__init__(servers, *args, **settings)

        patch.setattr("headrace._transport.grpc.GrpcTransport", Here)

    def producer(self, **settings: Any) -> Producer:
        """A producer, for the test to close, as all clients here."""
        return self._made(lambda: Producer(self.bootstrap_servers, **settings))

    def consumer(self, *topics: str, **settings: Any) -> Consumer:
        """A consumer; it reads from the beginning unless told otherwise."""
        settings.setdefault("auto_offset_reset", "earliest")
        return self._made(lambda: Consumer(*topics, bootstrap_servers=self.bootstrap_servers, **settings))

    def log_watch(self, **settings: Any) -> LogWatch:
        return self._made(lambda: LogWatch(self.bootstrap_servers, **settings))

    def range_reader(self, ranges: Iterable[tuple[str, int, int, int]], **settings: Any) -> RangeReader:
        return self._made(lambda: RangeReader(self.bootstrap_servers, ranges, **settings))

    def aio_producer(self, **settings: Any) -> aio.Producer:
        return self._made(lambda: aio.Producer(self.bootstrap_servers, **settings))

    def aio_consumer(self, *topics: str, **settings: Any) -> aio.Consumer:
        settings.setdefault("auto_offset_reset", "earliest")
        return self._made(lambda: aio.Consumer(*topics, bootstrap_servers=self.bootstrap_servers, **settings))

    def work_group(self, name: str, items: Iterable[Any], **settings: Any) -> WorkGroup:
        return self._made(lambda: WorkGroup(name, items, self.bootstrap_servers, **settings))

    def aio_work_group(self, name: str, items: Iterable[Any], **settings: Any) -> aio.WorkGroup:
        return self._made(lambda: aio.WorkGroup(name, items, self.bootstrap_servers, **settings))

    def _made(self, make: Callable[[], T]) -> T:
        with install_lab(self.lab, self._thread):
            return make()


async def _called(call: Callable[[], object]) -> None:
    call()
