"""
Who runs the topics and groups of a world: makes, grows and deletes topics, sets and forgets positions, and looks at
positions all the time, at whichever coordinator. What comes of it is for the invariants to judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError, error_for
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import open_channel
from headrace_lab.nodes import address
from headrace_proto.v1 import broker_pb2, coordinator_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

if TYPE_CHECKING:
    from tests.lab.groups.world import World

RECORDS: Final = 400
"""In each partition."""
CALL_S: Final = 6.0
NOBODYS: Final = ("admins", "idle")
"""Groups without members."""


class Operator:
    """Of one world, on the test's node."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: set[asyncio.Task[None]] = set()
        self._channels: dict[str, Any] = {}
        self._next_topic = 0
        self._marks = 0
        self._filled: dict[str, int] = {}
        """Topics that have records, and in how many partitions."""
        self._producer = world.cluster.producer(linger_ms=5, delivery_timeout_ms=10_000, request_timeout_ms=3_000)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._try(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            self._world.counts["administration answered"] += 1
        except (HeadraceError, TimeoutError):
            self._world.counts["administration refused"] += 1

    # --- topics ---------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """The topics that there are at the start, and the shards' own."""
        cluster, profile = self._world.cluster, self._world.profile
        async with cluster.admin() as admin:
            await admin.alter_configs({"offsets.topic.num.partitions": profile.shards})
        for size in profile.topics:
            await self._create(self._new_name(), size)
        self._start(self._look())

    def _new_name(self) -> str:
        name = f"t{self._next_topic}"
        self._next_topic += 1
        return name

    async def _create(self, name: str, size: int) -> None:
        self._world.topics[name] = size
        await self._world.cluster.create_topic(name, size)
        await self._fill(name, range(size))

    async def _fill(self, name: str, numbers: range) -> None:
        for number in numbers:
            for _ in range(RECORDS):
                await self._producer.send(name, b"", partition=number)
        await self._producer.flush()
        self._filled[name] = numbers.stop

    def create_topic(self) -> None:
        """One more."""
        self._start(self._create(self._new_name(), self._world.rng.randint(1, 4)))

    def grow_topic(self) -> None:
        """More partitions."""
        name = self._world.rng.choice(sorted(self._world.topics))
        before = self._world.topics[name]
        after = self._world.topics[name] = before + self._world.rng.randint(1, 3)

        async def grow() -> None:
            async with self._world.cluster.admin() as admin:
                await admin.add_partitions(name, after)
            await self._fill(name, range(before, after))

        self._start(grow())

    def delete_topic(self) -> None:
        """One less; never the first one, which some subscribe to by name."""
        name = self._world.rng.choice(sorted(self._world.topics)[1:])
        del self._world.topics[name]
        self._filled.pop(name, None)

        async def delete() -> None:
            async with self._world.cluster.admin() as admin:
                await admin.delete_topic(name)

        self._start(delete())

    # --- groups ---------------------------------------------------------------------------------------------------

    def administer(self) -> None:
        """Set, or forget, positions of a group."""
        rng = self._world.rng
        group_id = rng.choice((*[g.name for g in self._world.profile.groups], *NOBODYS, *NOBODYS))
        self._ask(group_id, rng.random())

    def _ask(self, group_id: str, dice: float) -> None:
        if not self._filled:
            return
        rng = self._world.rng
        topic = rng.choice(sorted(self._filled))
        number = rng.randrange(self._filled[topic])
        self._marks += 1
        place = coordinator_pb2.TopicPartitions(topic=topic, partitions=[number])
        at = coordinator_pb2.OffsetCommit(
            topic=topic, partition=number, offset=rng.randrange(50), leader_epoch=-1, metadata=f"operator.{self._marks}"
        )
        commit = coordinator_pb2.CommitOffsetsRequest(group_id=group_id, generation=-1, offsets=[at])
        forget = coordinator_pb2.DeleteOffsetsRequest(group_id=group_id, partitions=[place])
        delete = coordinator_pb2.DeleteGroupsRequest(group_ids=[group_id])

        async def ask() -> None:
            stub = await self._coordinator_of(group_id)
            with CallTo("the coordinator"):
                if dice < 0.05:
                    await stub.DeleteGroups(delete, timeout=CALL_S)
                elif dice < 0.15:
                    await stub.DeleteOffsets(forget, timeout=CALL_S)
                else:
                    await stub.CommitOffsets(commit, timeout=CALL_S)
            if group_id in NOBODYS:  # whoever believes to have the shard still is asked at once
                for number in self._world.coordinators:
                    self._read(number, group_id, place)

        self._start(ask())

    async def _look(self) -> None:
        """All the time: what is committed, by whichever coordinator; and something new, so that a read can be old."""
        rng = self._world.rng
        while True:
            await asyncio.sleep(self._world.profile.look_s)
            if not self._filled or self._world.quiet:
                continue
            groups = [g.name for g in self._world.profile.groups]
            group_id = rng.choice((*groups, *NOBODYS))
            if group_id in NOBODYS:
                self._ask(group_id, 1.0)
                continue
            topic = rng.choice(sorted(self._filled))
            place = coordinator_pb2.TopicPartitions(topic=topic, partitions=range(self._filled[topic]))
            self._read(rng.choice(self._world.coordinators), group_id, place)

    def _read(self, number: int, group_id: str, place: coordinator_pb2.TopicPartitions) -> None:
        if not self._world.cluster.runs(coordinator=number):
            return
        stub = CoordinatorStub(self._channel(f"coordinator-{number}"))
        request = coordinator_pb2.FetchOffsetsRequest(group_id=group_id, partitions=[place])

        async def read() -> None:
            with CallTo("the coordinator"):
                await stub.FetchOffsets(request, timeout=CALL_S)

        self._start(read())

    async def _coordinator_of(self, group_id: str) -> Any:
        request = broker_pb2.FindCoordinatorRequest(type=broker_pb2.GROUP, keys=[group_id])
        broker = self._world.rng.choice(self._world.brokers)
        with CallTo("the broker"):
            found = await BrokerStub(self._channel(f"broker-{broker}")).FindCoordinator(request, timeout=2.0)
        (one,) = found.coordinators
        if one.error:
            raise error_for(one.error, one.message)
        return CoordinatorStub(self._channel(f"coordinator-{one.coordinator}"))

    def _channel(self, name: str) -> Any:
        channel = self._channels.get(name)
        if channel is None:
            channel = self._channels[name] = open_channel(str(address(name)), self._world.cluster.security)
        return channel
