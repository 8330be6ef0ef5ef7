"""
Aggregations as Kafka Streams defines them: its documented table of aggregations of streams, and examples of its windows
and sessions with the same inputs and, with "every", the same rows.
"""

from __future__ import annotations

from typing import Any

import pytest
from libs.streams.tests.kit.feeding import Fed, Record, milliseconds, rows

from headrace_streams import App, Grouped, agg, hopping, json, session, tumbling
from headrace_streams.dsl.agg import Agg

WORDS = ["hello", "kafka", "streams", "kafka", "kafka", "streams"]
COUNTS = [("hello", 1), ("kafka", 1), ("streams", 1), ("kafka", 2), ("kafka", 3), ("streams", 2)]


def record(key: str | None, value: int | None, at: int) -> Record:
    return None if key is None else key.encode(), {"v": value}, at


def groups(app: App) -> Grouped:
    return app.stream("in", value=json("v int"), key="k").group_by("k")


def every(aggregate: Agg, given: list[Record], grouped: Any = groups) -> list[dict[str, Any]]:
    app = App("kafka")
    grouped(app).agg(r=aggregate, name="aggregated", emit="every").to("out")
    fed = Fed(app)
    fed.feed("in", given)
    return [value for _, value, _ in rows(fed.commit(), "out")]


def windowed(*given: Record, window: Any, late: str = "drop") -> list[tuple[str, int, int, int]]:
    found = every(agg.sum("v"), list(given), lambda app: groups(app).window(window, late=late))
    return [(r["k"], milliseconds(r["window_start"]), milliseconds(r["window_end"]), r["r"]) for r in found]


@pytest.mark.parametrize("aggregate", [agg.sum("v"), agg.count(), agg.count("v")])
def test_aggregate_and_count_of_a_grouped_stream(aggregate: Agg) -> None:
    given = [record(word, 1, at + 1) for at, word in enumerate(WORDS)]
    assert [(row["k"], row["r"]) for row in every(aggregate, given)] == COUNTS


def test_reduce_begins_with_the_first_value() -> None:
    given = [record("a", 5, 1), record("b", 2, 2), record("a", 3, 3), record("a", 9, 4), record("b", 2, 5)]
    assert [(row["k"], row["r"]) for row in every(agg.sum("v"), given)] == [
        ("a", 5),
        ("b", 2),
        ("a", 8),
        ("a", 17),
        ("b", 4),
    ]
    assert [row["r"] for row in every(agg.max("v"), given)] == [5, 2, 5, 9, 2]
    assert [row["r"] for row in every(agg.min("v"), given)] == [5, 2, 3, 3, 2]


def test_records_with_a_null_key_or_value_are_ignored() -> None:
    given: list[Record] = [record("a", 1, 1), record(None, 1, 2), (b"a", None, 3), record("a", 1, 4)]
    assert [(row["k"], row["r"]) for row in every(agg.count(), given)] == [("a", 1), ("a", 2)]


def test_tumbling_windows_begin_at_the_epoch_and_end_where_the_next_begins() -> None:
    given = [record("a", 1, 0), record("a", 2, 4_999), record("a", 4, 5_000), record("b", 8, 9_999)]
    assert windowed(*given, window=tumbling("5s")) == [
        ("a", 0, 5_000, 1),
        ("a", 0, 5_000, 3),
        ("a", 5_000, 10_000, 4),
        ("b", 5_000, 10_000, 8),
    ]


def test_hopping_windows_overlap() -> None:
    """A size of 5,000 and an advance of 3,000 give [0, 5,000), [3,000, 8,000) and so on; ours begin before 1970 too."""
    given = [record("a", 1, 4_000), record("a", 2, 6_000)]
    assert windowed(*given, window=hopping(5_000, 3_000)) == [
        ("a", 0, 5_000, 1),
        ("a", 3_000, 8_000, 1),
        ("a", 3_000, 8_000, 3),
        ("a", 6_000, 11_000, 2),
    ]


def test_a_record_that_is_late_for_its_window_is_not_aggregated() -> None:
    """A window of 5,000 with a grace of 1,000 takes rows until event time is 6,000."""
    given = [record("a", 1, 1_000), record("b", 1, 5_999), record("a", 2, 2_000), record("b", 1, 6_000)]
    found = windowed(*given, record("a", 4, 3_000), window=tumbling(5_000, grace=1_000))
    assert [(k, v) for k, start, _, v in found if start == 0] == [("a", 1), ("a", 3)]


def test_sessions_with_a_gap_of_five() -> None:
    """Values at 10, 12 and 20 are two sessions; one at 15 makes them one, as it is within five of both."""
    given = [record("A", 1, 10), record("A", 2, 12), record("A", 4, 20)]
    assert windowed(*given, window=session(5, grace=100)) == [("A", 10, 15, 1), ("A", 10, 17, 3), ("A", 20, 25, 4)]
    joined = windowed(*given, record("A", 8, 15), window=session(5, grace=100))
    assert joined[3:] == [("A", 10, 25, 15)]


def test_sessions_of_different_keys_are_apart() -> None:
    given = [record("A", 1, 10), record("B", 2, 12), record("A", 4, 15), record("B", 8, 18)]
    assert [(k, start, v) for k, start, _, v in windowed(*given, window=session(5))] == [
        ("A", 10, 1),
        ("B", 12, 2),
        ("A", 10, 5),
        ("B", 18, 8),
    ]


def test_only_the_last_of_a_window_is_told_with_final() -> None:
    """What suppress(untilWindowCloses) does."""
    app = App("kafka")
    groups(app).window(tumbling(5), late="drop").agg(r=agg.count(), name="aggregated", emit="final").to("out")
    fed = Fed(app)
    fed.feed("in", [record("a", 1, at) for at in (0, 1, 2, 7, 9)])
    assert [value["r"] for _, value, _ in rows(fed.commit(), "out")] == [3]
