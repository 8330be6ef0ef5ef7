"""Members join, close and die while records flow: what moves is read again soon, what stays is not paused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.testing import TestCluster

from .crew import (
    PROTOCOLS,
    Crew,
    Load,
    assert_handled,
    assert_one_owner,
    ending,
    pauses_ms,
    read_again_s,
    until,
)

pytestmark = pytest.mark.integration

NOISE = 3
"""Tests share their machine with others: wanted times are allowed so many times. `make bench` has the figures."""
CLOSED_S, KILLED_S, PAUSE_MS = 0.5, 4.0, 100.0


def test_what_moves_is_read_again_soon_and_what_stays_is_not_paused(
    cluster: TestCluster, tmp_path: Path, protocol: str
) -> None:
    topic = cluster.unique_topic("moves", 12)
    crew = Crew(cluster, tmp_path, f"moves-{protocol}", topic, **PROTOCOLS[protocol])
    everything = Crew(cluster, tmp_path, None, topic)
    load = Load(cluster, topic)
    figures: dict[str, float] = {}
    with ending(load, crew, everything):
        reader = everything.start()
        first, second, third = (crew.start() for _ in range(3))
        crew.settle()
        until(lambda: bool(reader.look().runs), "the reader reads")

        began = time.monotonic_ns()
        fourth = crew.start()
        until(lambda: crew.shared() and len(crew.living) == 4 and len(fourth.held) == 3, "the fourth has its share")
        figures["pause at a join"] = (pauses_ms(crew.members, reader, began, time.monotonic_ns()) or [0.0])[0]

        had = set(third.look().held)
        began = time.monotonic_ns()
        crew.close(third)
        since = third.closing_ns
        until(lambda: read_again_s(third, crew.members, had, since) is not None, "what it had is read again")
        crew.settle()
        figures["pause at a close"] = (pauses_ms(crew.members, reader, began, time.monotonic_ns()) or [0.0])[0]
        closed_s = read_again_s(third, crew.members, had, since) or 0.0

        had = set(second.look().held)
        began = time.monotonic_ns()
        crew.kill(second)
        since = second.killed_ns
        until(lambda: read_again_s(second, crew.members, had, since) is not None, "what it had is read again")
        crew.settle()
        figures["pause at a kill"] = (pauses_ms(crew.members, reader, began, time.monotonic_ns()) or [0.0])[0]
        killed_s = read_again_s(second, crew.members, had, since) or 0.0

        load.end()
        until(lambda: _all_read(crew, load), "all is read")
        crew.close(first, fourth)
    print(f"\n{protocol}: read again {closed_s:.2f} s after a close, {killed_s:.2f} s after a kill -9; longest")
    print("  " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in figures.items()))
    assert_handled(crew, load.ends)
    assert_one_owner(crew.members)
    assert not [member.errors for member in crew.members if member.errors]
    assert closed_s <= CLOSED_S * NOISE
    assert killed_s <= KILLED_S * NOISE
    if protocol != "eager":
        assert max(figures.values()) <= PAUSE_MS * NOISE, figures


def _all_read(crew: Crew, load: Load) -> bool:
    last = dict.fromkeys(load.ends, -1)
    for member in crew.members:
        for tp, runs in member.look().runs.items():
            if runs:
                last[tp] = max(last[tp], runs[-1].last)
    return all(last[tp] + 1 == end for tp, end in load.ends.items())
