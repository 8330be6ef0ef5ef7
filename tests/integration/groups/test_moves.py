"""Members join, close and die while records flow: what moves is read again soon, what stays is not paused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing import TestCluster

from .moves import scenario

pytestmark = pytest.mark.integration

NOISE = 3
"""Tests share their machine with others: wanted times are allowed so many times. `make bench` has the figures."""
CLOSED_S, KILLED_S, PAUSE_MS = 0.5, 4.0, 100.0


def test_what_moves_is_read_again_soon_and_what_stays_is_not_paused(
    cluster: TestCluster, tmp_path: Path, protocol: str
) -> None:
    found = scenario(cluster, tmp_path, protocol)
    print(f"\n{protocol}: read again {found.closed_s:.2f} s after a close, {found.killed_s:.2f} s after a kill -9;")
    print("  longest pause at a " + ", ".join(f"{what} {ms:.0f} ms" for what, ms in found.pauses_ms.items()))
    assert found.closed_s <= CLOSED_S * NOISE
    assert found.killed_s <= KILLED_S * NOISE
    if protocol != "eager":
        assert max(found.pauses_ms.values()) <= PAUSE_MS * NOISE, found.pauses_ms
