"""kill -9, short form; ``tests/chaos/storage`` does it twenty times."""

from __future__ import annotations

from pathlib import Path

import pytest
from storage_processes import WritingChild, assert_nothing_lost, inspect


@pytest.mark.parametrize("policy", ["os", "group"])
def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path: Path, policy: str) -> None:
    acked: dict[int, int] = {}
    for seed in range(2):
        child = WritingChild(tmp_path / "data", policy, seed)
        child.wait_for_acks(150)
        acked |= child.kill()
        assert_nothing_lost(inspect(tmp_path / "data"), acked)
