"""`map`, `flat_map`, `filter_records` and `peek`: functions over single records that keep nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, by_key, cuts, rows, run_cut, run_one_by_one

from headrace_streams import App, NotAllowed, RowFailed, Stream, agg, col, json

Build = Callable[[Stream], Stream]


def source(app: App) -> Stream:
    return app.stream("in", value=json("n bigint, s string"), key="k")


def program(build: Build, on_error: str = "fail") -> App:
    app = App("calls", on_error=on_error)
    build(source(app)).to("out")
    return app


def record(n: int | None, s: str | None = None, key: bytes | None = b"a", time: int = 0) -> Record:
    return key, {"n": n, "s": s}, time


def written(build: Build, *given: Record) -> list[Any]:
    fed = Fed(program(build))
    fed.feed("in", given)
    return [value for _, value, _ in rows(fed.commit(), "out")]


@dataclass
class Doubled:
    n: int
    of: str | None


class Model:
    """What pydantic's models have."""

    def model_dump(self) -> dict[str, Any]:
        return {"n": 7}


# --- what functions get and give ----------------------------------------------------------------------------------


def test_a_function_gets_the_columns_and_gives_a_row() -> None:
    seen: list[Any] = []

    def double(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row)
        return {"n": row["n"] * 2}

    assert written(lambda s: s.map(double), record(1, "x"), record(2)) == [{"n": 2}, {"n": 4}]
    assert seen == [{"n": 1, "s": "x", "k": "a"}, {"n": 2, "s": None, "k": "a"}]


def test_dataclasses_and_models_are_rows() -> None:
    assert written(lambda s: s.map(lambda row: Doubled(2, row["s"])), record(1, "x")) == [{"n": 2, "of": "x"}]
    assert written(lambda s: s.map(lambda row: Model()), record(1)) == [{"n": 7}]
    declared = "n bigint, of string"
    assert written(lambda s: s.map(lambda row: Doubled(2, None), schema=declared), record(1)) == [{"n": 2, "of": None}]


def test_none_leaves_the_record_out() -> None:
    odd = lambda row: row if row["n"] % 2 else None  # noqa: E731
    assert [row["n"] for row in written(lambda s: s.map(odd), *map(record, range(4)))] == [1, 3]
    assert written(lambda s: s.flat_map(lambda row: None), record(1)) == []


def test_any_number_of_rows() -> None:
    times = lambda row: [{"i": i} for i in range(row["n"])]  # noqa: E731
    assert written(lambda s: s.flat_map(times), record(0), record(2), record(1)) == [{"i": 0}, {"i": 1}, {"i": 0}]

    def lazily(row: dict[str, Any]) -> Any:
        yield from times(row)

    assert written(lambda s: s.flat_map(lazily), record(2)) == [{"i": 0}, {"i": 1}]


def test_the_context_is_given_to_who_takes_it() -> None:
    def tell(row: Any, context: Any) -> dict[str, Any]:
        return {"key": context.key, "time": context.time, "watermark": context.watermark}

    declared = "key binary, time bigint, watermark bigint"
    fed = Fed(program(lambda s: s.map(tell, schema=declared).with_columns(key=col("key").is_null())))
    fed.feed("in", [record(1, time=9), record(2, key=None, time=4)])
    assert [v for _, v, _ in rows(fed.commit(), "out")] == [
        {"key": False, "time": 9, "watermark": 9},
        {"key": True, "time": 4, "watermark": 9},
    ]


def test_a_function_without_state_sets_no_timer() -> None:
    def early(row: Any, context: Any) -> Any:
        context.timer("x", at=5)

    with pytest.raises(RowFailed, match=r"process\(…, on_timer=FUNCTION\)"):
        written(lambda s: s.map(early), record(1))


def test_key_and_time_of_a_record_are_those_of_its_rows() -> None:
    fed = Fed(program(lambda s: s.flat_map(lambda row: [{"i": 0}, {"i": 1}])))
    fed.feed("in", [record(1, key=b"a", time=3), record(1, key=None, time=2)])
    found = [(key, time) for key, _, time in rows(fed.commit(), "out")]
    assert found == [(b"a", 3), (b"a", 3), (None, 2), (None, 2)]


def test_records_are_chosen_and_looked_at_with_their_columns_untouched() -> None:
    seen: list[int] = []
    build: Build = lambda s: s.filter_records(lambda row: row["n"] > 1).peek(lambda row: seen.append(row["n"]))  # noqa: E731
    assert written(lambda s: build(s).select(m=col("n") * 2), *map(record, range(4))) == [{"m": 4}, {"m": 6}]
    assert seen == [2, 3]


