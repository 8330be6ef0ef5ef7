"""
Thousands of members in one process: ``python -m bench.clients.group_members --groups 200 --members 5 ...``.

Each member speaks the Membership stream over a connection of its own, as clients do, without a client around it:
joins, takes what it is given, then says every heartbeat interval that it lives. Once all are members it prints
``ready``, measures the round trip of each heartbeat for a while, and prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
import uuid
from typing import Any

import grpc.aio

from bench.clients.clock import emit
from bench.rows import percentile
from headrace_common.rpc.options import channel_options
from headrace_proto.v1 import broker_pb2
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub

START_SECONDS = 120
JOINING_AT_ONCE = 50
COMMIT_EVERY_S = 5.0


class Measures:
    """Of all members."""

    def __init__(self) -> None:
        self.on = False
        self.round_trips_ms: list[float] = []
        self.commits_ms: list[float] = []
        self.late_ms: list[float] = []
        """How much later than planned heartbeats left: what the machine does to any process."""
        self.rebalances = 0


async def coordinator(bootstrap: str, group: str) -> str:
    """Its address, once there is one."""
    request = broker_pb2.FindCoordinatorRequest(type=broker_pb2.GROUP, keys=[group])
    broker = bootstrap.split(",", maxsplit=1)[0]
    async with grpc.aio.insecure_channel(broker) as channel, asyncio.timeout(START_SECONDS):
        while True:
            found = (await BrokerStub(channel).FindCoordinator(request, wait_for_ready=True)).coordinators[0]
            if not found.error:
                return f"{found.endpoint.host}:{found.endpoint.port}"
            await asyncio.sleep(0.1)


class Member:
    """One stream. One heartbeat is under way at a time; in a settled group nothing but answers comes."""

    def __init__(self, address: str, group: str, a: argparse.Namespace, measures: Measures) -> None:
        self.group, self.a, self.measures = group, a, measures
        self.channel = grpc.aio.insecure_channel(address, options=channel_options(own_connection=True))
        self.stub: Any = CoordinatorStub(self.channel)
        self.stream = self.stub.Membership()
        self.member_id = str(uuid.uuid4()) if a.protocol == "consumer" else ""
        self.generation = 0
        self.held: list[pb.TopicPartitions] = []
        self.answered = asyncio.Event()
        self.writing = asyncio.Lock()

    async def say(self, **request: Any) -> None:
        async with self.writing:
            await self.stream.write(pb.MembershipRequest(group_id=self.group, **request))

    async def hear(self) -> pb.MembershipResponse:
        answer = await self.stream.read()
        if answer is grpc.aio.EOF:
            raise RuntimeError(f"a stream of {self.group} ended: {await self.stream.details()}")
        return answer

    async def close(self) -> None:
        await self.channel.close()


class ConsumerMember(Member):
    """Of the server-side protocol."""

    async def join(self) -> None:
        beat = pb.ConsumerHeartbeat(member_id=self.member_id, member_epoch=0, rebalance_timeout_ms=60_000)
        beat.subscription.topics.append(self.a.topic)
        beat.owned.SetInParent()
        await self.say(consumer_heartbeat=beat)
        await self.take(await self.hear())

    async def take(self, answer: pb.MembershipResponse) -> bool:
        """Whether it answers a heartbeat, or is news: then the member does as it is told, and says so."""
        state = answer.consumer_state
        assert not state.error, state
        self.generation = state.member_epoch
        if not state.HasField("assignment"):
            return True
        self.held = list(state.assignment.topics)
        await self.beat(owned=pb.PartitionSet(topics=self.held))
        return False

    async def beat(self, **more: Any) -> None:
        await self.say(
            consumer_heartbeat=pb.ConsumerHeartbeat(member_id=self.member_id, member_epoch=self.generation, **more)
        )


class ClassicMember(Member):
    """Of the classic protocol, eager; the leader deals partitions in turn."""

    async def join(self) -> None:
        subscription = pb.ClassicSubscription(topics=[self.a.topic], generation=-1)
        request = pb.ClassicJoin(
            member_id=self.member_id,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            protocols=[pb.ClassicProtocol(name="range", subscription=subscription)],
        )
        await self.say(classic_join=request)
        while not (answer := await self.hear()).HasField("classic_joined"):
            pass
        joined = answer.classic_joined
        assert not joined.error, joined
        self.member_id, self.generation = joined.member_id, joined.generation
        shares = self._deal(joined) if joined.leader == self.member_id else []
        sync = pb.ClassicSync(member_id=self.member_id, generation=self.generation, assignments=shares)
        await self.say(classic_sync=sync)
        while (answer := await self.hear()).WhichOneof("response") == "classic_state":
            if answer.classic_state.error:
                await self.join()
                return
        if answer.classic_synced.error:
            await self.join()
            return
        self.held = list(answer.classic_synced.assignment.partitions)

    def _deal(self, joined: pb.ClassicJoined) -> list[pb.ClassicMemberAssignment]:
        ids = [member.member_id for member in joined.members]
        shares: dict[str, list[int]] = {member_id: [] for member_id in ids}
        for number, member_id in zip(range(self.a.partitions), itertools.cycle(ids), strict=False):
            shares[member_id].append(number)
        return [
            pb.ClassicMemberAssignment(
                member_id=member_id,
                assignment=pb.ClassicAssignment(
                    partitions=[pb.TopicPartitions(topic=self.a.topic, partitions=numbers)] if numbers else []
                ),
            )
            for member_id, numbers in shares.items()
        ]

    async def take(self, answer: pb.MembershipResponse) -> bool:
        if answer.WhichOneof("response") != "classic_state":
            return False
        if not answer.classic_state.error:
            return True
        self.measures.rebalances += 1
        await self.join()
        return True  # the heartbeat that was under way is answered by the rebalance

    async def beat(self) -> None:
        await self.say(classic_heartbeat=pb.ClassicHeartbeat(member_id=self.member_id, generation=self.generation))


async def listen(member: Any) -> None:
    """Take in whatever comes, for ever; an answer to a heartbeat tells ``live`` so."""
    while True:
        if await member.take(await member.hear()):
            member.answered.set()


async def live(member: Any, measures: Measures, phase: float, every_s: float, commits: bool) -> None:
    """Heartbeats for ever; with ``commits`` also what an automatic commit costs, every five seconds."""
    await asyncio.sleep(phase * every_s)
    next_commit = time.monotonic() + phase * COMMIT_EVERY_S
    due = time.monotonic()
    while True:
        measures.late_ms.append((time.monotonic() - due) * 1000)
        began = time.perf_counter()
        member.answered.clear()
        await member.beat()
        await member.answered.wait()
        if measures.on:
            measures.round_trips_ms.append((time.perf_counter() - began) * 1000)
        if commits and measures.on and member.held and time.monotonic() >= next_commit:
            next_commit = time.monotonic() + COMMIT_EVERY_S
            began = time.perf_counter()
            await commit(member)
            measures.commits_ms.append((time.perf_counter() - began) * 1000)
        due += every_s
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def commit(member: Any) -> None:
    offsets = [
        pb.OffsetCommit(topic=member.a.topic, partition=number, offset=int(time.monotonic()), leader_epoch=-1)
        for topic in member.held
        for number in topic.partitions
    ]
    request = pb.CommitOffsetsRequest(
        group_id=member.group, member_id=member.member_id, generation=member.generation, offsets=offsets
    )
    answer = await member.stub.CommitOffsets(request)
    assert not any(one.error for one in answer.results), answer


async def run(a: argparse.Namespace) -> None:
    measures = Measures()
    address = await coordinator(a.bootstrap, "bench-0")
    make = ConsumerMember if a.protocol == "consumer" else ClassicMember
    prefix = f"bench-{a.protocol}-{uuid.uuid4().hex[:6]}"
    members = [make(address, f"{prefix}-{g}", a, measures) for g in range(a.groups) for _ in range(a.members)]
    gate = asyncio.Semaphore(JOINING_AT_ONCE * (1 if a.protocol == "consumer" else a.members))

    async def join(member: Any) -> None:
        async with gate:
            await ready(member)
            await member.join()

    async def ready(member: Any) -> None:
        async with asyncio.timeout(START_SECONDS):
            await member.channel.channel_ready()

    await ready(members[0])
    while True:  # shards are being read when the topic is new
        try:
            await members[0].stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=members[0].group))
            break
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.2)
    await asyncio.sleep(2)
    await asyncio.gather(*map(join, members))
    beating = [
        asyncio.ensure_future(live(member, measures, n / len(members), a.every_s, a.commits))
        for n, member in enumerate(members)
    ] + [asyncio.ensure_future(listen(member)) for member in members]
    await asyncio.sleep(a.settle_s)
    print("ready", flush=True)
    measures.on = True
    measures.late_ms.clear()
    await asyncio.wait(beating, timeout=a.seconds, return_when=asyncio.FIRST_EXCEPTION)
    measures.on = False
    failed = [task for task in beating if task.done()]
    for task in beating:
        task.cancel()
    if failed:
        raise failed[0].exception() or RuntimeError("a member ended")
    held = sum(len(topic.partitions) for member in members for topic in member.held)
    trips, commits = sorted(measures.round_trips_ms), sorted(measures.commits_ms)
    emit(
        heartbeats=len(trips),
        late_p99_ms=percentile(sorted(measures.late_ms), 0.99),
        p50_ms=percentile(trips, 0.5),
        p99_ms=percentile(trips, 0.99),
        commits=len(commits),
        commit_p99_ms=percentile(commits, 0.99) if commits else 0.0,
        held=held,
        rebalances=measures.rebalances,
    )
    await asyncio.gather(*(member.close() for member in members))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--protocol", choices=("classic", "consumer"), required=True)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--every-s", type=float, default=3.0)
    parser.add_argument("--settle-s", type=float, default=9.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--commits", action="store_true")
    asyncio.run(run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
