"""Windows of so many rows against a program that looks at one record at a time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, by_key, cuts, milliseconds, rows, run_cut

from headrace_streams import App, agg, counting, json


def program(size: int, emit: str) -> App:
    app = App("counting")
    stream = app.stream("in", value=json("x bigint, at bigint"), key="k", timestamp="at")
    windows = stream.group_by("k").window(counting(size))
    windows.agg(xs=agg.collect("x", 100), n=agg.count(), name="rows", emit=emit).to("out")
    return app


def naive(given: list[Record], size: int) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """What is told of full windows, after each row, and what is begun."""
    begun: dict[str, list[tuple[int, int]]] = {}
    full: list[Any] = []
    every: list[Any] = []
    for key, row, _ in given:
        assert key is not None
        assert isinstance(row, dict)
        of_key = begun.setdefault(key.decode(), [])
        of_key.append((row["at"], row["x"]))
        every.append(told_of(key.decode(), of_key))
        if len(of_key) == size:
            full.append(told_of(key.decode(), begun.pop(key.decode())))
    return full, every, begun


def told_of(key: str, of_key: list[tuple[int, int]]) -> Any:
    times = [at for at, _ in of_key]
    return key, min(times), max(times), [x for _, x in of_key]


def told(value: dict[str, Any], time: int) -> Any:
    assert value["n"] == len(value["xs"])
    assert time == milliseconds(value["window_end"])
    return value["k"], milliseconds(value["window_start"]), milliseconds(value["window_end"]), value["xs"]


given_records = st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 40)), min_size=1, max_size=30).map(
    lambda listed: [(key, {"x": x, "at": at}, 0) for x, (key, at) in enumerate(listed)]
)
sizes = st.integers(1, 5)


@settings(max_examples=30, deadline=None)
@given(given=given_records, size=sizes, cutting=cuts)
def test_final(given: list[Record], size: int, cutting: list[tuple[int, str]]) -> None:
    found = run_cut(program(size, "final"), given, cutting, "out")
    assert [told(v, time) for _, v, time in found] == naive(given, size)[0]


@settings(max_examples=30, deadline=None)
@given(given=given_records, size=sizes, cutting=cuts)
def test_every(given: list[Record], size: int, cutting: list[tuple[int, str]]) -> None:
    found = run_cut(program(size, "every"), given, cutting, "out")
    assert [told(v, time) for _, v, time in found] == naive(given, size)[1]


@settings(max_examples=30, deadline=None)
@given(given=given_records, size=sizes, cutting=cuts)
def test_changes_end_as_the_windows_do(given: list[Record], size: int, cutting: list[tuple[int, str]]) -> None:
    found = by_key(
        (key, told(v, time), time) for key, v, time in run_cut(program(size, "changes"), given, cutting, "out")
    )
    full, every, _ = naive(given, size)
    assert {key: [one for one, _ in listed][-1] for key, listed in found.items()} == {
        one[0].encode(): one for one in every
    }
    assert [one for one in full if (one, one[2]) not in found[one[0].encode()]] == []


@settings(max_examples=30, deadline=None)
@given(given=given_records, size=sizes, cut=st.integers(1, 30), commits=st.lists(st.booleans(), min_size=30))
def test_what_is_kept(given: list[Record], size: int, cut: int, commits: list[bool]) -> None:
    fed = Fed(program(size, "final"))
    for first, commit in zip(range(0, len(given), cut), commits, strict=False):
        fed.feed("in", given[first : first + cut])
        if commit:
            fed.commit()
    fed.commit()
    fed.reopen()
    begun = naive(given, size)[2]
    assert [key for key, _ in fed.cold["rows"].scan()] == sorted(key.encode() for key in begun)
    contents = fed.task.contents("rows")
    assert contents is not None
    assert {row["k"]: row["xs"] for row in contents.to_pylist()} == {k: [x for _, x in v] for k, v in begun.items()}


@pytest.mark.parametrize("then", ["abort", "reopen"])
def test_a_window_that_was_full_in_no_commit_is_as_it_was(then: str) -> None:
    fed = Fed(program(2, "final"))
    fed.feed("in", [(b"a", {"x": 1, "at": 1}, 0)])
    fed.commit()
    fed.feed("in", [(b"a", {"x": x, "at": x}, 0) for x in (2, 3, 4, 5)])
    fed.abort() if then == "abort" else fed.reopen()
    fed.feed("in", [(b"a", {"x": 9, "at": 9}, 0)])
    assert [v["xs"] for _, v, _ in rows(fed.commit(), "out")] == [[1, 9]]
