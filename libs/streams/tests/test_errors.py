"""`on_error`: what becomes of a record that a node cannot process, for every kind of node."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import narwhals.stable.v2 as nw
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, cuts, dead, raw, run_cut

from headrace_common.core.errors import HeadraceError
from headrace_streams import App, NotAllowed, RowFailed, Stream, agg, col, custom, json, tumbling
from headrace_streams.core.formats import string
from headrace_streams.core.outputs import Limits
from headrace_streams.main import _in_pool
from headrace_streams.testing import Driver

Build = Callable[[App], Stream]
NUMBER = col("s").cast(nw.Int64)


def source(app: App) -> Stream:
    return app.stream("in", value=json("s string, at bigint"), key="k", timestamp="at")


def numbered(row: Any, *more: Any) -> dict[str, Any]:
    return {"n": int(row["s"])}


def many(row: Any) -> Any:
    yield {"n": 0}
    yield numbered(row)


def batches(table: pa.Table) -> pa.Table:
    return pa.table({"n": [int(s) for s in table["s"].to_pylist()]})


NODES: dict[str, Build] = {
    "value": lambda app: app.stream("in", value=custom(lambda v: numbered(orjson.loads(v)), schema="n bigint")),
    "timestamp": lambda app: app.stream("in", value=json("s string"), timestamp=NUMBER),
    "filter": lambda app: source(app).filter(NUMBER >= 0),
    "with_columns": lambda app: source(app).with_columns(n=NUMBER),
    "select": lambda app: source(app).select(n=NUMBER),
    "split": lambda app: source(app).split(negative=NUMBER < 0, rest=NUMBER >= 0)["rest"],
    "map_batches": lambda app: source(app).map_batches(batches, schema="n bigint"),
    "map": lambda app: source(app).map(numbered),
    "map with a schema": lambda app: source(app).map(numbered, schema="n bigint"),
    "flat_map": lambda app: source(app).flat_map(many).filter_records(lambda row: row["n"]),
    "filter_records": lambda app: source(app).filter_records(lambda row: numbered(row)["n"] >= 0),
    "peek": lambda app: source(app).peek(numbered),
    "process": lambda app: source(app).process(numbered, name="p"),
    "agg": lambda app: source(app).group_by("k").agg(n=agg.sum(NUMBER), name="g", emit="every"),
    "behind others": lambda app: source(app).filter(col("at") % 7 < 9).with_columns(t=col("at") + 1).map(numbered),
}


def program(name: str, on_error: str) -> App:
    app = App("errors", on_error=on_error)
    if name == "sink":
        source(app).to("out", value=custom(encode=lambda row: str(int(row["s"]))))
    else:
        NODES[name](app).to("out")
    return app


ALL = [*NODES, "sink"]


def record(number: int, *, bad: bool = False) -> Record:
    return b"key", {"s": f"x{number}" if bad else str(number + 1), "at": number}, number


@pytest.mark.parametrize("name", ALL)
def test_a_dead_letter_is_the_record_as_it_came_and_why(name: str) -> None:
    fed = Fed(program(name, "dead"))
    table = raw([record(0), record(1, bad=True), record(2)], first=40)
    headers = pa.array([[], [("trace", b"t1"), ("none", None)], []], pa.map_(pa.string(), pa.binary()))
    fed.task.tell(1_700_000_000_000)
    fed.task.feed("in", table.append_column("headers", headers))
    outputs = fed.commit()
    (letter,) = dead(outputs, "dead")
    assert (letter.key, letter.value, letter.time) == (b"key", b'{"s":"x1","at":1}', 1)
    assert letter.headers[:2] == [("trace", b"t1"), ("none", None)]
    why = dict(letter.headers[2:])
    assert set(why) == {
        f"headrace.error.{of}" for of in ("topic", "partition", "offset", "node", "class", "message", "app", "at")
    }
    assert why["headrace.error.at"] == b"1700000000000"
    assert (why["headrace.error.topic"], why["headrace.error.partition"]) == (b"in", b"0")
    assert (why["headrace.error.offset"], why["headrace.error.app"]) == (b"41", b"errors")
    assert b"(test_errors.py:" in why["headrace.error.node"]
    assert b"x1" in why["headrace.error.message"]
    assert why["headrace.error.class"] in (b"ValueError", b"ArrowInvalid", b"Unreadable", b"NotEncodable")
    assert sum(o.records.num_rows for o in outputs if o.topic == "out") == 2
    assert list(fed.figures.met["failed"].values()) == [1]


@pytest.mark.parametrize("name", ALL)
def test_a_record_that_is_skipped_is_counted_and_nothing_else(name: str) -> None:
    fed = Fed(program(name, "skip"))
    fed.feed("in", [record(0, bad=True), record(1), record(2, bad=True)])
    outputs = fed.commit()
    assert [(o.topic, o.records.num_rows) for o in outputs] == [("out", 1)]
    assert list(fed.figures.met["failed"].values()) == [2]


@pytest.mark.parametrize("name", ALL)
def test_a_record_that_stops_the_app_is_named(name: str) -> None:
    fed = Fed(program(name, "fail"))
    with pytest.raises(RowFailed, match=r"test_errors\.py:\d+\): the record of in-0 at offset 1 failed: .*x1"):
        fed.feed("in", [record(0), record(1, bad=True), record(2)])
    fed.abort()
    assert fed.commit() == []
    fed.feed("in", [record(0)])
    assert sum(o.records.num_rows for o in fed.commit()) == 1


given_records = st.lists(st.booleans(), min_size=1, max_size=20)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=8, deadline=None)
@given(given=given_records, cutting=cuts)
def test_exactly_the_bad_rows_are_found(name: str, given: list[bool], cutting: list[tuple[int, str]]) -> None:
    records = [record(number, bad=bad) for number, bad in enumerate(given)]
    app = program(name, "dead")
    letters = run_cut(app, records, cutting, "dead")
    assert [value["at"] for _, value, _ in letters] == [number for number, bad in enumerate(given) if bad]
    good = run_cut(app, records, cutting, "out")
    assert len(good) == given.count(False)


def test_a_node_may_have_its_own_way() -> None:
    app = App("errors")
    source(app).map(numbered, on_error="skip").to("out")
    fed = Fed(app)
    fed.feed("in", [record(0, bad=True), record(1)])
    assert [o.topic for o in fed.commit()] == ["out"]
    app = App("errors", on_error="skip")
    app.stream("in", value=json("n bigint"), on_error="dead").to("out")
    fed = Fed(app)
    fed.feed("in", [(None, b"{", 0), (None, {"n": 1}, 0)])
    assert [o.topic for o in fed.commit()] == ["dead", "out"]


# --- keys ---------------------------------------------------------------------------------------------------------


def test_a_key_that_cannot_be_read_is_an_error_of_its_record() -> None:
    app = App("errors", on_error="dead")
    key = custom(lambda key: {"k": int(key)}, schema="k bigint")
    app.stream("in", value=json("n bigint"), key=key).to("out")
    fed = Fed(app)
    fed.feed(
        "in", [(b"1", {"n": 0}, 0), (b"x", {"n": 1}, 0), (None, {"n": 2}, 0), (b"x", b"{", 0), (b"4", {"n": 4}, 0)]
    )
    outputs = fed.commit()
    found = [orjson.loads(v) for o in outputs if o.topic == "out" for v in o.records["value"].to_pylist()]
    assert found == [{"n": 0, "k": 1}, {"n": 2, "k": None}, {"n": 4, "k": 4}]
    assert [letter.value for letter in dead(outputs, "dead")] == [b"{", b'{"n":1}'], "each once"


def test_a_row_whose_key_cannot_be_written_is_an_error_of_its_record() -> None:
    app = App("errors", on_error="dead")
    stream = app.stream("in", value=json("n double"), timestamp=None)
    stream.with_columns(n=1 / col("n")).group_by("n", name="by-n").agg(c=agg.count(), name="g", emit="every").to("out")
    with Driver(app) as driver:
        driver.pipe("in", [{"n": 1.0}, {"n": 0.0}, {"n": 2.0}])
        assert sorted(row["n"] for row in driver.read("out")) == [0.5, 1.0]
        assert driver.read("dead") == [{"n": 0.0}]


def test_null_keys_have_no_place_in_state_and_are_counted() -> None:
    app = App("errors")
    source(app).group_by("k").agg(c=agg.count(), name="g", emit="every").to("out")
    fed = Fed(app)
    fed.feed("in", [(None, {"s": "1", "at": 1}, 0), record(2)])
    (output,) = fed.commit()
    assert output.records["key"].to_pylist() == [b"key"]
    assert dropped_rows(fed) == {"drop_null_keys": 1}


@pytest.mark.parametrize("name", ["process", "agg", "table"])
def test_a_dead_letter_topic_keeps_what_has_no_key(name: str) -> None:
    """Where state is kept by key; where none is, a row needs none."""
    app = App("errors", on_error="dead")
    if name == "table":
        app.table("in", value=json("s string, at bigint"), key="k", timestamp="at", name="t").to("out")
    else:
        NODES[name](app).to("out")
    fed = Fed(app)
    fed.feed("in", [record(1), (None, {"s": "1", "at": 2}, 0), record(3)])
    outputs = fed.commit()
    (letter,) = dead(outputs, "dead")
    assert (letter.key, letter.value) == (None, b'{"s":"1","at":2}')
    why = dict(letter.headers)
    assert (why["headrace.error.class"], why["headrace.error.offset"]) == (b"NullKey", b"1")
    assert dropped_rows(fed) == {}
    assert list(fed.figures.met["failed"].values()) == [1]
    assert {record["key"] for o in outputs if o.topic == "out" for record in o.records.to_pylist()} == {b"key"}


def test_records_without_a_value_are_left_out() -> None:
    app = App("errors")
    source(app).to("out")
    fed = Fed(app)
    fed.feed("in", [(b"key", None, 0), record(2), (b"key", None, 0)])
    (output,) = fed.commit()
    assert output.records.num_rows == 1
    assert dropped_rows(fed) == {"stream": 2}


@pytest.mark.parametrize(("how", "dropped"), [("inner", {"join": 2}), ("left", {})])
def test_rows_without_a_key_that_a_join_drops_are_counted(how: str, dropped: dict[str, int]) -> None:
    app = App("errors")
    tiers = app.table("tiers", value=json("tier string"), key="k", name="tiers")
    source(app).join(tiers, how=how).to("out")
    fed = Fed(app)
    fed.feed("in", [(None, {"s": "1", "at": 1}, 0), record(2), (None, {"s": "1", "at": 1}, 0)])
    fed.commit()
    assert dropped_rows(fed) == dropped


def dropped_rows(fed: Fed) -> dict[str, float]:
    """As the metric has them, by the kind of the node."""
    return {of["node"].split(" (")[0]: count for count, of in fed.figures.values("dropped_rows", 0)}


# --- times --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [-1, -(2**62), 253_402_300_800_000])
@pytest.mark.parametrize("of", ["record", "column"])
def test_a_time_out_of_range_is_an_error_of_its_record(of: str, time: int) -> None:
    app = App("errors", on_error="dead")
    app.stream("in", value=json("at bigint"), timestamp="at" if of == "column" else None).to("out")
    fed = Fed(app)
    fed.feed("in", [(None, {"at": 1}, 1), (None, {"at": time}, time if of == "record" else 0), (None, {"at": 2}, 2)])
    outputs = fed.commit()
    assert [letter.value for letter in dead(outputs, "dead")] == [orjson.dumps({"at": time})]
    assert fed.task.watermark == 2


def test_a_time_that_is_missing_is_an_error_of_its_record() -> None:
    app = App("errors", on_error="dead")
    app.stream("in", value=json("at timestamp"), timestamp="at").to("out")
    fed = Fed(app)
    fed.feed("in", [(None, {"at": None}, 1), (None, {"at": 5}, 1)])
    outputs = fed.commit()
    assert dict(dead(outputs, "dead")[0].headers)["headrace.error.message"] == b"the timestamp is missing"


EARLIEST = "0001-01-01T00:00:00.000Z"
LATEST = "9999-12-31T23:59:59.999Z"


@pytest.mark.parametrize(
    ("of", "at", "why"),
    [
        ("column", EARLIEST, ""),
        ("column", LATEST, ""),
        ("column", -62_135_596_800_001, "in the years 1 to 9999"),
        ("column", 253_402_300_800_000, "in the years 1 to 9999"),
        ("event time", "1970-01-01T00:00:00.000Z", ""),
        ("event time", LATEST, ""),
        ("event time", "1969-12-31T23:59:59.999Z", "event time is in the years 1970 to 9999; other columns take the y"),
        ("event time", EARLIEST, "event time is in the years 1970 to 9999; other columns take the years 1 to 9999"),
    ],
)
def test_the_years_that_messages_name_are_those_that_are_taken(of: str, at: int | str, why: str) -> None:
    app = App("errors", on_error="dead")
    app.stream("in", value=json("at timestamp"), timestamp="at" if of == "event time" else None).to("out")
    fed = Fed(app)
    fed.feed("in", [(None, {"at": at}, 0)])
    outputs = fed.commit()
    if not why:
        assert [orjson.loads(o.records["value"][0].as_py()) for o in outputs] == [{"at": at}]
    else:
        (letter,) = dead(outputs, "dead")
        assert why in (dict(letter.headers)["headrace.error.message"] or b"").decode()


# --- what functions give and raise --------------------------------------------------------------------------------

TABLES: dict[str, tuple[Callable[[pa.Table], Any], str]] = {
    "a column is missing": (
        lambda table: pa.table({"m": table["s"], "s": table["s"]}),
        "must return the columns of its schema: 'n' is missing; it returned 'm', 's'",
    ),
    "a column is there twice": (
        lambda table: pa.Table.from_arrays([table["at"], table["at"]], names=["n", "n"]),
        "must return the columns of its schema: 'n' is there twice; it returned 'n', 'n'",
    ),
    "no columns": (
        lambda table: table.select(cast(list[str], [])),
        "'n' is missing; it returned none",
    ),
    "no table": (lambda table: 5, "must return a pyarrow.Table of 1 rows, it returned 5;"),
    "no rows": (lambda table: table.slice(0, 0), "must return a pyarrow.Table of 1 rows, it returned 0 rows;"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_does_not_fit_is_named(name: str) -> None:
    function, says = TABLES[name]
    app = App("errors")
    source(app).map_batches(function, schema="n bigint").to("out")
    with pytest.raises(RowFailed) as failed:
        Fed(app).feed("in", [record(0)])
    of = r"map_batches \(test_errors\.py:\d+\)"
    assert re.match(rf"{of}: the record of in-0 at offset 0 failed: TypeError: {of} ", str(failed.value))
    assert says in str(failed.value)


def test_a_table_may_have_more_columns() -> None:
    app = App("errors")
    source(app).map_batches(lambda table: table, schema="at bigint").to("out")
    fed = Fed(app)
    fed.feed("in", [record(7)])
    assert [orjson.loads(o.records["value"][0].as_py()) for o in fed.commit()] == [{"at": 7}]


def stop(row: Any, *more: Any) -> Any:
    return next(iter(()))


def refuse(row: Any, *more: Any) -> Any:
    raise AssertionError


def first_line(function: Any) -> int:
    """Of its body."""
    return int(function.__code__.co_firstlineno) + 1


SILENT: dict[str, tuple[Build, str]] = {
    "map": (lambda app: source(app).map(stop), f"StopIteration raised at test_errors.py:{first_line(stop)}"),
    "map_batches": (lambda app: source(app).map_batches(refuse, schema="n bigint"), "AssertionError raised at test_e"),
    "process": (lambda app: source(app).process(refuse, name="p"), "AssertionError raised at test_errors.py:"),
    "value": (
        lambda app: app.stream("in", value=custom(refuse, schema="n bigint")),
        "AssertionError raised at test_errors.py:",
    ),
    "fold": (
        lambda app: source(app)
        .group_by("k")
        .agg(n=agg.fold("s", 0, lambda state, value: refuse(value), type="bigint"), name="g"),
        "cannot be computed: AssertionError raised at test_errors.py:",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SILENT)
def test_an_exception_without_words_says_where_it_was_raised(name: str) -> None:
    build, says = SILENT[name]
    app = App("errors")
    build(app).to("out")
    with pytest.raises(HeadraceError) as failed:
        Fed(app).feed("in", [record(0)])
    assert says in str(failed.value)
    assert ": ;" not in str(failed.value)


def test_the_dead_letter_of_an_exception_without_words_says_it_too() -> None:
    app = App("errors", on_error="dead")
    source(app).map(refuse).to("out")
    fed = Fed(app)
    fed.feed("in", [record(0)])
    (letter,) = dead(fed.commit(), "dead")
    why = dict(letter.headers)
    assert why["headrace.error.class"] == b"AssertionError"
    assert why["headrace.error.message"] == f"raised at test_errors.py:{first_line(refuse)}".encode()


def test_what_a_builtin_raises_without_words_is_its_class() -> None:
    """It was raised at no line of the program."""
    ended = (row for row in ())
    assert list(ended) == []
    app = App("errors")
    source(app).map(ended.send).to("out")
    with pytest.raises(RowFailed, match=r" failed: StopIteration; mend the program"):
        Fed(app).feed("in", [record(0)])


# --- rows that stem from no single record -------------------------------------------------------------------------


def test_a_timer_that_raises_is_told_by_its_name() -> None:
    def set_timer(row: Any, state: Any, context: Any) -> None:
        context.timer(row["s"], at=10)

    def ring(name: str, state: Any, context: Any) -> dict[str, Any]:
        return {"n": int(name)}

    app = App("errors", on_error="dead")
    source(app).process(set_timer, name="p", on_timer=ring).to("out")
    fed = Fed(app)
    fed.feed("in", [record(0, bad=True), record(1), record(20)])
    outputs = fed.commit()
    (letter,) = dead(outputs, "dead")
    assert (letter.key, letter.value, letter.time) == (b"key", b'{"timer":"x0"}', 10)
    assert dict(letter.headers)["headrace.error.class"] == b"ValueError"
    assert "headrace.error.offset" not in dict(letter.headers)
    assert [o.records["value"].to_pylist() for o in outputs if o.topic == "out"] == [[b'{"n":2}', b'{"n":21}']]


def test_a_timer_that_stops_the_app_is_named_with_its_key_and_time() -> None:
    def set_timer(row: Any, state: Any, context: Any) -> None:
        context.timer("ring", at=10)

    def ring(name: str, state: Any, context: Any) -> None:
        raise ValueError("no")

    app = App("errors")
    source(app).process(set_timer, name="p", on_timer=ring).to("out")
    of = """the row {"timer":"ring"} of key b'key' at 1970-01-01T00:00:00.010Z failed: ValueError: no"""
    with pytest.raises(RowFailed, match=rf"process 'p' \(test_errors.*\): {re.escape(of)}"):
        Fed(app).feed("in", [record(0), record(20)])


ENDS: dict[str, tuple[Build, str]] = {
    "map": (lambda app: source(app).map(leave), ": the record of in-0 at offset 1"),
    "peek": (lambda app: source(app).peek(leave), ": the record of in-0 at offset 1"),
    "process": (lambda app: source(app).process(leave, name="p"), ": the record of in-0 at offset 1"),
    "map_batches": (lambda app: source(app).map_batches(leave_batch, schema="n bigint"), ""),
}


def leave(row: Any, *more: Any) -> Any:
    return sys.exit(3) if row["s"] == "x1" else {"n": 1}


def leave_batch(table: pa.Table) -> pa.Table:
    sys.exit(3)


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("on_error", ["fail", "skip"])
async def test_a_function_that_would_end_the_process_is_named_with_its_record(name: str, on_error: str) -> None:
    build, of = ENDS[name]
    app = App("errors", on_error=on_error)
    build(app).to("out")
    fed = Fed(app)
    says = rf"^{name}.*\(test_errors\.py:\d+\){of}: a function of the program raised SystemExit\(3\), which would end"
    with ThreadPoolExecutor(1) as pool, pytest.raises(NotAllowed, match=says):
        await _in_pool(pool, fed.feed, "in", [record(0), record(1, bad=True), record(2)])


def test_a_row_of_a_timer_is_written_as_it_is() -> None:
    def set_timer(row: Any, state: Any, context: Any) -> None:
        context.timer(row["s"], at=10)

    for schema, value in ((None, b'{"name":"x0"}'), ("name string", b'{"name":"x0"}')):
        app = App("errors", on_error="dead")
        made = source(app).process(set_timer, name="p", on_timer=lambda n, s, c: {"name": n}, schema=schema)
        made.map(lambda row: {"n": int(row["name"])}).to("out")
        fed = Fed(app)
        fed.feed("in", [record(0, bad=True), record(20)])
        assert [letter.value for letter in dead(fed.commit(), "dead")] == [value]


def test_a_result_that_fails_behind_a_window_is_written_as_a_row() -> None:
    app = App("errors", on_error="dead")
    windows = source(app).group_by("k").window(tumbling(10), late="drop")
    windows.agg(s=agg.last("s"), name="g", emit="final").with_columns(n=NUMBER).to("out")
    fed = Fed(app)
    fed.feed("in", [record(0, bad=True), record(11), record(30)])
    outputs = fed.commit()
    (letter,) = dead(outputs, "dead")
    assert orjson.loads(letter.value or b"")["s"] == "x0"
    assert (letter.key, letter.time) == (b"key", 9)
    assert sum(o.records.num_rows for o in outputs if o.topic == "out") == 1


# --- late rows ----------------------------------------------------------------------------------------------------


def late_program(late: str) -> App:
    app = App("late")
    windows = source(app).group_by("k").window(tumbling(10, grace=5), late=late)
    windows.agg(n=agg.count(), name="g", emit="final").to("out")
    return app


def test_late_rows_are_told_with_their_window_or_dropped_and_counted() -> None:
    given = [record(1), record(15), record(2), record(14), record(30)]
    fed = Fed(late_program("late"))
    fed.feed("in", given)
    outputs = fed.commit()
    (letter,) = dead(outputs, "late")
    assert orjson.loads(letter.value or b"") == {
        "window_start": "1970-01-01T00:00:00.000Z",
        "window_end": "1970-01-01T00:00:00.010Z",
        "s": "3",
        "at": 2,
        "k": "key",
    }
    assert letter.time == 2
    fed = Fed(late_program("drop"))
    fed.feed("in", given)
    assert {o.topic for o in fed.commit()} == {"out"}
    assert list(fed.figures.met["late"].values()) == [1]


def test_text_is_written_as_it_is() -> None:
    app = App("errors")
    app.stream("in", value=string).to("out", value=string)
    fed = Fed(app)
    fed.feed("in", [(None, b"x", 0)])
    (output,) = fed.commit()
    assert output.records["value"].to_pylist() == [b"x"]


def test_foreach_batch_sees_each_row_at_least_once_and_bad_ones_go_the_way_of_errors() -> None:
    seen: list[int] = []

    def write(table: pa.Table) -> None:
        numbers: list[Any] = table["n"].to_pylist()
        if 3 in numbers:
            raise OSError("3 cannot be written")
        seen.extend(numbers)

    app = App("each", on_error="dead")
    app.stream("in", value=json("n bigint"), key="k").foreach_batch(write)
    fed = Fed(app)
    fed.feed("in", [(b"a", {"n": n}, 0) for n in range(6)])
    letters = dead(fed.commit(), "dead")
    assert seen == [0, 1, 2, 4, 5]
    assert [letter.value for letter in letters] == [b'{"n":3}']
    with pytest.raises(NotAllowed, match=r"foreach_batch .* needs a function, not 5"):
        app.stream("other", value=json("n bigint")).foreach_batch(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("table", [False, True])
def test_a_row_that_its_topic_does_not_take_is_an_error_of_the_row(table: bool) -> None:
    """Rows without a value are among them, and together those that fit are larger than the topic's bound."""
    app = App("errors", on_error="dead")
    if table:
        app.table("in", value=string, key="k", name="t").select("value").to("out", value=string, emit="every")
    else:
        app.stream("in", value=string).to("out", value=string)
    fed = Fed(app, {"out": Limits(4_096)})
    values = [*[b"x" * 500] * 8, None, b"y" * 3_072, b"z" * 3_070, b"x"]
    fed.feed("in", [(b"%d" % number, value, 0) for number, value in enumerate(values)])
    outputs = fed.commit()
    written = [r["value"] for output in outputs if output.topic == "out" for r in output.records.to_pylist()]
    assert [value for value in written if value is not None] == [*[b"x" * 500] * 8, b"z" * 3_070, b"x"]
    (letter,) = dead(outputs, "dead")
    assert letter.value == b"y" * 3_072
    assert b"its record for out has 3,073 bytes" in dict(letter.headers)["headrace.error.message"]


