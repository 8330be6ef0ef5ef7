"""`process`: one key's state, its timers, and what is kept of a call that raises."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, by_key, cuts, rows, run_cut, run_one_by_one

from headrace_streams import App, NotAllowed, RowFailed, col, json, value
from headrace_streams.testing import Driver

COLUMNS = "op string, n bigint, at bigint"


def program(function: Any, *, on_error: str = "fail", **more: Any) -> App:
    app = App("functions", on_error=on_error)
    source = app.stream("in", value=json(COLUMNS), key="k", timestamp="at")
    source.process(function, name="p", **more).to("out")
    return app


def record(key: str, op: str = "", n: int = 0, at: int = 0) -> Record:
    return key.encode(), {"op": op, "n": n, "at": at}, 0


def written(fed: Fed, *given: Record) -> list[Any]:
    fed.feed("in", given)
    return [value for _, value, _ in rows(fed.commit(), "out")]


def count(row: Any, state: Any, context: Any) -> dict[str, Any]:
    state.seen += 1
    return {"k": row["k"], "seen": state.seen}


# --- rows and state -----------------------------------------------------------------------------------------------


def test_each_key_has_its_own_state() -> None:
    fed = Fed(program(count, state={"seen": value(int)}))
    assert written(fed, record("a"), record("b"), record("a")) == [
        {"k": "a", "seen": 1},
        {"k": "b", "seen": 1},
        {"k": "a", "seen": 2},
    ]


def test_state_of_a_commit_outlives_the_process_and_that_of_no_commit_does_not() -> None:
    fed = Fed(program(count, state={"seen": value(int)}))
    written(fed, record("a"))
    fed.feed("in", [record("a")])
    fed.abort()
    assert written(fed, record("a")) == [{"k": "a", "seen": 2}]
    fed.feed("in", [record("a")])
    fed.reopen()
    assert written(fed, record("a")) == [{"k": "a", "seen": 3}]


def test_a_key_whose_state_is_as_in_the_beginning_leaves_nothing() -> None:
    def turn(row: Any, state: Any, context: Any) -> None:
        state.seen = row["n"]

    fed = Fed(program(turn, state={"seen": value(int, default=7)}))
    fed.feed("in", [record("a", n=1), record("b", n=7)])
    assert [key for key, _ in fed.task.changes()["p"]] == [b"sa"]
    fed.commit()
    fed.feed("in", [record("a", n=7)])
    assert fed.task.changes()["p"] == [(b"sa", None)]
    fed.commit()
    fed.feed("in", [record("a", n=7)])
    assert "p" not in fed.task.changes(), "it is deleted already"


def test_none_one_row_and_many() -> None:
    def some(row: Any, state: Any, context: Any) -> Any:
        return {"0": None, "1": {"i": 1}, "2": [{"i": 1}, {"i": 2}]}[row["op"]]

    def each(row: Any, state: Any, context: Any) -> Iterator[Any]:
        for i in range(row["n"]):
            state.last = i
            yield {"i": i}

    fed = Fed(program(some))
    assert written(fed, *(record("a", op) for op in "012")) == [{"i": 1}, {"i": 1}, {"i": 2}]
    fed = Fed(program(each, state={"last": value(int)}))
    assert written(fed, record("a", n=0), record("a", n=2)) == [{"i": 0}, {"i": 1}]


def test_rows_are_what_they_were_when_they_were_yielded() -> None:
    def same(row: Any, state: Any, context: Any) -> Iterator[Any]:
        one: dict[str, Any] = {"all": []}
        for i in range(3):
            one["i"] = i
            one["all"].append(i)
            yield one

    expected = [{"i": 0, "all": [0]}, {"i": 1, "all": [0, 1]}, {"i": 2, "all": [0, 1, 2]}]
    assert written(Fed(program(same)), record("a")) == expected
    assert written(Fed(program(same, schema="i bigint, all array<bigint>")), record("a")) == expected


def test_the_context_tells_key_and_times() -> None:
    def tell(row: Any, state: Any, context: Any) -> dict[str, Any]:
        return {"key": context.key.decode(), "time": context.time, "watermark": context.watermark}

    assert written(Fed(program(tell)), record("a", at=9), record("b", at=4)) == [
        {"key": "a", "time": 9, "watermark": 9},
        {"key": "b", "time": 4, "watermark": 9},
    ]


def test_a_decorated_name_is_the_stream() -> None:
    app = App("decorated")
    source = app.stream("in", value=json(COLUMNS), key="k")

    @source.process(name="p", state={"seen": value(int)}, schema="k string, seen bigint")
    def counted(row: Any, state: Any, context: Any) -> dict[str, Any]:
        return count(row, state, context)

    counted.filter(col("seen") > 1).to("out")
    with Driver(app) as driver:
        driver.pipe("in", [{"k": "a"}, {"k": "a"}])
        assert driver.read("out") == [{"k": "a", "seen": 2}]


# --- a call that raises -------------------------------------------------------------------------------------------


def hurt(row: Any, state: Any, context: Any) -> Iterator[Any]:
    state.seen += 1
    state.list.append(row["n"])
    context.timer("t", at=row["at"] + 5)
    yield {"seen": state.seen}
    if row["op"] == "raise":
        raise ValueError(f"no {row['n']}")
    if row["op"] == "type":
        state.seen = "many"
    if row["op"] == "part":
        state.list.append(object())
    if row["op"] == "huge":
        state.seen = 2**70
    if row["op"] == "text":
        state.text = "\ud800"
    if row["op"] == "row":
        yield {"seen": object()}
    if row["op"] == "row text":
        yield {"seen": 1, "text": "\ud800"}
    if row["op"] == "name":
        state.unknown = 1
    if row["op"] == "time":
        context.timer("t", at=2**70)


def fired(name: str, state: Any, context: Any) -> dict[str, Any]:
    return {"fired": context.time, "list": state.list}


KEPT = {"seen": value(int), "list": value(list), "text": value(str)}


@pytest.mark.parametrize("schema", [None, "seen bigint, fired bigint, list array<bigint>, text string"])
@pytest.mark.parametrize("op", ["raise", "type", "part", "huge", "text", "row", "row text", "name", "time"])
def test_nothing_of_a_call_that_raises_is_kept(op: str, schema: str | None) -> None:
    app = program(hurt, on_error="dead", state=KEPT, on_timer=fired, schema=schema)
    fed = Fed(app)
    fed.feed("in", [record("a", n=1, at=1), record("a", op, n=2, at=2), record("a", n=3, at=3)])
    fed.feed("in", [record("b", at=100)])
    assert list(fed.task.met()["failed"].values()) == [1]
    outputs = fed.commit()
    found = [{name: one for name, one in v.items() if one is not None} for _, v, _ in rows(outputs, "out")]
    assert found == [
        {"seen": 1},
        {"seen": 2},
        {"seen": 1},
        {"fired": 6, "list": [1, 3]},
        {"fired": 8, "list": [1, 3]},
    ]
    assert [v["n"] for _, v, _ in rows(outputs, "dead")] == [2]


def test_a_call_that_raises_stops_the_app_unless_told_otherwise() -> None:
    fed = Fed(program(hurt, state=KEPT, on_timer=fired))
    with pytest.raises(RowFailed, match=r"process 'p' .* in-0 at offset 1 failed: ValueError: no 2") as failed:
        fed.feed("in", [record("a", n=1), record("a", "raise", n=2)])
    assert failed.value.origin is not None
    assert (failed.value.origin.topic, failed.value.origin.offset) == ("in", 1)
    fed.abort()
    assert written(fed, record("a", n=1)) == [{"seen": 1}], "as of the last commit"


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


ODD = [(Mute(), "its text cannot be had: ValueError"), (ValueError("bad \ud800"), r"bad \ud800")]


@pytest.mark.parametrize(("error", "said"), ODD)
def test_an_exception_whose_text_cannot_be_had_or_written_is_its_records_all_the_same(
    error: Exception, said: str
) -> None:
    def odd(row: Any, state: Any, context: Any) -> None:
        raise error

    fed = Fed(program(odd, on_error="dead"))
    fed.feed("in", [record("a", n=1)])
    (dead,) = [output for output in fed.commit() if output.topic == "dead"]
    assert dict(dead.headers)["headrace.error.message"] == said.encode()
    with pytest.raises(RowFailed, match=re.escape(f"in-0 at offset 0 failed: {type(error).__name__}: {said};")):
        Fed(program(odd)).feed("in", [record("a", n=1)])


def test_state_whose_form_json_does_not_have_is_shown_all_the_same() -> None:
    def odd(row: Any, state: Any, context: Any) -> None:
        state.kept[row["n"]] = {(1, 2): 2}

    app = program(odd, state={"kept": value(dict)})
    with Driver(app) as driver:
        driver.pipe("in", [{"k": "a", "n": 1, "at": 0}])
        assert [row["kept"] for row in driver.store("p")] == ['"{1: {(1, 2): 2}}"']

    def numbered(row: Any, state: Any, context: Any) -> None:
        state.kept[row["n"]] = 2

    with Driver(program(numbered, state={"kept": value(dict)})) as driver:
        driver.pipe("in", [{"k": "a", "n": 1, "at": 0}])
        assert [row["kept"] for row in driver.store("p")] == ['{"1":2}']


def test_state_that_was_read_is_not_changed_by_the_call_that_raises() -> None:
    def grow(row: Any, state: Any, context: Any) -> dict[str, Any]:
        deep = state.deep
        deep.setdefault("list", []).append(row["n"])
        if row["op"] == "raise":
            raise ValueError("no")
        return {"list": deep["list"]}

    fed = Fed(program(grow, on_error="skip", state={"deep": value(dict)}))
    given = [record("a", n=1), record("a", "raise", n=2), record("a", n=3)]
    assert written(fed, *given) == [{"list": [1]}, {"list": [1, 3]}]


@pytest.mark.parametrize(
    ("first", "second"), [([1], [1.0]), ([1, "a"], [True, "a"]), ([0.0], [-0.0]), ([{"a": 1}], [{"a": 1.0}]), ([], [1])]
)
def test_values_that_are_equal_and_not_the_same_are_a_change(first: list[Any], second: list[Any]) -> None:
    given = iter([first, second, second])

    def put(row: Any, state: Any, context: Any) -> None:
        state.it = next(given)

    fed = Fed(program(put, state={"it": value(list)}))
    fed.feed("in", [record("a")])
    fed.commit()
    fed.feed("in", [record("a")])
    assert [key for key, _ in fed.task.changes()["p"]] == [b"sa"]
    fed.commit()
    fed.feed("in", [record("a")])
    assert "p" not in fed.task.changes(), "the same again is none"


def test_a_value_that_is_equal_to_its_default_and_not_the_same_is_kept() -> None:
    def put(row: Any, state: Any, context: Any) -> dict[str, Any]:
        before = repr(state.it)
        state.it = [True]
        return {"before": before}

    fed = Fed(program(put, state={"it": value(list, default=[1])}))
    assert written(fed, record("a")) == [{"before": "[1]"}]
    fed.reopen()
    assert written(fed, record("a")) == [{"before": "[True]"}]


def test_a_value_that_cannot_be_kept_is_an_error_where_it_is_equal_to_what_was_there() -> None:
    given = iter([[1], [Decimal(1)]])

    def put(row: Any, state: Any, context: Any) -> None:
        state.it = next(given)

    fed = Fed(program(put, state={"it": value(list)}))
    fed.feed("in", [record("a")])
    with pytest.raises(RowFailed, match="cannot be kept"):
        fed.feed("in", [record("a")])


def test_what_state_gives_is_what_it_gives_after_a_restart() -> None:
    def pairs(row: Any, state: Any, context: Any) -> dict[str, Any]:
        before = repr(state.pairs)
        state.pairs.append((row["n"], b"x"))
        return {"before": before}

    restarted, through = (Fed(program(pairs, state={"pairs": value(list)})) for _ in range(2))
    written(restarted, record("a", n=1))
    restarted.reopen()
    assert written(restarted, record("a", n=2)) == written(through, record("a", n=1), record("a", n=2))[1:]


# --- timers -------------------------------------------------------------------------------------------------------


def alarm(row: Any, state: Any, context: Any) -> dict[str, Any] | None:
    state.n += row["n"]
    if row["op"]:
        context.timer(row["op"], at=row["n"])
    return None


def rang(name: str, state: Any, context: Any) -> dict[str, Any]:
    state.rang += 1
    return {"k": context.key.decode(), "name": name, "at": context.time, "rang": state.rang}


def alarms(**more: Any) -> Fed:
    return Fed(program(alarm, state={"n": value(int), "rang": value(int)}, on_timer=rang, **more))


def test_timers_fire_by_time_and_once() -> None:
    fed = alarms()
    assert written(fed, record("a", "late", 30), record("a", "soon", 10), record("b", "soon", 20), record("c")) == []
    expected = [("a", "soon", 10), ("b", "soon", 20)]
    assert [(r["k"], r["name"], r["at"]) for r in written(fed, record("c", at=29))] == expected
    assert written(fed, record("c", at=29)) == []
    assert [(r["name"], r["rang"]) for r in written(fed, record("c", at=30))] == [("late", 2)]


def test_a_timer_that_is_due_already_fires_after_the_record_that_sets_it() -> None:
    assert [r["at"] for r in written(alarms(), record("a", "now", 3, at=50))] == [3]


def test_the_same_name_at_the_same_time_is_one_timer() -> None:
    fed = alarms()
    assert len(written(fed, record("a", "x", 5), record("a", "x", 5), record("a", "y", 5), record("a", at=9))) == 2


def test_timers_outlive_the_process_once_they_are_committed() -> None:
    fed = alarms()
    written(fed, record("a", "kept", 10))
    fed.feed("in", [record("a", "lost", 11)])
    fed.reopen()
    assert [r["name"] for r in written(fed, record("b", at=20))] == ["kept"]
    fed.reopen()
    assert written(fed, record("b", at=30)) == []


def test_a_timer_that_fired_in_an_aborted_commit_fires_again() -> None:
    fed = alarms()
    written(fed, record("a", "x", 10))
    fed.feed("in", [record("b", at=20)])
    fed.abort()
    assert [r["rang"] for r in written(fed, record("b", at=20))] == [1]


def test_a_timer_may_set_a_later_one_and_no_other() -> None:
    def again(name: str, state: Any, context: Any) -> dict[str, Any]:
        if context.time < 30:
            context.timer(name, at=context.time + 10 if name == "good" else context.time)
        return {"at": context.time}

    fed = Fed(program(alarm, on_error="dead", state={"n": value(int)}, on_timer=again))
    assert [r["at"] for r in written(fed, record("a", "good", 10), record("b", at=100))] == [10, 20, 30]
    fed.feed("in", [record("a", "bad", 10)])
    outputs = fed.commit()
    assert rows(outputs, "out") == []
    assert rows(outputs, "dead") == [(b"a", {"timer": "bad"}, 10)]


def test_a_timer_without_on_timer_is_an_error_of_the_row_that_says_so() -> None:
    fed = Fed(program(alarm, state={"n": value(int)}))
    with pytest.raises(RowFailed, match="on_timer="):
        fed.feed("in", [record("a", "x", 5)])


# --- the batch law ------------------------------------------------------------------------------------------------


def everything(row: Any, state: Any, context: Any) -> Iterator[Any]:
    state.sum += row["n"]
    state.ops.append(row["op"])
    if row["op"] == "timer":
        context.timer("t", at=context.time + 7)
    if row["op"] == "now":
        context.timer("t", at=context.time)
    yield {"k": row["k"], "sum": state.sum, "ops": state.ops}
    if row["op"] == "raise":
        raise ValueError(row["n"])
    if row["op"] == "clear":
        state.sum, state.ops = 0, []


def chained(name: str, state: Any, context: Any) -> Iterator[Any]:
    state.sum += 100
    if state.sum < 300:
        context.timer("again", at=context.time + 3)
    if state.sum % 7 == 0:
        raise ValueError("seven")
    yield {"name": name, "at": context.time, "sum": state.sum}


ops = st.sampled_from(["", "", "timer", "now", "raise", "clear"])
law_records = st.lists(
    st.builds(record, st.sampled_from("abc"), ops, st.integers(-3, 3), st.integers(0, 40)), min_size=1, max_size=25
)


@pytest.mark.parametrize("topic", ["out", "dead"])
@settings(max_examples=25, deadline=None)
@given(given=law_records, cutting=cuts)
def test_the_cutting_of_batches_is_not_seen(topic: str, given: list[Record], cutting: list[tuple[int, str]]) -> None:
    app = program(everything, on_error="dead", state={"sum": value(int), "ops": value(list)}, on_timer=chained)
    assert by_key(run_cut(app, given, cutting, topic)) == by_key(run_one_by_one(app, given, topic))


@settings(max_examples=25, deadline=None)
@given(given=law_records, cutting=cuts)
def test_state_is_that_of_a_dict(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    def keep(row: Any, state: Any, context: Any) -> None:
        state.sum += row["n"]
        state.ops.append(row["op"])
        if row["op"] == "raise":
            raise ValueError("no")

    sums: dict[bytes, int] = defaultdict(int)
    lists: dict[bytes, list[str]] = defaultdict(list)
    for key, of, _ in given:
        assert key is not None
        assert isinstance(of, dict)
        if of["op"] != "raise":
            sums[key] += of["n"]
            lists[key].append(of["op"])

    def tell(row: Any, state: Any, context: Any) -> Any:
        if row["op"] == "tell":
            return {"sum": state.sum, "ops": state.ops}
        return keep(row, state, context)

    app = program(tell, on_error="skip", state={"sum": value(int), "ops": value(list)})
    asked = [*given, *(record(key, "tell") for key in "abc")]
    found = [v for _, v, _ in run_cut(app, asked, cutting, "out")]
    assert found == [{"sum": sums[key], "ops": lists[key]} for key in (b"a", b"b", b"c")]


# --- what is refused when the program is built --------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"name": ""}, "needs a name: say name="),
    "bad name": ({"name": "a/b"}, "the name 'a/b'"),
    "long name": ({"name": "a" * 101}, "1 to 100"),
    "no function": ({"function": 5}, "needs a function"),
    "no timer function": ({"on_timer": 5}, "on_timer= needs a function"),
    "a type for a value": ({"state": {"seen": int}}, r"write for example seen=value\(int\)"),
    "a name that is none": ({"state": {"a b": value(int)}}, "'a b' cannot be the name of a value"),
    "an underscore": ({"state": {"_kept": value(int)}}, "'_kept' cannot be the name of a value"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    given, message = REFUSED[name]
    source = App("refused").stream("in", value=json(COLUMNS), key="k")
    arguments: dict[str, Any] = {"function": count, "name": "p"} | given
    with pytest.raises(NotAllowed, match=message):
        source.process(arguments.pop("function"), **arguments)


def test_a_value_has_a_type_that_can_be_kept_and_a_default_of_it() -> None:
    with pytest.raises(NotAllowed, match="use int, float, str, bytes, bool, list or dict"):
        value(set)
    with pytest.raises(NotAllowed, match="the default of a value is declared as int, and was set to 'a'"):
        value(int, default="a")
    assert value(float, default=1).default == 1.0
