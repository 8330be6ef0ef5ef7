"""kill -9, short form; ``tests/chaos/storage`` does it twenty times."""

from __future__ import annotations

from pathlib import Path

import pytest
from storage_processes import COMPACTING, WritingChild, assert_nothing_lost, inspect


@pytest.mark.parametrize("policy", ["os", "group"])
def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path: Path, policy: str) -> None:
    acked: dict[int, int] = {}
    for seed in range(2):
        child = WritingChild(tmp_path / "data", policy, seed)
        child.wait_for_acks(150)
        acked |= child.kill()
        assert_nothing_lost(inspect(tmp_path / "data"), acked)


@pytest.mark.parametrize("policy", ["os", "group"])
def test_each_key_has_its_newest_value_when_the_process_is_killed_while_it_compacts(
    tmp_path: Path, policy: str
) -> None:
    acked: dict[int, int] = {}
    for seed in range(2):
        child = WritingChild(tmp_path / "data", policy, seed, child=COMPACTING)
        child.wait_for_a_pass()
        child.wait_for_acks(80)
        acked |= child.kill()
        found = inspect(tmp_path / "data", COMPACTING)
        assert_nothing_lost(found, acked)
        assert {log: to for log, to in child.cleaned.items() if found.logs[log][0] < to} == {}, "a pass was forgotten"
