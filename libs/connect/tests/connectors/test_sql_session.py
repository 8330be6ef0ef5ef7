"""What sessions of all databases do: a connection that does not work, or is half prepared, is made anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headrace_connect.connectors.sql.session import Result, RowFault, Session, TableFault
from headrace_connect.plugin import RetriableError


class Made(Session[str]):
    server = "Made"

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.fails = ""

    def _do(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fails:
            raise RetriableError("away")

    def _open(self) -> None:
        self._connection = "open"

    def _prepare(self) -> None:
        self._do("prepare")

    def close(self) -> None:
        self._connection = None
        self._do("close")

    def rollback(self) -> None:
        self._do("rollback")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        self._do(statement)
        return Result(0)


def test_a_connection_that_works_is_kept_and_its_transaction_undone() -> None:
    session = Made()
    session.connect()
    session.connect()
    assert session.calls == ["prepare", "rollback"]


def test_a_connection_that_does_not_work_is_made_anew() -> None:
    session = Made()
    session.connect()
    session.fails = "rollback"
    session.connect()
    assert session.calls == ["prepare", "rollback", "close", "prepare"]


def test_a_session_that_is_half_prepared_is_not_used() -> None:
    session = Made()
    session.fails = "prepare"
    for _ in range(2):
        with pytest.raises(RetriableError):
            session.connect()
    assert session.calls == ["prepare", "close"] * 2
    with pytest.raises(RetriableError, match="no connection to Made"):
        assert session._live


def test_a_savepoint_is_undone_for_a_row_alone() -> None:
    session = Made()
    with session.savepoint():
        pass
    with pytest.raises(RowFault), session.savepoint():
        raise RowFault
    with pytest.raises(TableFault), session.savepoint():
        raise TableFault
    begin, end = "savepoint headrace", "release savepoint headrace"
    assert session.calls == [begin, end, begin, "rollback to savepoint headrace", end, begin]
