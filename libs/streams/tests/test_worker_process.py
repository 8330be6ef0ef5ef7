"""How a worker's process and its parent end."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace_streams.core.errors import NotAllowed
from headrace_streams.main import _in_pool

WORKER = "import signal; print('runs', flush=True); signal.pause()"
PARENT = f"""
import sys
from headrace_streams.worker_process import Parent
parent = Parent("app.py", {{}})
parent._command = [sys.executable, "-c", {WORKER!r}]
parent.run()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_no_worker_is_left_when_its_parent_is_ended(number: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, start_new_session=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"runs\n"
    parent.send_signal(number)
    assert parent.stdout.read() == b"", "both have let go of the pipe"
    assert parent.wait() == 0


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), BaseException("x")])
async def test_a_function_cannot_end_the_process(error: BaseException) -> None:
    def function() -> None:
        raise error

    with ThreadPoolExecutor(1) as pool, pytest.raises(NotAllowed, match="would end the worker; raise an Exception"):
        await _in_pool(pool, function)
