"""The admin client on transactions: what it asks the admin service, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

import headrace
from headrace import TopicPartition
from headrace.errors import AlreadyDecided
from headrace.transactions import PreparedTransaction
from headrace_common.core.errors import (
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NetworkFailed,
    Rejected,
    TransactionalIdNotFound,
)
from headrace_proto.v1 import admin_pb2 as pb
from headrace_proto.v1 import errors_pb2
from headrace_proto.v1 import transaction_pb2 as txn

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOKEN = PreparedTransaction("sink/3", 9, 2, 0xFEEDBEEF)
LOST = pb.UnansweredShard(
    shard=7, error=errors_pb2.ErrorDetail(code=errors_pb2.COORDINATOR_NOT_AVAILABLE, message="nobody has shard 7")
)


class FakeStub:
    """Ids pay (ongoing, ending in t-1) and sink/3 (prepared). Remembers the requests."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.committed = True
        self.silent = 0

    def _heard(self, request: Any) -> None:
        self.asked.append(request)
        if self.silent:
            self.silent -= 1
            raise AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "the connection broke")

    async def ListTransactions(self, request: Any, timeout: float) -> Any:
        self._heard(request)
        listing = txn.TransactionListing(
            transactional_id="pay", producer_id=4, state=txn.TXN_ONGOING, started_at_ms=5, prepared_at_ms=-1
        )
        new = txn.TransactionListing(transactional_id="x", started_at_ms=-1, prepared_at_ms=-1)
        new.ParseFromString(new.SerializeToString() + b"\x18\x63")  # a state of a later version
        return pb.ListClusterTransactionsResponse(
            transactions=[pb.ListedTransaction(transaction=t, coordinator=1) for t in (listing, new)], unanswered=[LOST]
        )

    def _described(self, i: str) -> pb.DescribedTransaction:
        known = {
            "pay": txn.TransactionDescription(
                transactional_id="pay", state=txn.TXN_PREPARE_ABORT, started_at_ms=5, prepared_at_ms=-1
            ),
            "sink/3": txn.TransactionDescription(
                transactional_id="sink/3",
                state=txn.TXN_PREPARED,
                started_at_ms=5,
                prepared_at_ms=6,
                token=TOKEN.message(),
            ),
        }
        if i not in known:
            unknown = txn.TransactionDescription(transactional_id=i, error=errors_pb2.TRANSACTIONAL_ID_NOT_FOUND)
            return pb.DescribedTransaction(transaction=unknown)
        partitions = [pb.TransactionPartition(topic="t", partition=n, without_marker=n == 1) for n in (0, 1)]
        return pb.DescribedTransaction(transaction=known[i], partitions=partitions)

    async def DescribeTransactions(self, request: Any, timeout: float) -> Any:
        self._heard(request)
        return pb.DescribeClusterTransactionsResponse(
            transactions=[self._described(i) for i in request.transactional_ids]
        )

    async def ListPreparedTransactions(self, request: Any, timeout: float) -> Any:
        self._heard(request)
        return pb.ListPreparedTransactionsResponse(
            transactions=[self._described("sink/3")], unanswered=[LOST], prepared_max_ms=77
        )

    async def ListOpenTransactions(self, request: Any, timeout: float) -> Any:
        self._heard(request)
        known = pb.OpenTransaction(
            topic="t",
            partition=0,
            producer_id=4,
            first_offset=100,
            held_back=23,
            standing=pb.TXN_COORDINATED,
            transactional_id="pay",
            state=txn.TXN_ONGOING,
        )
        hanging = pb.OpenTransaction(topic="t", partition=1, producer_id=5, standing=pb.TXN_HANGING)
        lost = errors_pb2.ErrorDetail(code=errors_pb2.LEADER_NOT_AVAILABLE, message="nobody leads t")
        return pb.ListOpenTransactionsResponse(
            transactions=[known, hanging],
            more=3,
            unasked=[pb.UnaskedPartitions(topic="t", partitions=[2, 3], error=lost)],
            unanswered=[LOST],
        )

    async def DecidePrepared(self, request: Any, timeout: float) -> Any:
        self._heard(request)
        return txn.DecidePreparedResponse(committed=self.committed)

    async def AbortTransaction(self, request: Any, timeout: float) -> Any:
        self._heard(request)
        return pb.AbortClusterTransactionResponse(transaction=self._described("pay"), aborted=not request.validate_only)

    async def AbortHangingTransaction(self, request: Any, timeout: float) -> Any:
        self._heard(request)
        hanging = pb.OpenTransaction(topic=request.topic, partition=request.partition, producer_id=5)
        return pb.AbortHangingTransactionResponse(transaction=hanging)


class FakeTransport:
    """Only the way to the admin service."""

    def __init__(self, stub: FakeStub) -> None:
        self._stub = stub

    async def admin(self) -> FakeStub:
        return self._stub

    async def close(self) -> None:
        pass


@pytest.fixture
def stub() -> FakeStub:
    return FakeStub()


