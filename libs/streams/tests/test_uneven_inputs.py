"""Partitions that differ: one is a thousand times larger, the clocks of two producers are an hour apart."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from libs.streams.tests.kit.feeding import milliseconds

from headrace_streams import App, agg, json, tumbling
from headrace_streams.core.operators import hop
from headrace_streams.testing import Driver

HOUR_MS = 3_600_000
WINDOW_MS = 10_000
SEEDS = range(4)
Row = dict[str, Any]


@pytest.fixture(autouse=True, params=[hop.FLUSH_BYTES, 500])
def flush_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go to the next task in parts, too, between which windows may close."""
    monkeypatch.setattr(hop, "FLUSH_BYTES", request.param)


def windows() -> App:
    """Counts by key and window; behind a repartition, so that rows of all partitions meet in one task."""
    app = App("uneven")
    rows = app.stream("in", value=json("k string, at bigint"), timestamp="at")
    groups = rows.group_by("k", name="by-k").window(tumbling("10s", grace="5s"), late="late")
    groups.agg(n=agg.count(), name="windows", emit="final").to("out")
    return app


def rows_from(begin_ms: int, count: int, chance: Random) -> list[Row]:
    """A row each 100 ms, up to 2 s out of order."""
    return [
        {"k": chance.choice("abc"), "at": begin_ms + number * 100 - chance.randrange(2_000)} for number in range(count)
    ]


def check(driver: Driver, rows: list[Row]) -> None:
    """Each window was told once, with all of its rows, and no row was late."""
    told = [(row["k"], milliseconds(row["window_start"]), row["n"]) for row in driver.read("out")]
    expected = Counter((row["k"], row["at"] // WINDOW_MS * WINDOW_MS) for row in rows)
    assert sorted(told) == sorted((key, start, n) for (key, start), n in expected.items())
    assert driver.read("late") == []


@pytest.mark.parametrize("seed", SEEDS)
def test_clocks_that_are_an_hour_apart_make_no_row_late(seed: int) -> None:
    """In Kafka Streams the clock that is ahead decides, and the rows of the other one are dropped."""
    chance = Random(seed)
    sides = [rows_from(hours * HOUR_MS, 300, chance) for hours in (1, 2)]
    with Driver(windows(), partitions={"in": 2}, seed=seed) as driver:
        for first in range(0, 300, 60):
            for partition, rows in enumerate(sides):
                driver.pipe("in", rows[first : first + 60], partition=partition)
        driver.advance_to(3 * HOUR_MS)
        check(driver, [row for rows in sides for row in rows])


@pytest.mark.parametrize("seed", SEEDS)
def test_one_partition_is_a_thousand_times_larger(seed: int) -> None:
    """The small ones are at their ends for long, and then go on: behind, but within the grace of what they had."""
    chance = Random(seed)
    large, small = rows_from(HOUR_MS, 20_000, chance), rows_from(HOUR_MS, 20, chance)
    with Driver(windows(), partitions={"in": 3}, seed=seed) as driver:
        for partition in (1, 2):
            driver.pipe("in", small, partition=partition)
        for first in range(0, len(large), 5_000):
            driver.pipe("in", large[first : first + 5_000], partition=0)
        driver.advance_to(3 * HOUR_MS)
        check(driver, [*large, *small, *small])


@pytest.mark.parametrize("seed", range(8))
def test_what_waits_for_an_app_that_was_quiet_and_stopped_is_not_late(seed: int) -> None:
    """Senders had said that they are idle; when all begin again, one has an hour of rows sooner than the other."""
    app = App("uneven")
    orders, payments = (
        app.stream(topic, value=json("id bigint, at timestamp"), timestamp="at")
        .key_by("id")
        .repartition(name=f"{topic}-by-id")
        .select("id")
        for topic in ("orders", "payments")
    )
    orders.join(payments, within="2s", grace="10s", late="late", name="paid").to("out")
    rows = [{"id": 100 + number, "at": 60_000 + number * 60_000} for number in range(60)]
    with Driver(app, partitions=2, seed=seed) as driver:
        for topic in ("orders", "payments"):
            driver.pipe(topic, [{"id": number, "at": number * 100} for number in range(20)])
        driver.advance("6s")
        driver.crash()
        for topic in ("payments", "orders"):
            driver.pipe(topic, rows)
        driver.restart()
        driver.advance("6s")
        assert sorted(row["id"] for row in driver.read("out")) == [*range(20), *range(100, 160)]
        assert driver.read("late") == []
