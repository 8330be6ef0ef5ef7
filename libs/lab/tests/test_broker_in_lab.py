"""Real brokers and the real client in the lab: what was sent is read, and one seed is one history."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from libs.lab.tests import cluster_world

ROOT = Path(__file__).parents[3]


def test_what_was_sent_is_read_in_the_order_of_its_partitions() -> None:
    outcome = cluster_world.play(5, kill=False)
    assert sorted(outcome.read) == sorted(b"%d" % number for number in range(cluster_world.RECORDS))
    for partition in range(3):
        own = [int(value) for value in outcome.read if int(value) % 3 == partition]
        assert own == sorted(own)


@pytest.mark.parametrize("seed", range(10))
def test_what_three_brokers_acknowledged_is_read_after_one_was_killed(seed: int) -> None:
    outcome = cluster_world.play(seed)
    assert len(outcome.acknowledged) > cluster_world.RECORDS / 2
    assert set(outcome.acknowledged) <= set(outcome.read)
    assert len(outcome.read) == len(set(outcome.read))


def test_one_seed_is_one_history_in_every_process() -> None:
    def digest(seed: int, hash_seed: str) -> str:
        program = f"from libs.lab.tests import cluster_world as world; print(world.play({seed}).digest)"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    first = digest(3, "1")
    assert first == digest(3, "2")
    assert first != digest(4, "1")
