"""
``headrace up`` killed at random moments of a start, the very first included: ``up`` again works, and nothing is lost.

HELD_LONG=1 (``make chaos``) is the long form; CHAOS_SEED names the moments.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.chaos.guard import GUARDED, guarded
from tests.chaos.held.verifying import LONG, SEED
from tests.integration.local.conftest import headrace, processes_on

from headrace import AdminClient, Consumer, HeadraceError, Producer
from headrace.errors import TopicAlreadyExists
from headrace_cli.local import LocalCluster
from headrace_cli.local.processes import wait_until

TIMES, SECONDS_MAX, BROKERS = (20, 9.0, 3) if LONG else (2, 5.0, 1)
"""Longer than a start on a quiet machine: some are killed in their work."""
START_S = 120.0
TOPIC = "kept"
UP = ("up", "--data-dir", "data", "--brokers", str(BROKERS), *(("--tls",) if GUARDED else ()))

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1_800 if LONG else 300)]


def killed_in_its_midst(directory: Path, seconds: float) -> None:
    """``up`` in the foreground, whose processes end with it."""
    command = [sys.executable, "-m", "headrace_cli", *UP]
    with (directory / "up.log").open("ab") as log:
        up = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        up.wait(seconds)
    except subprocess.TimeoutExpired:
        pass
    else:
        raise AssertionError(f"up ended by itself:\n{(directory / 'up.log').read_text()[-2_000:]}")
    finally:
        up.send_signal(signal.SIGKILL)
        up.wait()
    assert wait_until(lambda: processes_on(directory) == [], 30, poll_seconds=0.05), "all end with it"


def up(directory: Path) -> list[str]:
    """The servers."""
    done = headrace(*UP, "-d", "-o", "json", cwd=directory, timeout=START_S)
    assert done.returncode == 0, f"seed {SEED}: {done.stderr}"
    servers: list[str] = json.loads(done.stdout)["bootstrap_servers"]
    return servers


def test_up_after_an_up_that_was_killed_works_and_has_all(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    acknowledged: list[bytes] = []
    moments: list[float] = []
    try:
        for turn in range(TIMES):
            moments.append(chance.uniform(0.05, SECONDS_MAX))
            killed_in_its_midst(tmp_path, moments[-1])
            if turn % 2 and turn != TIMES - 1:
                continue  # killed once more before it was ever whole again
            servers = up(tmp_path)
            with guarded(LocalCluster.attach(tmp_path / "data"), TOPIC):
                acknowledged += write(servers, turn)
            assert headrace("down", "--data-dir", "data", cwd=tmp_path).returncode == 0
        began = time.monotonic()
        servers = up(tmp_path)
        print(f"\nup killed: seed {SEED}, {TIMES} times, last start {time.monotonic() - began:.1f} s", file=sys.stderr)
        with (
            guarded(LocalCluster.attach(tmp_path / "data"), TOPIC),
            Consumer(TOPIC, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
        ):
            read = [record.value for record in consumer.read_to_end()]
    finally:
        headrace("down", "--data-dir", "data", cwd=tmp_path)
    assert sorted(read) == sorted(acknowledged), f"seed {SEED}, {moments}"
    assert acknowledged


def write(servers: list[str], turn: int) -> list[bytes]:
    """What was acknowledged."""
    values = [b"%d-%d" % (turn, number) for number in range(100)]
    try:
        with AdminClient(servers) as admin, contextlib.suppress(TopicAlreadyExists):
            admin.create_topic(TOPIC, 3)
        with Producer(servers) as producer:
            for delivery in producer.send_many(TOPIC, values):
                delivery.result(30)
    except HeadraceError as error:
        raise AssertionError(f"seed {SEED}: after up all is served: {error!r}") from error
    return values
