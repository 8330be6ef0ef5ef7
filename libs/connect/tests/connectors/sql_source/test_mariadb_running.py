"""Names of what is under way in a MariaDB: the same as long as it may be the same transaction."""

from __future__ import annotations

import pytest

from headrace_connect.connectors.sql_source.holding import PREPARED
from headrace_connect.connectors.sql_source.mariadb_running import Running, Session, writes


def names(*looks: Session | None) -> list[frozenset[str]]:
    """Of looks at one thread, one after the other."""
    running = Running.nothing()
    return [running.look([] if session is None else [session]) for session in looks]


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        (Session(7, "q1", None), Session(7, "q1", None), True),
        (Session(7, "q1", None), Session(7, "q1", "100"), True),
        (Session(7, "q1", None), Session(7, None, "100"), True),
        (Session(7, "q1", None), Session(7, "q2", "100"), True),
        (Session(7, "q1", None), Session(7, "q2", None), False),
        (Session(7, "q1", "100"), Session(7, "q2", "100"), True),
        (Session(7, None, "100"), Session(7, "q2", "101"), False),
        (Session(7, None, "100"), Session(7, "q2", None), False),
        (Session(7, "q1", None), Session(8, "q1", None), False),
    ],
)
def test_a_name_stays_where_it_may_be_the_same_transaction(before: Session, now: Session, same: bool) -> None:
    """A statement that has drawn a number begins a transaction, and the session may hold that open."""
    first, second = names(before, now)
    assert len(first) == len(second) == 1
    assert (first == second) is same
    assert names(before, None)[1] == frozenset()
    left, _, again = names(before, None, before)
    assert left != again, "it ended in between"


def test_a_transaction_without_a_session_is_prepared() -> None:
    [found] = names(Session(0, None, "100"))
    assert found == {f"{PREPARED}100"}


@pytest.mark.parametrize(
    ("statement", "may"),
    [
        ("insert into t values (1)", True),
        (None, True),
        ("call fill()", True),
        ("/* app */ update t set n = 1", True),
        ("/* select */ insert into t select 1", True),
        ("selection", True),
        ("select 1", False),
        ("  /* app */ SELECT\n1", False),
        ("(select 1) union (select 2)", False),
        ("-- why\nshow tables", False),
    ],
)
def test_what_may_write(statement: str | None, may: bool) -> None:
    assert writes(statement) is may
