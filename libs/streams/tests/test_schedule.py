"""What `process` does when time passes: schedules and timers, by event time and by the wall clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, by_key, cuts, rows, run_cut, run_cut_of, run_one_by_one

from headrace_streams import App, NotAllowed, RowFailed, col, json, value
from headrace_streams.testing import Driver

INTERVAL = 10


def add(row: Any, state: Any, context: Any) -> None:
    state.sum += row["n"]


def tell(state: Any, context: Any) -> dict[str, Any]:
    return {"sum": state.sum, "at": context.time}


def program(function: Any = add, *, topics: Any = "in", on_error: str = "fail", **more: Any) -> App:
    app = App("schedule", on_error=on_error)
    source = app.stream(topics, value=json("n bigint, at timestamp"), key="k", timestamp="at")
    given = {"state": {"sum": value(int)}, "schedule": {INTERVAL: tell}, **more}
    source.filter(col("n") < 9).process(function, name="p", **given).to("out")
    return app


def record(key: str, n: int, at: int) -> Record:
    return key.encode(), {"n": n, "at": at}, 0


def told(found: list[Any]) -> list[Any]:
    return [(key.decode(), row["sum"], row["at"]) for key, row, _ in found]


# --- by event time --------------------------------------------------------------------------------------------------


def naive(given: list[Record]) -> list[Any]:
    sums: dict[str, int] = {}
    found = []
    watermark = due = 0
    for key, row, _ in given:
        assert key is not None
        assert isinstance(row, dict)
        watermark = max(watermark, row["at"])
        due = due or (watermark // INTERVAL + 1) * INTERVAL
        if row["n"] < 9:
            sums[key.decode()] = sums.get(key.decode(), 0) + row["n"]
        if due <= watermark:
            found += [(of, sums[of], due) for of in sorted(sums) if sums[of]]
            due = (watermark // INTERVAL + 1) * INTERVAL
    return found


records = st.lists(
    st.builds(record, st.sampled_from("abc"), st.integers(-2, 9), st.integers(0, 60)), min_size=1, max_size=30
)


@settings(max_examples=60, deadline=None)
@given(given=records, cutting=cuts)
def test_it_is_called_for_each_key_with_state_when_event_time_passes(
    given: list[Record], cutting: list[tuple[int, str]]
) -> None:
    assert told(run_cut(program(), given, cutting, "out")) == naive(given)


def busy(row: Any, state: Any, context: Any) -> Any:
    state.sum += row["n"]
    context.timer("t", at=context.time + 4)
    return {"sum": state.sum, "at": context.time}


def rang(name: str, state: Any, context: Any) -> Any:
    state.sum -= 1
    return {"name": name, "sum": state.sum, "at": context.time}


def changing(state: Any, context: Any) -> Any:
    if state.sum % 5 == 0:
        raise ValueError("five")
    state.sum = 0 if state.sum > 3 else state.sum + 10
    context.timer("s", at=context.time + 3)
    yield {"sum": state.sum, "at": context.time, "watermark": context.watermark}


def crowded() -> App:
    schedule = {10: changing, 4: tell}
    return program(busy, on_timer=rang, schedule=schedule, on_error="dead")


@pytest.mark.parametrize("topic", ["out", "dead"])
@settings(max_examples=40, deadline=None)
@given(given=records, cutting=cuts)
def test_the_batch_law(topic: str, given: list[Record], cutting: list[tuple[int, str]]) -> None:
    assert by_key(run_cut(crowded(), given, cutting, topic)) == by_key(run_one_by_one(crowded(), given, topic))


@settings(max_examples=40, deadline=None)
@given(given=st.lists(st.tuples(st.sampled_from(["in", "other"]), *[records]), max_size=4), cutting=cuts)
def test_the_batch_law_where_event_time_begins_late(given: list[Any], cutting: list[tuple[int, str]]) -> None:
    flat = [(topic, one) for topic, of_topic in given for one in of_topic]
    app = program(topics=["in", "other"])
    one_by_one = run_cut_of(app, flat, [(1, "")] * len(flat), "out")
    assert by_key(run_cut_of(app, flat, cutting, "out")) == by_key(one_by_one)


def test_what_event_time_jumps_over_is_one_call() -> None:
    fed = Fed(program())
    fed.feed("in", [record("a", 1, 5), record("a", 2, 47), record("a", 3, 50)])
    assert told(rows(fed.commit(), "out")) == [("a", 3, 10), ("a", 6, 50)]


def test_keys_of_earlier_commits_are_called_and_those_without_state_are_not() -> None:
    fed = Fed(program())
    fed.feed("in", [record("a", 1, 1), record("b", 2, 1), record("c", 0, 1)])
    fed.commit()
    fed.reopen()
    fed.feed("in", [record("b", -2, 2), record("d", 4, 2)])
    fed.task.reach("in", 10)
    assert told(rows(fed.commit(), "out")) == [("a", 1, 10), ("d", 4, 10)]


def test_a_call_that_was_aborted_comes_again() -> None:
    fed = Fed(program())
    fed.feed("in", [record("a", 1, 1)])
    fed.commit()
    for undo in (fed.abort, fed.reopen):
        fed.task.reach("in", 12)
        undo()
    fed.task.reach("in", 12)
    assert told(rows(fed.commit(), "out")) == [("a", 1, 10)]
    fed.task.reach("in", 19)
    assert rows(fed.commit(), "out") == []


def test_a_schedule_that_is_new_begins_and_one_that_is_gone_ends() -> None:
    fed = Fed(program(schedule={7: tell}))
    fed.feed("in", [record("a", 1, 1)])
    fed.commit()
    other = Fed(program())
    other.cold, other._watermarks = fed.cold, fed._watermarks
    other.reopen()
    other.task.reach("in", 10)
    assert told(rows(other.commit(), "out")) == [("a", 1, 10)]
    assert len(list(other.cold["p"].scan(b"t"))) == 1


def test_a_call_that_raises_names_key_and_schedule() -> None:
    def wrong(state: Any, context: Any) -> None:
        raise ValueError("no")

    fed = Fed(program(schedule={INTERVAL: wrong}, on_error="dead"))
    fed.feed("in", [record("a", 1, 1), record("b", 1, 20)])
    assert rows(fed.commit(), "dead") == [(key, {"timer": "every 10 ms"}, 10) for key in (b"a", b"b")]
    fed = Fed(program(schedule={INTERVAL: wrong}))
    with pytest.raises(RowFailed, match="ValueError: no"):
        fed.feed("in", [record("a", 1, 1), record("b", 1, 20)])


# --- by the wall clock ----------------------------------------------------------------------------------------------


def remind(row: Any, state: Any, context: Any) -> None:
    state.sum += row["n"]
    context.timer("wall", at=context.now + 2_000, clock="wall")


def walls(**more: Any) -> App:
    return program(remind, on_timer=rang, schedule={}, **more)


def test_timers_of_the_wall_clock_fire_without_records_and_once() -> None:
    with Driver(walls()) as driver:
        driver.advance("1s")
        driver.pipe("in", [{"k": "a", "n": 5, "at": 1}])
        driver.advance("1s")
        assert driver.read("out") == []
        driver.advance("1s")
        (found,) = driver.read_raw("out")
        assert (found["key"], found["timestamp_ms"]) == (b"a", 3_000)
        driver.advance("1h")
        assert driver.read("out") == []


def test_a_timer_of_the_wall_clock_that_came_while_nothing_ran_fires_at_the_start() -> None:
    with Driver(walls()) as driver:
        driver.pipe("in", [{"k": "a", "n": 5, "at": 1}])
        driver.commit()
        driver.crash()
        driver.advance("1h")
        driver.restart()
        assert driver.read("out") == [{"name": "wall", "sum": 4, "at": 2_000}]


def test_a_timer_of_the_wall_clock_that_was_aborted_fires_again() -> None:
    fed = Fed(walls())
    fed.feed("in", [record("a", 5, 1)])
    fed.commit()
    for undo in (fed.abort, fed.reopen):
        assert fed.task.due == 2_000
        fed.task.tick(2_000)
        assert fed.task.due is None
        undo()
    fed.task.tick(9_000)
    assert [(row["sum"], row["at"]) for _, row, _ in rows(fed.commit(), "out")] == [(4, 2_000)]
    assert fed.task.due is None


def test_a_schedule_of_the_wall_clock() -> None:
    app = program(schedule={}, wall_schedule={"10s": tell})
    with Driver(app, partitions=2) as driver:
        driver.advance("4s")
        driver.pipe("in", [{"k": key, "n": 5, "at": 1} for key in "abcd"])
        driver.advance("5s")
        assert driver.read("out") == []
        driver.advance("1s")
        assert [row["at"] for row in driver.read("out")] == [10_000] * 4
        driver.crash()
        driver.advance("1m")
        driver.restart()
        assert [row["at"] for row in driver.read("out")] == [20_000] * 4
        driver.advance("9s")
        assert driver.read("out") == []
        driver.advance("1s")
        assert [row["at"] for row in driver.read("out")] == [80_000] * 4


def test_a_timer_of_event_time_that_is_due_already_fires_with_the_call_that_sets_it() -> None:
    def back(state: Any, context: Any) -> None:
        context.timer("event", at=1)

    fed = Fed(program(schedule={}, wall_schedule={10: back}, on_timer=rang))
    fed.task.tick(5)
    fed.feed("in", [record("a", 5, 1)])
    fed.task.tick(10)
    assert [row["name"] for _, row, _ in rows(fed.commit(), "out")] == ["event"]


def test_a_timer_may_set_a_later_one_of_its_clock_and_any_of_the_other() -> None:
    def again(name: str, state: Any, context: Any) -> Any:
        if name == "wall":
            context.timer("event", at=context.time - 1_000)
            if state.sum != 5:
                context.timer("wall", at=context.time, clock="wall")
        return {"name": name}

    fed = Fed(program(remind, on_timer=again, schedule={}, on_error="skip"))
    fed.feed("in", [record("a", 5, 6_000), record("b", 6, 6_000)])
    fed.task.tick(3_000)
    found = [(key, row["name"]) for key, row, _ in rows(fed.commit(), "out")]
    assert found == [(b"a", "wall"), (b"a", "event")]


def test_nothing_is_due_where_nothing_looks_at_the_wall_clock() -> None:
    assert Fed(program()).task.due is None
    assert Fed(program(wall_schedule={5: tell})).task.due == 0


# --- refusals -------------------------------------------------------------------------------------------------------


async def later(state: Any, context: Any) -> None: ...


REFUSED: dict[str, dict[str, Any]] = {
    r"schedule=: the interval is 'soon'; write for example": {"schedule": {"soon": tell}},
    r"wall_schedule=: the interval is 0; it must be at least 1 ms": {"wall_schedule": {0: tell}},
    r"schedule= has an interval of 60000 ms twice": {"schedule": {"1m": tell, "60s": tell}},
    r"schedule= needs a function, not 5": {"schedule": {"1m": 5}},
    r"is async": {"wall_schedule": {"1m": later}},
    r"each key that has state, and there is none: say state=": {"state": {}},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str) -> None:
    with pytest.raises(NotAllowed, match=message):
        program(**REFUSED[message])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"name": "t", "clock": "sun"}, "the timer 't' goes by 'sun'; choose 'event' or 'wall'"),
        ({"name": "\0001"}, "a timer cannot be called"),
    ],
)
def test_a_timer_that_is_none_is_an_error_of_its_row(asked: dict[str, str], message: str) -> None:
    def ask(row: Any, state: Any, context: Any) -> None:
        context.timer(at=7, **asked)

    with pytest.raises(RowFailed, match=message):
        Fed(program(ask, on_timer=rang)).feed("in", [record("a", 1, 1)])


def test_a_decorated_function_has_its_schedules() -> None:
    app = App("schedule")
    source = app.stream("in", value=json("n bigint"), key="k")

    @source.process(name="p", state={"sum": value(int)}, schedule={5: tell}, wall_schedule={5: tell})
    def counted(row: Any, state: Any, context: Any) -> None:
        add(row, state, context)

    counted.to("out")
    assert app.graph.nodes[-2].settings["schedule"] == app.graph.nodes[-2].settings["wall_schedule"] == [5]
