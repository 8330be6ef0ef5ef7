"""Transactions in a cluster that decides who may what, beyond what each operation asks for."""

from __future__ import annotations

from typing import Any

import pytest
from services.coordinator.tests.kit.closed import NOBODY, Closed, Granted, as_node, as_user, closed_coordinator
from services.coordinator.tests.kit.ports import topic_id_of
from services.coordinator.tests.kit.processes import answered

from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import ErrorCode, TransactionalIdAuthorizationFailed
from headrace_common.core.image import Role
from headrace_proto.v1 import transaction_pb2 as pb

SERVICE = "TransactionCoordinator"


def on(id: str, operation: Operation) -> Granted:
    return (ResourceType.TRANSACTIONAL_ID, id, operation)


async def opened(world: Closed, id: str) -> pb.InitTransactionalIdResponse:
    """An open transaction, made while the cluster is open."""
    world.turn(Mode.OPEN)
    world.running.cluster.lead("t", 0, 1)
    stub: Any = await world.stub(NOBODY, SERVICE)
    request = pb.InitTransactionalIdRequest(transactional_id=id, transaction_timeout_ms=60_000)
    made: pb.InitTransactionalIdResponse = await answered(stub.InitTransactionalId(request))
    broker = await world.stub(as_node(Role.BROKER), SERVICE)
    one = pb.TxnPartitions(
        transactional_id=id,
        producer_id=made.producer_id,
        producer_epoch=made.producer_epoch,
        partitions=[pb.TxnPartition(topic_id=topic_id_of("t"))],
    )
    await answered(broker.AddPartitionsToTxn(pb.AddPartitionsToTxnRequest(transactions=[one])))
    world.turn(Mode.CLOSED)
    return made


def end(id: str, producer: pb.InitTransactionalIdResponse) -> pb.EndTxnRequest:
    return pb.EndTxnRequest(
        transactional_id=id, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, commit=True
    )


async def test_a_stream_of_ends_asks_for_each_id_and_goes_on_after_a_refusal() -> None:
    async with closed_coordinator({"t": 1}) as world:
        ours, theirs = await opened(world, "ours"), await opened(world, "theirs")
        world.grant("alice", on("ours", Operation.WRITE))
        stream = (await world.stub(as_user("alice"), SERVICE)).End()
        await stream.write(pb.EndRequest(correlation_id=1, ask=end("theirs", theirs)))
        refused = await stream.read()
        denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (refused.correlation_id, refused.error.code) == (1, denied)
        await stream.write(pb.EndRequest(correlation_id=2, ask=end("ours", ours)))
        ended = await stream.read()
        assert (ended.correlation_id, ended.answer.producer_epoch) == (2, 1)
        world.grant("alice")
        await stream.write(pb.EndRequest(correlation_id=3, ask=end("ours", ours)))
        assert (await stream.read()).error.code == denied, "a right that is taken away counts from the next request"
        stream.cancel()
        states = {one.transactional_id: one.state for one in world.running.transactions.list_transactions([], [], 0)[0]}
        assert states["theirs"].name == "ONGOING"


async def test_the_token_of_a_prepared_transaction_is_for_who_may_decide_it() -> None:
    async with closed_coordinator({"t": 1}) as world:
        made = await opened(world, "x")
        world.grant("alice", on("x", Operation.WRITE))
        world.grant("bob", on("x", Operation.DESCRIBE))
        prepare = pb.PrepareTxnRequest(
            transactional_id="x", producer_id=made.producer_id, producer_epoch=made.producer_epoch
        )
        token = (await answered((await world.stub(as_user("alice"), SERVICE)).PrepareTxn(prepare))).token
        asked = pb.DescribeTransactionsRequest(transactional_ids=["x"])
        shown = {}
        for who in ("alice", "bob", None):
            stub = await world.stub(as_node(Role.ADMIN, who), SERVICE)
            (found,) = (await answered(stub.DescribeTransactions(asked))).transactions
            assert found.state == pb.TXN_PREPARED
            shown[who] = found.token if found.HasField("token") else None
        assert shown == {"alice": token, "bob": None, None: None}
        decide = pb.DecidePreparedRequest(token=token, commit=True)
        with pytest.raises(TransactionalIdAuthorizationFailed):
            await answered((await world.stub(as_user("bob"), SERVICE)).DecidePrepared(decide))
        assert (await answered((await world.stub(as_user("alice"), SERVICE)).DecidePrepared(decide))).committed


async def test_ids_of_one_request_are_decided_one_by_one() -> None:
    async with closed_coordinator({"t": 1}) as world:
        for id in ("x", "y"):
            await opened(world, id)
        world.grant("alice", on("y", Operation.DESCRIBE))
        stub = await world.stub(as_node(Role.ADMIN, "alice"), SERVICE)
        listed = (await answered(stub.ListTransactions(pb.ListTransactionsRequest()))).transactions
        assert [one.transactional_id for one in listed] == ["y"]
        asked = pb.DescribeTransactionsRequest(transactional_ids=["x", "y", "none"])
        denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        found = (await stub.DescribeTransactions(asked)).transactions
        assert [(one.transactional_id, one.error) for one in found] == [("x", denied), ("y", 0), ("none", denied)]
        world.turn(Mode.PERMISSIVE)
        listed = (await answered(stub.ListTransactions(pb.ListTransactionsRequest()))).transactions
        assert [one.transactional_id for one in listed] == ["x", "y"]
        assert not world.access.control.report().refusals, "nobody asked for x"


async def test_who_may_alter_the_cluster_aborts_any_transaction() -> None:
    async with closed_coordinator({"t": 1}) as world:
        await opened(world, "x")
        abort = pb.AbortTransactionRequest(transactional_id="x")
        stub = await world.stub(as_node(Role.ADMIN, "alice"), SERVICE)
        world.grant("alice", on("y", Operation.WRITE))
        with pytest.raises(TransactionalIdAuthorizationFailed):
            await answered(stub.AbortTransaction(abort))
        world.grant("alice", (ResourceType.CLUSTER, CLUSTER_NAME, Operation.ALTER))
        await answered(stub.AbortTransaction(abort))


async def test_a_right_on_an_owner_commits_its_units_and_is_none_on_its_ids() -> None:
    async with closed_coordinator({"t": 1}) as world:
        world.grant("alice", on("job", Operation.WRITE))
        stub = await world.stub(as_user("alice"), SERVICE)
        epoch = (await answered(stub.InitOwner(pb.InitOwnerRequest(owner="job")))).owner_epoch
        assert not (await answered(stub.CommitUnit(pb.CommitUnitRequest(owner="job", owner_epoch=epoch)))).ListFields()
        init = pb.InitTransactionalIdRequest(transactional_id="job/1", transaction_timeout_ms=60_000, owner_epoch=epoch)
        with pytest.raises(TransactionalIdAuthorizationFailed):
            await answered(stub.InitTransactionalId(init))
