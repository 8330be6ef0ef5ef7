"""Runs of ``headrace connect run`` in processes of their own, which are killed or stopped at a step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.testing import TestCluster

RUN_S = 240
LOOK_S = 0.02


def run(
    cluster: TestCluster,
    directory: Path,
    config: Mapping[str, Any],
    kill_at: str = "",
    variables: Mapping[str, str] | None = None,
    *,
    seconds: float = RUN_S,
) -> None:
    """One process, killed at the step, or until it is idle, which has to be within so many seconds."""
    if kill_at:
        (directory / kill_at).write_text("kill")
    process = _start(cluster, directory, config, variables)
    _end(process, directory, -9 if kill_at else 0, seconds)


@contextmanager
def killed_behind(
    cluster: TestCluster, directory: Path, config: Mapping[str, Any], *, seconds: float = RUN_S
) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """A process that is killed with the block; it gives what waits for something while the process runs."""
    process = _start(cluster, directory, config, None)

    def until(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert process.poll() is None, (directory / "runs.log").read_text()[-4_000:]
            assert time.monotonic() < deadline, f"it does not come to that within {seconds} s"
            time.sleep(LOOK_S)

    try:
        yield until
    finally:
        process.kill()
        process.wait()


@contextmanager
def stopped_at(
    step: str, cluster: TestCluster, directory: Path, config: Mapping[str, Any], variables: Mapping[str, str], code: int
) -> Iterator[None]:
    """A process that stands still at the step while the block runs; then it goes on, and ends with ``code``."""
    (directory / step).write_text("stop")
    process = _start(cluster, directory, config, variables)
    try:
        deadline = time.monotonic() + RUN_S
        while not (directory / f"{step}.hit").exists():
            assert process.poll() is None, (directory / "runs.log").read_text()[-4_000:]
            assert time.monotonic() < deadline, step
            time.sleep(LOOK_S)
        yield
        process.send_signal(signal.SIGCONT)
        _end(process, directory, code)
    finally:
        process.kill()
        process.wait()


def _start(
    cluster: TestCluster, directory: Path, config: Mapping[str, Any], variables: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    file = directory / f"{config['name']}.json"
    file.write_text(json.dumps({"name": config["name"], "config": config}))
    command = [sys.executable, "-m", "headrace_cli", "connect", "run", str(file), "--until-idle"]
    command += ["--bootstrap", ",".join(cluster.bootstrap_servers)]
    environment = os.environ | {"HEADRACE_FAILPOINTS_DIR": str(directory), **(variables or {})}
    with (directory / "runs.log").open("ab") as out:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def _end(process: subprocess.Popen[bytes], directory: Path, code: int, seconds: float = RUN_S) -> None:
    try:
        ended = process.wait(seconds)
    finally:
        process.kill()
    assert ended == code, f"ended with {ended}: {(directory / 'runs.log').read_text()[-4_000:]}"