NOW = 1_000 * 86_400_000 + 3_600_000
"""One o'clock."""


@pytest.mark.parametrize("emit", ["changes", "every"])
def test_what_is_ahead_of_the_clock_is_written_with_a_time_that_its_topic_takes(emit: str) -> None:
    """A window ends at midnight, and topics take records of the next hour: a worker would stand still till then."""
    app = App("errors")
    days = (
        app.stream("in", value=json("at timestamp"), key="k", timestamp="at")
        .group_by("k")
        .window(tumbling("1d"), late="drop")
    )
    days.agg(n=agg.count(), name="days", emit=emit).to("out")
    fed = Fed(app, {"out": Limits(4_096, ahead_ms=3_600_000)})
    fed.feed("in", [(b"a", {"at": 0}, 0)])
    assert [output.records["timestamp_ms"].to_pylist()[-1] for output in fed.commit()] == [86_399_999], "no clock yet"
    fed.task.tell(NOW)
    fed.feed("in", [(b"a", {"at": NOW}, 0), (b"b", {"at": NOW + 30 * 86_400_000}, 0)])
    (*_, output) = [output for output in fed.commit() if output.topic == "out"]
    assert [(r["value"][:40], r["timestamp_ms"]) for r in output.records.to_pylist()][-1][1] == NOW + 1_800_000
    fed.task.tell(NOW + 40 * 86_400_000)
    fed.feed("in", [(b"b", {"at": NOW + 30 * 86_400_000}, 0)])
    (*_, output) = [output for output in fed.commit() if output.topic == "out"]
    assert output.records["timestamp_ms"].to_pylist()[-1] == NOW - 3_600_000 + 31 * 86_400_000 - 1


