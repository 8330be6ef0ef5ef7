"""
Tables under the batch law (see ``test_batch_law``), and against programs that look at one record at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, by_key, cuts, raw, rows, run_cut_of
from narwhals.stable.v2 import Int64

from headrace_streams import App, Stream, Table, agg, col, json
from headrace_streams.testing import Driver

Given = list[tuple[str, Record]]
SCHEMA = "n bigint, s string"


def stream(app: App, topic: str = "in") -> Stream:
    return app.stream(topic, value=json(SCHEMA), key="k")


def table(app: App, topic: str) -> Table:
    return app.table(topic, value=json(SCHEMA), key="k", name=topic)


def odd(of: Table) -> Table:
    return of.filter(col("n") % 2 == 1).select("k", m=col("n") * 10)


def with_table(how: str) -> App:
    app = App("law")
    stream(app).join(odd(table(app, "t")), how=how).to("out")
    return app


def tables(how: str, emit: str = "every") -> App:
    app = App("law")
    table(app, "t").filter(col("n") != 2).join(odd(table(app, "in")), how=how).to("out", emit=emit)
    return app


def with_itself(how: str) -> App:
    """A table of a stream, which the stream is joined with."""
    app = App("law")
    own = stream(app)
    own.join(odd(own.filter(col("n") > 0).to_table(name="own")), how=how).to("out")
    return app


def of_one_table(how: str) -> App:
    """Both sides change with one record."""
    app = App("law")
    one = table(app, "t")
    one.filter(col("n") != 2).join(odd(one), how=how).to("out", emit="every")
    one.join(table(app, "in"), suffix="_in").to("other")
    return app


def of_joins(how: str) -> App:
    app = App("law")
    one, other = table(app, "t"), table(app, "in")
    both = one.join(odd(other), how=how).with_columns(sum=col("n") + col("m"))
    both.join(other.filter(col("n") > 0), how=how, suffix="_in").filter(col("n") != 1).to("out", emit="every")
    return app


def failing(how: str) -> App:
    """Some rows of either side cannot be computed, and are left out."""
    app = App("law", on_error="skip")
    one = table(app, "t").with_columns(i=col("s").cast(Int64))
    one.join(table(app, "in").select("k", j=col("s").cast(Int64)), how=how).to("out", emit="every")
    return app


def failing_itself(how: str) -> App:
    app = App("law", on_error="skip")
    own = stream(app)
    own.join(own.to_table(name="own").select(i=col("s").cast(Int64)), how=how).to("out")
    return app


def with_own_counts(how: str) -> App:
    app = App("law")
    own = stream(app)
    counts = own.group_by("k").agg(rows=agg.count(), name="counts", emit="every")
    own.join(counts.to_table(name="counts-table").filter(col("rows") != 2), how=how).to("out")
    return app


def counted(how: str) -> App:
    """Of groups that stay where they are; a value is replaced by another in one step."""
    app = App("law")
    groups = odd(table(app, "t")).join(table(app, "in"), how=how).group_by("k")
    groups.agg(rows=agg.count(), m=agg.sum("m"), mean=agg.mean("n"), name="counts", emit="every").to("out")
    return app


keys = st.sampled_from([b"a", b"a", b"a", b"b", b"b", None])
rows_of_values = st.fixed_dictionaries(
    {"n": st.sampled_from([1, 3, 2, -1, 5, 4, None]), "s": st.sampled_from(["1", "2", "x", None])}
)
values = st.one_of(rows_of_values, rows_of_values, rows_of_values, st.none())
records = st.lists(
    st.tuples(st.sampled_from(["t", "in"]), st.tuples(keys, values, st.integers(0, 50))), min_size=1, max_size=20
)
TWICE = (with_table, with_itself, with_own_counts, failing_itself)
THRICE = (tables, of_one_table, of_joins, counted, failing)
PROGRAMS = [
    *((program, how) for program in TWICE for how in ("inner", "left")),
    *((program, how) for program in THRICE for how in ("inner", "left", "outer")),
]


@pytest.mark.parametrize(("program", "how"), PROGRAMS)
@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_tables_with_every(
    program: Callable[[str], App], how: str, given: Given, cutting: list[tuple[int, str]]
) -> None:
    if program in (with_itself, with_own_counts, failing_itself):
        given = [("in", record) for _, record in given]
    one_by_one = run_cut_of(program(how), given, [(1, "")] * len(given), "out")
    assert by_key(run_cut_of(program(how), given, cutting, "out")) == by_key(one_by_one)


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_tables_with_changes_end_alike(how: str, given: Given, cutting: list[tuple[int, str]]) -> None:
    def last(found: list[Any]) -> dict[Any, Any]:
        ends = {key: told[-1] for key, told in by_key(found).items()}
        return {key: told for key, told in ends.items() if told[0] is not None}

    every = run_cut_of(tables(how), given, [(1, "")] * len(given), "out")
    assert last(run_cut_of(tables(how, "changes"), given, cutting, "out")) == last(every)


def run_together(app: App, given: Given, cutting: list[tuple[int, str]]) -> list[Any]:
    """What is written if records of several topics are fed together, merged by time."""
    fed, found, at = Fed(app), [], 0
    for count, then in [*cutting, (len(given), "")]:
        part = given[at : at + count]
        at += len(part)
        topics = dict.fromkeys(topic for topic, _ in part)
        if part:
            fed.task.feed_together([(topic, raw([record for of, record in part if of == topic])) for topic in topics])
        if then == "commit":
            found += rows(fed.commit(), "out")
    return found + rows(fed.commit(), "out")


@pytest.mark.parametrize(("program", "how"), [one for one in PROGRAMS if one[0] in (with_table, *THRICE)])
@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_inputs_that_are_fed_together(
    program: Callable[[str], App], how: str, given: Given, cutting: list[tuple[int, str]]
) -> None:
    given = [(topic, (key, value, time)) for time, (topic, (key, value, _)) in enumerate(given)]
    one_by_one = run_cut_of(program(how), given, [(1, "")] * len(given), "out")
    assert by_key(run_together(program(how), given, cutting)) == by_key(one_by_one)


def naive_stream(how: str, given: Given) -> list[Any]:
    there: dict[bytes | None, dict[str, Any]] = {}
    found = []
    for topic, (key, value, time) in given:
        if topic == "t" and key is not None:
            there.pop(key, None)
            if isinstance(value, dict) and value["n"] is not None and value["n"] % 2 == 1:
                there[key] = {"m": value["n"] * 10}
        if topic == "in" and isinstance(value, dict) and (how == "left" or key in there):
            row = {"n": value["n"], "s": value["s"], "k": key and key.decode()}
            found.append((key, {**row, **there.get(key, {"m": None})}, time))
    return found


def twice(given: Given, changes: Callable[[Any], bool] = lambda value: True) -> Given:
    """Records that are read as a table and beside it, in this order; those that do not change the table only beside."""
    return [(topic, record) for _, record in given for topic in ("t", "in") if topic == "in" or changes(record[1])]


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_a_stream_finds_its_own_row(how: str, given: Given, cutting: list[tuple[int, str]]) -> None:
    given = [("in", record) for _, record in given]
    expected = naive_stream(how, twice(given, lambda value: value is not None and (value["n"] or 0) > 0))
    assert run_cut_of(with_itself(how), given, cutting, "out") == expected


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_a_stream_finds_what_was_there(how: str, given: Given, cutting: list[tuple[int, str]]) -> None:
    assert run_cut_of(with_table(how), given, cutting, "out") == naive_stream(how, given)


def naive_tables(how: str, given: Given) -> list[Any]:
    left: dict[bytes, dict[str, Any]] = {}
    right: dict[bytes, dict[str, Any]] = {}
    found: list[Any] = []

    def result(key: bytes) -> Any:
        one, other = left.get(key), right.get(key)
        if (one and other) or (one and how != "inner") or (other and how == "outer"):
            none = {"n": None, "s": None, "k": key.decode()}
            return {**none, **(one or {}), **(other or {"m": None})}
        return None

    for topic, (key, value, _) in given:
        if key is None:
            continue
        before, changed = result(key), (left if topic == "t" else right)
        was = changed.pop(key, None)
        row = {**value, "k": key.decode()} if isinstance(value, dict) else None
        if topic == "t" and row and row["n"] is not None and row["n"] != 2:
            left[key] = {name: row[name] for name in ("n", "s", "k")}
        if topic == "in" and row and row["n"] is not None and row["n"] % 2 == 1:
            right[key] = {"m": row["n"] * 10}
        after = result(key)
        if after is not None and (was is not None or key in changed):
            found.append((key, after, 0))
        elif before is not None and after is None:
            found.append((key, None, 0))
    return found


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_tables_side_by_side(how: str, given: Given, cutting: list[tuple[int, str]]) -> None:
    found = run_cut_of(tables(how), given, cutting, "out")
    assert plain(found) == by_key(naive_tables(how, given))


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
@settings(max_examples=15, deadline=None)
@given(given=records, cutting=cuts)
def test_both_sides_change_with_one_record(how: str, given: Given, cutting: list[tuple[int, str]]) -> None:
    found = run_cut_of(of_one_table(how), given, cutting, "out")
    expected = naive_tables(how, twice([one for one in given if one[0] == "t"]))
    assert plain(found) == by_key(expected)


def plain(found: list[Any]) -> dict[Any, Any]:
    """Of each key, without times; the order of different keys is not defined."""
    return by_key([(key, value, 0) for key, value, _ in found])


@settings(max_examples=20, deadline=None)
@given(given=records, seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)))
def test_groups_of_a_table_are_what_is_in_it(given: Given, seeds: tuple[int, int]) -> None:
    expected: dict[str, list[int | None]] = {}
    last = {key: value for topic, (key, value, _) in given if topic == "t" and key is not None}
    for value in last.values():
        if isinstance(value, dict) and value["s"] is not None:
            expected.setdefault(value["s"], []).append(value["n"])
    for seed in seeds:
        app = App("law")
        groups = table(app, "t").group_by("s", name="by-s")
        groups.agg(rows=agg.count(), n=agg.sum("n"), mean=agg.mean("n"), name="groups").to("out")
        with Driver(app, partitions=2, seed=seed) as driver:
            for topic, (key, value, _) in given:
                if topic == "t":
                    driver.pipe_raw("t", [key], [None if value is None else orjson.dumps(value)])
            driver.crash()
            driver.restart()
            found = {row["s"]: (row["rows"], row["n"], row["mean"]) for row in driver.store("groups") if row["rows"]}
        assert found == {
            s: (
                len(ns),
                *((None, None) if not (of := [n for n in ns if n is not None]) else (sum(of), sum(of) / len(of))),
            )
            for s, ns in expected.items()
        }
