"""A process that is told to stop before it has begun stops."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("2", "2")])
def test_numpy_starts_no_threads_unless_somebody_wants_them(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    code = (
        "import os\nfrom headrace_common.runtime.early import starting\n"
        "with starting():\n    print(os.environ['OPENBLAS_NUM_THREADS'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == expected
