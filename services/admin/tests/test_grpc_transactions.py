"""What the engine relies on of transaction coordinators and of leaders, by way of gRPC: on those of the lab."""

from __future__ import annotations

import asyncio

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs
from services.admin.tests.kit.world import World

from headrace_admin.ports import CoordinatorPlace
from headrace_common.core.errors import ErrorCode, HeadraceError, NetworkFailed, NotCoordinator, TxnVerdictUnknown
from headrace_common.core.ids import NodeId
from headrace_common.core.image import ShardKind
from headrace_lab.nodes import address
from headrace_proto.v1 import broker_pb2
from headrace_proto.v1 import transaction_pb2 as pb

LEADER = NodeId(1)


@pytest.fixture
def lab(labs: Labs) -> LabCluster:
    """One leader."""
    return labs(1, coordinators=2)


@pytest.fixture
async def way(world: World) -> World:
    await world.make_shards(ShardKind.TRANSACTIONS)
    return world


@pytest.fixture
def i() -> str:
    return "pay"


async def begin(way: World, i: str) -> bytes:
    """A transaction of one record is open in partition 0 of a topic of its own; the topic's id."""
    way.lab.create_topic(i)
    await way.begin(i, (i, 0))
    return way.lab.log(i).topic_id


async def place(way: World, i: str) -> CoordinatorPlace:
    return await way.place(i, ShardKind.TRANSACTIONS)


async def described(way: World, i: str) -> pb.TransactionDescription:
    request = pb.DescribeTransactionsRequest(transactional_ids=[i])
    (one,) = (
        await way.coordinators.ask_transaction(await place(way, i), lambda stub: stub.DescribeTransactions, request)
    ).transactions
    return one


async def still_open(way: World, topic_id: bytes) -> broker_pb2.PartitionProducers:
    request = broker_pb2.DescribeProducersRequest(
        partitions=[broker_pb2.FollowedPartition(topic_id=topic_id, partition=0)], open_only=True
    )
    (one,) = (await way.brokers.ask(LEADER, lambda stub: stub.DescribeProducers, request)).partitions
    assert one.error == 0
    return one


async def ended(way: World, topic_id: bytes) -> broker_pb2.PartitionProducers:
    """Markers follow the verdict soon, and are committed soon."""
    while True:
        said = await still_open(way, topic_id)
        if not said.producers and said.last_stable_offset == said.high_watermark:
            return said
        await asyncio.sleep(0.02)


async def mark(way: World, topic_id: bytes, producer_id: int, epoch: int, *, commit: bool = False) -> int:
    marker = pb.TxnMarker(producer_id=producer_id, producer_epoch=epoch, commit=commit)
    marker.partitions.add(topic_id=topic_id, partition=0)
    answer = await way.brokers.ask(
        LEADER, lambda stub: stub.WriteTxnMarkers, pb.WriteTxnMarkersRequest(markers=[marker])
    )
    ((said,),) = (m.partitions for m in answer.markers)
    return int(said.error)


async def ends(way: World, topic_id: bytes) -> tuple[int, int]:
    """As readers of all see it, and those of what is committed."""
    found = []
    for level in (broker_pb2.READ_UNCOMMITTED, broker_pb2.READ_COMMITTED):
        request = broker_pb2.ListOffsetsRequest(isolation_level=level)
        request.partitions.add(topic_id=topic_id, partition=0, timestamp_ms=-1)
        (one,) = (await way.brokers.ask(LEADER, lambda stub: stub.ListOffsets, request)).partitions
        assert one.error == 0
        found.append(one.offset)
    return found[0], found[1]


async def test_what_is_open_is_known_at_both_ends(way: World, i: str) -> None:
    topic_id = await begin(way, i)
    one = await described(way, i)
    assert (one.error, one.state) == (0, pb.TXN_ONGOING)
    assert [(p.topic_id, p.partition) for p in one.partitions] == [(topic_id, 0)]
    assert one.started_at_ms > 0 > one.prepared_at_ms
    said = await still_open(way, topic_id)
    (producer,) = said.producers
    assert (producer.producer_id, producer.producer_epoch) == (one.producer_id, one.producer_epoch)
    assert producer.HasField("transaction_since_ms")
    assert (producer.transaction_start, said.last_stable_offset, said.high_watermark) == (0, 0, 1)
    assert await ends(way, topic_id) == (1, 0)
    for request, wanted in (
        (pb.ListTransactionsRequest(producer_ids=[one.producer_id]), True),
        (pb.ListTransactionsRequest(states=[pb.TXN_ONGOING], producer_ids=[one.producer_id]), True),
        (pb.ListTransactionsRequest(states=[pb.TXN_PREPARED], producer_ids=[one.producer_id]), False),
        (pb.ListTransactionsRequest(older_than_ms=10**9), False),
    ):
        listed = (
            await way.coordinators.ask_transaction(await place(way, i), lambda stub: stub.ListTransactions, request)
        ).transactions
        assert (i in {t.transactional_id for t in listed}) == wanted, request
    await way.producers[i].commit_transaction()
    assert (await ended(way, topic_id)).last_stable_offset == 2
    assert await ends(way, topic_id) == (2, 2)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_token_is_decided_once(way: World, i: str, commit: bool) -> None:
    topic_id = await begin(way, i)
    token = await way.prepare(i)
    one = await described(way, i)
    assert (one.state, one.token) == (pb.TXN_PREPARED, token)
    assert one.prepared_at_ms >= one.started_at_ms
    at = await place(way, i)
    for wish in (commit, commit, not commit):
        request = pb.DecidePreparedRequest(token=token, commit=wish)
        assert (
            await way.coordinators.ask_transaction(at, lambda stub: stub.DecidePrepared, request)
        ).committed == commit
    await ended(way, topic_id)
    other = pb.DecidePreparedRequest(token=pb.PreparedToken(transactional_id=i, nonce=99), commit=commit)
    with pytest.raises(TxnVerdictUnknown):
        await way.coordinators.ask_transaction(at, lambda stub: stub.DecidePrepared, other)


