"""Filters that make a batch query read less, against what Spark does with them row by row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.ids import TopicPartition
from headrace_spark.core.columns import Column, default_columns
from headrace_spark.core.offsets import OffsetRange
from headrace_spark.core.pushdown import Filter, narrow, younger

COLUMNS = default_columns(headers=False)
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
ALL = (OffsetRange(A0, 0, 100), OffsetRange(A1, 50, 80), OffsetRange(B0, 0, 10))


def at(ms: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def left(*filters: Filter) -> tuple[list[OffsetRange], list[bool]]:
    narrowing, done = narrow(filters, COLUMNS)
    return list(narrowing.ranges(ALL)), done


def test_topics_and_partitions() -> None:
    assert left(Filter("EqualTo", "topic", "b")) == ([ALL[2]], [True])
    assert left(Filter("EqualTo", "topic", "b", negated=True)) == ([ALL[0], ALL[1]], [True])
    assert left(Filter("In", "TOPIC", ("b", "c"))) == ([ALL[2]], [True])
    assert left(Filter("EqualTo", "topic", "a"), Filter("GreaterThan", "partition", 0)) == ([ALL[1]], [True, True])
    assert left(Filter("IsNotNull", "topic")) == (list(ALL), [True])
    assert left(Filter("IsNull", "topic")) == ([], [True])
    assert left(Filter("StringStartsWith", "topic", "a")) == ([ALL[0], ALL[1]], [True])


def test_offsets() -> None:
    assert left(Filter("GreaterThanOrEqual", "offset", 9), Filter("LessThan", "offset", 60)) == (
        [OffsetRange(A0, 9, 60), OffsetRange(A1, 50, 60), OffsetRange(B0, 9, 10)],
        [True, True],
    )
    assert left(Filter("In", "offset", (3, 7))) == ([OffsetRange(A0, 3, 8), OffsetRange(B0, 3, 8)], [False])
    assert left(Filter("In", "offset", (3, 4))) == ([OffsetRange(A0, 3, 5), OffsetRange(B0, 3, 5)], [True])
    assert left(Filter("EqualTo", "offset", 3, negated=True)) == (list(ALL), [False])
    assert left(Filter("EqualTo", "offset", -3)) == ([], [True])


def test_what_is_compared_with_null_or_with_another_type_is_sparks() -> None:
    for value in (None, "3", 3.0, True):
        assert left(Filter("EqualTo", "offset", value)) == (list(ALL), [False])
    assert left(Filter("In", "topic", ("a", None))) == (list(ALL), [False])
    assert left(Filter("EqualTo", "value", b"x"), Filter("EqualTo", "nothing", 1)) == (list(ALL), [False, False])


@pytest.mark.parametrize(
    ("filter_", "oldest_ms"),
    [
        (Filter("GreaterThanOrEqual", "timestamp", at(5)), 5),
        (Filter("GreaterThanOrEqual", "timestamp", at(5.5)), 6),
        (Filter("GreaterThan", "timestamp", at(5)), 6),
        (Filter("GreaterThan", "timestamp", at(5.5)), 6),
        (Filter("EqualTo", "timestamp", at(5)), 5),
        (Filter("In", "timestamp", (at(9), at(5))), 5),
        (Filter("LessThan", "timestamp", at(5)), None),
        (Filter("GreaterThan", "timestamp", at(5), negated=True), None),
        (Filter("GreaterThan", "timestamp", at(-5)), None),
        (Filter("GreaterThan", "timestamp", at(5).replace(tzinfo=None)), None),
    ],
)
def test_lower_bounds_of_times_are_looked_up_and_stay_sparks(filter_: Filter, oldest_ms: int | None) -> None:
    narrowing, done = narrow([filter_], COLUMNS)
    assert done == [False]
    assert narrowing.oldest_ms == oldest_ms
    assert narrowing.times(ALL) == ({} if oldest_ms is None else dict.fromkeys([A0, A1, B0], oldest_ms))


def test_before_the_first_young_record_nothing_is_read() -> None:
    assert younger(ALL, {A0: 30, A1: 20, B0: None}) == (OffsetRange(A0, 30, 100), ALL[1])
    assert younger(ALL, {}) == ALL


def test_names_of_a_users_schema() -> None:
    narrowing, done = narrow([Filter("EqualTo", "Where", 3)], [Column("Where", "offset")])
    assert (done, narrowing.first, narrowing.end) == ([True], 3, 4)


# --- against Spark's own way -------------------------------------------------------------------------------------

Row = dict[str, Any]


def passes(each: Filter, row: Row) -> bool:
    """SQL: what is unknown does not pass."""
    mine, value = row[each.column], each.value
    if each.kind == "IsNull":
        found: bool | None = mine is None
    elif each.kind == "IsNotNull":
        found = mine is not None
    elif each.kind == "In":
        found = True if mine in value else None if None in value else False
    elif value is None:
        found = None
    else:
        found = {
            "EqualTo": lambda: mine == value,
            "GreaterThan": lambda: mine > value,
            "GreaterThanOrEqual": lambda: mine >= value,
            "LessThan": lambda: mine < value,
            "LessThanOrEqual": lambda: mine <= value,
        }[each.kind]()
    return False if found is None else found is not each.negated


values = {
    "topic": st.sampled_from(["a", "b", "c", None]),
    "partition": st.none() | st.integers(-1, 3),
    "offset": st.none() | st.integers(-2, 25),
    "timestamp": st.none() | st.integers(-1, 30).map(lambda n: at(n / 2)),
}
COMPARISONS = ["EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"]


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(values)))
    kind = draw(st.sampled_from([*COMPARISONS, "In", "IsNull", "IsNotNull"]))
    if kind.startswith("Is"):
        return Filter(kind, column, negated=draw(st.booleans()))
    if kind == "In":
        return Filter(kind, column, tuple(draw(st.lists(values[column], max_size=3))), draw(st.booleans()))
    return Filter(kind, column, draw(values[column]), draw(st.booleans()))


logs = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 2)),
    st.lists(st.integers(-2, 14), max_size=20),
    max_size=4,
)


@given(logs, st.lists(filters(), max_size=3), st.integers(0, 5), st.integers(0, 20))
def test_the_same_rows_come_out(
    made: dict[TopicPartition, list[int]], wanted: list[Filter], first: int, count: int
) -> None:
    ranges = [OffsetRange(tp, min(first, len(log)), min(first + count, len(log))) for tp, log in made.items()]
    rows: list[Row] = [
        {"topic": r.partition.topic, "partition": r.partition.partition, "offset": n, "timestamp": at(ms)}
        for r in ranges
        for n, ms in enumerate(made[r.partition])
        if r.start <= n < r.end
    ]
    narrowing, done = narrow(wanted, COLUMNS)
    kept = narrowing.ranges(ranges)
    times = narrowing.times(kept)
    found = {tp: next((n for n, ms in enumerate(made[tp]) if ms >= time), None) for tp, time in times.items()}
    read = {(r.partition.topic, r.partition.partition, n) for r in younger(kept, found) for n in range(r.start, r.end)}
    sparks = [each for each, is_done in zip(wanted, done, strict=True) if not is_done]
    comes = [
        row
        for row in rows
        if (row["topic"], row["partition"], row["offset"]) in read and all(passes(each, row) for each in sparks)
    ]
    assert comes == [row for row in rows if all(passes(each, row) for each in wanted)]
