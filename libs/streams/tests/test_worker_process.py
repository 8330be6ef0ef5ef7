"""How a worker's process and its parent end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_streams import worker_process
from headrace_streams.core.errors import NotAllowed
from headrace_streams.main import _in_pool
from headrace_streams.worker_process import Ending, Parent

WORKER = "import signal; print('runs', flush=True); signal.pause()"
BUSY = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))
print('runs', flush=True)
while True:
    signal.pause()
"""
PARENT = """
import signal, sys
from headrace_streams.worker_process import Parent
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
parent = Parent("app.py", {"processing_guarantee": sys.argv[2]}, workers=int(sys.argv[3]))
for slot in parent._slots:
    slot._command = [sys.executable, "-c", sys.argv[1]]
sys.exit(parent.run())
"""


def start(worker: str, guarantee: str = "exactly_once", workers: int = 1) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    command = [sys.executable, "-c", PARENT, worker, guarantee, str(workers)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert parent.stdout is not None
    assert parent.stdout.read(5 * workers).count(b"runs") == workers
    return parent, parent.stdout


def said(parent: subprocess.Popen[bytes]) -> list[str]:
    assert parent.stderr is not None
    return parent.stderr.read().decode().splitlines()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_no_worker_is_left_when_its_parent_is_ended(number: signal.Signals) -> None:
    parent, out = start(WORKER)
    parent.send_signal(number)
    assert out.read() == b"", "both have let go of the pipe"
    assert parent.wait() == 0
    again = "Ctrl+C again" if number == signal.SIGINT else "a second signal"
    assert said(parent) == [f"app.py commits what it has read and ends; {again} ends it at once, without that commit"]


def test_a_worker_ends_when_its_parent_was_killed() -> None:
    """Which can tell it nothing: its end of the pipe closes."""
    worker = "from headrace_streams.worker_process import end_with_parent; end_with_parent();" + WORKER
    parent, out = start(worker)
    parent.kill()
    assert out.read() == b"", "the worker has let go of the pipe"
    assert parent.wait() == -signal.SIGKILL


def test_a_worker_whose_program_cannot_run_ends_its_parent() -> None:
    """Another start would meet the same. The worker's code has to come through while it still listens to its parent."""
    worker = (
        "import sys; from headrace_streams.worker_process import Ending, end_with_parent; end_with_parent();"
        "print('runs', flush=True); sys.exit(Ending.FAILED)"
    )
    parent, out = start(worker)
    assert out.read() == b"", "no other worker was started"
    assert parent.wait() == 3


ENDED = "app.py ended without its last commit. Nothing is lost: the next start does again what was not committed, and "
SEEN = {
    "exactly_once": "readers with isolation_level='read_committed' see it once",
    "at_least_once": "rows may be written twice (at_least_once), and state is exact",
}


@pytest.mark.parametrize("guarantee", SEEN)
def test_a_second_signal_kills_a_worker_that_does_not_end(guarantee: str) -> None:
    parent, out = start(BUSY, guarantee)
    parent.send_signal(signal.SIGINT)
    assert out.readline() == b"told\n"
    parent.send_signal(signal.SIGINT)
    assert out.read() == b""
    assert parent.wait() == Ending.INTERRUPTED
    assert said(parent) == [
        "app.py commits what it has read and ends; Ctrl+C again ends it at once, without that commit",
        ENDED + SEEN[guarantee],
    ]


KILLED = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
print('runs', flush=True)
signal.pause()
"""


def test_a_worker_that_is_killed_before_its_last_commit_is_said_once_for_all() -> None:
    """As one that takes too long beside others. Whoever stopped the command did it once, so it is no failure."""
    parent, _ = start(KILLED, workers=2)
    parent.send_signal(signal.SIGTERM)
    assert said(parent)[1:] == [ENDED + SEEN["exactly_once"]]
    assert parent.wait() == 0


ENDS = """
import os, sys
from headrace_streams.main import _without_exits

def fork(end):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return end()

def fail():
    raise ValueError("in the child")

for end in (lambda: sys.exit(7), lambda: sys.exit(), lambda: sys.exit("why"), lambda: os._exit(5), fail, lambda: 3):
    print(_without_exits(fork, end))
"""


def test_a_process_that_a_function_forks_ends_where_the_function_does() -> None:
    """Else it would go on as a second worker, and a function that waits for it would wait for ever."""
    ran = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["7", "0", "1", "5", "1", "0"]
    assert "in the child" in ran.stderr


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), BaseException("x")])
async def test_a_function_cannot_end_the_process(error: BaseException) -> None:
    def function() -> None:
        raise error

    with ThreadPoolExecutor(1) as pool, pytest.raises(NotAllowed, match="would end the worker; raise an Exception"):
        await _in_pool(pool, function)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (-signal.SIGKILL, "worker 1 was killed by SIGKILL; the next starts in 1 s"),
        (7, "worker 1 ended with 7; the next starts in 1 s"),
        (0, "worker 1 ended with 0, which its parent had not told it to (as os._exit() in a function does); the next"),
    ],
)
def test_who_dies_again_and_again_is_started_ever_more_seldom(
    code: int, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And at once again where it has run for more than a minute."""
    lives = iter([1.0, 0.1, 1.0, 1.0, 60.0, 1.0, 1.0, 1.0, 61.0, 1.0])
    waits: list[float] = []
    now = 0.0

    class Told:
        def is_set(self) -> bool:
            return len(waits) == 10

        def wait(self, seconds: float) -> None:
            waits.append(seconds)

    class Dies:
        pid = 1

        def __init__(self, *args: object, **more: object) -> None: ...

        def wait(self) -> int:
            nonlocal now
            now += next(lives)
            return code

    monkeypatch.setattr(worker_process.subprocess, "Popen", Dies)
    monkeypatch.setattr(worker_process, "time", SimpleNamespace(monotonic=lambda: now))
    parent = Parent("app.py", {})
    monkeypatch.setattr(parent, "_told", Told())
    assert parent._slots[0]._keep_running() is Ending.DONE
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 1, 2]
    assert caplog.messages[0].startswith(says)


