"""Aggregate functions against a naive program, with nulls, NaN and numbers at the edge of what fits."""

from __future__ import annotations

import math
import statistics
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record

from headrace_streams import App, StateFailed, agg, col, custom, json
from headrace_streams.dsl.agg import Agg
from headrace_streams.testing import Driver

COLUMNS = "n bigint, i int, x double, s string, b boolean, d date, at timestamp"


def program(**aggregates: Agg) -> App:
    app = App("aggregates")
    app.stream("in", value=json(COLUMNS), key="k").group_by("k").agg(name="g", **aggregates).to("out")
    return app


def results(fed: Fed) -> list[dict[str, Any]]:
    """What the store holds, by key."""
    contents = fed.task.contents("g")
    assert contents is not None
    return sorted(contents.drop_columns(["_key", "_time", "_watermark", "_row"]).to_pylist(), key=lambda row: row["k"])


def of(given: list[dict[str, Any]], **aggregates: Agg) -> dict[str, Any]:
    fed = Fed(program(**aggregates))
    fed.feed("in", [(b"a", row, 0) for row in given])
    (found,) = results(fed)
    fed.commit()
    fed.reopen()
    assert repr(results(fed)) == repr([found]), "what was committed reads back as it was"
    del found["k"]
    return found


def feed_all(fed: Fed, rows: list[Record], cut: int) -> None:
    for first in range(0, len(rows), cut):
        fed.feed("in", rows[first : first + cut])


def each(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def nan_last(value: float) -> tuple[bool, float]:
    return (math.isnan(value), value)


NAIVE: dict[str, tuple[Agg, Any]] = {
    "count": (agg.count(), lambda rows: len(rows)),
    "count n": (agg.count("n"), lambda rows: len(each([r["n"] for r in rows]))),
    "sum n": (agg.sum("n"), lambda rows: sum(each([r["n"] for r in rows])) if each([r["n"] for r in rows]) else None),
    "mean n": (agg.mean("n"), lambda rows: statistics.fmean(v) if (v := each([r["n"] for r in rows])) else None),
    "var n": (
        agg.var("n"),
        lambda rows: (
            statistics.variance(v) if len(v := each([float(r["n"]) for r in rows if r["n"] is not None])) > 1 else None
        ),
    ),
    "min n": (agg.min("n"), lambda rows: min(each([r["n"] for r in rows]), default=None)),
    "max n": (agg.max("n"), lambda rows: max(each([r["n"] for r in rows]), default=None)),
    "min s": (agg.min("s"), lambda rows: min(each([r["s"] for r in rows]), default=None)),
    "max s": (agg.max("s"), lambda rows: max(each([r["s"] for r in rows]), default=None)),
    "min b": (agg.min("b"), lambda rows: min(each([r["b"] for r in rows]), default=None)),
    "any b": (agg.any("b"), lambda rows: any(v) if (v := each([r["b"] for r in rows])) else None),
    "all b": (agg.all("b"), lambda rows: all(v) if (v := each([r["b"] for r in rows])) else None),
    **{
        f"{name} {column}": (getattr(agg, name)(column), by)
        for column in ("n", "s", "b")
        for name, by in {
            "first": lambda rows, c=column: next(iter(each([r[c] for r in rows])), None),
            "last": lambda rows, c=column: next(iter(each([r[c] for r in rows])[::-1]), None),
            "distinct": lambda rows, c=column: len(set(each([r[c] for r in rows]))),
        }.items()
    },
    **{f"collect {c}": (agg.collect(c, 3), lambda rows, c=c: each([r[c] for r in rows])[:3]) for c in ("n", "s", "b")},
    "of an expression": (
        agg.sum(col("n") * 2),
        lambda rows: sum(2 * n for n in v) if (v := each([r["n"] for r in rows])) else None,
    ),
}

values = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(10**6), 10**6),
        "s": st.none() | st.sampled_from(["", "a", "b", "ä", "z"]),
        "b": st.none() | st.booleans(),
    }
)
records = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), values), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(given=records, cut=st.integers(1, 40))
def test_a_naive_program_says_the_same(given: list[tuple[str, dict[str, Any]]], cut: int) -> None:
    names = {f"r{number}": name for number, name in enumerate(NAIVE)}
    fed = Fed(program(**{column: NAIVE[name][0] for column, name in names.items()}))
    fed_records: list[Record] = [(key.encode(), row, 0) for key, row in given]
    feed_all(fed, fed_records, cut)
    found = results(fed)
    for row in found:
        rows = [value for key, value in given if key == row["k"]]
        for column, name in names.items():
            expected = NAIVE[name][1](rows)
            if isinstance(expected, float):
                assert row[column] == pytest.approx(expected, rel=1e-9, abs=1e-6), name
            else:
                assert row[column] == expected, name
                assert type(row[column]) is type(expected), name
    assert [row["k"] for row in found] == sorted({key for key, _ in given})
    fed.commit()
    fed.reopen()
    assert results(fed) == found


