"""Plans that cannot be run are refused; a report adds up its rounds."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.errors import InvalidConfig
from headrace_verify.availability import SECOND, Outage
from headrace_verify.judging import Findings
from headrace_verify.plan import Plan
from headrace_verify.report import EXAMPLES_MAX, Report

PLAN = Plan(("127.0.0.1:1",), "abc", 60.0)


def findings(**anomalies: list[str]) -> Findings:
    found = Findings(acknowledged=10, read=10, seconds=[(6, 12), (0, 0), (3, 4)], transactions=Counter(ok=2))
    found.operations["send", "ok"] = 4
    found.outages = [Outage(1 * SECOND, 3 * SECOND, 2)]
    found.anomalies.update({name.replace("_", "-"): texts for name, texts in anomalies.items()})
    return found


def test_rounds_are_added_up() -> None:
    report = Report(PLAN, "2026-11-23T00:00:00+00:00")
    for number in (1, 2):
        report.rounds = number
        report.add(findings(), 0)
    told = report.as_json()
    assert told["verdict"] == "sound"
    assert told["records"] == {"acknowledged": 20, "unknown": 0, "read": 20, "copied": 0}
    assert told["operations"] == {"send": {"ok": 8, "fail": 0, "info": 0}}
    assert [one["at_s"] for one in told["availability"]["outages"]] == [1.0, 4.0], "rounds follow each other"
    assert told["availability"]["longest_outage_s"] == 2.0
    assert told["availability"]["seconds_all_partitions_written"] == 2
    assert "#.5#.5" in report.as_markdown()
    assert "None." in report.as_markdown()


def test_anomalies_are_counted_and_some_are_shown() -> None:
    report = Report(PLAN, "")
    report.rounds = 1
    report.add(findings(lost_write=[f"0@{n}" for n in range(100)]), 0)
    told = report.as_json()
    assert told["verdict"] == "anomaly"
    assert told["anomalies"]["lost-write"]["count"] == 100
    assert len(told["anomalies"]["lost-write"]["examples"]) == EXAMPLES_MAX
    assert "**lost-write** × 100" in report.as_markdown()
    assert "round 1: 0@0" in report.as_markdown()


def test_a_plan_says_all_that_is_wrong_with_it() -> None:
    with pytest.raises(InvalidConfig) as refused:
        Plan((), "abc", 0.0, keys=0, rate=1e9)
    assert [name in str(refused.value) for name in ("minutes", "keys", "rate", "settle")] == [True, True, True, False]


def test_names_of_a_run_begin_alike() -> None:
    row = PLAN.as_row()
    assert PLAN.names(3).copies == "headrace-verify-abc-3-copies"
    assert row["processes"].startswith("2 plain, 1 batch")
