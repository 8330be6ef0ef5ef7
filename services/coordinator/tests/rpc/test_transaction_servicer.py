"""The service of transactions over a loopback connection: each call, and what no client may send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.message import Message
from services.coordinator.tests.kit.dialogue import Running, serving_coordinator
from services.coordinator.tests.kit.ports import topic_id_of
from services.coordinator.tests.kit.processes import answered

from headrace_common.core.errors import (
    ErrorCode,
    FencedOwner,
    HeadraceError,
    InvalidTransactionTimeout,
    InvalidTxnState,
    Rejected,
    TransactionalIdNotFound,
    TxnVerdictUnknown,
)
from headrace_proto.v1 import transaction_pb2 as pb
from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorStub

T = topic_id_of("t")
PARTITION = pb.TxnPartition(topic_id=T, partition=0)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with serving_coordinator({"t": 1}) as found:
        found.cluster.lead("t", 0, 1)
        yield found


@pytest.fixture
async def stub(running: Running) -> AsyncIterator[Any]:
    channel = running.channel()
    yield TransactionCoordinatorStub(channel)
    await channel.close()


def init(id: str = "x", timeout_ms: int = 60_000, **fields: Any) -> pb.InitTransactionalIdRequest:
    return pb.InitTransactionalIdRequest(transactional_id=id, transaction_timeout_ms=timeout_ms, **fields)


async def begun(stub: Any, id: str = "x", **fields: Any) -> pb.InitTransactionalIdResponse:
    """An open transaction."""
    found: pb.InitTransactionalIdResponse = await answered(stub.InitTransactionalId(init(id, **fields)))
    enrolled = await answered(stub.AddPartitionsToTxn(enrolment(id, found)))
    assert [one.error for one in enrolled.transactions] == [0]
    return found


def enrolment(
    id: str, producer: pb.InitTransactionalIdResponse, *partitions: pb.TxnPartition
) -> pb.AddPartitionsToTxnRequest:
    one = pb.TxnPartitions(
        transactional_id=id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        partitions=partitions or [PARTITION],
    )
    return pb.AddPartitionsToTxnRequest(transactions=[one])


def end(id: str, producer: pb.InitTransactionalIdResponse, *, commit: bool = True) -> pb.EndTxnRequest:
    return pb.EndTxnRequest(
        transactional_id=id, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, commit=commit
    )


def prepare(id: str, producer: pb.InitTransactionalIdResponse, **fields: Any) -> pb.PrepareTxnRequest:
    return pb.PrepareTxnRequest(
        transactional_id=id, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, **fields
    )


async def test_begin_enrol_end(running: Running, stub: Any) -> None:
    producer = await begun(stub)
    following = await answered(stub.EndTxn(end("x", producer)))
    assert (following.producer_id, following.producer_epoch) == (producer.producer_id, 1)
    await running.brokers.markers.until_written(1)
    ((id, marker),) = running.brokers.markers.written
    assert (id.topic_id, marker.epoch, marker.commit) == (T, 1, True)
    refused = await answered(stub.AddPartitionsToTxn(enrolment("x", producer)))
    assert [(one.error, bool(one.message)) for one in refused.transactions] == [
        (ErrorCode.INVALID_PRODUCER_EPOCH, True)
    ]


async def test_enrol_and_end_over_streams(running: Running, stub: Any) -> None:
    producer = await answered(stub.InitTransactionalId(init()))
    enrolling, ending = stub.Enrol(), stub.End()
    enrolled = await said(enrolling, pb.EnrolRequest(correlation_id=5, ask=enrolment("x", producer)))
    assert (enrolled.correlation_id, [one.error for one in enrolled.answer.transactions]) == (5, [0])
    ended = await said(ending, pb.EndRequest(correlation_id=7, ask=end("x", producer)))
    assert (ended.correlation_id, ended.answer.producer_epoch) == (7, 1)
    await running.brokers.markers.until_written(1)
    again = await said(ending, pb.EndRequest(correlation_id=8, ask=end("x", producer)))
    assert again.answer == ended.answer
    assert (await answered(stub.EndTxn(end("x", producer)))) == ended.answer, "and by a call"
    refused = await said(ending, pb.EndRequest(correlation_id=9, ask=end("x", producer, commit=False)))
    assert (refused.correlation_id, refused.error.code) == (9, ErrorCode.INVALID_TXN_STATE)
    wrong = await said(enrolling, pb.EnrolRequest(correlation_id=10))
    assert (wrong.correlation_id, wrong.error.code) == (10, ErrorCode.INVALID_REQUEST)


async def said(call: Any, request: Any) -> Any:
    """What is answered on a stream."""
    await call.write(request)
    return await asyncio.wait_for(call.read(), 20)


async def test_prepare_decide_and_ask_again(stub: Any) -> None:
    producer = await begun(stub)
    token = (await answered(stub.PrepareTxn(prepare("x", producer)))).token
    assert (token.transactional_id, token.producer_epoch) == ("x", 0)
    with pytest.raises(InvalidTxnState):
        await answered(stub.EndTxn(end("x", producer)))
    decided = await answered(stub.DecidePrepared(pb.DecidePreparedRequest(token=token, commit=True)))
    assert (decided.committed, decided.producer_epoch) == (True, 1)
    again = await answered(stub.DecidePrepared(pb.DecidePreparedRequest(token=token)))
    assert again.committed
    token.nonce ^= 1
    with pytest.raises(TxnVerdictUnknown):
        await answered(stub.DecidePrepared(pb.DecidePreparedRequest(token=token)))


async def test_the_token_of_a_prepared_transaction_comes_with_the_next_init(stub: Any) -> None:
    token = (await answered(stub.PrepareTxn(prepare("x", await begun(stub))))).token
    found = await answered(stub.InitTransactionalId(init()))
    assert found.prepared == token
    decided = await answered(stub.DecidePrepared(pb.DecidePreparedRequest(token=token)))
    assert (decided.committed, decided.producer_id, decided.producer_epoch) == (False, -1, -1)


async def test_units(stub: Any) -> None:
    owner = await answered(stub.InitOwner(pb.InitOwnerRequest(owner="job")))
    assert owner.last_sequence == -1
    epoch = {"owner_epoch": owner.owner_epoch}
    producer = await begun(stub, "job/1", **epoch)
    token = (await answered(stub.PrepareTxn(prepare("job/1", producer, **epoch)))).token
    unit = pb.CommitUnitRequest(owner="job", sequence=7, tokens=[token], **epoch)
    assert not (await answered(stub.CommitUnit(unit))).repeated_sequence
    assert (await answered(stub.CommitUnit(unit))).repeated_sequence
    newer = await answered(stub.InitOwner(pb.InitOwnerRequest(owner="job")))
    assert (newer.owner_epoch, newer.last_sequence) == (owner.owner_epoch + 1, 7)
    with pytest.raises(FencedOwner):
        await answered(stub.CommitUnit(unit))
    claim = pb.InitOwnerRequest(owner="job", claim=0)
    claimed = await answered(stub.InitOwner(claim))
    assert (claimed.owner_epoch, claimed.last_sequence) == (newer.owner_epoch + 1, 7)
    assert await answered(stub.InitOwner(claim)) == claimed
    assert (await answered(stub.InitOwner(pb.InitOwnerRequest(owner="job", claim=9 << 20)))).owner_epoch == 3
    with pytest.raises(FencedOwner, match="claim with more than 9437184"):
        await answered(stub.InitOwner(claim))


async def test_list_describe_abort(running: Running, stub: Any) -> None:
    producer = await begun(stub)
    listed = (await answered(stub.ListTransactions(pb.ListTransactionsRequest()))).transactions
    assert [(one.transactional_id, one.state, one.prepared_at_ms) for one in listed] == [("x", pb.TXN_ONGOING, -1)]
    assert listed[0].started_at_ms > 0
    asks = pb.DescribeTransactionsRequest(transactional_ids=["x", "nobody"])
    found, missing = (await answered(stub.DescribeTransactions(asks))).transactions
    assert (found.state, list(found.partitions), found.timeout_ms) == (pb.TXN_ONGOING, [PARTITION], 60_000)
    assert (found.coordinator, found.shard) == (1, running.transactions.shard_of("x"))
    assert missing.error == TransactionalIdNotFound.code
    abort = pb.AbortTransactionRequest(transactional_id="x", producer_id=producer.producer_id, producer_epoch=5)
    with pytest.raises(InvalidTxnState):
        await answered(stub.AbortTransaction(abort))
    await answered(stub.AbortTransaction(pb.AbortTransactionRequest(transactional_id="x")))
    await running.brokers.markers.until_written(1)
    assert not running.brokers.markers.written[0][1].commit


async def test_a_timeout_that_is_too_long_is_refused(stub: Any) -> None:
    with pytest.raises(InvalidTransactionTimeout):
        await answered(stub.InitTransactionalId(init(timeout_ms=900_001)))


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("InitTransactionalId", init("")),
        ("InitTransactionalId", init("x" * 250)),
        ("InitTransactionalId", init("/suffix")),
        ("InitTransactionalId", init("owner/")),
        ("InitTransactionalId", init("owner/suffix")),
        ("AddPartitionsToTxn", pb.AddPartitionsToTxnRequest()),
        (
            "AddPartitionsToTxn",
            pb.AddPartitionsToTxnRequest(transactions=[pb.TxnPartitions(transactional_id="x", producer_id=1)]),
        ),
        (
            "AddPartitionsToTxn",
            enrolment("x", pb.InitTransactionalIdResponse(producer_id=1), pb.TxnPartition(topic_id=b"short")),
        ),
        (
            "AddPartitionsToTxn",
            enrolment("x", pb.InitTransactionalIdResponse(producer_id=1), pb.TxnPartition(topic_id=T, partition=-1)),
        ),
        ("EndTxn", pb.EndTxnRequest(transactional_id="x", producer_id=-1)),
        ("EndTxn", pb.EndTxnRequest(transactional_id="x", producer_epoch=40_000)),
        ("PrepareTxn", pb.PrepareTxnRequest(transactional_id="")),
        ("DecidePrepared", pb.DecidePreparedRequest()),
        ("DecidePrepared", pb.DecidePreparedRequest(token=pb.PreparedToken(transactional_id="x"))),
        ("InitOwner", pb.InitOwnerRequest()),
        ("InitOwner", pb.InitOwnerRequest(owner="a/b")),
        ("InitOwner", pb.InitOwnerRequest(owner="job", claim=-1)),
        ("CommitUnit", pb.CommitUnitRequest(owner="o", sequence=-1)),
        (
            "CommitUnit",
            pb.CommitUnitRequest(owner="o", tokens=[pb.PreparedToken(transactional_id="other/x", nonce=1)]),
        ),
        ("CommitUnit", pb.CommitUnitRequest(owner="o", tokens=2 * [pb.PreparedToken(transactional_id="o/x", nonce=1)])),
        ("ListTransactions", pb.ListTransactionsRequest(states=[pb.TXN_STATE_UNSPECIFIED])),
        ("ListTransactions", pb.ListTransactionsRequest(older_than_ms=-1)),
        ("DescribeTransactions", pb.DescribeTransactionsRequest()),
        ("AbortTransaction", pb.AbortTransactionRequest()),
    ],
)
async def test_what_no_client_may_send(stub: Any, method: str, request_: Message) -> None:
    with pytest.raises(HeadraceError) as caught:
        await answered(getattr(stub, method)(request_))
    assert isinstance(caught.value, Rejected)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
