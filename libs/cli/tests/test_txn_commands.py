"""Transactions by command: what is asked of the admin client, what is printed, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from libs.cli.tests.conftest import Beside, admin_over
from typer.testing import CliRunner

from headrace.errors import AlreadyDecided
from headrace.transactions import PreparedTransaction
from headrace_cli.app import app
from headrace_cli.commands import txn
from headrace_cli.session import Session
from headrace_common.core.errors import (
    HeadraceError,
    InvalidTxnState,
    TxnVerdictUnknown,
)
from headrace_proto.v1 import admin_pb2, errors_pb2
from headrace_proto.v1 import transaction_pb2 as pb

NOW_MS = 1_700_000_000_000
TOKEN = PreparedTransaction("sink/3", 9, 2, 0xFEEDBEEF)
LOST = admin_pb2.UnansweredShard(
    shard=7,
    error=errors_pb2.ErrorDetail(code=errors_pb2.COORDINATOR_NOT_AVAILABLE, message="no coordinator has shard 7"),
)


def described(i: str, state: pb.TxnState.ValueType, *partitions: int, **more: Any) -> admin_pb2.DescribedTransaction:
    """A transactional id; ``without``: partitions that lack their marker."""
    without = more.pop("without", ())
    fields = {"producer_id": 4, "producer_epoch": 1, "timeout_ms": 60_000, "started_at_ms": NOW_MS - 90_000} | more
    fields.setdefault("prepared_at_ms", -1)
    found = admin_pb2.DescribedTransaction(
        transaction=pb.TransactionDescription(transactional_id=i, state=state, **fields)
    )
    for n in partitions:
        found.partitions.add(topic="t", partition=n, without_marker=n in without)
    return found


ONGOING = described("pay", pb.TXN_ONGOING, 0, 1)
ENDING = described("end", pb.TXN_PREPARE_ABORT, 0, 1, without=(1,))
PREPARED = described(
    "sink/3",
    pb.TXN_PREPARED,
    1,
    producer_id=9,
    producer_epoch=2,
    prepared_at_ms=NOW_MS - 86_400_000,
    token=TOKEN.message(),
)
HANGING = admin_pb2.OpenTransaction(
    topic="t",
    partition=0,
    producer_id=4711,
    producer_epoch=3,
    first_offset=100,
    held_back=23,
    open_since_ms=NOW_MS - 960_000,
    last_write_ms=NOW_MS - 950_000,
    standing=admin_pb2.TXN_HANGING,
)
runner = CliRunner()


class FakeAdmin(Beside):
    """Ids pay (ongoing) and sink/3 (prepared); producer 4711 hangs in t-0. Remembers what was asked."""

    def __init__(self) -> None:
        super().__init__(admin_over(self))
        self.asked: list[Any] = []
        self.missing: list[admin_pb2.UnansweredShard] = []
        self.hanging = [HANGING]
        self.unasked: list[admin_pb2.UnaskedPartitions] = []
        self.refusal: HeadraceError | None = None
        self.empty = False

    def ListTransactions(
        self, request: pb.ListTransactionsRequest, timeout: float
    ) -> admin_pb2.ListClusterTransactionsResponse:
        self.asked.append((list(request.states), list(request.producer_ids), request.older_than_ms))
        answer = admin_pb2.ListClusterTransactionsResponse(unanswered=self.missing)
        for i, state, started_at_ms in (("pay", pb.TXN_ONGOING, NOW_MS - 90_000), ("rest", pb.TXN_EMPTY, -1)):
            listing = pb.TransactionListing(
                transactional_id=i, state=state, producer_id=4, started_at_ms=started_at_ms, prepared_at_ms=-1
            )
            if not self.empty:
                answer.transactions.add(transaction=listing, coordinator=2)
        return answer

    def DescribeTransactions(
        self, request: pb.DescribeTransactionsRequest, timeout: float
    ) -> admin_pb2.DescribeClusterTransactionsResponse:
        (i,) = request.transactional_ids
        found = {"pay": ONGOING, "sink/3": PREPARED, "end": ENDING}.get(i)
        if found is None:
            error, text = errors_pb2.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {i!r}"
            lost = pb.TransactionDescription(transactional_id=i, error=error, message=text)
            found = admin_pb2.DescribedTransaction(transaction=lost)
        return admin_pb2.DescribeClusterTransactionsResponse(transactions=[found])

    def ListPreparedTransactions(
        self, request: admin_pb2.ListPreparedTransactionsRequest, timeout: float
    ) -> admin_pb2.ListPreparedTransactionsResponse:
        self.asked.append(request.older_than_ms)
        return admin_pb2.ListPreparedTransactionsResponse(
            transactions=[PREPARED], unanswered=self.missing, prepared_max_ms=86_400_000
        )

    def ListOpenTransactions(
        self, request: admin_pb2.ListOpenTransactionsRequest, timeout: float
    ) -> admin_pb2.ListOpenTransactionsResponse:
        older_than_ms = request.older_than_ms if request.HasField("older_than_ms") else None
        self.asked.append((list(request.topics), older_than_ms, request.hanging_only))
        answer = admin_pb2.ListOpenTransactionsResponse(unasked=self.unasked, unanswered=self.missing)
        if not request.hanging_only:
            answer.more = 3
            answer.transactions.add().CopyFrom(HANGING)
            known = answer.transactions[0]
            known.standing, known.transactional_id, known.state = admin_pb2.TXN_COORDINATED, "pay", pb.TXN_ONGOING
        answer.transactions.extend(self.hanging)
        return answer

    def AbortTransaction(
        self, request: admin_pb2.AbortClusterTransactionRequest, timeout: float
    ) -> admin_pb2.AbortClusterTransactionResponse:
        named = [getattr(request, n) if request.HasField(n) else None for n in ("producer_id", "producer_epoch")]
        self.asked.append((request.transactional_id, *named, request.validate_only))
        if self.refusal is not None:
            raise self.refusal
        return admin_pb2.AbortClusterTransactionResponse(transaction=ONGOING, aborted=not request.validate_only)

    def AbortHangingTransaction(
        self, request: admin_pb2.AbortHangingTransactionRequest, timeout: float
    ) -> admin_pb2.AbortHangingTransactionResponse:
        producer_id = request.producer_id if request.HasField("producer_id") else None
        where = (request.topic, request.partition)
        self.asked.append((where, producer_id, request.validate_only, request.force))
        if self.refusal is not None:
            raise self.refusal
        return admin_pb2.AbortHangingTransactionResponse(transaction=HANGING, aborted=not request.validate_only)

    def commit_prepared(self, token: PreparedTransaction) -> None:
        self._decided("commit", token)

    def abort_prepared(self, token: PreparedTransaction) -> None:
        self._decided("abort", token)

    def _decided(self, what: str, token: PreparedTransaction) -> None:
        self.asked.append((what, token))
        if self.refusal is not None:
            raise self.refusal


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(Session, "admin", lambda self, **_: fake)
    monkeypatch.setattr(txn, "_now_ms", lambda: NOW_MS)
    return fake


def run(*argv: str, code: int = 0) -> Any:
    result = runner.invoke(app, ["txn", *argv])
    assert result.exit_code == code, result.output
    return result


def data(*argv: str) -> Any:
    return json.loads(run(*argv, "-o", "json").stdout)


def test_transactions_are_listed_and_a_list_that_is_not_whole_says_so_and_ends_with_4(admin: FakeAdmin) -> None:
    shown = run("list", "--state", "ongoing", "--producer-id", "4", "--older-than", "1m").stdout
    assert admin.asked == [([pb.TXN_ONGOING], [4], 60_000)]
    assert "90.00" in shown, "seconds since it was opened"
    rows = data("list")["transactions"]
    assert [(r["transactional_id"], r["started_at_ms"]) for r in rows] == [("pay", NOW_MS - 90_000), ("rest", None)]
    admin.missing = [LOST]
    result = run("list", code=4)
    assert "pay" in result.stdout
    assert "1 shard cannot answer (7)" in result.stderr
    assert "no coordinator has shard 7" in result.stderr


def test_an_empty_list_says_there_are_none_only_where_all_were_asked_for_all(admin: FakeAdmin) -> None:
    admin.empty = True
    assert "there are none" in run("list").stderr
    assert run("list", "--state", "ongoing").stderr == "none of these\n"
    admin.missing = [LOST]
    assert "there are none" not in run("list", code=4).stderr


def test_one_is_described_with_its_partitions(admin: FakeAdmin) -> None:
    shown = run("describe", "pay").stdout
    assert "2023-11-14T22:11:50Z" in shown
    assert "token" not in shown
    assert "WITHOUT MARKER" not in shown
    assert "WITHOUT MARKER" in run("describe", "end").stdout
    assert data("describe", "end")["partitions"][1] == {"topic": "t", "partition": 1, "without_marker": True}
    assert str(TOKEN) in run("describe", "sink/3").stdout
    assert "headrace txn list" in run("describe", "nope", code=3).stderr


def test_prepared_ones_come_with_their_age_and_what_decides_them(admin: FakeAdmin) -> None:
    result = run("prepared", "--older-than", "1h")
    assert admin.asked == [3_600_000]
    assert str(TOKEN) in result.stdout
    assert "headrace txn commit TOKEN" in result.stderr
    assert "86,400.00" in result.stdout
    assert "yes" in result.stdout, "it is overdue"
    (row,) = data("prepared")["transactions"]
    assert (row["prepared_at_ms"], row["token"]) == (NOW_MS - 86_400_000, str(TOKEN))


def test_what_hangs_is_found_with_the_command_that_ends_it(admin: FakeAdmin) -> None:
    result = run("find-hanging", "--topic", "t", "--older-than", "20m")
    assert admin.asked == [(["t"], 1_200_000, True)]
    assert "headrace txn abort --partition t-0 --producer-id 4711" in result.stderr
    assert "960.00" in result.stdout
    (row,) = data("find-hanging")["transactions"]
    assert (row["topic"], row["partition"], row["held_back"], row["standing"]) == ("t", 0, 23, "hanging")
    admin.hanging = []
    assert "nothing hangs" in run("find-hanging").stderr
    lost = errors_pb2.ErrorDetail(code=errors_pb2.LEADER_NOT_AVAILABLE, message="t-1 has no leader now")
    admin.unasked = [admin_pb2.UnaskedPartitions(topic="t", partitions=[1], error=lost)]
    assert "1 partition could not be asked" in run("find-hanging", code=4).stderr


def test_what_is_open_names_whose_it_is(admin: FakeAdmin) -> None:
    result = run("open")
    assert "pay" in result.stdout
    assert "and 3 more" in result.stderr


def test_a_prepared_one_is_decided_by_its_token(admin: FakeAdmin) -> None:
    assert "committed: sink/3" in run("commit", str(TOKEN), "--yes").stderr
    assert "aborted: sink/3" in run("abort", str(TOKEN), "--yes").stderr
    assert admin.asked == [("commit", TOKEN), ("abort", TOKEN)]
    assert data("commit", str(TOKEN), "--yes") == {"transactional_id": "sink/3", "committed": True}
    admin.refusal = AlreadyDecided("the prepared transaction was aborted before; that stands")
    refused = run("commit", str(TOKEN), "--yes", code=1)
    assert "that stands" in refused.stderr
    assert "committed:" not in refused.stderr
    admin.refusal = TxnVerdictUnknown("what became of it is not known")
    assert "headrace txn prepared" in run("commit", str(TOKEN), "--yes", code=1).stderr


def test_a_commit_takes_nothing_but_a_token(admin: FakeAdmin) -> None:
    for text in ("pay", "sink/3", "CgFh"):
        assert "not the token" in run("commit", text, "--yes", code=2).stderr
    assert admin.asked == []


def test_an_abort_by_id_names_the_transaction_that_was_shown(admin: FakeAdmin) -> None:
    dry = run("abort", "pay", "--dry-run")
    assert "nothing was changed" in dry.stderr
    assert admin.asked == [("pay", None, None, True)]
    assert "aborted: pay, in 2 partitions" in run("abort", "pay", "--producer-id", "4", "--yes").stderr
    assert admin.asked[1:] == [("pay", 4, None, True), ("pay", 4, 1, False)]
    admin.refusal = InvalidTxnState("'pay' has no transaction open")
    assert "headrace txn describe" in run("abort", "pay", "--yes", code=1).stderr
    admin.refusal = None
    assert "--yes" in run("abort", str(TOKEN), code=2).stderr, "nobody is there to be asked"


def test_a_dry_run_of_a_token_says_whether_it_is_still_prepared(admin: FakeAdmin) -> None:
    assert "the prepared transaction of sink/3 is aborted" in run("abort", str(TOKEN), "--dry-run").stderr
    other = str(TOKEN._replace(nonce=1))
    assert "nothing happens" in run("abort", other, "--dry-run").stderr
    assert admin.asked == [], "nothing was decided"


def test_what_hangs_is_ended_in_its_partition(admin: FakeAdmin) -> None:
    dry = run("abort", "--partition", "t-0", "--producer-id", "4711", "--dry-run")
    assert "nothing was changed" in dry.stderr
    run("abort", "--partition", "t:0", "--force", "--yes")
    assert admin.asked == [
        (("t", 0), 4711, True, False),
        (("t", 0), None, True, True),
        (("t", 0), 4711, False, True),
    ]


@pytest.mark.parametrize(
    "argv",
    [
        ("abort",),
        ("abort", "pay", "--partition", "t-0"),
        ("abort", "pay", "--force"),
        ("abort", "--partition", "t"),
        ("abort", "--partition", "t-x"),
        ("abort", str(TOKEN), "--producer-id", "1"),
        ("list", "--producer-id", "-1"),
    ],
)
def test_wrong_usage_asks_nothing(admin: FakeAdmin, argv: tuple[str, ...]) -> None:
    run(*argv, code=2)
    assert admin.asked == []
