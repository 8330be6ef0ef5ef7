"""A process that is told to stop before it has begun stops."""

from __future__ import annotations

import signal
import subprocess
import sys

from headrace_common.runtime.early import STOPPED

CHILD = """
import gc, sys, time
from headrace_common.runtime.early import starting
with starting():
    print(gc.isenabled(), flush=True)
    if sys.argv[1] == "slow":
        time.sleep(60)
print(gc.isenabled(), flush=True)
time.sleep(60)
"""


def stopped(*argv: str, after_lines: int) -> tuple[int, list[str]]:
    with subprocess.Popen([sys.executable, "-c", CHILD, *argv], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(after_lines)]
        process.send_signal(signal.SIGTERM)
        return process.wait(30), lines


def test_while_it_imports() -> None:
    assert stopped("slow", after_lines=1) == (STOPPED, ["False"])


def test_until_somebody_else_handles_the_signal() -> None:
    assert stopped("quick", after_lines=2) == (STOPPED, ["False", "True"])
