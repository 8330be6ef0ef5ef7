"""A run whose cluster does not come back says so, and keeps what was judged before."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace_verify.judging import Findings
from headrace_verify.plan import Plan
from headrace_verify.reading import NotReadable
from headrace_verify.running import Run, State

PLAN = Plan(("127.0.0.1:1",), "abc", 60.0)


def run_of(monkeypatch: pytest.MonkeyPatch, *rounds: Any) -> Run:
    """A run whose rounds find this, or raise it; each takes half of the time."""
    told: list[State] = []
    run, left = Run(PLAN, threading.Event(), told.append), iter(rounds)

    def one_round(number: int, seconds: float) -> float:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        run.report.add(found, 0)
        return PLAN.seconds / 2

    monkeypatch.setattr(run, "_round", one_round)
    return run


def test_what_could_not_be_read_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    report = run_of(monkeypatch, Findings(acknowledged=5), NotReadable("no end")).run()
    assert (report.verdict, report.sound, report.acknowledged) == ("not judged", False, 5)
    assert report.as_json()["not_judged"] == "no end"
    assert "could not be judged: no end" in report.as_markdown()


def test_an_anomaly_that_was_found_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Findings(acknowledged=5)
    found.anomalies["lost-write"].append("0@1")
    assert run_of(monkeypatch, found, NotReadable("no end")).run().verdict == "anomaly"


def test_a_cluster_that_acknowledged_nothing_is_not_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_of(monkeypatch, Findings(), Findings()).run().verdict == "not judged"
    assert run_of(monkeypatch, Findings(), Findings(acknowledged=1)).run().verdict == "sound"
