"""What a benchmark leaves behind: its file of results, and its last line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench import spark
from bench.rows import Row, paired, save, summary
from bench.spark_side import Bench


def test_figures_that_were_not_measured_now_stay_in_the_file(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    save([Row("read", 1.0, "rec/s"), Row("write", 2.0, "rec/s")], results)
    save([Row("read", 3.0, "rec/s")], results)

    assert {row["name"]: row["value"] for row in json.loads(results.read_text())} == {"write": 2.0, "read": 3.0}


def test_sides_that_took_turns_are_compared_pair_by_pair_and_with_the_others_best_run() -> None:
    row = paired("write", "records/s", [10.0, 40.0, 20.0], [10.0, 20.0, 40.0])
    assert (row.value, row.baseline, row.ratio, row.note) == (20.0, 20.0, 1.0, "to their best 0.50")

    assert paired("ack", "ms", [1.0, 2.0, 3.0], [1.0, 0.5, 2.0]).note == "to their best 4.00"


def test_the_summary_is_one_line_of_json() -> None:
    line = summary("spark", [Row("read → noop", 10.0, "rows/s", baseline=5.0, ratio=2.0)])

    assert "\n" not in line
    assert json.loads(line) == {
        "bench": "spark",
        "measured": 1,
        "figures": {"read → noop": {"value": 10.0, "unit": "rows/s", "ratio": 2.0}},
    }


def test_the_spark_benchmark_ends_with_its_json_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Running:
        def __init__(self, runs: int, *, peer: bool) -> None: ...

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    def reading(_: Bench) -> list[Row]:
        return [Row("read", 7.0, "rows/s")]

    monkeypatch.setattr(spark, "running", Running)
    monkeypatch.setattr(spark.sizes, "shrink", lambda: None)
    monkeypatch.setattr(spark, "SUITES", {"read": reading})
    monkeypatch.setattr("sys.argv", ["bench.spark", "--quick"])

    assert spark.main() == 0

    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last)["figures"] == {"read": {"value": 7.0, "unit": "rows/s", "ratio": None}}
