"""
Members and producers that say anything in any order, over real streams, while topics change and shards are read anew.

No request brings the process down, and what is in memory is what a new coordinator finds in the log.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest
from services.coordinator.tests.kit.dialogue import QUICK, Running, serving_coordinator
from services.coordinator.tests.kit.ports import topic_id_of

from headrace_common.core.errors import InvalidProducerEpoch
from headrace_common.core.features import WORK_GROUPS
from headrace_common.core.image import INTERNAL_TOPICS, ShardKind
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1 import transaction_pb2 as txn_pb
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

STEPS = 1_500
STREAMS = 12
SHARDS = 4
GROUPS = ("a", "b", "c")
WORK = ("w1", "w2")
"""Of these only members of work groups speak, and now and then somebody else."""
ITEMS = ("x", "y", "z", "w")
CALM = "calm"
TOPICS = ("t", "u", "none")
PATIENT = replace(QUICK, group_rejoin_grace_ms=600_000)
"""Nobody is put out by the time that passes."""


@dataclass
class Storm:
    random: Random
    running: Running
    stub: Any
    streams: list[tuple[str, Any, asyncio.Task[None]]] = field(default_factory=list)
    members: list[str] = field(default_factory=lambda: ["", "m1", "m2", "m3"])
    """Ids to speak under; those that the coordinator gave come last."""

    # --- what members say ------------------------------------------------------------------------------------

    def member(self) -> str:
        return self.random.choice([*self.members[:4], *self.members[-6:]])

    def instance(self) -> dict[str, str]:
        return {"group_instance_id": self.random.choice(("i1", "i2"))} if self.random.random() < 0.3 else {}

    def held(self) -> list[pb.TopicPartitions]:
        return [
            pb.TopicPartitions(
                topic=self.random.choice(TOPICS),
                topic_id=self.random.choice((b"", b"x" * 16)),
                partitions=[self.random.randrange(6) for _ in range(self.random.randrange(4))],
            )
            for _ in range(self.random.randrange(3))
        ]

    def topics(self) -> list[str]:
        return self.random.sample(TOPICS, self.random.randrange(3))

    def request(self, group_id: str) -> pb.MembershipRequest:
        if group_id in WORK and self.random.random() < 0.9:
            return self.work(group_id)
        make = self.random.choice((self.join, self.join, self.sync, self.classic_beat, self.leave, *[self.beat] * 3))
        return make(group_id)

    def join(self, group_id: str) -> pb.MembershipRequest:
        protocols = [
            pb.ClassicProtocol(
                name=name, subscription=pb.ClassicSubscription(topics=self.topics(), owned=self.held(), generation=-1)
            )
            for name in self.random.sample(("range", "sticky", "own"), self.random.randrange(1, 3))
        ]
        join = pb.ClassicJoin(
            member_id=self.member(),
            session_timeout_ms=self.random.choice((600_000, 600_000, 5)),
            rebalance_timeout_ms=self.random.choice((50, 600_000)),
            protocols=protocols,
            **self.instance(),
        )
        return pb.MembershipRequest(group_id=group_id, classic_join=join)

    def sync(self, group_id: str) -> pb.MembershipRequest:
        assignments = [
            pb.ClassicMemberAssignment(member_id=self.member(), assignment=pb.ClassicAssignment(partitions=self.held()))
            for _ in range(self.random.randrange(4))
        ]
        generation = self.random.randrange(-1, 5)
        sync = pb.ClassicSync(
            member_id=self.member(), generation=generation, assignments=assignments, **self.instance()
        )
        return pb.MembershipRequest(group_id=group_id, classic_sync=sync)

    def classic_beat(self, group_id: str) -> pb.MembershipRequest:
        generation = self.random.randrange(-1, 5)
        beat = pb.ClassicHeartbeat(member_id=self.member(), generation=generation, **self.instance())
        return pb.MembershipRequest(group_id=group_id, classic_heartbeat=beat)

    def leave(self, group_id: str) -> pb.MembershipRequest:
        leave = pb.LeaveGroup(member_id=self.member(), permanently=self.random.random() < 0.5, **self.instance())
        return pb.MembershipRequest(group_id=group_id, leave=leave)

    def beat(self, group_id: str) -> pb.MembershipRequest:
        beat = pb.ConsumerHeartbeat(
            member_id=self.random.choice(self.members[1:4]),
            member_epoch=self.random.choice((0, 0, 0, -1, -2, 1, 2, 3, 7)),
            rebalance_timeout_ms=600_000,
            **self.instance(),
        )
        if self.random.random() < 0.6:
            beat.subscription.topics.extend(self.topics())
        if self.random.random() < 0.2:
            beat.subscription.pattern = self.random.choice(("t|u", "(", "n.*"))
        if self.random.random() < 0.6:
            beat.owned.CopyFrom(pb.PartitionSet(topics=self.held()))
        if self.random.random() < 0.2:
            beat.assignor = self.random.choice(("range", "uniform", "none"))
        return pb.MembershipRequest(group_id=group_id, consumer_heartbeat=beat)

    def work(self, group_id: str) -> pb.MembershipRequest:
        some = self.random.random
        beat = pb.WorkHeartbeat(
            member_id=self.random.choice(self.members[1:4]),
            member_epoch=self.random.choice((0, 0, 0, -1, -2, 1, 2, 3, 7)),
            process_id=self.random.choice("pq"),
            transactional_id=self.random.choice(("", "tx-1", "tx-2")),
            rebalance_timeout_ms=600_000,
            refused=[pb.RefusedItem(id=i, token=self.random.choice((1, 2**61))) for i in ITEMS if some() < 0.05],
            ended=["tx-1"] if some() < 0.1 else [],
            **self.instance(),
        )
        if some() < 0.6:
            kind = self.random.randrange(3)
            items = [
                pb.WorkItem(id=i, weight=1 + kind, stateful=i in "xy", standbys=int(i == "x")) for i in ITEMS[kind:]
            ]
            declaration = pb.WorkDeclaration(
                fingerprint=f"f{kind}", items=items, acceptable_recovery_lag=self.random.choice((5, 5, 6)), max_warmup=1
            )
            beat.declaration.CopyFrom(declaration)
        if some() < 0.6:
            beat.owned.CopyFrom(pb.ItemIds(ids=self.random.sample(ITEMS, self.random.choice((0, 0, 2)))))
        if some() < 0.4:
            beat.lags.CopyFrom(pb.ItemLags(items=[pb.ItemLag(id=i, lag=self.random.choice((0, 99))) for i in ITEMS]))
        return pb.MembershipRequest(group_id=group_id, work_heartbeat=beat)

    # --- what happens ----------------------------------------------------------------------------------------

    async def step(self) -> None:
        self.streams = [stream for stream in self.streams if not stream[1].done()]
        if len(self.streams) < STREAMS and self.random.random() < 0.3:
            call = self.stub.Membership()
            self.streams.append((self.random.choice(GROUPS + WORK), call, asyncio.ensure_future(self.read(call))))
        if self.streams and self.random.random() < 0.05:
            self.streams.pop(self.random.randrange(len(self.streams)))[1].cancel()
        if self.streams:
            group_id, call, _ = self.random.choice(self.streams)
            with suppress(grpc.RpcError, asyncio.InvalidStateError):
                await call.write(self.request(group_id))
        if self.random.random() < 0.05:
            await self.commit()
        if self.random.random() < 0.05:
            await self.commit_in_transaction()
        if self.random.random() < 0.03:
            await self.end_transaction()
        if self.random.random() < 0.02:
            name = self.random.choice(("t", "u", "new"))
            self.running.cluster.put_topic(name, self.random.randrange(1, 9), self.random.randrange(2))
        if self.random.random() < 0.01:
            await self.move()

    async def read(self, call: Any) -> None:
        with suppress(grpc.RpcError, asyncio.CancelledError):
            while isinstance(answer := await call.read(), pb.MembershipResponse):
                if answer.classic_joined.member_id:
                    self.members.append(answer.classic_joined.member_id)

    async def commit(self) -> None:
        offset = pb.OffsetCommit(topic=self.random.choice(TOPICS), partition=self.random.randrange(5), offset=1)
        request = pb.CommitOffsetsRequest(
            group_id=self.random.choice(GROUPS + WORK),
            member_id=self.member(),
            generation=self.random.randrange(-1, 4),
            offsets=[offset],
        )
        with suppress(grpc.RpcError):
            await self.stub.CommitOffsets(request)

    async def commit_in_transaction(self) -> None:
        """Of producers that nobody checks: whatever they say is a transaction to its coordinator, or is not."""
        offset = pb.OffsetCommit(topic=self.random.choice(TOPICS), partition=self.random.randrange(5), offset=2)
        request = pb.TxnOffsetCommitRequest(
            group_id=self.random.choice(GROUPS + WORK),
            member_id=self.random.choice(("", self.member())),
            generation=self.random.randrange(-1, 4),
            transactional_id=self.random.choice(("x", "x", "y")),
            producer_id=self.random.randrange(3),
            producer_epoch=self.random.randrange(4),
            offsets=[offset],
        )
        if self.random.random() < 0.2:
            self.running.brokers.enrolments.refusals.append(InvalidProducerEpoch("ended"))
        with suppress(grpc.RpcError):
            await self.stub.TxnOffsetCommit(request)

    async def end_transaction(self) -> None:
        topic_id = topic_id_of(INTERNAL_TOPICS[ShardKind.GROUPS])
        shards = [txn_pb.TxnPartition(topic_id=topic_id, partition=n) for n in range(SHARDS + 1)]
        marker = txn_pb.TxnMarker(
            producer_id=self.random.randrange(3),
            producer_epoch=self.random.randrange(6),
            commit=self.random.random() < 0.5,
            partitions=shards,
        )
        with suppress(grpc.RpcError):
            await self.stub.WriteTxnMarkers(txn_pb.WriteTxnMarkersRequest(markers=[marker]))

    async def move(self) -> None:
        """All shards are read anew, under the next epoch."""
        epoch = max(host.epoch for host in self.running.coordinator.hosts) + 1
        self.running.cluster.give(1, *range(SHARDS), epoch=epoch)
        while {host.epoch for host in self.running.coordinator.hosts} != {epoch}:
            await asyncio.sleep(0)
        await self.running.until_served(*range(SHARDS))

    async def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is durable at any time: offsets, and members that the coordinator assigns something; by group."""
        offsets, members = {}, {}
        described = await self.stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=[*GROUPS, *WORK, CALM]))
        for group in described.groups:
            found = [
                await self.stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=group.group_id, require_stable=stable))
                for stable in (False, True)
            ]
            offsets[group.group_id] = [str(one) for answer in found for one in answer.offsets]
            if group.protocol == pb.CONSUMER and group.members:
                members[group.group_id] = (
                    group.generation,
                    sorted(
                        (one.member_id, one.member_epoch, by_id(one.assigned), by_id(one.target))
                        for one in group.members
                    ),
                )
            if group.protocol == pb.WORK:
                items = sorted((one.item.id, one.owner, one.epoch, len(one.followers)) for one in group.items)
                members[group.group_id] = (
                    group.generation,
                    sorted((one.member_id, one.member_epoch, one.process_id) for one in group.members),
                    items,
                )
        return offsets, members


