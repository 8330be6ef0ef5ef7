"""Local clusters for these tests, of real or of fake services; nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from headrace_cli.local import LocalCluster

FAKES = Path(__file__).parent / "fakes"
MakeCluster = Callable[..., LocalCluster]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Controller, broker and admin are stand-ins that start at once; etcd is real."""
    monkeypatch.setenv("PYTHONPATH", str(FAKES), prepend=os.pathsep)


@pytest.fixture
def make_cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeCluster]:
    """A ``LocalCluster`` on this test's directory that is stopped at the end; one of stand-ins asks nobody."""
    asks = None if "fakes" not in request.fixturenames else False
    made: list[LocalCluster] = []

    def make(**options: object) -> LocalCluster:
        made.append(LocalCluster(tmp_path / "data", **{"closed": asks, **options}))  # a test names what it wants
        return made[-1]

    yield make
    for cluster in made:
        cluster.stop()
    assert processes_on(tmp_path) == [], "a test leaves no process behind"


def processes_on(directory: Path) -> list[str]:
    """The command lines of all processes that have this directory in theirs."""
    found: list[str] = []
    for process in psutil.process_iter(["cmdline", "status", "pid"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(directory) in line and process.info["status"] != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
            found.append(line)
    return found


def headrace(*argv: str, cwd: Path, timeout: float = 60, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "headrace_cli", *argv],
        cwd=cwd,
        input=stdin,
        stdin=None if stdin is not None else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
