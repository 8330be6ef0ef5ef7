"""`unique` against a program that looks at one record at a time."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, cuts, rows, run_cut

from headrace_streams import App, json
from headrace_streams.testing import Driver

WITHIN = 7


def program(*names: str) -> App:
    app = App("unique")
    stream = app.stream("in", value=json("id string, at bigint, n bigint"), key="k", timestamp="at")
    stream.unique(*names, within=WITHIN, name="seen").to("out")
    return app


def record(key: str, id_: str | None, at: int, n: int = 0) -> Record:
    return key.encode(), {"id": id_, "at": at, "n": n}, 0


def naive(given: list[Record], *, by_id: bool) -> list[Any]:
    seen: dict[Any, int] = {}
    passed = []
    watermark = -1
    for key, row, _ in given:
        assert isinstance(row, dict)
        watermark = max(watermark, row["at"])
        values = (key, row["id"]) if by_id else key
        if values not in seen or seen[values] + WITHIN <= watermark:
            seen[values] = watermark
            passed.append(row["n"])
    return passed


given_records = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "y", None]), st.integers(0, 40)), min_size=1, max_size=30
).map(lambda listed: [record(key, id_, at, n) for n, (key, id_, at) in enumerate(listed)])


@settings(max_examples=40, deadline=None)
@given(given=given_records, cutting=cuts)
def test_by_key(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    assert [v["n"] for _, v, _ in run_cut(program(), given, cutting, "out")] == naive(given, by_id=False)


@settings(max_examples=40, deadline=None)
@given(given=given_records, cutting=cuts)
def test_by_columns(given: list[Record], cutting: list[tuple[int, str]]) -> None:
    assert [v["n"] for _, v, _ in run_cut(program("k", "id"), given, cutting, "out")] == naive(given, by_id=True)


def test_what_was_seen_long_ago_is_forgotten() -> None:
    fed = Fed(program())
    for at in (0, 3, 100):
        fed.feed("in", [record(f"key {at}", None, at)])
        fed.commit()
    assert [key for key, _ in fed.cold["seen"].scan()] == [b"key 100"]


def test_a_repeat_that_is_late_is_a_repeat() -> None:
    fed = Fed(program())
    fed.feed("in", [record("b", None, 100), record("a", None, 1, n=1), record("a", None, 1, n=2)])
    assert [v["n"] for _, v, _ in rows(fed.commit(), "out")] == [0, 1]


def test_rows_without_a_key_pass() -> None:
    fed = Fed(program())
    fed.feed("in", [(None, {"at": 1, "n": n}, 0) for n in range(2)])
    assert [v["n"] for _, v, _ in rows(fed.commit(), "out")] == [0, 1]


def test_behind_a_repartition() -> None:
    app = App("unique")
    stream = app.stream("in", value=json("id string, n bigint"))
    stream.key_by("id").repartition(3, name="by-id").unique(within="1h", name="seen").to("out")
    with Driver(app, partitions=2) as driver:
        for partition in (0, 1, 0):
            driver.pipe("in", [{"id": "x", "n": partition}, {"id": "y", "n": partition}], partition=partition)
            driver.crash()
            driver.restart()
        assert sorted(row["id"] for row in driver.read("out")) == ["x", "y"]
