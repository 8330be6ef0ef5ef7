"""Transactions by command: what is asked of the admin client, what is printed, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.admin_transaction_types import (
    OpenList,
    OpenTransaction,
    PreparedList,
    TransactionDescription,
    TransactionInfo,
    TransactionList,
)
from headrace.errors import AlreadyDecided
from headrace.group_types import MissingShard
from headrace.records import TopicPartition
from headrace.transactions import PreparedTransaction
from headrace_cli.app import app
from headrace_cli.commands import txn
from headrace_cli.session import Session
from headrace_common.core.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidTxnState,
    LeaderNotAvailable,
    TransactionalIdNotFound,
    TxnVerdictUnknown,
)

NOW_MS = 1_700_000_000_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOKEN = PreparedTransaction("sink/3", 9, 2, 0xFEEDBEEF)
LOST = MissingShard(7, None, CoordinatorNotAvailable("no coordinator has shard 7"))
ONGOING = TransactionDescription("pay", "ongoing", 4, 1, 60_000, NOW_MS - 90_000, None, 2, 7, (T0, T1), (), None)
PREPARED = TransactionDescription(
    "sink/3", "prepared", 9, 2, 60_000, NOW_MS - 99_000, NOW_MS - 86_400_000, 2, 7, (T1,), (), TOKEN
)
ENDING = replace(ONGOING, state="prepare_abort", without_marker=(T1,))
HANGING = OpenTransaction(T0, 4711, 3, 100, 23, NOW_MS - 960_000, NOW_MS - 950_000, "hanging", None, None)
runner = CliRunner()


class FakeAdmin:
    """Ids pay (ongoing) and sink/3 (prepared); producer 4711 hangs in t-0. Remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.missing: tuple[MissingShard, ...] = ()
        self.hanging: tuple[OpenTransaction, ...] = (HANGING,)
        self.unasked: dict[TopicPartition, HeadraceError] = {}
        self.refusal: HeadraceError | None = None
        self.empty = False

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def list_transactions(self, **how: Any) -> TransactionList:
        self.asked.append(how)
        if self.empty:
            return TransactionList((), self.missing)
        pay = TransactionInfo("pay", "ongoing", 4, 1, NOW_MS - 90_000, None, 2)
        return TransactionList((pay, TransactionInfo("rest", "empty", 5, 0, None, None, 2)), self.missing)

    def describe_transaction(self, i: str) -> TransactionDescription:
        found = {"pay": ONGOING, "sink/3": PREPARED, "end": ENDING}.get(i)
        if found is None:
            raise TransactionalIdNotFound(f"there is no transactional id {i!r}")
        return found

    def list_prepared_transactions(self, *, older_than: str) -> PreparedList:
        self.asked.append(older_than)
        return PreparedList((PREPARED,), self.missing, 86_400_000)

    def find_hanging_transactions(self, topics: Iterable[str], *, older_than: str | None) -> OpenList:
        self.asked.append((list(topics), older_than))
        return OpenList(self.hanging, 0, self.unasked, self.missing)

    def list_open_transactions(self, topics: Iterable[str], *, older_than: str) -> OpenList:
        self.asked.append((list(topics), older_than))
        known = replace(HANGING, standing="coordinated", transactional_id="pay", state="ongoing")
        return OpenList((known, *self.hanging), 3, self.unasked, self.missing)

    def commit_prepared(self, token: PreparedTransaction) -> None:
        self._decided("commit", token)

    def abort_prepared(self, token: PreparedTransaction) -> None:
        self._decided("abort", token)

    def _decided(self, what: str, token: PreparedTransaction) -> None:
        self.asked.append((what, token))
        if self.refusal is not None:
            raise self.refusal

    def abort_transaction(
        self, i: str, *, producer_id: int | None = None, producer_epoch: int | None = None, validate_only: bool = False
    ) -> TransactionDescription:
        self.asked.append((i, producer_id, producer_epoch, validate_only))
        if self.refusal is not None:
            raise self.refusal
        return self.describe_transaction(i)

    def abort_hanging_transaction(
        self, partition: tuple[str, int], producer_id: int | None, *, validate_only: bool = False, force: bool = False
    ) -> OpenTransaction:
        self.asked.append((partition, producer_id, validate_only, force))
        if self.refusal is not None:
            raise self.refusal
        return HANGING


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
    assert admin.asked == [{"states": ["ongoing"], "producer_ids": [4], "older_than": "1m"}]
    assert "90.00" in shown, "seconds since it was opened"
    rows = data("list")["transactions"]
    assert [(r["transactional_id"], r["started_at_ms"]) for r in rows] == [("pay", NOW_MS - 90_000), ("rest", None)]
    admin.missing = (LOST,)
    result = run("list", code=4)
    assert "pay" in result.stdout
    assert "1 shard cannot answer (7)" in result.stderr
    assert "no coordinator has shard 7" in result.stderr


def test_an_empty_list_says_there_are_none_only_where_all_were_asked_for_all(admin: FakeAdmin) -> None:
    admin.empty = True
    assert "there are none" in run("list").stderr
    assert run("list", "--state", "ongoing").stderr == "none of these\n"
    admin.missing = (LOST,)
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
    assert admin.asked == ["1h"]
    assert str(TOKEN) in result.stdout
    assert "headrace txn commit TOKEN" in result.stderr
    assert "86,400.00" in result.stdout
    assert "yes" in result.stdout, "it is overdue"
    (row,) = data("prepared")["transactions"]
    assert (row["prepared_at_ms"], row["token"]) == (NOW_MS - 86_400_000, str(TOKEN))


def test_what_hangs_is_found_with_the_command_that_ends_it(admin: FakeAdmin) -> None:
    result = run("find-hanging", "--topic", "t", "--older-than", "20m")
    assert admin.asked == [(["t"], "20m")]
    assert "headrace txn abort --partition t-0 --producer-id 4711" in result.stderr
    assert "960.00" in result.stdout
    (row,) = data("find-hanging")["transactions"]
    assert (row["topic"], row["partition"], row["held_back"], row["standing"]) == ("t", 0, 23, "hanging")
    admin.hanging = ()
    assert "nothing hangs" in run("find-hanging").stderr
    admin.unasked = {T1: LeaderNotAvailable("t-1 has no leader now")}
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