def test_what_is_further_behind_the_clock_than_its_topic_takes_is_an_error_of_the_row() -> None:
    app = App("errors", on_error="dead")
    app.stream("in", value=string).to("out", value=string)
    fed = Fed(app, {"out": Limits(4_096, behind_ms=1_000)})
    fed.task.tell(NOW)
    fed.feed("in", [(None, b"old", NOW - 1_001), (None, b"just in time", NOW - 1_000)])
    outputs = fed.commit()
    assert [r["value"] for output in outputs if output.topic == "out" for r in output.records.to_pylist()] == [
        b"just in time"
    ]
    (letter,) = dead(outputs, "dead")
    assert letter.value == b"old"
    assert b"1,001 ms behind the clock" in (dict(letter.headers)["headrace.error.message"] or b"")


def test_a_dead_letter_of_a_row_is_not_ahead_of_the_clock() -> None:
    app = App("errors", on_error="dead")
    days = (
        app.stream("in", value=json("x string, at timestamp"), key="k", timestamp="at")
        .group_by("k")
        .window(tumbling("1d"), late="drop")
    )
    days.agg(x=agg.last("x"), name="days").to("out")
    fed = Fed(app, {"out": Limits(4_096)})
    fed.task.tell(NOW)
    fed.feed("in", [(b"a", {"at": NOW, "x": "x" * 5_000}, 0)])
    (letter,) = [output for output in fed.commit() if output.topic == "dead"]
    assert letter.records["timestamp_ms"].to_pylist() == [NOW]


