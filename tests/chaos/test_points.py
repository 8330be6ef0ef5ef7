"""Points at which the storms hit processes: what is armed comes to an end, whatever becomes of who came to it."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from tests.chaos import points as module
from tests.chaos.points import Points

POINT = "sdk.txn.end.before"


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Points:
    """One that is armed, and for which nobody comes."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    armed = Points(tmp_path, [POINT], random.Random(1), pause_s=0.0)
    assert armed.look() is None
    assert armed.armed == POINT
    return armed


def come(points: Points, pid: int) -> None:
    """The process is first, as ``failpoint`` does it."""
    (points.directory / POINT).rename(points.directory / f"{POINT}.{pid}")


def test_what_killed_who_came_to_a_point_does_not_stop_the_others(points: Points) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    come(points, gone.pid)
    assert points.look() is None
    assert points.armed is None
    assert list(points.directory.iterdir()) == []
    points.look()
    assert points.armed == POINT


def test_one_that_was_killed_and_not_yet_missed_is_gone_too(points: Points) -> None:
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    come(points, zombie.pid)
    points.look()
    assert points.armed is None
    zombie.wait()


def test_who_has_just_come_is_waited_for(points: Points) -> None:
    come(points, os.getpid())
    assert points.look() is None
    assert points.armed == POINT
    taken = points.directory / f"{POINT}.{os.getpid()}"
    taken.write_text(str(os.getpid()))
    taken.rename(points.directory / f"{POINT}.hit")
    hit = points.look()
    assert hit is not None
    assert hit[1] == os.getpid()
    assert sum(points.hits.values()) == 1


def test_nobody_came(points: Points) -> None:
    assert points.look() is None
    assert points.armed is None
    assert sum(points.hits.values()) == 0
