"""Values of ``process`` that end: against a program that remembers when each was written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, cuts, rows, run_cut

from headrace_streams import App, NotAllowed, json, ttl, value
from headrace_streams.plan.describe import as_data

TTL = 10


def remember(row: Any, state: Any, context: Any) -> dict[str, Any]:
    told = {"k": row["k"], "at": context.time, "last": state.last, "seen": list(state.seen), "n": state.n}
    if row["op"] == "set":
        state.last = str(context.time)
    elif row["op"] == "same":
        state.last = state.last
    elif row["op"] == "add":
        state.seen.append(context.time)
    elif row["op"] == "clear":
        state.last = ""
    state.n += 1
    return told


def program(**more: Any) -> App:
    app = App("ttl")
    stream = app.stream("in", value=json("op string, at bigint"), key="k", timestamp="at")
    state = {"last": ttl(str, TTL), "seen": ttl(list, 3 * TTL), "n": value(int), **more}
    stream.process(
        remember, name="state", state=state, schema="k string, at bigint, last string, seen array<bigint>, n bigint"
    ).to("out")
    return app


def naive(given: list[Record]) -> list[Any]:
    """Event time is that of the newest record; what is due by then ends before the record is seen."""
    now, kept, found = -1, {}, []
    for key, row, _ in given:
        assert isinstance(row, dict)
        at, before = row["at"], now
        now = max(now, at)
        of = kept.setdefault(key, {"last": ("", None), "seen": ([], None), "n": 0})
        for each in kept.values():  # a record's own time ends nothing before it was seen
            for name, after in (("last", TTL), ("seen", 3 * TTL)):
                written = each[name][1]
                if written is not None and written + after <= before:
                    each[name] = ("" if name == "last" else [], None)
        found.append((key, at, of["last"][0], list(of["seen"][0]), of["n"]))
        if row["op"] == "set":
            of["last"] = (str(at), now)
        elif row["op"] == "same":
            of["last"] = (of["last"][0], now)
        elif row["op"] == "add":
            of["seen"] = ([*of["seen"][0], at], now)
        elif row["op"] == "clear":
            of["last"] = ("", now)
        of["n"] += 1
    return found


ops = st.sampled_from(["set", "same", "add", "clear", "look", "look"])
records = st.lists(st.tuples(st.sampled_from([b"a", b"b"]), ops, st.integers(0, 80)), min_size=1, max_size=25).map(
    lambda listed: [(key, {"op": op, "at": at}, 0) for key, op, at in sorted(listed, key=lambda one: one[2] // 15)]
)


@settings(max_examples=60, deadline=None)
@given(given=records, cutting=cuts)
def test_a_value_ends_when_event_time_is_past_it(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    found = run_cut(program(), given, cutting, "out")
    assert [(v["k"].encode(), v["at"], v["last"], v["seen"], v["n"]) for _, v, _ in found] == naive(given)


def set_at(at: int, op: str = "set") -> Record:
    return b"a", {"op": op, "at": at}, 0


def test_what_has_ended_leaves_nothing() -> None:
    app = App("ttl")
    stream = app.stream("in", value=json("op string, at bigint"), key="k", timestamp="at")
    state = {"last": ttl(str, TTL), "seen": ttl(list, TTL), "n": ttl(int, TTL)}
    stream.process(remember, name="state", state=state).to("out")
    fed = Fed(app)
    fed.feed("in", [set_at(1), set_at(2)])
    fed.commit()
    assert len(list(fed.cold["state"].scan())) == 1 + 2, "its values; a timer for each that was written"
    fed.feed("in", [(b"b", {"op": "look", "at": 100}, 0)])
    fed.commit()
    assert [key for key, _ in fed.cold["state"].scan() if b"a" in key] == []


def test_writing_makes_no_more_timers() -> None:
    fed = Fed(program())
    fed.feed("in", [set_at(at) for at in range(9)])
    fed.commit()
    assert len([key for key, _ in fed.cold["state"].scan() if key.startswith(b"t")]) == 1
    fed.feed("in", [set_at(11, "look"), set_at(18, "look"), set_at(19, "look")])
    found = [(value["last"], value["n"]) for _, value, _ in rows(fed.commit(), "out")]
    assert found == [("8", 9), ("8", 10), ("", 11)]


def test_a_value_that_had_no_end_has_one_from_its_next_writing_on() -> None:
    """State is kept in the same form, so nothing has to be reset."""
    with_end, without = (
        {
            dict(node["settings"])["state"]["last"]
            for part in as_data(app.name, app.graph)["sub_topologies"]
            for node in part["nodes"]
            if "state" in node["settings"]
        }
        for app in (program(), program(last=value(str)))
    )
    assert (with_end, without) == ({"str for 10 ms"}, {"str"})
    forms = [[node.form for node in app.graph.nodes if node.stateful] for app in (program(), program(last=value(str)))]
    assert forms[0] == forms[1]


@pytest.mark.parametrize(
    ("after", "said"), [("0s", "at least 1 ms"), ("soon", "write for example '10s'"), (None, "is None")]
)
def test_an_end_that_cannot_be_is_refused(after: Any, said: str) -> None:
    with pytest.raises(NotAllowed, match=said):
        ttl(str, after)
