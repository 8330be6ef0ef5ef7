"""
``kill -9`` of every process at once, supervisor and etcd too, twenty times in a row, while all kinds of clients go on.

HELD_LONG=1 (``make chaos``) is the long form: twenty times; else twice. CHAOS_SEED names the pauses.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from tests.chaos.guard import GUARDED, guarded
from tests.chaos.held.verifying import LONG, PREFIX, SEED, judge, verifying

from headrace_cli.local import LocalCluster

TIMES = 20 if LONG else 2
BETWEEN_S = (0.0, 4.0) if LONG else (0.0, 2.0)
ACKNOWLEDGED_MIN = 100 if LONG else 20
DEAD_S = 20.0

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1_800 if LONG else 300)]


def kill_everything(cluster: LocalCluster) -> None:
    """At one moment, as far as a machine has one; return when none is left."""
    state = cluster.state
    assert state.supervisor is not None
    living = [state.supervisor, *(one.identity for one in state.processes if one.identity is not None)]
    for identity in living:
        identity.signal(signal.SIGKILL)
    for identity in living:
        assert identity.wait_gone(DEAD_S)


def test_everything_is_killed_in_a_row_and_nothing_is_lost(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    starts: list[float] = []
    with (
        LocalCluster(tmp_path / "data", brokers=3, coordinators=2, tls=GUARDED) as cluster,
        guarded(cluster, PREFIX),
        verifying(cluster.bootstrap_servers) as run,
    ):
        for _ in range(TIMES):
            time.sleep(chance.uniform(*BETWEEN_S))  # a moment of the load, not a wait for anything
            kill_everything(cluster)
            began = time.monotonic()
            cluster.start()
            starts.append(time.monotonic() - began)
        run.wait_copied()
        report = run.end()
    judge("all killed", report, ACKNOWLEDGED_MIN, times=TIMES, slowest_start_s=round(max(starts), 1))
