"""
The short set: a replicated cluster under load and faults.

Nothing acknowledged is lost, doubled or reordered, replicas are equal, the ISR is whole within 30 s, clients see no
error, and no partition waits longer than three times its target.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from chaos_plans import SHORT
from chaos_run import Plan, Report, run

SEED = int(os.environ.get("CHAOS_SEED", "20261121"))
PATIENCE = 3
"""Machines that run tests are busy; the long form prints the figures against the targets themselves."""

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]


def assert_sound(report: Report) -> None:
    """Nothing was found, and no gap was far beyond its target."""
    text = report.text()
    print(text, file=sys.stderr)
    assert report.sound, text
    assert report.verdict.sends_ok > 1_000, text
    for one in report.figures:
        assert one.gap is not None
        if one.fault.target_seconds is not None:
            assert one.gap.seconds <= PATIENCE * one.fault.target_seconds, f"{one.fault.name}\n{text}"


@pytest.mark.parametrize("plan", SHORT, ids=lambda plan: plan.name)
async def test_nothing_is_lost_and_everybody_is_back(plan: Plan, tmp_path: Path) -> None:
    assert_sound(await run(plan, tmp_path / plan.name, SEED))
