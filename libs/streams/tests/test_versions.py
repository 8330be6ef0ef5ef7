"""Tables with their history against a program that looks at one record at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.streams.tests.kit.feeding import Fed, Record, by_key, cuts, raw, rows, run_cut_of

from headrace_streams import App, NotAllowed, Stream, Table, col, json
from headrace_streams.testing import Driver

Given = list[tuple[str, Record]]
KEEP = 20


def stream(app: App) -> Stream:
    return app.stream("in", value=json("m bigint"), key="k")


def table(app: App, versions: Any = KEEP) -> Table[Stream]:
    return app.table("t", value=json("n bigint"), key="k", name="t", versions=versions)


def plain(how: str) -> App:
    app = App("versions")
    stream(app).join(table(app), how=how).to("out")
    return app


def derived(how: str) -> App:
    app = App("versions")
    odd = table(app).filter(col("n") % 2 == 1).select("k", "n").with_columns(n=col("n") * 10)
    stream(app).join(odd, how=how).to("out")
    return app


def of_itself(how: str) -> App:
    """A table of the stream that it is joined with."""
    app = App("versions")
    own = stream(app)
    rows_ = own.filter(col("m") > 2).select("k", n="m").to_table(name="own", versions=KEEP)
    own.join(rows_, how=how).to("out")
    return app


def latest() -> App:
    app = App("versions")
    table(app).to("out", emit="every")
    return app


class Naive:
    def __init__(self) -> None:
        self.greatest: dict[str, int] = {}
        self.watermark: int | None = None
        self.versions: dict[bytes, dict[int, Any]] = {}

    def passes(self, topic: str, time: int, topics: int) -> None:
        self.greatest[topic] = max(self.greatest.get(topic, time), time)
        if len(self.greatest) == topics:
            self.watermark = max(min(self.greatest.values()), self.watermark or 0)

    @property
    def behind(self) -> int:
        return -1 if self.watermark is None else self.watermark - KEEP

    def put(self, key: bytes, time: int, row: Any) -> bool:
        """Whether it is the newest."""
        if time < self.behind:
            return False
        of_key = self.versions.setdefault(key, {})
        of_key[time] = row
        return time == max(of_key)

    def find(self, key: bytes | None, time: int) -> Any:
        if key is None:
            return None
        of_key = self.versions.get(key, {})
        before = [at for at in of_key if at <= max(time, self.behind)]
        return of_key[max(before)] if before else None


def naive(how: str, given: Given, made: Callable[[int | None], int | None]) -> list[Any]:
    of, found = Naive(), []
    for topic, (key, row, time) in given:
        of.passes(topic, time, 2)
        if topic == "t":
            if key is not None:
                of.put(key, time, row)
            continue
        if not isinstance(row, dict):
            continue
        version = of.find(key, time)
        n = None if version is None else made(version["n"])
        there = version is not None and (n is not None or made(1) == 1)
        if there or how == "left":
            k = None if key is None else key.decode()
            found.append((key, {"m": row["m"], "k": k, "n": n if there else None}, time))
    return found


times = st.integers(0, 80)
keys = st.sampled_from([b"a", b"a", b"b", None])
values = st.fixed_dictionaries({"n": st.sampled_from([1, 2, 3, None])})
records = st.lists(
    st.one_of(
        st.tuples(st.just("t"), st.tuples(keys, st.one_of(values, values, st.none()), times)),
        st.tuples(st.just("in"), st.tuples(keys, st.fixed_dictionaries({"m": st.integers(0, 5)}), times)),
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=80, deadline=None)
@given(given=records, cutting=cuts)
def test_a_row_finds_what_its_key_had_at_its_time(how: str, given: Given, cutting: list[tuple[int, str]]) -> None:
    assert run_cut_of(plain(how), given, cutting, "out") == naive(how, given, lambda n: n)


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=40, deadline=None)
@given(given=records, cutting=cuts)
def test_what_was_made_of_a_row_is_found_as_it_was(how: str, given: Given, cutting: list[tuple[int, str]]) -> None:
    expected = naive(how, given, lambda n: None if n is None or n % 2 == 0 else n * 10)
    assert run_cut_of(derived(how), given, cutting, "out") == expected


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=40, deadline=None)
@given(given=records, cutting=cuts)
def test_a_stream_finds_its_own_rows(how: str, given: Given, cutting: list[tuple[int, str]]) -> None:
    given = [one for one in given if one[0] == "in"]
    of, expected = Naive(), []
    for _, (key, row, time) in given:
        assert isinstance(row, dict)
        of.passes("in", time, 1)
        if key is not None and row["m"] > 2:
            of.put(key, time, {"n": row["m"]})
        version = of.find(key, time)
        if version is not None or how == "left":
            k = None if key is None else key.decode()
            expected.append((key, {"m": row["m"], "k": k, "n": version and version["n"]}, time))
    assert run_cut_of(of_itself(how), given, cutting, "out") == expected


@settings(max_examples=40, deadline=None)
@given(given=records, cutting=cuts)
def test_a_row_that_is_older_does_not_replace(given: Given, cutting: list[tuple[int, str]]) -> None:
    given = [one for one in given if one[0] == "t"]
    of, now, expected = Naive(), {}, []
    for _, (key, row, time) in given:
        of.passes("t", time, 1)
        if key is None or not of.put(key, time, row):
            continue
        if row is not None or key in now:
            expected.append((key, None if row is None else {"n": row["n"], "k": key.decode()}, time))
        now[key] = row
        if row is None:
            del now[key]
    found = by_key(run_cut_of(latest(), given, cutting, "out"))
    assert found == by_key(expected)


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=30, deadline=None)
@given(given=records, cutting=cuts)
def test_topics_that_are_fed_together(how: str, given: Given, cutting: list[tuple[int, str]]) -> None:
    """In the order of their times, as far as they are here."""
    fed, at, expected = Fed(plain(how)), 0, []
    for count, _ in [*cutting, (len(given), "")]:
        part = given[at : at + count]
        at += len(part)
        topics = dict.fromkeys(topic for topic, _ in part)
        if part:
            fed.task.feed_together([(topic, raw([record for of, record in part if of == topic])) for topic in topics])
    one_by_one = Fed(plain(how))
    at = 0
    for count, _ in [*cutting, (len(given), "")]:
        part = given[at : at + count]
        at += len(part)
        topics = dict.fromkeys(topic for topic, _ in part)
        waiting = {topic: [record for of, record in part if of == topic] for topic in topics}
        while any(waiting.values()):
            first = min((of_topic[0][2], place) for place, of_topic in enumerate(waiting.values()) if of_topic)
            topic = list(waiting)[first[1]]
            one_by_one.feed(topic, [waiting[topic].pop(0)])
    expected = rows(one_by_one.commit(), "out")
    assert rows(fed.commit(), "out") == expected


def row(n: int) -> dict[str, Any]:
    return {"n": n}


def test_what_no_row_asks_for_any_more_is_forgotten() -> None:
    fed = Fed(plain("left"))
    fed.feed("t", [(b"a", row(n), n) for n in range(5)] + [(b"b", None, 3)])
    fed.feed("in", [(b"a", {"m": 1}, 0)])
    fed.commit()
    assert len(list(fed.cold["t.versions"].scan())) == 6
    for then in (fed.abort, fed.reopen):
        then()
    for topic in ("t", "in", "t"):
        fed.task.reach(topic, 3 + KEEP)
    fed.commit()
    (first, second) = fed.task.contents("t.versions").select(["n", "k", "valid_from"]).to_pylist()
    assert (first["n"], second["n"], second["k"], second["valid_from"].timestamp()) == (3, 4, "a", 0.004)
    assert len(list(fed.cold["t.versions"].scan())) == 2
    fed.reopen()
    fed.feed("in", [(b"a", {"m": 2}, 0), (b"a", {"m": 3}, 3), (b"a", {"m": 4}, 90)])
    assert [value["n"] for _, value, _ in rows(fed.commit(), "out")] == [3, 3, 4]


def test_a_version_of_the_same_time_replaces_it_for_what_comes_behind() -> None:
    fed = Fed(of_itself("inner"))
    fed.feed("in", [(b"a", {"m": 3}, 5)])
    fed.feed("in", [(b"a", {"m": 1}, 6), (b"a", {"m": 4}, 5), (b"a", {"m": 2}, 6)])
    assert [value["n"] for _, value, _ in rows(fed.commit(), "out")] == [3, 3, 4, 4]


def test_rows_that_are_too_late_for_the_history_are_counted() -> None:
    fed = Fed(latest())
    fed.feed("t", [(b"a", row(1), 100), (b"b", row(2), 79), (b"b", row(3), 80)])
    assert rows(fed.commit(), "out") == [(b"a", {"n": 1, "k": "a"}, 100), (b"b", {"n": 3, "k": "b"}, 80)]
    assert list(fed.figures.met["late"].values()) == [1]


def test_with_a_driver() -> None:
    with Driver(plain("left"), partitions=2) as driver:
        driver.pipe("t", [{"k": "a", "n": 1}], time=1_000)
        driver.pipe("t", [{"k": "a", "n": 2}], time=1_010)
        driver.crash()
        driver.restart()
        for time in (1_015, 1_005, 999):
            driver.pipe("in", [{"k": "a", "m": 0}], time=time)
        assert sorted(row["n"] or 0 for row in driver.read("out")) == [0, 1, 2]
        (now,) = driver.store("t")
        assert now == {"n": 2, "k": "a"}


def test_tables_are_joined_as_they_are_now() -> None:
    app = App("versions")
    other = app.table("other", value=json("m bigint"), key="k", name="other")
    table(app).join(other).to("out", emit="every")
    fed = Fed(app)
    fed.feed("t", [(b"a", row(2), 10), (b"a", row(1), 5)])
    fed.feed("other", [(b"a", {"m": 7}, 6)])
    assert rows(fed.commit(), "out") == [(b"a", {"n": 2, "k": "a", "m": 7}, 10)]


def test_refused() -> None:
    with pytest.raises(NotAllowed, match=r"versions= is 'soon'; write for example '10s'"):
        table(App("a"), versions="soon")
    with pytest.raises(NotAllowed, match=r"versions= is 0; it must be at least 1 ms"):
        table(App("a"), versions=0)

    app = App("a")
    with pytest.raises(NotAllowed, match="a column cannot be called 'valid_from'; rename"):
        app.table("t", value=json("valid_from string"), key="k", name="t", versions="1h")


def test_a_table_without_versions_has_another_form() -> None:
    def forms(versions: Any) -> list[str]:
        app = App("a")
        table(app, versions)
        return [form for node in app.graph.nodes for form in node.form.values()]

    assert forms(None) == ["rows of (n int64, k string)"]
    assert forms("1h") == ["rows of (n int64, k string) at their times", "rows of (n int64, k string) with versions"]
