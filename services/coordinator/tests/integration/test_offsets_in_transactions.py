"""
Real etcd, controller, broker and coordinators: positions of groups in transactions, with the group's coordinator killed
at each step. What a transaction consumed is committed with it or not at all, and nothing stays pending.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from services.coordinator.tests.kit.processes import START_S, Cluster, answered, running_cluster, until_answered
from services.coordinator.tests.kit.transactional import TransactionalProducer, coordinator_of, until_stable

from headrace_common.core.errors import HeadraceError, InvalidProducerEpoch, UnstableOffsetCommit
from headrace_proto.v1 import coordinator_pb2 as pb

pytestmark = pytest.mark.integration

STEPS = (
    "txn.offsets.enrol.before",
    "txn.offsets.enrol.after",
    "txn.offsets.write.before",
    "txn.offsets.write.after",
    "txn.offsets.marker.before",
    "txn.offsets.marker.after",
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as found:
        await found.create_topic("t", 2)
        yield found


async def pend(producer: TransactionalProducer, group_id: str, offset: int) -> None:
    """As a client does that finds the group's coordinator, and asks again while that may help."""
    request = pb.TxnOffsetCommitRequest(
        group_id=group_id,
        generation=-1,
        transactional_id=producer.id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        offsets=[pb.OffsetCommit(topic="t", partition=n, offset=offset, leader_epoch=-1) for n in (0, 1)],
    )

    async def once() -> None:
        _, stub = await producer.cluster.find(group_id)
        await answered(stub.TxnOffsetCommit(request, timeout=6))

    await until_answered(once)


async def committed(cluster: Cluster, group_id: str) -> list[int]:
    """Once nothing is pending any more."""

    async def once() -> list[int]:
        _, stub = await cluster.find(group_id)
        request = pb.FetchOffsetsRequest(group_id=group_id, require_stable=True)
        answer = await answered(stub.FetchOffsets(request, timeout=6))
        if any(one.error for one in answer.offsets):
            raise UnstableOffsetCommit(answer.offsets[0].message)
        return [one.offset for one in answer.offsets]

    found: list[int] = await until_answered(once)
    return found


async def hit(path: Path) -> int:
    """The process that came to a fault; once one has."""
    async with asyncio.timeout(START_S):
        while not path.exists() or not path.read_text():
            await asyncio.sleep(0.02)
    return int(path.read_text())


async def chosen(cluster: Cluster, *, together: bool = False) -> tuple[str, str]:
    """A group and a transactional id whose coordinators are two processes, or one."""
    group_owner, _ = await cluster.find("g")
    for number in range(100):
        node_id, _ = await coordinator_of(cluster, f"x{number}")
        if (node_id == group_owner) is together:
            return "g", f"x{number}"
    raise AssertionError("all shards of transactions are with one coordinator")


async def test_positions_and_records_are_committed_together(cluster: Cluster) -> None:
    group_id, id = await chosen(cluster)
    producer = TransactionalProducer(cluster, id)
    await producer.init()
    for number in range(1, 13):
        await producer.send("t", 0, str(number).encode())
        await pend(producer, group_id, number)
        commit = number % 3 != 0
        await producer.end(commit=commit)
        assert await committed(cluster, group_id) == [number if commit else number - 1] * 2
    values = [str(number).encode() for number in range(1, 13) if number % 3 != 0]
    assert await until_stable(cluster, "t", 0) == values


async def test_a_transaction_of_many_groups(cluster: Cluster) -> None:
    groups = [f"g{n}" for n in range(8)]
    producer = TransactionalProducer(cluster, "x")
    await producer.init()
    for number, commit in ((1, True), (2, False), (3, True)):
        await asyncio.gather(*(pend(producer, group_id, number) for group_id in groups))
        await producer.end(commit=commit)
    for group_id in groups:
        assert await committed(cluster, group_id) == [3, 3]


async def test_a_commit_of_a_fenced_producer_is_refused(cluster: Cluster) -> None:
    old = TransactionalProducer(cluster, "x")
    await old.init()
    await pend(old, "g", 5)
    new = TransactionalProducer(cluster, "x")
    await new.init()
    assert await committed(cluster, "g") == []
    with pytest.raises(InvalidProducerEpoch):
        await pend(old, "g", 6)
    await pend(new, "g", 7)
    await new.end(commit=True)
    assert await committed(cluster, "g") == [7, 7]


async def test_pending_positions_end_with_the_transactions_timeout(cluster: Cluster) -> None:
    producer = TransactionalProducer(cluster, "x")
    await producer.init(timeout_ms=500)
    await pend(producer, "g", 5)
    assert await committed(cluster, "g") == []
    with pytest.raises(HeadraceError):
        await producer.end(commit=True)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("together", [True, False])
async def test_the_groups_coordinator_is_killed_at_each_step(cluster: Cluster, commit: bool, together: bool) -> None:
    """Together: with it the coordinator of the transaction."""
    group_id, id = await chosen(cluster, together=together)
    producer = TransactionalProducer(cluster, id)
    await producer.init()
    await pend(producer, group_id, 1)
    await producer.end(commit=True)
    expected = 1
    assert await committed(cluster, group_id) == [expected] * 2
    for number, step in enumerate(STEPS, 2):
        fault = cluster.arm(step)
        await pend(producer, group_id, number)
        await producer.end(commit=commit)
        killed = await hit(fault)
        (process,) = [one for one in cluster.coordinators if one.pid == killed]
        expected = number if commit else expected
        assert await committed(cluster, group_id) == [expected] * 2, step
        await process.stop(signal.SIGKILL)
        await process.start()
    await pend(producer, group_id, 100)
    await producer.end(commit=True)
    assert await committed(cluster, group_id) == [100] * 2


async def test_a_group_coordinator_that_was_stopped_acknowledges_no_end(cluster: Cluster) -> None:
    """It lost the shard while it stood still; the present owner has the positions, and is told."""
    group_id, id = await chosen(cluster)
    owner, _ = await cluster.find(group_id)
    producer = TransactionalProducer(cluster, id)
    await producer.init()
    await pend(producer, group_id, 5)
    cluster.of(owner).send(signal.SIGSTOP)
    ending = asyncio.ensure_future(producer.end(commit=True))
    try:
        await ending
        await cluster.find(group_id, but=owner)
    finally:
        cluster.of(owner).send(signal.SIGCONT)
    assert await committed(cluster, group_id) == [5, 5]
