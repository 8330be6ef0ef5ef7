"""Real etcd, controller, broker and coordinators: coordinators killed, stopped and asked to leave."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from services.coordinator.tests.kit.processes import Cluster, answered, running_cluster, until_answered
from services.coordinator.tests.kit.transactional import TransactionalProducer

from headrace_common.core.errors import ErrorCode, HeadraceError, NotCoordinator
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import coordinator_pb2 as pb

pytestmark = pytest.mark.integration

GROUPS = [f"g{n}" for n in range(12)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, settings=("--group-initial-rebalance-delay-ms", "0")) as found:
        await found.create_topic("t", 4)
        yield found


def commit_request(group_id: str, offset: int) -> pb.CommitOffsetsRequest:
    offsets = [pb.OffsetCommit(topic="t", partition=n, offset=offset, leader_epoch=-1) for n in range(4)]
    return pb.CommitOffsetsRequest(group_id=group_id, generation=-1, offsets=offsets)


async def commit(cluster: Cluster, group_id: str, offset: int, *, but: int | None = None) -> int:
    """Commit as a client does that finds its coordinator; who that was."""

    async def once() -> int:
        node_id, stub = await cluster.find(group_id, but=but)
        await answered(stub.CommitOffsets(commit_request(group_id, offset), timeout=6))
        return node_id

    found: int = await until_answered(once)
    return found


async def committed(cluster: Cluster, group_id: str, *, but: int | None = None) -> set[int]:
    async def once() -> set[int]:
        _, stub = await cluster.find(group_id, but=but)
        answer = await answered(stub.FetchOffsets(pb.FetchOffsetsRequest(group_id=group_id), timeout=6))
        return {one.offset for one in answer.offsets}

    found: set[int] = await until_answered(once)
    return found


async def spread(cluster: Cluster) -> dict[str, int]:
    """Commit once in each group; who has it."""
    return {group_id: await commit(cluster, group_id, 1) for group_id in GROUPS}


async def join(stub: Any, group_id: str, member_id: str, epoch: int = 0) -> tuple[Any, pb.ConsumerState]:
    call = stub.Membership()
    beat = pb.ConsumerHeartbeat(member_id=member_id, member_epoch=epoch)
    if epoch == 0:
        beat.subscription.topics.append("t")
        beat.owned.SetInParent()
    await call.write(pb.MembershipRequest(group_id=group_id, consumer_heartbeat=beat))
    async with asyncio.timeout(10):
        answer = await call.read()
    assert isinstance(answer, pb.MembershipResponse)
    return call, answer.consumer_state


async def test_shards_are_spread_and_what_is_committed_survives_kill_9(cluster: Cluster) -> None:
    owners = await spread(cluster)
    assert set(owners.values()) == {1, 2}
    for round_ in range(2, 6):
        for group_id in GROUPS:
            await commit(cluster, group_id, round_)
    await cluster.of(1).stop(signal.SIGKILL)
    for group_id in GROUPS:
        assert await committed(cluster, group_id, but=1) == {5}
        assert await commit(cluster, group_id, 6, but=1) == 2
    await cluster.of(1).start()
    for group_id in GROUPS:
        assert await committed(cluster, group_id) == {6}


async def test_a_member_survives_the_death_of_its_coordinator(cluster: Cluster) -> None:
    node_id, stub = await cluster.find("g")
    await until_answered(lambda: stub.FetchOffsets(pb.FetchOffsetsRequest(group_id="g")))
    _, state = await join(stub, "g", "m")
    held = pb.PartitionSet(topics=state.assignment.topics)
    assert [list(t.partitions) for t in held.topics] == [[0, 1, 2, 3]]
    await cluster.of(node_id).stop(signal.SIGKILL)
    _, other = await cluster.find("g", but=node_id)
    await until_answered(lambda: other.FetchOffsets(pb.FetchOffsetsRequest(group_id="g")))
    call, again = await join(other, "g", "m", state.member_epoch)
    assert (again.error, again.member_epoch) == (0, state.member_epoch)
    described = await other.DescribeGroups(pb.DescribeGroupsRequest(group_ids=["g"]))
    assert [m.member_id for m in described.groups[0].members] == ["m"]
    call.cancel()


async def test_a_coordinator_that_was_stopped_writes_and_answers_nothing(cluster: Cluster) -> None:
    owners = await spread(cluster)  # where shards were still moving, they rest now
    node_id, old = await cluster.find("g")
    other = next(group_id for group_id, owner in owners.items() if owner == node_id)
    member, state = await join(old, other, "m")
    process = cluster.of(node_id)
    process.send(signal.SIGSTOP)
    # These wait in its socket, and are the first that it sees when it goes on.
    writes = asyncio.ensure_future(answered(old.CommitOffsets(commit_request("g", 99), timeout=30)))
    reads = asyncio.ensure_future(answered(old.FetchOffsets(pb.FetchOffsetsRequest(group_id="g"), timeout=30)))
    beat = pb.ConsumerHeartbeat(member_id="m", member_epoch=state.member_epoch)
    await member.write(pb.MembershipRequest(group_id=other, consumer_heartbeat=beat))
    assert await commit(cluster, "g", 2, but=node_id) != node_id
    process.send(signal.SIGCONT)
    for late in (writes, reads):
        with pytest.raises(HeadraceError) as refused:
            await late
        assert refused.value.retriable, refused.value
    with pytest.raises(grpc.RpcError) as ended:
        async with asyncio.timeout(10):
            await member.read()
    assert isinstance(error_from_rpc(ended.value), NotCoordinator)
    assert await committed(cluster, "g") == {2}
    await until_both_serve(cluster)


async def until_both_serve(cluster: Cluster) -> None:
    """Wait until a node that was fenced has joined again and got its half."""
    async with asyncio.timeout(20):
        while {(await cluster.find(group_id))[0] for group_id in GROUPS} != {1, 2}:
            await asyncio.sleep(0.05)
    for group_id in GROUPS:
        assert await committed(cluster, group_id) == {1}


async def test_sigterm_gives_the_shards_away_first(cluster: Cluster) -> None:
    owners = await spread(cluster)
    node_id, stub = await cluster.find("g")
    await until_answered(lambda: stub.FetchOffsets(pb.FetchOffsetsRequest(group_id="g")))
    member, _ = await join(stub, "g", "m")
    exited = asyncio.ensure_future(cluster.of(node_id).stop())
    with pytest.raises(grpc.RpcError) as ended:
        async with asyncio.timeout(10):
            await member.read()
    assert isinstance(error_from_rpc(ended.value), NotCoordinator)
    assert await exited == 0
    for group_id in owners:
        assert await commit(cluster, group_id, 2, but=node_id) != node_id
    assert not [line for line in cluster.of(node_id).log().splitlines() if '"level":"error"' in line]


async def test_a_shards_partition_loses_its_leader(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=3, coordinators=1) as cluster:
        await cluster.create_topic("t", 4)
        await commit(cluster, "g", 1)
        committing = asyncio.ensure_future(_commit_all(cluster, range(2, 200)))
        await _until_committed(cluster, 20)
        await cluster.brokers[1].stop(signal.SIGKILL)
        await _until_committed(cluster, 100)
        await cluster.brokers[1].start()
        await cluster.brokers[2].stop(signal.SIGKILL)
        await committing
        assert await committed(cluster, "g") == {199}
        await cluster.of(1).stop(signal.SIGKILL)
        await cluster.of(1).start()
        assert await committed(cluster, "g") == {199}


async def _commit_all(cluster: Cluster, offsets: range) -> None:
    for offset in offsets:
        await commit(cluster, "g", offset)


async def _until_committed(cluster: Cluster, offset: int) -> None:
    async with asyncio.timeout(60):
        while min(await committed(cluster, "g")) < offset:
            await asyncio.sleep(0.01)


async def test_groups_go_on_without_a_controller(cluster: Cluster) -> None:
    await commit(cluster, "g", 1)
    _, stub = await cluster.find("h")
    await until_answered(lambda: stub.FetchOffsets(pb.FetchOffsetsRequest(group_id="h")))
    member, state = await join(stub, "h", "m")
    await cluster.controller.stop(signal.SIGKILL)
    shard = (await stub.DescribeGroups(pb.DescribeGroupsRequest(group_ids=["h"]))).groups[0].shard
    before = await cluster.log_end("__consumer_offsets", shard)
    async with asyncio.timeout(30):  # the log grows once heartbeats are answered by proofs: the tenure is over
        while await cluster.log_end("__consumer_offsets", shard) == before:
            beat = pb.ConsumerHeartbeat(member_id="m", member_epoch=state.member_epoch)
            await member.write(pb.MembershipRequest(group_id="h", consumer_heartbeat=beat))
            answer = await member.read()
            assert isinstance(answer, pb.MembershipResponse)
            assert answer.consumer_state.error == 0
    assert await commit(cluster, "g", 2) in {1, 2}
    assert await committed(cluster, "g") == {2}


async def test_settings_bound_groups_and_transactional_ids(tmp_path: Path) -> None:
    """
    They reach the coordinators that count: one beyond them is refused with the setting's name. The bound is 1, which
    holds from the first shard on; a larger one is reached only when all shards are served.
    """
    bounds = ("--groups-max", "1", "--transactional-ids-max", "1")
    async with running_cluster(tmp_path, coordinators=1, settings=bounds) as cluster:
        await cluster.create_topic("t", 4)
        await commit(cluster, "first", 1)
        with pytest.raises(HeadraceError, match=r"groups\.max") as refused:
            await commit(cluster, "one-more", 1)
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        assert await commit(cluster, "first", 2) >= 0, "the one that is there goes on"
        await TransactionalProducer(cluster, "first").init()
        with pytest.raises(HeadraceError, match=r"transactional\.ids\.max") as refused:
            await TransactionalProducer(cluster, "one-more").init()
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        await TransactionalProducer(cluster, "first").init()