def by_id(partitions: Any) -> list[tuple[bytes, list[int]]]:
    """Without names: those of topics that were deleted are known for as long as the process remembers."""
    return sorted((one.topic_id, list(one.partitions)) for one in partitions)


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_that_members_say_breaks_the_coordinator(seed: int) -> None:
    async with (
        serving_coordinator({"t": 4, "u": 3}, shards=SHARDS, settings=PATIENT, near=False) as running,
        running.channel() as channel,
    ):
        running.cluster.rise(WORK_GROUPS.level)
        storm = Storm(Random(seed), running, CoordinatorStub(channel))
        for _ in range(STEPS):
            await storm.step()
            assert running.tasks.failure is None
        for _, call, reader in storm.streams:
            call.cancel()
            await reader
        calm = storm.stub.Membership()
        beat = pb.ConsumerHeartbeat(member_id="m", owned=pb.PartitionSet())
        beat.subscription.topics.append("t")
        await calm.write(pb.MembershipRequest(group_id=CALM, consumer_heartbeat=beat))
        assert (await calm.read()).consumer_state.assignment.topics
        offsets, members = await storm.state()
        await storm.move()
        offsets_after, members_after = await storm.state()
        assert offsets_after == offsets
        assert len(members[CALM][1]) == 1
        # Groups that only joining classic members, or nobody, were in are found as they were before those came.
        assert {group_id: members_after[group_id] for group_id in members} == members
