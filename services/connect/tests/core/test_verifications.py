"""How many verifications there may be, and what is retained of them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_common.core.errors import Overloaded
from headrace_connect_worker.core.herd import ConnectorState, TaskSet
from headrace_connect_worker.core.records import TargetState
from headrace_connect_worker.core.refusals import Conflict, NoSuchVerification
from headrace_connect_worker.core.verifications import ENDED_MAX, Verifications

RESULT: dict[str, Any] = {"agrees": True}


def connector(name: str, target: TargetState = TargetState.STARTED, tasks: TaskSet | None = None) -> ConnectorState:
    return ConnectorState(name, {}, 1, target, tasks)


def test_one_of_each_connector_and_two_in_all() -> None:
    known = Verifications()
    first = known.begin("1", connector("a"), 0, repair=False)
    with pytest.raises(Conflict, match="a verification of a runs, 1"):
        known.begin("2", connector("a"), 0, repair=False)
    known.begin("3", connector("b"), 0, repair=False)
    with pytest.raises(Overloaded, match="those of a and b run"):
        known.begin("4", connector("c"), 0, repair=False)
    known.end("1", RESULT)
    assert (first.is_running, first.result, first.error) == (False, RESULT, None)
    known.begin("5", connector("a"), 0, repair=False)


def test_of_a_running_connector_none_is_repaired() -> None:
    known = Verifications()
    for target in (TargetState.STARTED, TargetState.PAUSED):
        with pytest.raises(Conflict, match="stop a before"):
            known.begin("1", connector("a", target), 0, repair=True)
    stopped = TargetState.STOPPED
    with pytest.raises(Conflict, match="stop a before"):
        known.begin("1", connector("a", stopped, TaskSet(1, {}, 1, ((),))), 0, repair=True)
    assert known.begin("1", connector("a", stopped, TaskSet(2, {}, 1, ())), 0, repair=True).repair
    known.end("1", RESULT)
    assert known.begin("2", connector("a", stopped), 0, repair=True).repair


def test_the_first_end_counts_and_what_is_forgotten_has_none() -> None:
    known = Verifications()
    one = known.begin("1", connector("a"), 0, repair=False)
    known.end("1", error=Conflict("over"))
    known.end("1", RESULT)
    assert (one.result, str(one.error)) == (None, "over")
    known.forget("1")
    known.forget("1")
    known.end("1", RESULT)
    with pytest.raises(NoSuchVerification):
        known.find("a", "1")


def test_of_those_that_have_ended_the_newest_are_retained_and_all_that_run() -> None:
    known = Verifications()
    known.begin("runs", connector("r"), 0, repair=False)
    for number in range(ENDED_MAX + 2):
        known.begin(str(number), connector("a"), 0, repair=False)
        known.end(str(number), RESULT)
    for old in ("0", "1"):
        with pytest.raises(NoSuchVerification, match="Begin another one"):
            known.find("a", old)
    assert known.find("a", "2").result is RESULT
    assert known.find("r", "runs").is_running


def test_it_is_found_below_its_own_connector_alone() -> None:
    known = Verifications()
    known.begin("1", connector("a"), 0, repair=False)
    with pytest.raises(NoSuchVerification, match="b has no verification '1'"):
        known.find("b", "1")
