"""What operators ask the cluster for while things go wrong: other replicas, other leaders, fewer records."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

import grpc.aio

from headrace_common.core.ids import NO_NODE, PartitionId
from headrace_lab.nodes import address
from headrace_proto.v1 import broker_pb2, cluster_pb2, controller_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

if TYPE_CHECKING:
    from tests.lab.replication.world import World


class Operators:
    """Of one world: each method says whether it happened."""

    def __init__(self, world: World) -> None:
        self._world = world

    def reassign(self) -> bool:
        """Other replicas for a partition."""
        world = self._world
        id, count = self._partition(), world.profile.replicas
        target = world.random.sample(world.brokers, count)
        world.say(f"replicas of {id.partition} become {target}")
        return self.move(id, target)

    def cancel(self) -> bool:
        """Or not."""
        return self.move(self._partition(), [])

    def move(self, id: PartitionId, target: list[int]) -> bool:
        """Ask for these replicas; none: for those before the move that is under way."""
        wanted = controller_pb2.Reassignment(topic_id=id.topic_id, partition=id.partition, replicas=target)
        self._command("AlterReassignments", controller_pb2.AlterReassignmentsRequest(reassignments=[wanted]))
        return True

    def prefer(self) -> bool:
        """The preferred leader, please."""
        id = self._partition()
        where = cluster_pb2.PartitionRef(topic_id=id.topic_id, partition=id.partition)
        kind = controller_pb2.PREFERRED
        self._command("ElectLeaders", controller_pb2.ElectLeadersRequest(type=kind, partitions=[where]))
        return True

    def trim(self) -> bool:
        """Delete the oldest records."""
        id = self._partition()
        leader = self._world.ghost.partitions()[id].leader
        process = None if leader == NO_NODE else self._world.ghost.process_of(leader)
        replica = None if process is None else process.replicas.get(id)
        if replica is None or replica.core.high_watermark <= replica.core.log_start:
            return False
        offset = self._world.random.randint(replica.core.log_start, replica.core.high_watermark)
        self._world.say(f"records of {id.partition} are deleted up to {offset}")
        one = broker_pb2.DeleteRecordsPartition(topic_id=id.topic_id, partition=id.partition, offset=offset)
        stub = BrokerStub(self._world.channels.to(str(address(f"broker-{leader}"))))
        self._world.spawn(_quietly(stub.DeleteRecords(broker_pb2.DeleteRecordsRequest(partitions=[one]), timeout=2)))
        return True

    def _command(self, method: str, request: object) -> None:
        for at in self._controllers():
            stub = ControllerStub(self._world.channels.to(str(address(at))))
            self._world.spawn(_quietly(getattr(stub, method)(request, timeout=2)))

    def _partition(self) -> PartitionId:
        return self._world.random.choice(list(self._world.ghost.partitions()))

    def _controllers(self) -> list[str]:
        return [f"controller-{n}" for n in range(1, self._world.profile.controllers + 1)]


async def _quietly(call: Awaitable[object]) -> None:
    try:
        await call
    except grpc.aio.AioRpcError:
        return