def test_builtins_are_functions() -> None:
    assert written(lambda s: s.filter_records(len).peek(print), record(1)) != []


# --- with and without a schema ------------------------------------------------------------------------------------


def test_rows_without_a_schema_go_to_functions_and_topics_alone() -> None:
    build: Build = lambda s: s.map(lambda row: {"deep": {"n": row["n"]}}).map(lambda row: row["deep"])  # noqa: E731
    assert written(build, record(3)) == [{"n": 3}]
    with pytest.raises(NotAllowed, match=r"filter .*the function before gave no columns: say schema="):
        source(App("calls")).map(dict).filter(col("n") > 1)


def test_rows_with_a_schema_have_its_columns() -> None:
    build: Build = lambda s: s.map(lambda row: {"m": row["n"]}, schema="m bigint, missing string")  # noqa: E731
    assert written(lambda s: build(s).with_columns(m=col("m") + 1), record(1)) == [{"m": 2, "missing": None}]


def test_rows_that_functions_made_can_be_counted_by_key() -> None:
    app = App("calls")
    source(app).map(lambda row: row).group_by().agg(n=agg.count(), name="counts", emit="every").to("out")
    fed = Fed(app)
    fed.feed("in", [record(1), record(2)])
    assert [v for _, v, _ in rows(fed.commit(), "out")] == [{"n": 1}, {"n": 2}]


TYPES: dict[str, tuple[Any, Any]] = {
    "bigint": (2**63 - 1, 2**63 - 1),
    "int": (-(2**31), -(2**31)),
    "double": (3, 3.0),
    "string": ("ä", "ä"),
    "boolean": (True, True),
    "date": (date(2024, 2, 29), "2024-02-29"),
    "timestamp": (datetime(2024, 2, 29, tzinfo=UTC), "2024-02-29T00:00:00.000Z"),
    "array<int>": ([1, None], [1, None]),
    "struct<a: int>": ({"a": 1}, {"a": 1}),
    "map<string,int>": ({"a": 1}, {"a": 1}),
}
MISFITS: dict[str, Any] = {
    "bigint": 2**63,
    "int": 2**31,
    "tinyint": 200,
    "double": "x",
    "string": 5,
    "boolean": 1,
    "date": "x",
    "timestamp": "x",
    "array<int>": ["x"],
    "struct<a: int>": 5,
}


@pytest.mark.parametrize("type_", TYPES)
def test_each_type(type_: str) -> None:
    given, expected = TYPES[type_]
    build: Build = lambda s: s.map(lambda row: {"x": given if row["n"] else None}, schema=f"x {type_}")  # noqa: E731
    assert written(build, record(1), record(0)) == [{"x": expected}, {"x": None}]


@pytest.mark.parametrize("type_", MISFITS)
def test_a_value_of_another_type_is_an_error_of_its_row(type_: str) -> None:
    def make(row: Any) -> Any:
        return {"x": MISFITS[type_] if row["n"] else None}

    app = program(lambda s: s.map(make, schema=f"x {type_}"), on_error="dead")
    fed = Fed(app)
    fed.feed("in", [record(0), record(1), record(0)])
    outputs = fed.commit()
    assert [v for _, v, _ in rows(outputs, "out")] == [{"x": None}, {"x": None}]
    assert [v["n"] for _, v, _ in rows(outputs, "dead")] == [1]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (5, r"map .* gave 5; a row is a dict"),
        ({"m": 1}, "gave the column 'm', which its schema does not have"),
        ({"n": "\ud800"}, "n: .* is no bigint"),
        ({"n": 1.5}, "n: 1.5 is no bigint"),
    ],
)
def test_a_row_that_does_not_fit_is_named(made: Any, message: str) -> None:
    with pytest.raises(RowFailed, match=message):
        written(lambda s: s.map(lambda row: made, schema="n bigint"), record(1))


@pytest.mark.parametrize(
    ("type_", "made", "fits"),
    [
        ("array<bigint>", [1, 2.5], False),
        ("array<bigint>", [1, 2.0, None], True),
        ("struct<x: int, y: double>", {"x": 1.5}, False),
        ("struct<x: int, y: double>", {"x": 1, "y": 1.5}, True),
        ("map<string, int>", {"a": 0.5}, False),
        ("map<string, int>", [("a", 0.5)], False),
        ("map<string, int>", {"a": 1, "b": None}, True),
    ],
)
def test_a_float_inside_of_others_is_not_cut(type_: str, made: Any, fits: bool) -> None:
    def apply() -> object:
        return written(lambda s: s.map(lambda row: {"n": made}, schema=f"n {type_}"), record(1))

    if fits:
        apply()
    else:
        with pytest.raises(RowFailed, match=r"n: .* is no (array|struct|map)<"):
            apply()


