"""
The processes of ``headrace streams run``: a parent that starts a worker, starts it again when it dies, and passes
signals on.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from headrace_common.core.error_kinds import Kind
from headrace_common.core.errors import HeadraceError, Then
from headrace_streams.main import run
from headrace_streams.program import load

_log = logging.getLogger("headrace.streams")
_FIRST_DELAY_S: Final = 1.0
_LONGEST_DELAY_S: Final = 60.0
_QUIET_S: Final = 60.0
"""A worker that ran for so long begins with the shortest delay again."""
_ENDS_WITHIN_S: Final = 30.0
_WITH_PARENT: Final = "with-parent"


class Ending(IntEnum):
    """How a worker's process ends; a shell's number, or minus a signal."""

    DONE = 0
    LOST = 1
    """Nobody answered for long, or the disk failed: another start may do better."""
    FAILED = 3
    """The program, or a record of it: another start would meet the same."""
    FENCED = 4
    """The app runs elsewhere now."""


def work(program: str, settings: Mapping[str, Any]) -> Ending:
    """Run an app in this process, and say on stderr why it ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("headrace").setLevel(logging.WARNING)
    _log.setLevel(logging.INFO)
    try:
        run(load(program), **settings)
    except HeadraceError as error:
        _log.error("%s", error)
        return ending_of(error)
    return Ending.DONE


def ending_of(error: HeadraceError) -> Ending:
    """How a process ends that met it."""
    if error.kind is Kind.FENCED and error.then is Then.FENCED:
        return Ending.FENCED
    return Ending.FAILED if error.kind in (Kind.INVALID, Kind.NOT_FOUND, Kind.CONFLICT) else Ending.LOST


def end_with_parent() -> None:
    """Have this process end, as with SIGTERM, when its standard input ends."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()


class Parent:
    """Keeps one worker running until it is told to stop."""

    def __init__(self, program: str, settings: Mapping[str, Any], directory: Path | None = None) -> None:
        given = [program, json.dumps(settings, default=str), _WITH_PARENT]
        self._command = [sys.executable, "-m", "headrace_streams", *given]
        self._directory = directory
        self._told = threading.Event()
        self._worker: subprocess.Popen[bytes] | None = None

    def run(self) -> Ending:
        """Until the worker ends for good, or a signal ends it."""
        before = {number: signal.signal(number, self._stop) for number in self._signals()}
        try:
            return self._keep_running()
        finally:
            self._end_worker()
            for number, handler in before.items():
                signal.signal(number, handler)

    @staticmethod
    def _signals() -> list[signal.Signals]:
        """Those that end it. A terminal that closes is one, unless nohup has it ignored."""
        nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        return [signal.SIGTERM, signal.SIGINT, *([] if nohup else [signal.SIGHUP])]

    def _keep_running(self) -> Ending:
        delay_s = _FIRST_DELAY_S
        while True:
            began = time.monotonic()
            # Its own group: Ctrl+C reaches the parent, which passes it on once.
            # It reads to the end of the pipe, which comes when the parent has died, however it did.
            self._worker = subprocess.Popen(
                self._command, cwd=self._directory, start_new_session=True, stdin=subprocess.PIPE
            )
            if self._told.is_set():
                self._worker.send_signal(signal.SIGTERM)
            code = self._worker.wait()
            if self._told.is_set() and code < 0:
                return Ending.DONE  # before it could take the signal, or because it did not end
            if self._told.is_set() or code in (Ending.DONE, Ending.FAILED, Ending.FENCED):
                return Ending(code) if code in list(Ending) else Ending.LOST
            delay_s = _FIRST_DELAY_S if time.monotonic() - began > _QUIET_S else delay_s
            ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            _log.warning("worker %d %s; the next starts in %.0f s", self._worker.pid, ended, delay_s)
            if not self._wait(delay_s):
                return Ending.DONE
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    def _wait(self, seconds: float) -> bool:
        """Whether the time passed without a signal to stop."""
        return not self._told.wait(seconds)

    def _stop(self, number: int, frame: object) -> None:
        """The first signal has it commit and end; another kills it, which loses nothing that was committed."""
        again = self._told.is_set()
        self._told.set()
        if self._worker is not None and self._worker.poll() is None:
            self._worker.send_signal(signal.SIGKILL if again else signal.SIGTERM)

    def _end_worker(self) -> None:
        if self._worker is None or self._worker.poll() is not None:
            return
        self._worker.send_signal(signal.SIGTERM)
        try:
            self._worker.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.kill(self._worker.pid, signal.SIGKILL)
            self._worker.wait()