def test_a_row_without_a_key_for_a_compacted_topic_is_an_error_of_the_row() -> None:
    app = App("errors", on_error="dead")
    app.stream("in", value=string).to("out", value=string)
    fed = Fed(app, {"out": Limits(4_096, keyed=True)})
    fed.feed("in", [(b"k", b"one", 0), (None, b"two", 0), (b"k", b"three", 0)])
    outputs = fed.commit()
    written = [r["value"] for output in outputs if output.topic == "out" for r in output.records.to_pylist()]
    assert written == [b"one", b"three"]
    (letter,) = dead(outputs, "dead")
    assert b"it has no key, and out is compacted: key_by() before" in (
        dict(letter.headers)["headrace.error.message"] or b""
    )


def test_of_a_key_that_cannot_be_read_it_is_told_that_it_is_the_key() -> None:
    app = App("errors", on_error="dead")
    app.stream("in", value=json("s string"), key="k").to("out")
    fed = Fed(app)
    fed.feed("in", [(b"\xff", {"s": "x"}, 0)])
    (letter,) = dead(fed.commit(), "dead")
    assert (dict(letter.headers)["headrace.error.message"] or b"").startswith(b"the key: ")


LAST_MS = 253_402_300_799_999
"""The last ms of the year 9999."""


def far(app: App) -> Stream:
    """Counts of windows, of which those of the last hour end in the year 10000."""
    given = app.stream("in", value=json("at timestamp"), key="k", timestamp="at")
    return given.group_by("k").window(tumbling("1h"), late="drop").agg(n=agg.count(), name="far")


