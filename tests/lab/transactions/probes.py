"""
Who asks a node that an SDK would not ask now: a replica that does not lead, a coordinator that may have lost the shard.

What they are told is looked at where it is said (``watch``), and what is read here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.lab.transactions.clients import GROUP
from tests.lab.transactions.processes import Process
from tests.lab.transactions.watch import DATA

from headrace_common.core.batch import decode_batch
from headrace_common.core.ids import PartitionId
from headrace_common.rpc.channels import open_channel
from headrace_lab.nodes import address
from headrace_proto.v1 import broker_pb2, coordinator_pb2, transaction_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub
from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorStub

if TYPE_CHECKING:
    pass

CALL_S = 3.0


class FollowerReader(Process):
    """Reads what is committed of a partition from any replica, as one of its own rack."""

    async def _live(self) -> None:
        world, random = self.world, self.world.random
        channels = [
            open_channel(str(address(f"broker-{n}")), world.cluster.security)
            for n in range(1, world.profile.brokers + 1)
        ]
        positions = [0] * world.profile.partitions
        while True:
            await self._sleep(0.4)
            number = random.randrange(world.profile.partitions)
            topic_id = world.watch.topic_id(DATA)
            if topic_id is None:
                continue
            id = PartitionId(topic_id, number)
            begin = random.choice((positions[number], 0))
            stub = BrokerStub(random.choice(channels))
            try:
                answer = await self._fetch(stub, id, begin)
            except Exception as error:  # noqa: BLE001 - gRPC's own, of a node that is away
                world.counts[f"follower reads failed by {type(error).__name__}"] += 1
                continue
            if answer is not None and answer.batches:
                positions[number] = max(positions[number], self._judge(id, begin, answer))

    async def _fetch(self, stub: BrokerStub, id: PartitionId, begin: int) -> broker_pb2.FetchPartitionResult | None:
        entry = broker_pb2.FetchPartition(
            topic_id=id.topic_id, partition=id.partition, fetch_offset=begin, max_bytes=1 << 20
        )
        request = broker_pb2.FetchRequest(
            correlation_id=1,
            max_bytes=1 << 20,
            partitions=[entry],
            rack="any",
            isolation_level=broker_pb2.READ_COMMITTED,
        )
        call: Any = stub.Fetch(timeout=CALL_S)  # type: ignore[call-arg]  # an asyncio stub
        await call.write(request)
        await call.done_writing()
        async for answer in call:
            found = answer.partitions[0] if answer.partitions else None
            return None if found is None or found.error else found
        return None

    def _judge(self, id: PartitionId, begin: int, found: broker_pb2.FetchPartitionResult) -> int:
        """What a client makes of an answer; its next position."""
        points, end = [], begin
        for raw in found.batches:
            batch = decode_batch(raw)
            header, end = batch.header, max(end, batch.header.next_offset)
            dropped = header.control or any(
                header.producer_id == one.producer_id and one.first_offset <= header.base_offset <= one.last_offset
                for one in found.aborted
            )
            if not dropped:
                points += [(header.base_offset + at, int(v or b"")) for at, v in enumerate(batch.values())]
        points = [point for point in points if point[0] >= begin]
        self.world.was_read(self.name, id.partition, (begin, end), points)
        return int(end)


class Onlooker(Process):
    """Asks each coordinator for positions and for the states of transactions, whoever has the shards by now."""

    async def _live(self) -> None:
        world, random = self.world, self.world.random
        channels = [
            open_channel(str(address(f"coordinator-{n}")), world.cluster.security)
            for n in range(1, world.profile.coordinators + 1)
        ]
        while True:
            await self._sleep(0.4)
            channel = random.choice(channels)
            names = list(dict.fromkeys(txn.transactional_id for txn in world.truth.transactions[-20:]))
            try:
                if names and random.random() < 0.6:
                    describe = transaction_pb2.DescribeTransactionsRequest(transactional_ids=names[-5:])
                    await TransactionCoordinatorStub(channel).DescribeTransactions(describe, timeout=CALL_S)
                else:
                    fetch = coordinator_pb2.FetchOffsetsRequest(group_id=GROUP, require_stable=random.random() < 0.7)
                    fetch.partitions.add(topic=DATA, partitions=[0])
                    await CoordinatorStub(channel).FetchOffsets(fetch, timeout=CALL_S)
            except Exception as error:  # noqa: BLE001 - gRPC's own, of a node that is away or does not have the shard
                world.counts[f"looks failed by {type(error).__name__}"] += 1
