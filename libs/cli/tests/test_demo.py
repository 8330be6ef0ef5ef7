"""The demo's source and its proof."""

from __future__ import annotations

import io
import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from headrace_cli.commands.demo import spark_to_use
from headrace_cli.demo import connecting, streaming, tally
from headrace_cli.demo.flights import ROWS, carrier_names, data_directory, departures, rows_as_json
from headrace_cli.demo.spark import differences, table
from headrace_cli.demo.tally import PROBLEMS_KEPT, Carrier, Tally
from headrace_cli.exits import CommandFailed
from headrace_cli.percentiles import percentiles_ms
from headrace_cli.rates import Rate
from headrace_cli.spark import submit
from headrace_connect.runtime.configuring import find_config_problems

CSV = "dep_delay,arr_delay,carrier,tailnum\n2,11,UA,N1\nNA,NA,AA,NA\n-3,5,UA,N2\n"


def test_rows_become_json_with_a_number_per_carrier() -> None:
    rows = list(rows_as_json(io.StringIO(CSV)))
    assert [row.key for row in rows] == [b"UA", b"AA", b"UA"]
    assert [json.loads(row.value) for row in rows] == [
        {"n": 0, "dep_delay": 2, "arr_delay": 11, "carrier": "UA", "tailnum": "N1"},
        {"n": 0, "dep_delay": None, "arr_delay": None, "carrier": "AA", "tailnum": None},
        {"n": 1, "dep_delay": -3, "arr_delay": 5, "carrier": "UA", "tailnum": "N2"},
    ]


def test_the_installed_package_has_all_departures_and_names_for_all_carriers() -> None:
    directory = data_directory()
    carriers = Counter(row.key.decode() for row in departures(directory))
    assert carriers.total() == ROWS
    assert len(carriers) == 16
    assert carriers.keys() <= carrier_names(directory).keys()


def tally_of(numbers: list[int], carrier: str = "UA") -> Tally:
    tally = Tally()
    for offset, number in enumerate(numbers):
        tally.add(carrier.encode(), {"n": number, "carrier": carrier, "dep_delay": number}, f"flights-0@{offset}")
    return tally


def test_the_source_in_its_order_is_right() -> None:
    tally = tally_of([0, 1, 2])
    assert tally.verdict({"UA": 3}, 3) == []
    assert tally.carriers["UA"].mean_departure_delay == 1
    assert tally.carriers["UA"].mean_arrival_delay is None


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([0, 2], "departure 2 of UA came where 1 was due"),
        ([0, 1, 1], "departure 1 of UA came where 2 was due"),
        ([1, 0, 2], "departure 1 of UA came where 0 was due"),
        ([0, 1], "UA has 2 departures, not 3"),
    ],
)
def test_a_lost_doubled_reordered_or_missing_record_is_found(numbers: list[int], said: str) -> None:
    problems = tally_of(numbers).verdict({"UA": 3}, len(numbers))
    assert any(said in problem for problem in problems)


def test_foreign_records_and_records_that_were_not_read_are_found() -> None:
    tally = tally_of([0])
    tally.add(b"UA", None, "flights-0@1")
    tally.add(b"DL", {"n": 1, "carrier": "UA"}, "flights-0@2")
    problems = tally.verdict({"UA": 1}, 4)
    assert "flights-0@1 is no departure of the demo" in problems
    assert "flights-0@2 is no departure of the demo" in problems
    assert "3 records were read, not 4" in problems
    assert "the topic holds 4 records, not 1" in problems


def test_only_the_first_problems_are_told() -> None:
    tally = tally_of([500] * 100)
    assert len(tally.problems) == PROBLEMS_KEPT
    assert any("100 records are wrong" in text for text in tally.verdict({"UA": 100}, 100))


def test_rates_look_at_the_last_seconds_only() -> None:
    rate = Rate(window_seconds=2)
    assert rate.update(0, 0) == 0
    assert rate.update(1, 100) == 100
    for second in range(2, 10):
        latest = rate.update(second, 100)
    assert latest == 0


