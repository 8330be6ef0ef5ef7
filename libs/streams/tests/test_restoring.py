"""What a worker says while state is being restored."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_streams.config import StreamsConfig
from headrace_streams.dsl.app import App
from headrace_streams.runtime.restoring import Restoring
from headrace_streams.runtime.worker import Worker


def test_it_is_said_now_and_then_how_far_it_is() -> None:
    restoring = Restoring()
    assert restoring.seen({"a/0": 1_500_000, "a/1": 500_000}, 7.0) == ""
    assert restoring.seen({"a/0": 1_200_000, "a/1": 300_000}, 3_006.0) == ""
    said = restoring.seen({"a/0": 1_000_000, "a/1": 0}, 3_007.0)
    assert said == "50% of 2,000,000 records of state are restored; left: 1,000,000 of a/0"
    assert restoring.seen({"a/0": 900_000}, 6_000.0) == ""
    assert restoring.seen({"a/0": 500_000}, 6_007.0).startswith("75% of 2,000,000")


def test_a_task_that_comes_later_counts_and_few_are_named() -> None:
    restoring = Restoring()
    restoring.seen({"a/0": 10}, 0.0)
    said = restoring.seen({f"a/{n}": 10 + n for n in range(5)}, 3_000.0)
    assert said == "0% of 60 records of state are restored; left: 14 of a/4, 13 of a/3, 12 of a/2, …"


def test_what_takes_a_moment_is_not_said() -> None:
    restoring = Restoring()
    for turn in range(5):
        assert restoring.seen({"a/0": 100}, turn * 4_000.0) == ""
        assert restoring.seen({"a/0": 0}, turn * 4_000.0 + 1_000) == ""


def test_of_a_new_app_nothing_is_said() -> None:
    """There is no state yet: all that its changelog has is the fence that this worker has set."""
    restoring = Restoring()
    for turn in range(3):
        assert restoring.seen({"a/0": 1, "a/1": 1}, turn * 4_000.0) == ""
    restoring.seen({"a/0": 1, "a/1": 10}, 12_000.0)
    assert restoring.seen({"a/0": 1, "a/1": 5}, 15_000.0) == "50% of 10 records of state are restored; left: 5 of a/1"


def test_a_worker_says_it_of_what_it_takes_over_and_not_of_standbys(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic_ms=lambda: now[0])
    outside: Any = SimpleNamespace(compute=None, look=None, changelogs=None, clock=clock, snapshots=None)
    worker = Worker(App("billing"), StreamsConfig(), outside)
    seat: Any = SimpleNamespace(
        owned={},
        taken={"a/0": None},
        assigned={},
        followed={"a/1": None},
        warm_ups=frozenset(),
        lags=lambda: {"a/0": 300, "a/1": 900},
        membership=SimpleNamespace(group_metadata=lambda: None),
    )
    with caplog.at_level(logging.INFO):
        worker._tell_state(seat)
        now[0] = 5_000.0
        worker._tell_state(seat)
    assert caplog.messages == ["billing: 0% of 300 records of state are restored; left: 300 of a/0"]
