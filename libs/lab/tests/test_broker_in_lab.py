"""A real broker and the real client in the lab: what was sent is read, and one seed is one history."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from libs.lab.tests import broker_world

WORLD = Path(broker_world.__file__)


def test_what_was_sent_is_read_in_the_order_of_its_partitions() -> None:
    outcome = broker_world.play(5)
    assert sorted(outcome.values) == sorted(b"%d" % number for number in range(broker_world.RECORDS))
    for partition in range(3):
        own = [int(value) for value in outcome.values if int(value) % 3 == partition]
        assert own == sorted(own)


def test_one_seed_is_one_history_in_every_process() -> None:
    def digest(seed: int, hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, str(WORLD), str(seed)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert digest(3, "1") == digest(3, "2")
    assert digest(3, "1") != digest(4, "1")
