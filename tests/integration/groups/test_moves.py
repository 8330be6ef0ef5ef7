"""Members join, close and die while records flow: what they had is read again, nothing else is taken from others."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing import TestCluster

from .moves import scenario

pytestmark = pytest.mark.integration

SESSION_S = 45.0
"""When a member is given up of which nothing at all is heard: what is known to be gone is not waited for so long."""
FAIR = 3
"""Partitions that have to move when a fourth member joins three that have 12."""


def test_what_a_member_had_is_read_again_and_what_the_others_have_stays_with_them(
    cluster: TestCluster, tmp_path: Path, protocol: str
) -> None:
    found = scenario(cluster, tmp_path, protocol)
    print(f"\n{protocol}: read again {found.closed_s:.2f} s after a close, {found.killed_s:.2f} s after a kill -9;")
    print("  longest pause at a " + ", ".join(f"{what} {ms:.0f} ms" for what, ms in found.pauses_ms.items()))
    print(f"  moved {found.moved}, of those that went {found.left}")
    assert found.closed_s < SESSION_S
    assert found.killed_s < SESSION_S
    if protocol != "eager":
        assert found.moved == {"join": FAIR, **found.left}
