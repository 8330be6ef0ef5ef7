"""
A program ends as it says, whatever its clients do then: never by a signal of the machine's, and in bounded time.

``HEADRACE_EXITS=1000`` makes it so many exits (``make exits``); as CI runs it each state meets each ending once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice, product
from pathlib import Path

import pytest

from headrace.testing import TestCluster, started_cluster

from .exits import ENDINGS, STATES

EXITS = int(os.environ.get("HEADRACE_EXITS", "0"))
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900 + 20 * EXITS)]
PROGRAM = Path(__file__).with_name("exits.py")
END_S = 110
"""Far more than the seconds that an end may take on a quiet machine; who hangs does so for ever."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with started_cluster(tmp_path_factory.mktemp("exits")) as running:
        yield running


@pytest.fixture(scope="module")
def topic(cluster: TestCluster) -> str:
    """Made before a broker is paused, which is fenced for a while afterwards."""
    return cluster.unique_topic(partitions=2)


def start(cluster: TestCluster, state: str, ending: str, topic: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), state, ending, ",".join(cluster.bootstrap_servers), topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, errors = process.communicate("now\n", timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return 999, "it hangs: " + process.communicate()[1]
    return process.returncode, errors


def ended(cluster: TestCluster, state: str, ending: str, topic: str) -> str | None:
    """What is wrong with one end."""
    code, errors = finish(start(cluster, state, ending, topic))
    wanted = ENDINGS[ending]
    return None if code == wanted else f"{state} with {ending}: {code} instead of {wanted}: {errors[-2_000:]}"


def test_the_exit_code_is_what_the_program_said(cluster: TestCluster, topic: str) -> None:
    every = list(product(STATES, ENDINGS))
    wanted = islice(cycle(every), max(EXITS, len(every)))
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda way: ended(cluster, *way, topic), wanted)
        wrong = [each for each in found if each is not None]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("states", "ending"),
    [
        (("busy_producer", "polling_consumer", "transaction", "aio_in_thread"), "return"),
        (("busy_producer", "polling_consumer", "transaction", "aio_in_thread"), "exit"),
        (("idle_producer", "member", "tables", "many_clients", "forked"), "exit"),
        (("idle_producer", "member", "tables", "many_clients", "forked"), "interrupt"),
    ],
)
def test_so_it_is_while_brokers_are_paused(
    cluster: TestCluster, topic: str, states: tuple[str, ...], ending: str
) -> None:
    programs = {state: start(cluster, state, ending, topic) for state in states}
    for program in programs.values():
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    cluster.local.signal("broker-1", signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(len(states)) as pool:
            found = dict(zip(states, pool.map(finish, programs.values()), strict=True))
    finally:
        cluster.local.signal("broker-1", signal.SIGCONT)
    wrong = {state: (code, errors) for state, (code, errors) in found.items() if code != ENDINGS[ending]}
    assert not wrong
