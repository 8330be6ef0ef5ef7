"""Records that do not say all values of their row become few statements, with the outcome of one record at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_connect.connectors.sql.session import RowFault
from headrace_connect.connectors.sql_sink.database import Write
from headrace_connect.connectors.sql_sink.folding import fold, groups, keys_of, missing_row, runs

Table = dict[int, tuple[int | None, int | None]]
ABSENT = "absent"
Record = tuple[int, tuple[int | str | None, int | str | None] | None]
"""A key; and None: a delete, or two values."""


def write_of(records: Sequence[Record], mode: str = "upsert") -> Write:
    values = [(ABSENT, ABSENT) if value is None else value for _, value in records]
    deletes = [value is None for _, value in records]
    columns: dict[str, Any] = {"id": pa.array([key for key, _ in records], pa.int64())}
    absent: dict[str, Any] = {}
    for at, name in enumerate("ab"):
        own = [value[at] for value in values]
        columns[name] = pa.array([None if one == ABSENT else one for one in own], pa.int64())
        mask = [one == ABSENT and not delete for one, delete in zip(own, deletes, strict=True)]
        if any(mask):
            absent[name] = pa.array(mask)
    return Write(("t",), columns, ("id",), pa.array(deletes, pa.bool_()), mode, absent)


def apply(table: Table, write: Write) -> None:
    """As a database does with one statement."""
    assert not write.absent, "it says what it writes"
    if write.deletes.true_count:
        assert write.deletes.true_count == len(write)
        for (key,) in keys_of(write):
            table.pop(key, None)
        return
    if write.mode == "patch" and any(key not in table for (key,) in keys_of(write)):
        raise missing_row(write)
    for row, (key,) in enumerate(keys_of(write)):
        old = table.get(key, (None, None))
        if write.mode == "upsert" or key in table:
            new = [
                write.columns[name][row].as_py() if name in write.columns else old["ab".index(name)] for name in "ab"
            ]
            table[key] = (new[0], new[1])


def one_at_a_time(table: Table, records: Sequence[Record], mode: str) -> set[int]:
    """The records that cannot be written; the others are."""
    refused: set[int] = set()
    for row, (key, value) in enumerate(records):
        if value is None:
            table.pop(key, None)
        elif key not in table and (mode == "update" or ABSENT in value):
            refused |= {row} if mode == "upsert" else set()
        else:
            old = table.get(key, (None, None))
            new = [was if one == ABSENT else one for one, was in zip(value, old, strict=True)]
            table[key] = (new[0], new[1])  # type: ignore[assignment]
    return refused


def halves(table: Table, write: Write, parts: Any) -> set[int]:
    """As the sink does: what fails is tried by halves."""
    trial = dict(table)
    try:
        for part in parts(write):
            apply(trial, part)
    except RowFault:
        if len(write) == 1:
            return {0}
        half = len(write) // 2
        left = halves(table, write.take(0, half), parts)
        return left | {half + row for row in halves(table, write.take(half, len(write) - half), parts)}
    table.clear()
    table.update(trial)
    return set()


def folded(write: Write) -> Any:
    return groups(fold(write))


VALUES = st.one_of(st.none(), st.integers(0, 9), st.just(ABSENT))
RECORDS = st.lists(st.tuples(st.integers(1, 3), st.one_of(st.none(), st.tuples(VALUES, VALUES))), max_size=10)
TABLES = st.dictionaries(st.integers(1, 3), st.tuples(st.integers(10, 19), st.integers(10, 19)), max_size=3)


@pytest.mark.parametrize("mode", ["upsert", "update"])
@pytest.mark.parametrize("parts", [folded, runs])
@settings(max_examples=60)
@given(TABLES, RECORDS)
def test_the_outcome_is_that_of_one_record_at_a_time(
    mode: str, parts: Any, table: Table, records: list[Record]
) -> None:
    expected, found = dict(table), dict(table)
    refused = one_at_a_time(expected, records, mode)
    told = halves(found, write_of(records, mode), parts)
    assert found == expected
    assert told <= refused
    for row in refused - told:
        later = [value for key, value in records[row + 1 :] if key == records[row][0]]
        assert any(value is None or ABSENT not in value for value in later), "a later record has replaced it whole"


def test_records_with_the_same_columns_are_written_together() -> None:
    records: list[Record] = [(key, (key, ABSENT) if key % 2 else (key, key)) for key in range(1, 101)]
    records[10] = (11, None)
    parts = list(folded(write_of(records)))
    assert [(len(part), part.mode, list(part.columns)) for part in parts] == [
        (1, "upsert", ["id", "a", "b"]),
        (49, "patch", ["id", "a"]),
        (50, "upsert", ["id", "a", "b"]),
    ]
    assert parts[0].deletes.true_count == 1, "deletes come first"


def test_what_lacks_nothing_is_not_touched() -> None:
    write = write_of([(1, (1, 2)), (2, (3, 4))])
    assert [part is write for part in [*folded(write), *runs(write)]] == [True, True]
    twice = write_of([(1, (1, 2)), (1, (3, 4))])
    assert [part.columns["a"].to_pylist() for part in folded(twice)] == [[3]]
    assert [part is twice for part in runs(twice)] == [True]
