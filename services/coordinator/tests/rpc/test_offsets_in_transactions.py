"""TxnOffsetCommit and WriteTxnMarkers over a loopback connection, with the transactions' coordinator of the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from services.coordinator.tests.kit.dialogue import Running, serving_coordinator
from services.coordinator.tests.kit.ports import topic_id_of

from headrace_common.core.errors import ErrorCode, HeadraceError, InvalidGroupId, Rejected
from headrace_common.core.image import INTERNAL_TOPICS, ShardKind
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1 import transaction_pb2 as txn_pb
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub
from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorStub

GROUP = "g"
ID = "tid"
E = ErrorCode
GROUPS_TOPIC = topic_id_of(INTERNAL_TOPICS[ShardKind.GROUPS])


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with serving_coordinator({"t": 4}) as world:
        yield world


@pytest.fixture
async def channel(running: Running) -> AsyncIterator[Any]:
    async with running.channel() as channel:
        yield channel


@pytest.fixture
def groups(channel: Any) -> Any:
    return CoordinatorStub(channel)


@pytest.fixture
def transactions(channel: Any) -> Any:
    return TransactionCoordinatorStub(channel)


def pending(producer: Any, offset: int, **fields: Any) -> pb.TxnOffsetCommitRequest:
    said = {
        "group_id": GROUP,
        "generation": -1,
        "transactional_id": ID,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "offsets": [pb.OffsetCommit(topic="t", partition=1, offset=offset, leader_epoch=-1, metadata="m")],
    }
    return pb.TxnOffsetCommitRequest(**said | fields)


async def init(transactions: Any) -> Any:
    request = txn_pb.InitTransactionalIdRequest(transactional_id=ID, transaction_timeout_ms=60_000)
    return await transactions.InitTransactionalId(request)


async def fetch(groups: Any, *, require_stable: bool = True) -> list[tuple[int, int, int, str]]:
    partitions = [pb.TopicPartitions(topic="t", partitions=[1])]
    request = pb.FetchOffsetsRequest(group_id=GROUP, partitions=partitions, require_stable=require_stable)
    answer = await groups.FetchOffsets(request)
    return [(one.partition, one.error, one.offset, one.metadata) for one in answer.offsets]


async def until_stable(groups: Any) -> list[tuple[int, int, int, str]]:
    async with asyncio.timeout(10):
        while (found := await fetch(groups))[0][1] == E.UNSTABLE_OFFSET_COMMIT:
            await asyncio.sleep(0.005)
    return found


async def failure(call: Any) -> HeadraceError:
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return error_from_rpc(caught.value)


@pytest.mark.parametrize("commit", [True, False])
async def test_positions_are_pending_until_the_transaction_has_ended(
    groups: Any, transactions: Any, commit: bool
) -> None:
    producer = await init(transactions)
    assert [r.error for r in (await groups.TxnOffsetCommit(pending(producer, 5))).results] == [0]
    assert await fetch(groups) == [(1, E.UNSTABLE_OFFSET_COMMIT, -1, "")]
    assert await fetch(groups, require_stable=False) == [(1, 0, -1, "")]
    described = await transactions.DescribeTransactions(txn_pb.DescribeTransactionsRequest(transactional_ids=[ID]))
    (enrolled,) = described.transactions[0].partitions
    assert enrolled.topic_id == GROUPS_TOPIC
    ended = await transactions.EndTxn(
        txn_pb.EndTxnRequest(
            transactional_id=ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            commit=commit,
        )
    )
    assert await until_stable(groups) == [(1, 0, 5, "m") if commit else (1, 0, -1, "")]
    late = (await groups.TxnOffsetCommit(pending(producer, 6))).results
    assert [(r.topic, r.partition, r.error) for r in late] == [("t", 1, E.INVALID_PRODUCER_EPOCH)]
    assert [r.error for r in (await groups.TxnOffsetCommit(pending(ended, 7))).results] == [0]


async def test_a_member_id_that_is_none_is_told_so(groups: Any, transactions: Any) -> None:
    producer = await init(transactions)
    results = (await groups.TxnOffsetCommit(pending(producer, 5, member_id="ghost", generation=1))).results
    assert [r.error for r in results] == [E.UNKNOWN_MEMBER_ID]


async def test_a_producer_that_the_coordinator_does_not_know(groups: Any) -> None:
    nobody = txn_pb.InitTransactionalIdResponse(producer_id=5, producer_epoch=0)
    (result,) = (await groups.TxnOffsetCommit(pending(nobody, 5))).results
    assert result.error == E.INVALID_PRODUCER_ID_MAPPING
    assert result.message


async def test_an_operator_ends_what_hangs(groups: Any, transactions: Any, running: Running) -> None:
    producer = await init(transactions)
    await groups.TxnOffsetCommit(pending(producer, 5))
    shard = running.coordinator.shard_of(GROUP)
    partitions = [
        txn_pb.TxnPartition(topic_id=GROUPS_TOPIC, partition=shard),
        txn_pb.TxnPartition(topic_id=GROUPS_TOPIC, partition=99),
        txn_pb.TxnPartition(topic_id=bytes(16), partition=0),
    ]

    def marker(epoch: int) -> txn_pb.TxnMarker:
        return txn_pb.TxnMarker(producer_id=producer.producer_id, producer_epoch=epoch, partitions=partitions)

    request = txn_pb.WriteTxnMarkersRequest(markers=[marker(0), marker(1)])
    answer = await groups.WriteTxnMarkers(request)
    assert [[one.error for one in result.partitions] for result in answer.markers] == [
        [E.INVALID_PRODUCER_EPOCH, E.NOT_COORDINATOR, E.UNKNOWN_TOPIC_ID],
        [0, E.NOT_COORDINATOR, E.UNKNOWN_TOPIC_ID],
    ]
    stream = groups.Mark()
    await stream.write(txn_pb.MarkRequest(correlation_id=3, ask=request))
    again = await asyncio.wait_for(stream.read(), 20)
    assert (again.correlation_id, again.answer.markers[1]) == (3, answer.markers[1]), "over a stream"
    assert await fetch(groups) == [(1, 0, -1, "")]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, InvalidGroupId),
        ({"transactional_id": ""}, Rejected),
        ({"transactional_id": "x" * 250}, Rejected),
        ({"producer_id": -1}, Rejected),
        ({"producer_epoch": -1}, Rejected),
        ({"producer_epoch": 32_768}, Rejected),
        ({"offsets": []}, Rejected),
        ({"offsets": [pb.OffsetCommit(topic="t")] * 10_001}, Rejected),
        ({"group_instance_id": ""}, Rejected),
    ],
)
async def test_what_no_client_may_send(groups: Any, fields: dict[str, Any], error: type[HeadraceError]) -> None:
    nobody = txn_pb.InitTransactionalIdResponse(producer_id=5, producer_epoch=0)
    assert type(await failure(groups.TxnOffsetCommit(pending(nobody, 5, **fields)))) is error


@pytest.mark.parametrize(
    "markers",
    [
        [],
        [txn_pb.TxnMarker()] * 10_001,
        [txn_pb.TxnMarker(producer_id=1, producer_epoch=1)],
        [txn_pb.TxnMarker(producer_id=-1, partitions=[txn_pb.TxnPartition(topic_id=bytes(16))])],
        [txn_pb.TxnMarker(producer_epoch=40_000, partitions=[txn_pb.TxnPartition(topic_id=bytes(16))])],
        [txn_pb.TxnMarker(partitions=[txn_pb.TxnPartition(topic_id=b"short")])],
        [txn_pb.TxnMarker(partitions=[txn_pb.TxnPartition(topic_id=bytes(16), partition=-1)])],
    ],
)
async def test_what_no_coordinator_sends(groups: Any, markers: list[txn_pb.TxnMarker]) -> None:
    assert type(await failure(groups.WriteTxnMarkers(txn_pb.WriteTxnMarkersRequest(markers=markers)))) is Rejected
