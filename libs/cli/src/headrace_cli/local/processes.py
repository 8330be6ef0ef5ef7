"""
Operating system processes: start one that dies with its parent, tell whether a pid is still the one we mean.

A pid alone proves nothing, the kernel gives it away again; with the time its process started it is unique.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace_common.runtime.held_ports import for_child

LOG_BYTES_MAX: Final = 32 << 20
LOG_TAIL_BYTES: Final = 65_536
POLL_SECONDS: Final = 0.01
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, for good: its pid and when it started (clock ticks since boot on Linux)."""

    pid: int
    started: int

    @staticmethod
    def of(pid: int) -> ProcessId | None:
        """The process that has this pid now, or None."""
        started = _start_time(pid)
        return None if started is None else ProcessId(pid, started)

    def alive(self) -> bool:
        """Whether it runs; a zombie does not."""
        return _start_time(self.pid) == self.started

    def signal(self, number: int) -> bool:
        """Send ``number`` if the process still runs; False if it is gone."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_gone(self, timeout_seconds: float) -> bool:
        """Wait until it is gone, also when it is not our child; False when it still runs after that time."""
        return wait_until(lambda: not self.alive(), timeout_seconds)


def wait_until(condition: Callable[[], bool], timeout_seconds: float, poll_seconds: float = POLL_SECONDS) -> bool:
    """Look at ``condition`` every few milliseconds until it holds; False when the time is over."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_seconds)
    return True


def spawn(argv: Sequence[str], log: Path, held: Sequence[socket.socket] = ()) -> subprocess.Popen[bytes]:
    """
    Start a process whose output is appended to ``log`` and that is killed when this process ends (Linux).

    Args:
        held: its ports (``held_ports``).

    Raises:
        OSError: the program cannot be run.
    """
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))
    with log.open("ab") as out:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **for_child(held)} if held else None,
            pass_fds=[each.fileno() for each in held],
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - the supervisor has one thread, so it is safe
        )


def spawn_supervisor(argv: Sequence[str], log: Path, *, owned: bool) -> subprocess.Popen[bytes]:
    """
    Start a process in a session of its own, so that Ctrl+C at a terminal reaches its owner only. If it is ``owned``
    its standard input is a pipe from this process, which ends when this process does, however that happens.
    """
    with open(log, "wb", opener=_private) as out:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if owned else subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def kill_children(children: Sequence[ProcessId], timeout_seconds: float) -> list[ProcessId]:
    """SIGKILL these processes; those that are still there after the timeout are returned."""
    for child in children:
        child.signal(signal.SIGKILL)
    deadline = time.monotonic() + timeout_seconds
    return [child for child in children if not child.wait_gone(max(deadline - time.monotonic(), 0.0))]


def tail(log: Path, lines: int) -> str:
    """The last lines of a log as people read them, for an error text; tracebacks stay in the log."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(log.stat().st_size - LOG_TAIL_BYTES, 0))
        return "\n".join(_spoken(line) for line in file.read().decode(errors="replace").splitlines()[-lines:])
    return ""


def _spoken(line: str) -> str:
    """A line of JSON as its message, and the last line of the error that came with it; others as they are."""
    try:
        fields = json.loads(line)
        said = f"{fields['level']}: {fields['msg']}"
    except (ValueError, KeyError, TypeError):
        return line
    error = str(fields.get("error") or "").strip().splitlines()
    return f"{said}: {error[-1]}" if error else said


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start_time(pid: int) -> int | None:
    if sys.platform != "linux":
        return _start_time_elsewhere(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _start_time_elsewhere(pid: int) -> int | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time() * 1000)
    except psutil.Error:
        return None
