"""
Producers that take partitions from each other, on clusters of the lab. What answers mean for one partition is told by
``test_fence_lanes``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

from headrace import RecordMetadata, aio
from headrace.delivery import DeliveredBatch
from headrace.errors import (
    ClientClosed,
    DeliveryTimedOut,
    ErrorCode,
    FencedWriter,
    HeadraceError,
    InvalidTopic,
    Rejected,
    TransactionAbortable,
    UnknownOutcome,
    UnknownTopicOrPartition,
)
from headrace_common.core.batch import decode_batch
from headrace_proto.v1 import broker_pb2 as pb

T = TypeVar("T")
LOST_ANSWER = Fault(Does.DROP, after=True)
QUICK = {"linger_ms": 0, "retry_backoff_ms": 10, "retry_backoff_max_ms": 100}


@pytest.fixture
def cluster(labs: Labs) -> LabCluster:
    made = labs(brokers=2)
    made.create_topic("t", 3)
    return made


def producer(cluster: LabCluster, **settings: Any) -> aio.Producer:
    return aio.Producer(_transport=cluster.transport(), **{**QUICK, **settings})


async def soon(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, 20)


async def write(client: aio.Producer, value: bytes, partition: int = 0) -> RecordMetadata:
    return await soon(await client.send("t", value, partition=partition))


def what_is_there(cluster: LabCluster, partition: int = 0) -> list[bytes | None]:
    """Values in their order; None: a control record."""
    decoded = [decode_batch(batch) for batch in cluster.log("t", partition).batches]
    return [value for batch in decoded for value in ([None] if batch.is_control else batch.values())]


def entries(cluster: LabCluster) -> list[pb.ProducePartition]:
    return [entry for request in cluster.faults.produced for entry in request.partitions]


def carried(cluster: LabCluster, partition: int = 0) -> list[int | None]:
    """The tokens of the batches that were sent, in order; fences carry none."""
    return [
        each.fencing_token if each.HasField("fencing_token") else None
        for each in entries(cluster)
        if each.partition == partition
    ]


# --- the usual way ------------------------------------------------------------------------------------------------


async def test_what_was_sent_before_is_before_the_fence_and_what_is_sent_after_behind_it(cluster: LabCluster) -> None:
    async with producer(cluster, linger_ms=60_000, delivery_timeout_ms=100_000) as client:
        for n in range(3):
            await client.send("t", b"before %d" % n, partition=0)
        placed = await soon(client.fence("t", 0, 5))
        assert (placed.topic, placed.partition, placed.offset) == ("t", 0, 3)
        await client.send("t", b"after", partition=0)
        await client.send("t", b"elsewhere", partition=1)
        await soon(client.flush())
    assert what_is_there(cluster) == [b"before 0", b"before 1", b"before 2", None, b"after"]
    assert carried(cluster) == [None, None, 5]
    assert carried(cluster, 1) == [None], "its other partitions know nothing of it"


async def test_readers_see_nothing_of_it(cluster: LabCluster) -> None:
    async with producer(cluster) as client:
        await soon(client.fence("t", 0, 1))
        await write(client, b"value")
    async with aio.Consumer("t", _transport=cluster.transport(), auto_offset_reset="earliest") as consumer:
        [record] = await soon(consumer.poll(timeout_ms=10_000))
        assert (record.offset, record.value) == (1, b"value")


async def test_whoever_has_the_higher_token_is_the_only_writer(cluster: LabCluster) -> None:
    async with producer(cluster) as old, producer(cluster) as new:
        await soon(old.fence("t", 0, 1))
        await write(old, b"old")
        await soon(new.fence("t", 0, 2))
        for _ in range(2):
            with pytest.raises(FencedWriter, match="another writer's") as raised:
                await write(old, b"too late")
            assert raised.value.then == "fenced"
        requests = len(cluster.faults.produced)
        with pytest.raises(FencedWriter):
            await write(old, b"too late")
        assert len(cluster.faults.produced) == requests, "nobody has to be asked again"
        await write(old, b"elsewhere", 1)
        await write(new, b"new")
        with pytest.raises(FencedWriter, match="another writer's"):
            await soon(old.fence("t", 0, 1))
        await soon(old.fence("t", 0, 3))
        await write(old, b"back")
        with pytest.raises(FencedWriter):
            await write(new, b"too late")
    assert what_is_there(cluster) == [None, b"old", None, b"new", None, b"back"]
    assert what_is_there(cluster, 1) == [b"elsewhere"]


async def test_batches_under_way_when_the_partition_is_lost_fail_and_leave_no_gap(cluster: LabCluster) -> None:
    async with producer(cluster, batch_size=1) as old, producer(cluster) as new:
        await soon(old.fence("t", 0, 1))
        await write(old, b"old")
        held = asyncio.Event()
        cluster.inject("produce", Fault(Does.HOLD, until=held))
        late = [await old.send("t", b"late %d" % n, partition=0) for n in range(9)]
        await asyncio.sleep(0.1)
        await soon(new.fence("t", 0, 2))
        held.set()
        for each in late:
            with pytest.raises(FencedWriter):
                await soon(each)
        await soon(old.fence("t", 0, 3))
        for n in range(3):
            await write(old, b"back %d" % n)
    assert what_is_there(cluster) == [None, b"old", None, None, b"back 0", b"back 1", b"back 2"]


async def test_a_writer_without_a_token_is_none_of_its_business(cluster: LabCluster) -> None:
    async with producer(cluster) as holder, producer(cluster) as other:
        await soon(holder.fence("t", 0, 1))
        await write(other, b"as ever")
        await write(holder, b"held")
    assert what_is_there(cluster) == [None, b"as ever", b"held"]


@pytest.mark.parametrize("transactional_id", [None, "billing"])
async def test_a_topic_that_requires_tokens_leads_to_fence(labs: Labs, transactional_id: str | None) -> None:
    cluster = labs(brokers=2)
    cluster.pass_time(5)  # then all nodes know of the setting
    cluster.create_topic("t", 1, fencing_required="true")
    async with producer(cluster, transactional_id=transactional_id) as client:
        if transactional_id is not None:
            await client.begin_transaction()
        late = [await client.send("t", b"%d" % n, partition=0) for n in range(3)]
        for each in late:
            with pytest.raises(HeadraceError, match=r"call fence\('t', 0, token\)"):
                await soon(each)
        if transactional_id is not None:
            await client.abort_transaction()
            await client.begin_transaction()
        await soon(client.fence("t", 0, 1))
        await write(client, b"value")
        if transactional_id is not None:
            await client.commit_transaction()
    assert cluster.committed_values("t") == [b"value"]


@pytest.mark.parametrize("settings", [{"acks": 1}, {"enable_idempotence": False}])
async def test_a_fence_waits_for_all_replicas_whatever_the_batches_do(
    cluster: LabCluster, settings: dict[str, Any]
) -> None:
    told: list[DeliveredBatch] = []
    async with producer(cluster, on_delivery=told.append, **settings) as client:
        await soon(client.fence("t", 0, 1))
        await write(client, b"value")
    assert cluster.faults.produced[0].acks == -1
    assert carried(cluster) == [None, 1]
    assert [each.base_offset for each in told] == [1], "a fence is no record of the application"


# --- what goes wrong on the way -----------------------------------------------------------------------------------


async def test_a_fence_whose_answer_was_lost_is_found(cluster: LabCluster) -> None:
    async with producer(cluster) as client:
        await write(client, b"before")
        cluster.inject("produce", LOST_ANSWER)
        assert (await soon(client.fence("t", 0, 5))).offset == 1
        assert (await soon(client.fence("t", 0, 5))).offset == 1, "also when it is asked for again"
        assert (await write(client, b"after")).offset == 2
        cluster.trim("t", 0, 3)
        assert (await soon(client.fence("t", 0, 5))).offset == 2, "the offset before the start"
    assert what_is_there(cluster) == []


async def test_the_same_token_of_another_producer_is_taken_for_its_own(cluster: LabCluster) -> None:
    async with producer(cluster) as one, producer(cluster) as other:
        assert (await soon(one.fence("t", 0, 5))).offset == 0
        assert (await soon(other.fence("t", 0, 5))).offset == 0
        await write(one, b"one")
        await write(other, b"other")
    assert what_is_there(cluster) == [None, b"one", b"other"]


async def test_a_lost_fence_that_another_has_outdone_is_lost(cluster: LabCluster) -> None:
    async with producer(cluster, retry_backoff_ms=2_000, retry_backoff_max_ms=2_000) as old, producer(cluster) as new:
        await write(old, b"before")
        cluster.inject("produce", LOST_ANSWER)
        fencing = asyncio.ensure_future(old.fence("t", 0, 5))
        await asyncio.sleep(0.5)
        await soon(new.fence("t", 0, 6))
        with pytest.raises(FencedWriter, match="token 6 is another writer's"):
            await soon(fencing)


async def test_a_fence_is_not_set_before_it_is_committed(labs: Labs) -> None:
    """Its leader has it, refuses the repetition for that, and must not be taken for having committed it."""
    cluster = labs(brokers=2)
    cluster.create_topic("t", 1, min_insync_replicas=2)
    leader, _ = cluster.leader("t")
    async with producer(cluster, request_timeout_ms=2_000) as client:
        await write(client, b"before")
        cluster.pause(3 - (leader or 0))
        fencing = asyncio.ensure_future(client.fence("t", 0, 5))
        await asyncio.sleep(1)
        behind = await client.send("t", b"behind", partition=0)
        await asyncio.sleep(15)
        assert len(entries(cluster)) > 2, "it was repeated"
        assert not fencing.done()
        assert not behind.done()
        cluster.resume(3 - (leader or 0))
        assert (await asyncio.wait_for(fencing, 60)).offset == 1
        await asyncio.wait_for(behind, 60)
    assert what_is_there(cluster) == [b"before", None, b"behind"]


async def test_the_commit_of_a_fence_is_asked_for_again_where_brokers_fail(cluster: LabCluster) -> None:
    async with producer(cluster) as client:
        await write(client, b"before")
        cluster.inject("produce", LOST_ANSWER)
        cluster.inject("list_offsets", Fault(Does.DROP), Fault(Does.ERROR, code=ErrorCode.OVERLOADED))
        assert (await soon(client.fence("t", 0, 5))).offset == 1
        await write(client, b"after")
    assert what_is_there(cluster) == [b"before", None, b"after"]


async def test_the_token_stays_when_the_leader_changes(cluster: LabCluster) -> None:
    async with producer(cluster) as client, producer(cluster) as other:
        cluster.move_leader("t", 0, 2)
        assert (await soon(client.fence("t", 0, 5))).offset == 0
        cluster.move_leader("t", 0, 1)
        await write(client, b"at the next leader")
        await soon(other.fence("t", 0, 6))
        cluster.move_leader("t", 0, 2)
        with pytest.raises(UnknownOutcome):  # who led before has not said that it was not written
            await write(client, b"too late")
        with pytest.raises(FencedWriter):
            await write(client, b"too late")
    assert what_is_there(cluster) == [None, b"at the next leader", None]


async def test_a_fence_finds_the_leader_that_is_elected_meanwhile(cluster: LabCluster) -> None:
    async with producer(cluster) as client:
        await write(client, b"before")
        cluster.kill(1)
        fencing = asyncio.ensure_future(client.fence("t", 0, 5))
        await asyncio.wait_for(fencing, 60)
        await write(client, b"after")
    assert what_is_there(cluster) == [b"before", None, b"after"]
    assert carried(cluster)[-1] == 5


async def test_a_leader_that_is_silent_while_the_commit_is_asked_for_is_left(cluster: LabCluster) -> None:
    async with producer(cluster) as client:
        await write(client, b"before")
        never = asyncio.Event()
        cluster.inject("produce", LOST_ANSWER)
        cluster.inject("list_offsets", Fault(Does.HOLD, until=never))
        fencing = asyncio.ensure_future(client.fence("t", 0, 5))
        await asyncio.sleep(1)
        cluster.move_leader("t", 0, 2)
        assert (await soon(fencing)).offset == 1
    assert what_is_there(cluster) == [b"before", None]


async def test_a_fence_that_times_out_keeps_the_partition_closed(cluster: LabCluster) -> None:
    async with producer(cluster, delivery_timeout_ms=1_000, request_timeout_ms=500) as client:
        await write(client, b"before")
        held = asyncio.Event()
        cluster.inject("produce", Fault(Does.HOLD, until=held))
        with pytest.raises(DeliveryTimedOut, match="fencing token 5 of t-0"):
            await soon(client.fence("t", 0, 5))
        with pytest.raises(FencedWriter, match="the same token may be given again"):
            await write(client, b"is it mine?")
        held.set()
        await asyncio.sleep(2)
        await soon(client.fence("t", 0, 5))
        await write(client, b"after")
    assert what_is_there(cluster) == [b"before", None, b"after"]


async def test_who_waits_no_more_for_a_fence_has_it_set_nevertheless(cluster: LabCluster) -> None:
    async with producer(cluster) as client:
        await write(client, b"before")
        held = asyncio.Event()
        cluster.inject("produce", Fault(Does.HOLD, until=held))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.fence("t", 0, 5), 0.1)
        held.set()
        await write(client, b"after")
    assert what_is_there(cluster) == [b"before", None, b"after"]
    assert carried(cluster) == [None, None, 5]


async def test_a_log_that_was_made_anew_does_not_know_the_token(cluster: LabCluster) -> None:
    async with producer(cluster) as client:
        await soon(client.fence("t", 0, 5))
        await write(client, b"gone")
        cluster.delete_topic("t")
        cluster.create_topic("t", 3)
        with pytest.raises(UnknownOutcome, match="look what is there"):  # the old topic was asked before
            await write(client, b"too sure")
        with pytest.raises(FencedWriter, match="look what is there"):
            await write(client, b"too sure")
        await soon(client.fence("t", 0, 5))
        await write(client, b"anew")
    assert what_is_there(cluster) == [None, b"anew"]


# --- transactions -------------------------------------------------------------------------------------------------


async def test_transactions_are_written_under_the_token(cluster: LabCluster) -> None:
    async with producer(cluster, transactional_id="billing") as client:
        await soon(client.fence("t", 0, 1))
        async with client.transaction():
            await write(client, b"first")
            await soon(client.fence("t", 0, 2))
            await client.send("t", b"second", partition=0)
            await client.send("t", b"elsewhere", partition=1)
        await client.begin_transaction()
        await client.send("t", b"third", partition=0)
        await client.commit_transaction()
    assert cluster.committed_values("t", 0) == [b"first", b"second", b"third"]
    assert cluster.committed_values("t", 1) == [b"elsewhere"]
    assert carried(cluster) == [None, 1, None, 2, 2]
    fences = [each for each in cluster.faults.produced if decode_batch(each.partitions[0].batch).is_control]
    assert [each.HasField("transactional_id") for each in fences] == [False, False]


async def test_a_fence_alone_makes_no_transaction(cluster: LabCluster) -> None:
    async with producer(cluster, transactional_id="billing") as client, client.transaction():
        await soon(client.fence("t", 0, 1))
    assert "end" not in cluster.asked, "nothing of it has to be ended"


async def test_a_transaction_that_lost_a_partition_can_only_be_aborted(cluster: LabCluster) -> None:
    async with producer(cluster, transactional_id="billing") as old, producer(cluster) as new:
        await soon(old.fence("t", 0, 1))
        await old.begin_transaction()
        await write(old, b"elsewhere", 1)
        await soon(new.fence("t", 0, 2))
        late = await old.send("t", b"too late", partition=0)
        with pytest.raises(TransactionAbortable) as raised:
            await old.commit_transaction()
        assert raised.value.then == "fenced", "its work is another's now"
        assert isinstance(raised.value.__cause__, FencedWriter)
        assert isinstance(late.exception(), FencedWriter)
        await old.abort_transaction()
        async with old.transaction():
            await old.send("t", b"the next", partition=1)
        with pytest.raises(TransactionAbortable):
            async with old.transaction():
                await old.send("t", b"still too late", partition=0)
        await soon(old.fence("t", 0, 3))
        async with old.transaction():
            await old.send("t", b"back", partition=0)
    assert cluster.committed_values("t", 0) == [b"back"]
    assert cluster.committed_values("t", 1) == [b"the next"]


async def test_a_fence_goes_on_when_its_transaction_is_aborted(cluster: LabCluster) -> None:
    async with producer(cluster, transactional_id="billing") as client:
        await client.begin_transaction()
        await write(client, b"dropped")
        held = asyncio.Event()
        cluster.inject("produce", Fault(Does.HOLD, until=held))
        fencing = asyncio.ensure_future(client.fence("t", 0, 1))
        await asyncio.sleep(0.1)
        await client.abort_transaction()
        held.set()
        assert (await soon(fencing)).offset in {1, 2}, "before or behind the marker"
        async with client.transaction():
            await client.send("t", b"next", partition=0)
    assert cluster.committed_values("t", 0) == [b"next"]
    assert carried(cluster)[-1] == 1


async def test_a_fence_that_fails_breaks_no_transaction(cluster: LabCluster) -> None:
    async with producer(cluster, transactional_id="billing") as client, producer(cluster) as other:
        await soon(other.fence("t", 0, 5))
        async with client.transaction():
            await client.send("t", b"elsewhere", partition=1)
            with pytest.raises(FencedWriter):
                await soon(client.fence("t", 0, 1))
    assert cluster.committed_values("t", 1) == [b"elsewhere"]


# --- what cannot be -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [0, -1, 2**63, True, 1.0, "1", None])
async def test_what_is_no_token_is_told(cluster: LabCluster, token: Any) -> None:
    async with producer(cluster) as client:
        with pytest.raises(Rejected, match="a fencing token is a number from 1 to 9223372036854775807"):
            await client.fence("t", 0, token)


async def test_the_largest_token_is_one(cluster: LabCluster) -> None:
    async with producer(cluster) as client:
        await soon(client.fence("t", 0, 2**63 - 1))
        await write(client, b"value")


@pytest.mark.parametrize(
    ("topic", "partition", "error"),
    [
        ("t", 3, UnknownTopicOrPartition),
        ("t", -1, UnknownTopicOrPartition),
        ("t", "0", Rejected),
        ("t", True, Rejected),
        ("t", None, Rejected),
        ("nobody", 0, UnknownTopicOrPartition),
        ("no/topic", 0, InvalidTopic),
        ("__consumer_offsets", 0, Rejected),
        ("__transaction_state", 0, Rejected),
    ],
)
async def test_what_is_no_partition_of_an_applications_topic_is_told(
    cluster: LabCluster, topic: str, partition: Any, error: type[HeadraceError]
) -> None:
    async with producer(cluster) as client:
        with pytest.raises(error):
            await soon(client.fence(topic, partition, 1))
        await write(client, b"and nothing else has changed")


async def test_a_producer_that_is_told_nothing_cannot_fence(cluster: LabCluster) -> None:
    async with producer(cluster, acks=0) as client:
        with pytest.raises(Rejected, match="acks='all' or 1"):
            await client.fence("t", 0, 1)


async def test_a_token_below_the_last_changes_nothing(cluster: LabCluster) -> None:
    async with producer(cluster) as client:
        await soon(client.fence("t", 0, 5))
        with pytest.raises(Rejected, match="tokens only grow"):
            await client.fence("t", 0, 4)
        await write(client, b"value")


async def test_a_closed_producer_fences_nothing(cluster: LabCluster) -> None:
    client = producer(cluster)
    await write(client, b"value")
    held = asyncio.Event()
    cluster.inject("produce", Fault(Does.HOLD, until=held))
    fencing = asyncio.ensure_future(client.fence("t", 0, 1))
    await asyncio.sleep(0.1)
    with pytest.raises(HeadraceError):
        await client.close(0.5)
    with pytest.raises(ClientClosed):
        await soon(fencing)
    with pytest.raises(ClientClosed):
        await client.fence("t", 0, 2)
    held.set()


def test_the_twin_for_threads_does_the_same(labs: Labs) -> None:
    cluster = labs()
    cluster.create_topic("t", 1)
    with cluster.producer() as old, cluster.producer() as new:
        assert old.fence("t", 0, 1).offset == 0
        assert old.send("t", b"old", partition=0).result(20).offset == 1
        assert new.fence("t", 0, 2).offset == 2
        with pytest.raises(FencedWriter):
            old.send("t", b"too late", partition=0).result(20)
        with pytest.raises(FencedWriter):
            old.fence("t", 0, 1)
        assert new.send("t", b"new", partition=0).result(20).offset == 3
    with pytest.raises(ClientClosed):
        old.fence("t", 0, 3)