def test_a_row_with_a_time_that_python_does_not_know_is_an_error_of_the_row() -> None:
    app = App("errors", on_error="dead")
    far(app).to("out")
    fed = Fed(app)
    fed.feed("in", [(b"a", {"at": 0}, 0), (b"b", {"at": LAST_MS}, 0)])
    outputs = fed.commit()
    (letter,) = dead(outputs, "dead")
    assert orjson.loads(letter.value or b"") == {
        "k": "b", "window_start": LAST_MS + 1 - 3_600_000, "window_end": LAST_MS + 1, "n": 1,
    }  # fmt: skip
    assert b"outside the years 1 to 9999" in (dict(letter.headers)["headrace.error.message"] or b"")
    assert sum(o.records.num_rows for o in outputs if o.topic == "out") == 1


@pytest.mark.parametrize("stateful", [False, True], ids=["map", "process"])
def test_a_function_does_not_get_a_time_that_python_does_not_know(stateful: bool) -> None:
    app = App("errors", on_error="dead")
    given: list[str] = []
    seen = lambda row, *more: given.append(row["k"])  # noqa: E731
    counts = far(app)
    if stateful:
        counts.process(seen, name="seen")
    else:
        counts.peek(seen)
    fed = Fed(app)
    fed.feed("in", [(b"a", {"at": 0}, 0), (b"b", {"at": LAST_MS}, 0), (b"c", {"at": LAST_MS}, 0)])
    letters = dead(fed.commit(), "dead")
    assert given == ["a"]
    assert [(orjson.loads(letter.value or b""))["k"] for letter in letters] == ["b", "c"]


def test_the_message_of_a_row_with_such_a_time_tells_the_row() -> None:
    app = App("errors")
    far(app).to("out")
    fed = Fed(app)
    fed.feed("in", [(b"b", {"at": LAST_MS}, 0)])
    with pytest.raises(RowFailed, match=r"the row .*\"window_end\":253402300800000"):
        fed.commit()