FLOATS = [None, 1.5, math.nan, -0.0, math.inf, -2.5, 1e300]


@pytest.mark.parametrize("given", [FLOATS, FLOATS[::-1], [math.nan], [None], [None, math.nan, None], [1.0, 2.0]])
def test_floats_and_nan(given: list[float | None]) -> None:
    """JSON has no NaN, so a function makes the rows."""
    app = App("aggregates")
    rows = app.stream("in", value=json("i int"), key="k").map(
        lambda row: {"k": "a", "x": given[row["i"]]}, schema="k string, x double"
    )
    names = ("count", "first", "last", "min", "max", "distinct", "sum")
    rows.group_by("k", name="by-k").agg(name="g", emit="every", **{name: getattr(agg, name)("x") for name in names}).to(
        "out", value=custom(encode=lambda row: repr(row))
    )
    with Driver(app) as driver:
        driver.pipe("in", [{"k": "a", "i": i} for i in range(len(given))])
        (found,) = driver.store("g")
        driver.crash()
        driver.restart()
        assert repr(driver.store("g")) == repr([found])
    present = [x for x in given if x is not None]
    assert found["count"] == len(present)
    assert repr(found["first"]) == repr(present[0] if present else None)
    assert repr(found["last"]) == repr(present[-1] if present else None)
    assert repr(found["min"]) == repr(min(present, key=nan_last) if present else None)
    assert repr(found["max"]) == repr(max(present, key=nan_last) if present else None)
    assert found["distinct"] == len({repr(x) for x in present})
    assert repr(found["sum"]) == repr(sum(present) if present else None)


def test_times_and_dates() -> None:
    at, later = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)
    given = [{"at": at.isoformat(), "d": "2024-01-02"}, {"at": None}, {"at": later.isoformat(), "d": "2024-01-01"}]
    found = of(given, least=agg.min("at"), most=agg.max("at"), first=agg.min("d"), last=agg.max("d"), n=agg.count("d"))
    assert found == {"least": at, "most": later, "first": date(2024, 1, 1), "last": date(2024, 1, 2), "n": 2}


def test_nothing_but_nulls() -> None:
    found = of([{}, {}], **{f"r{i}": one for i, (one, _) in enumerate(NAIVE.values())})
    assert {v for v in found.values() if not isinstance(v, list)} == {None, 0, 2}


def test_the_variance_of_large_values_of_little_difference() -> None:
    given = [{"n": 10**12 + i} for i in (1, 2, 3, 4)]
    assert of(given, v=agg.var("n"))["v"] == pytest.approx(statistics.variance([1, 2, 3, 4]))


# --- integers that do not fit -------------------------------------------------------------------------------------

LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    "given", [[LARGEST], [-LARGEST - 1], [LARGEST, -1, 1], [2**62, 2**62 - 1], [LARGEST, -LARGEST - 1]]
)
def test_integers_that_fit_are_summed_exactly(given: list[int]) -> None:
    assert of([{"n": n} for n in given], s=agg.sum("n")) == {"s": sum(given)}


@pytest.mark.parametrize("cut", [1, 2, 10])
@pytest.mark.parametrize("given", [[LARGEST, 1], [-LARGEST, -2], [2**62, 2**62], [LARGEST, 1, -1]])
def test_a_sum_that_does_not_fit_is_refused_by_store_and_key(given: list[int], cut: int) -> None:
    fed = Fed(program(total=agg.sum("n")))
    rows: list[Record] = [(b"good", {"n": 1}, 0), *((b"bad", {"n": n}, 0) for n in given)]
    with pytest.raises(StateFailed, match=r"agg 'g' .*'total' .*key b'bad'.*cast the column to double"):
        feed_all(fed, rows, cut)
    fed.abort()
    fed.feed("in", [(b"good", {"n": 2}, 0)])
    assert results(fed) == [{"k": "good", "total": 2}]


def test_large_sums_of_many_keys_are_apart() -> None:
    fed = Fed(program(total=agg.sum("n")))
    fed.feed("in", [(f"{i}".encode(), {"n": 2**62 + i}, 0) for i in range(9)])
    assert [row["total"] for row in results(fed)] == [2**62 + i for i in range(9)]


@pytest.mark.parametrize("rows", [3, 40])
def test_every_sum_that_does_not_fit_is_refused(rows: int) -> None:
    app = App("aggregates")
    app.stream("in", value=json(COLUMNS), key="k").group_by("k").agg(s=agg.sum("n"), name="g", emit="every").to("out")
    fed = Fed(app)
    with pytest.raises(StateFailed, match="'g'"):
        fed.feed("in", [(b"a", {"n": LARGEST // 2}, 0)] * rows)