@dataclass
class Inner:
    x: float


@pytest.mark.parametrize(
    "made", [{"a": float("nan")}, {"a": [1, {"b": (float("inf"),)}]}, {"a": {"b": Inner(float("-inf"))}}]
)
def test_numbers_that_json_does_not_have_are_no_null(made: Any) -> None:
    with pytest.raises(RowFailed, match="gave NaN or infinity, which JSON cannot hold; give None"):
        written(lambda s: s.map(lambda row: made), record(1))
    assert written(lambda s: s.map(lambda row: {"a": None, "b": [1.5, "null"]}), record(1))


@pytest.mark.parametrize("at", [-1, 2**63, float("nan"), None, "noon"])
def test_a_timer_at_no_time_is_an_error_of_its_record(at: Any) -> None:
    def ask(row: Any, state: Any, context: Any) -> None:
        context.timer("t", at=at)

    app = App("calls")
    source = app.stream("in", value=json("n bigint"), key="k")
    source.process(ask, name="asks", on_timer=lambda name, state, context: None)
    with pytest.raises(RowFailed, match=f"the timer 't' is at {at!r}; give ms since 1970"):
        Fed(app).feed("in", [record(1)])


# --- errors and the batch law -------------------------------------------------------------------------------------


def test_a_function_is_called_once_for_each_record_whatever_others_raise() -> None:
    called: list[int] = []

    def pick(row: Any) -> Any:
        called.append(row["n"])
        if row["n"] == 1:
            raise ValueError("no")
        return {"s": "\ud800" if row["n"] == 2 else "fine"}

    app = program(lambda s: s.map(pick, schema="s string"), on_error="dead")
    fed = Fed(app)
    fed.feed("in", [record(n) for n in range(4)])
    outputs = fed.commit()
    assert called == [0, 1, 2, 3]
    assert [v["n"] for _, v, _ in rows(outputs, "dead")] == [1, 2]


given_records = st.lists(
    st.builds(record, st.integers(0, 9), st.sampled_from(["x", "ä", None]), st.sampled_from([b"a", b"b"])),
    min_size=1,
    max_size=25,
)


def chain(stream: Stream) -> Stream:
    def many(row: Any) -> Any:
        for i in range(row["n"] % 4):
            yield {"n": row["n"] // i if i != 1 else 100 // row["n"], "i": i}

    def keep(row: Any) -> bool:
        return bool(10 // (row["n"] - 3))

    return stream.filter_records(keep).flat_map(many, schema="n bigint, i bigint").map(lambda row: {**row, "m": 1})


@pytest.mark.parametrize("topic", ["out", "dead"])
@settings(max_examples=30, deadline=None)
@given(given=given_records, cutting=cuts)
def test_the_cutting_of_batches_is_not_seen(topic: str, given: list[Record], cutting: list[tuple[int, str]]) -> None:
    app = program(chain, on_error="dead")
    found, expected = run_cut(app, given, cutting, topic), run_one_by_one(app, given, topic)
    if topic == "dead":  # several nodes write there, each for its batch
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
    else:
        assert by_key(found) == by_key(expected)


def test_no_function_is_refused() -> None:
    stream = source(App("calls"))
    for call in (stream.map, stream.flat_map, stream.filter_records, stream.peek):
        with pytest.raises(NotAllowed, match=r"\(test_record_calls\.py:\d+\) needs a function, not 5"):
            call(5)


async def later(*_: object) -> None:
    """A coroutine that nobody awaits does nothing, and is true."""


async def one_after_another(*_: object) -> Any:
    yield {}


class Later:
    async def __call__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("function", [later, one_after_another, Later(), partial(later, 1)])
def test_an_async_function_is_refused(function: Any) -> None:
    stream = source(App("calls"))
    calls = [stream.map, stream.flat_map, stream.filter_records, stream.peek, stream.foreach_batch]
    calls += [partial(stream.process, name="p"), partial(stream.map_batches, schema="n bigint")]
    calls += [lambda given: stream.process(print, name="p", on_timer=given)]
    for call in calls:
        with pytest.raises(NotAllowed, match=r"is async, and nothing awaits it here; write a plain function"):
            call(function)