def test_percentiles() -> None:
    assert percentiles_ms([]) == {}
    quoted = percentiles_ms([n / 1000 for n in range(1, 1001)])
    assert quoted == {"p50": 501.0, "p90": 901.0, "p99": 991.0, "p999": 1000.0, "max": 1000.0}


OURS = {"UA": Carrier(3, 2, 10, 2, -4), "AA": Carrier(1, 0, 0, 0, 0)}


def test_spark_agrees_when_each_carrier_came_once_with_the_same_sums() -> None:
    assert differences(OURS, {code: [carrier] for code, carrier in OURS.items()}) == []


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (OURS, []),
        ({"UA": OURS["UA"]}, ["AA: the consumer has (1, 0, 0), the program None"]),
        ({**OURS, "UA": Carrier(3, 2, 11)}, ["UA: the consumer has (3, 2, 10), the program (3, 2, 11)"]),
        ({**OURS, "DL": Carrier(1)}, ["DL: the consumer has None, the program (1, 0, 0)"]),
    ],
)
def test_what_a_program_of_streams_has_otherwise_is_told(theirs: dict[str, Carrier], said: list[str]) -> None:
    assert streaming.differences(OURS, theirs) == said


@pytest.mark.parametrize(
    ("sparks", "said"),
    [
        ({"UA": [OURS["UA"]]}, "AA was written 0 times by Spark"),
        ({"UA": [OURS["UA"]] * 2, "AA": [OURS["AA"]]}, "UA was written 2 times by Spark"),
        ({"UA": [OURS["UA"]], "AA": [OURS["AA"]], "DL": [Carrier(1)]}, "DL is known to Spark only"),
        ({"UA": [Carrier(3, 2, 11, 2, -4)], "AA": [OURS["AA"]]}, "departure_delay_sum 10, "),
    ],
)
def test_what_spark_has_otherwise_is_told(sparks: dict[str, list[Carrier]], said: str) -> None:
    [wrong] = differences(OURS, sparks)
    assert said in wrong


def test_the_connectors_of_the_demo_are_configured_as_they_should_be(tmp_path: Path) -> None:
    found = connecting.configurations(tmp_path)
    assert list(found) == ["flights-in", "flights-upserted", "flights-inserted"]
    assert not any(find_config_problems(config) for config in found.values())


def test_a_table_that_lacks_a_row_or_has_one_twice_does_not_agree(tmp_path: Path) -> None:
    rows = [("UA", "2", "11"), ("AA", "NA", "NA"), ("UA", "-3", "NA")]
    ours = {"UA": Carrier(2, 2, -1, 1, 11), "AA": Carrier(1, 0, 0, 0, 0)}
    for name, there in {"whole": rows, "less": rows[:2], "twice": [*rows, rows[0]]}.items():
        with closing(sqlite3.connect(tmp_path / name)) as db, db:
            db.execute("create table departures (carrier text, dep_delay text, arr_delay text)")
            db.executemany("insert into departures values (?, ?, ?)", there)
        wrong = tally.differences(ours, connecting.sums(tmp_path / name), "the table")
        assert bool(wrong) == (name != "whole"), wrong


def test_sparks_sums_are_shown_the_largest_first() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table({"AA": [OURS["AA"]], "UA": [OURS["UA"]]}))
    rows = [line.split() for line in console.export_text().splitlines() if "min" in line]
    assert [[word for word in row if word not in "│┃"] for row in rows] == [
        ["UA", "3", "+10", "min", "-4", "min"],
        ["AA", "1", "+0", "min", "+0", "min"],
    ]


def test_a_demo_without_java_says_how_to_get_it_and_fails_only_when_spark_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submit, "find_java", lambda _: None)
    monkeypatch.setattr(submit, "spark_home", lambda _: submit.HERE)
    said = spark_to_use(None)
    assert isinstance(said, str)
    assert "Java 17" in said
    assert "make run-spark" in said
    assert spark_to_use(False) == ""
    with pytest.raises(CommandFailed, match="Java 17"):
        spark_to_use(True)
