"""Signals of a program that commits what it has read: the first has it end in order, Ctrl+C again at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

TWICE = """
import asyncio, os, signal, sys
import logging
from headrace_common.runtime.stopping import listen_for_signals

async def main():
    stop = asyncio.Event()
    listen_for_signals(stop, logging.getLogger(), "words", "nobody sees it twice")
    for name in sys.argv[1:]:
        os.kill(os.getpid(), signal.Signals[name])
        await stop.wait()
        await asyncio.sleep(0.1)
    print("commits")

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("names", "code", "out", "lines"),
    [
        (["SIGINT"], 0, "commits\n", 1),
        (["SIGTERM"], 0, "commits\n", 0),
        (["SIGINT", "SIGINT"], 130, "", 2),
        (["SIGTERM", "SIGINT"], 130, "", 1),
        (["SIGTERM", "SIGTERM"], 0, "commits\n", 0),
    ],
)
def test_a_program_that_runs_itself_ends_at_once_by_a_second_ctrl_c(
    names: list[str], code: int, out: str, lines: int
) -> None:
    """Not by SIGTERM again: a parent sends that twice."""
    ran = subprocess.run([sys.executable, "-c", TWICE, *names], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (code, out)
    words = ["words commits what it has read and ends; Ctrl+C again ends it at once, without that commit"]
    words.append(
        "words ended without its last commit. Nothing is lost: the next start does again what was not committed, "
        "and nobody sees it twice"
    )
    assert ran.stderr.splitlines() == ([] if not lines else words[-1:] if names[0] == "SIGTERM" else words[:lines])


FORKS = """
import asyncio, os, signal
import logging
from headrace_common.runtime.stopping import listen_for_signals

def fork():
    child = os.fork()
    if not child:
        signal.pause()
    os.kill(child, signal.SIGTERM)
    return os.waitpid(child, 0)[1]

async def main():
    stop = asyncio.Event()
    listen_for_signals(stop, logging.getLogger(), "a", "")
    status = await asyncio.to_thread(fork)
    await asyncio.sleep(0.2)
    print(os.WTERMSIG(status) == signal.SIGTERM, stop.is_set())
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    print("stopped")

asyncio.run(main())
"""


def test_a_process_that_a_function_forks_is_ended_alone() -> None:
    """As ``multiprocessing`` does with its pools."""
    ran = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["True", "False", "stopped"]
