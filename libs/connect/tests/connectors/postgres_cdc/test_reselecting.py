"""Values that the server did not send, read from a table that goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headrace_connect.connectors.postgres_cdc import reselecting
from headrace_connect.connectors.postgres_cdc.collecting import Collector, Group
from headrace_connect.connectors.postgres_cdc.position import Place
from headrace_connect.connectors.postgres_cdc.reselecting import Reselector
from headrace_connect.connectors.postgres_cdc.tables import Table
from headrace_connect.core.changes import Change, Op, Piece, Position, Transaction
from headrace_connect.core.pgoutput.messages import UNCHANGED, Column, Relation, Row

OID = 7
COLUMNS = [("id", 23), ("n", 25), ("doc", 25)]
RELATION = Relation(OID, "public", "t", "d", tuple(Column(name, oid, -1, name == "id") for name, oid in COLUMNS))
TABLE = Table(OID, "public", "t", "d", ("id",))
START = Place("1", 0)


class FakeSession:
    """A table of one key; satisfies what is needed of ``Session``."""

    def __init__(self, rows: dict[bytes, Row], columns: Sequence[tuple[str, int]] = COLUMNS, oid: int = OID) -> None:
        self.rows = rows
        self.columns = columns
        self.oid = oid
        self.asked: list[list[str]] = []
        self.open = False

    async def fetch(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        if statement.startswith("begin"):
            self.open = True
        if "to_regclass" in statement:
            return [(self.oid,)]
        return [(name, oid, -1) for name, oid in self.columns] if "pg_attribute" in statement else []

    async def fetch_texts(self, statement: str, *values: str) -> list[Row]:
        assert self.open, "in one transaction with the look at the columns"
        self.asked.append(list(values))
        names = [name for name, _ in COLUMNS if f'"{name}"' in statement.partition(" from ")[0]]
        places = [[name for name, _ in COLUMNS].index(name) for name in names]
        found = [self.rows[key.encode()] for key in values if key.encode() in self.rows]
        return [[row[at] for at in places] for row in found]

    async def rollback(self) -> None:
        self.open = False


def group_of(rows: Sequence[Row], relation: Relation = RELATION) -> tuple[Group, Place]:
    """Updates, a transaction each, as the collector gives them."""
    collector = Collector(START, lambda _: True, 1_000)
    for number, row in enumerate(rows, 1):
        commit = 100 * number
        change = Change(Op.UPDATE, commit - 1, 0, relation, None, False, row)
        assert not list(collector.add(Piece(Transaction(number, commit, 0), [change], commit + 10)))
    ((group, place),) = collector.flush()
    return group, place


def fill(session: Any, rows: Sequence[Row], table: Table = TABLE) -> list[tuple[list[Row | None], Place]]:
    async def parts() -> list[tuple[list[Row | None], Place]]:
        reselector = Reselector(session, {OID: table})
        return [
            ([change.after for change in group.changes], place)
            async for group, place in reselector.fill(*group_of(rows))
        ]

    return asyncio.run(parts())


def test_values_come_from_the_row_as_it_is_now() -> None:
    session = FakeSession({b"1": [b"1", b"now", b"long"], b"3": [b"3", b"x", None]})
    rows: list[Row] = [[b"1", b"then", UNCHANGED], [b"2", b"y", b"sent"], [b"3", b"x", UNCHANGED]]
    ((filled, place),) = fill(session, rows)
    assert filled == [[b"1", b"then", b"long"], [b"2", b"y", b"sent"], [b"3", b"x", None]]
    assert place == Place("1", 310)
    assert session.asked == [["1", "3"]]
    assert not session.open


def test_a_row_that_is_not_there_any_more_is_told(caplog: pytest.LogCaptureFixture) -> None:
    ((filled, _),) = fill(
        FakeSession({b"1": [b"1", b"x", b"long"]}), [[b"9", b"x", UNCHANGED], [b"1", b"x", UNCHANGED]]
    )
    assert filled == [[b"9", b"x", UNCHANGED], [b"1", b"x", b"long"]]
    assert "public.t: the rows of 1 updates are not there any more" in caplog.text


@pytest.mark.parametrize(
    ("columns", "oid"),
    [
        (COLUMNS, 8),
        ([("id", 23), ("n", 25)], OID),
        ([("id", 23), ("n", 25), ("doc", 17)], OID),
        ([("id", 20), ("n", 25), ("doc", 25)], OID),
    ],
    ids=["another table of its name", "a column that was dropped", "another type", "another type of the key"],
)
def test_a_table_that_is_another_one_by_now(columns: Sequence[tuple[str, int]], oid: int) -> None:
    session = FakeSession({b"1": [b"1", b"x", b"long"]}, columns, oid)
    ((filled, _),) = fill(session, [[b"1", b"x", UNCHANGED]])
    assert filled == [[b"1", b"x", UNCHANGED]]


def test_nobody_is_asked_where_nothing_lacks_or_rows_have_no_key() -> None:
    session = FakeSession({})
    assert fill(session, [[b"1", b"x", b"y"]])[0][0] == [[b"1", b"x", b"y"]]
    assert fill(session, [[b"1", b"x", UNCHANGED]], Table(OID, "public", "t", "f"))[0][0] == [[b"1", b"x", UNCHANGED]]
    assert fill(session, [[UNCHANGED, b"x", UNCHANGED]])[0][0] == [[UNCHANGED, b"x", UNCHANGED]]
    assert [keys for keys in session.asked if keys] == []


def test_large_values_come_in_parts_and_each_has_a_position_to_go_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reselecting, "BYTES", 250)
    session = FakeSession({str(n).encode(): [str(n).encode(), b"x", b"l" * 100] for n in range(40)})
    rows: list[Row] = [[str(n).encode(), b"x", UNCHANGED] for n in range(40)]
    parts = fill(session, rows)
    assert [len(filled) for filled, _ in parts] == [3] * 13 + [1]
    assert [row for filled, _ in parts for row in filled] == [[str(n).encode(), b"x", b"l" * 100] for n in range(40)]
    assert [place.ahead for _, place in parts[:2]] == [{OID: Position(300, 0)}, {OID: Position(600, 0)}]
    assert parts[-1][1] == Place("1", 4_010)
    done = 0
    for filled, place in parts:
        done += len(filled)
        left = Collector(Place.from_json(place.to_json()), lambda _: True, 1_000)
        for number in range(1, 41):
            again = Change(Op.UPDATE, 0, 0, RELATION, None, False, rows[0])
            list(left.add(Piece(Transaction(number, 100 * number, 0), [again], 100 * number + 10)))
        assert sum(len(group.changes) for group, _ in left.flush()) == 40 - done, "exactly what comes behind it"
    assert [len(keys) for keys in session.asked[:4]] == [16, 8, 4, 2], "fewer rows are asked for where they are large"


def test_keys_of_several_columns() -> None:
    statement, *values = reselecting._query(
        '"public"."t"', ['"a"', '"b"'], Table(1, "public", "t", "d", ("a", "b")), [(b"1", b"x"), (b"2", b"y")]
    )
    assert statement == 'select "a", "b" from "public"."t" where ("a", "b") in (($1, $2), ($3, $4))'
    assert values == ["1", "x", "2", "y"]