@pytest.fixture
def admin(stub: FakeStub) -> Iterator[headrace.AdminClient]:
    transport: Any = FakeTransport(stub)
    with headrace.AdminClient(_transport=transport, default_api_timeout_ms=5_000) as client:
        yield client


def test_a_list_with_what_is_missing(admin: headrace.AdminClient, stub: FakeStub) -> None:
    found = admin.list_transactions(states=["ongoing"], producer_ids=[4], older_than=timedelta(seconds=2))
    pay, new = found.transactions
    assert (pay.transactional_id, pay.state, pay.started_at_ms, pay.prepared_at_ms) == ("pay", "ongoing", 5, None)
    assert new.state == "unknown"
    (missing,) = found.missing
    assert (missing.shard, type(missing.error)) == (7, CoordinatorNotAvailable)
    (asked,) = stub.asked
    assert (list(asked.states), list(asked.producer_ids), asked.older_than_ms) == ([txn.TXN_ONGOING], [4], 2_000)
    with pytest.raises(Rejected, match="there are: empty, ongoing, prepared"):
        admin.list_transactions(states=["happy"])


def test_one_with_its_partitions(admin: headrace.AdminClient) -> None:
    pay = admin.describe_transaction("pay")
    assert (pay.partitions, pay.without_marker, pay.token, pay.prepared_at_ms) == ((T0, T1), (T1,), None, None)
    assert admin.describe_transaction("sink/3").token == TOKEN
    with pytest.raises(TransactionalIdNotFound):
        admin.describe_transaction("nope")
    assert isinstance(admin.describe_transactions(["pay", "nope"])["nope"], TransactionalIdNotFound)


@pytest.mark.parametrize(("older", "ms"), [("1h30m", 5_400_000), (timedelta(minutes=1), 60_000), (7, 7), (0, 0)])
def test_ages_are_said_as_people_do(admin: headrace.AdminClient, stub: FakeStub, older: Any, ms: int) -> None:
    found = admin.list_prepared_transactions(older_than=older)
    assert (found.prepared_max_ms, [t.token for t in found.transactions], len(found.missing)) == (77, [TOKEN], 1)
    assert stub.asked[0].older_than_ms == ms
    wrong: list[Any] = [-1, timedelta(seconds=-1), "soon"]
    for one in wrong:
        with pytest.raises(Rejected):
            admin.list_prepared_transactions(older_than=one)


def test_what_is_open_and_what_hangs(admin: headrace.AdminClient, stub: FakeStub) -> None:
    found = admin.list_open_transactions("t", older_than="10s")
    known, hanging = found.transactions
    assert (known.partition, known.transactional_id, known.state, known.standing) == (
        T0,
        "pay",
        "ongoing",
        "coordinated",
    )
    assert (hanging.partition, hanging.transactional_id, hanging.state, hanging.standing) == (T1, None, None, "hanging")
    assert (found.more, [type(e) for e in found.unasked.values()]) == (3, [LeaderNotAvailable] * 2)
    admin.find_hanging_transactions()
    admin.find_hanging_transactions(["t"], older_than=0)
    asked = [(list(r.topics), r.hanging_only, r.HasField("older_than_ms") and r.older_than_ms) for r in stub.asked]
    assert asked == [(["t"], False, 10_000), ([], True, False), (["t"], True, 0)]


def test_a_token_in_any_form_decides_and_a_lost_answer_is_asked_again(
    admin: headrace.AdminClient, stub: FakeStub
) -> None:
    for form in (TOKEN, str(TOKEN), bytes(TOKEN)):
        admin.commit_prepared(form)
    stub.silent = 1
    admin.commit_prepared(TOKEN)
    assert [(r.token, r.commit) for r in stub.asked] == [(TOKEN.message(), True)] * 5
    with pytest.raises(AlreadyDecided):
        admin.abort_prepared(TOKEN)
    stub.committed = False
    admin.abort_prepared(TOKEN)
    with pytest.raises(Rejected):
        admin.commit_prepared("pay")


def test_an_abort_is_sent_once(admin: headrace.AdminClient, stub: FakeStub) -> None:
    before = admin.abort_transaction("pay", validate_only=True)
    assert (before.state, stub.asked[-1].HasField("producer_id"), stub.asked[-1].validate_only) == (
        "prepare_abort",
        False,
        True,
    )
    admin.abort_transaction("pay", producer_id=0, producer_epoch=3)
    assert (stub.asked[-1].HasField("producer_id"), stub.asked[-1].producer_epoch) == (True, 3)
    stub.silent = 1
    with pytest.raises(NetworkFailed, match="may have been made: look before you ask again"):
        admin.abort_transaction("pay")
    assert len(stub.asked) == 3
    assert admin.abort_hanging_transaction(("t", 1), force=True).partition == T1
    assert (stub.asked[-1].force, stub.asked[-1].HasField("producer_id")) == (True, False)
    stub.silent = 1
    with pytest.raises(NetworkFailed):
        admin.abort_hanging_transaction(T1, 5)
    assert len(stub.asked) == 5