async def test_an_abort_takes_the_transaction_that_it_names(way: World, i: str) -> None:
    topic_id = await begin(way, i)
    one, at = await described(way, i), await place(way, i)
    named = {"transactional_id": i, "producer_id": one.producer_id}
    wrong = pb.AbortTransactionRequest(**named, producer_epoch=one.producer_epoch + 1)
    with pytest.raises(HeadraceError):
        await way.coordinators.ask_transaction(at, lambda stub: stub.AbortTransaction, wrong)
    assert (await described(way, i)).state == pb.TXN_ONGOING
    await way.coordinators.ask_transaction(
        at, lambda stub: stub.AbortTransaction, pb.AbortTransactionRequest(**named, producer_epoch=one.producer_epoch)
    )
    await ended(way, topic_id)
    assert (await described(way, i)).producer_epoch == one.producer_epoch + 1
    again = pb.AbortTransactionRequest(**named, producer_epoch=one.producer_epoch)
    await way.coordinators.ask_transaction(at, lambda stub: stub.AbortTransaction, again)
    assert (await described(way, i)).producer_epoch == one.producer_epoch + 1, "told twice it is done once"


async def test_what_is_prepared_is_not_aborted_by_its_id(way: World, i: str) -> None:
    await begin(way, i)
    await way.prepare(i)
    with pytest.raises(HeadraceError) as refused:
        await way.coordinators.ask_transaction(
            await place(way, i), lambda stub: stub.AbortTransaction, pb.AbortTransactionRequest(transactional_id=i)
        )
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    assert (await described(way, i)).state == pb.TXN_PREPARED


async def test_a_marker_ends_what_is_open_and_repeats_change_nothing(way: World, i: str) -> None:
    topic_id = await begin(way, i)
    one = await described(way, i)
    epoch = one.producer_epoch + 1
    assert await mark(way, topic_id, one.producer_id, one.producer_epoch) == ErrorCode.INVALID_PRODUCER_EPOCH
    for _ in range(2):
        assert await mark(way, topic_id, one.producer_id, epoch) == 0
        assert await ends(way, topic_id) == (2, 2)
    refused = await mark(way, topic_id, one.producer_id, epoch, commit=True)
    assert refused == ErrorCode.INVALID_PRODUCER_EPOCH, "another verdict is no repeat"
    assert not (await still_open(way, topic_id)).producers


async def test_an_id_that_is_not_there(way: World, i: str) -> None:
    await begin(way, f"{i}-other")
    assert (await described(way, i)).error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    with pytest.raises(HeadraceError) as refused:
        await way.coordinators.ask_transaction(
            await place(way, i), lambda stub: stub.AbortTransaction, pb.AbortTransactionRequest(transactional_id=i)
        )
    assert refused.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_who_does_not_serve_the_shard_says_so(way: World, i: str) -> None:
    await begin(way, i)
    token = await way.prepare(i)
    other = NodeId(3 - (await place(way, i)).id)
    there = CoordinatorPlace(other, address(f"coordinator-{other}"))
    with pytest.raises(NotCoordinator):
        await way.coordinators.ask_transaction(
            there, lambda stub: stub.DecidePrepared, pb.DecidePreparedRequest(token=token)
        )
    request = pb.DescribeTransactionsRequest(transactional_ids=[i])
    (one,) = (
        await way.coordinators.ask_transaction(there, lambda stub: stub.DescribeTransactions, request)
    ).transactions
    assert one.error == ErrorCode.NOT_COORDINATOR


async def test_one_that_is_away_is_an_unknown_outcome(way: World, i: str) -> None:
    topic_id = await begin(way, i)
    at = await place(way, i)
    way.lab.kill_coordinator(at.id)
    with pytest.raises(NetworkFailed):
        await way.coordinators.ask_transaction(
            at, lambda stub: stub.DescribeTransactions, pb.DescribeTransactionsRequest(transactional_ids=[i])
        )
    way.lab.kill(1)
    with pytest.raises(NetworkFailed):
        await mark(way, topic_id, 1, 1)