SAYS = """
import logging
from headrace import PositionReset
from headrace.records import TopicPartition
from headrace_streams import worker_process

def run(app, **settings):
    consumer = logging.getLogger("headrace.consumer")
    consumer.warning("%s", PositionReset(TopicPartition("by-k", 0), 85, 259, 259))
    consumer.warning("topic %r was deleted", "by-k")

worker_process.load, worker_process.run = str, run
worker_process.work("app.py", {})
"""


def test_what_a_gap_means_is_said_by_the_worker_alone() -> None:
    """Others may have read these records and trimmed them; the consumer cannot know."""
    ran = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, timeout=60, check=True)
    assert "topic 'by-k' was deleted" in ran.stderr
    assert "were not read" not in ran.stderr


@pytest.mark.parametrize("name", ["metrics_listen", "health_listen", "query_listen"])
def test_a_port_that_is_taken_is_told_in_one_line(name: str, tmp_path: Path) -> None:
    """It may be free soon: an earlier worker may still be ending, so another start may do better."""
    (tmp_path / "copy_app.py").write_text(
        "from headrace.streams import App, string\napp = App('copy')\napp.stream('a', value=string).to('b')\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = json.dumps({"bootstrap_servers": "127.0.0.1:1", name: listen})
        command = [sys.executable, "-m", "headrace_streams", "copy_app.py", settings]
        worker = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (worker.returncode, "Traceback" in worker.stderr) == (Ending.LOST, False), worker.stderr
    assert f"cannot listen on {listen}: is the port taken" in worker.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"query_listen": "rubbish"}, "query_listen: 'rubbish' is not an address"),
        ({"commit_interval_ms": -5}, "commit_interval_ms takes 0 to 600000, not -5"),
    ],
)
def test_wrong_settings_are_refused_before_a_worker_starts(given: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        Parent("app.py", given)
