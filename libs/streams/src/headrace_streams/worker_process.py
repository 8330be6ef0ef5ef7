"""
The processes of ``headrace streams run``: a parent that starts workers, starts again what dies, and passes signals
on.
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

from headrace import PositionReset
from headrace_common.core.error_kinds import Kind
from headrace_common.core.errors import HeadraceError, InvalidConfig, Then
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.stopping import INTERRUPTED_TWICE, words_of_early_end, words_of_end
from headrace_streams.config import StreamsConfig
from headrace_streams.core.errors import Blocked
from headrace_streams.main import run, words_of_seen
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
    """Another process is this worker now."""
    INTERRUPTED = INTERRUPTED_TWICE
    """Of the parent: it was told again to stop, and has killed workers that had not ended."""


def work(program: str, settings: Mapping[str, Any]) -> Ending:
    """Run an app in this process, and say on stderr why it ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("headrace").setLevel(logging.WARNING)
    _log.setLevel(logging.INFO)
    logging.getLogger("headrace.consumer").addFilter(_is_no_gap)
    try:
        run(load(program), **settings)
    except Blocked as error:
        _log.error("%s", error)
        logging.shutdown()
        os._exit(Ending.LOST)  # an end that waits for its threads would wait for that function
    except HeadraceError as error:
        _log.error("%s", error)
        return ending_of(error)
    return Ending.DONE


def ending_of(error: HeadraceError) -> Ending:
    """How a process ends that met it."""
    if error.kind is Kind.FENCED and error.then is Then.FENCED:
        return Ending.FENCED
    return Ending.FAILED if error.kind in (Kind.INVALID, Kind.DENIED, Kind.NOT_FOUND, Kind.CONFLICT) else Ending.LOST


def _is_no_gap(entry: logging.LogRecord) -> bool:
    """The consumer says of a gap that records were not read. A worker says what it means: others may have read them."""
    return not (isinstance(entry.args, tuple) and any(isinstance(one, PositionReset) for one in entry.args))


def end_with_parent() -> None:
    """Have this process end, as with SIGTERM, when its standard input ends."""

    def wait() -> None:
        # Not by way of sys.stdin: its lock, held by a thread that waits, aborts an interpreter that ends.
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def _listeners(config: StreamsConfig, number: int) -> dict[str, Endpoint]:
    """Where a worker listens: each has the ports next to those of the one before."""
    found = {}
    for name in ("metrics_listen", "health_listen", "query_listen"):
        if (at := getattr(config, name)) is not None:
            found[name] = Endpoint(at.host, at.port + number if at.port else 0)
    return found


def _check_ports(config: StreamsConfig, workers: int) -> None:
    taken: dict[int, str] = {}
    for number in range(workers):
        for name, at in _listeners(config, number).items():
            if at.port and (other := taken.setdefault(at.port, name)) != name:
                raise InvalidConfig(
                    f"{other} and {name} would both have port {at.port}, as each worker has the next ports: "
                    f"with --workers {workers}, set them at least {workers} apart"
                )


class Parent:
    """
    Keeps the workers of one machine running until it is told to stop.

    Raises:
        InvalidConfig: a setting is wrong, or ports overlap; no worker was started.
    """

    def __init__(
        self,
        program: str,
        settings: Mapping[str, Any],
        workers: int = 1,
        directory: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            directory: where workers run; None: here.
            env: their environment, which may have what they show to the cluster; None: that of this process.
        """
        self._program = program
        self._command = [sys.executable, "-m", "headrace_streams", program]
        self._settings = settings
        self._config = StreamsConfig.of(settings)
        _check_ports(self._config, workers)
        self._directory = directory
        self._env = env
        self._told = threading.Event()
        self._told_again = False
        self._over = threading.Event()
        self._slots = [_Slot(self, number) for number in range(workers)]

    def command(self, number: int) -> list[str]:
        """Of one worker; each listens at ports of its own."""
        settings = dict(self._settings)
        settings |= {name: str(at) for name, at in _listeners(self._config, number).items()}
        return [*self._command, json.dumps(settings, default=str), _WITH_PARENT]

    def run(self) -> Ending:
        """Until a signal ends all workers, or one fails for good, and the others end with it."""
        before = {number: signal.signal(number, self._stop) for number in self._signals()}
        try:
            for slot in self._slots:
                slot.start()
            self._over.wait()
        finally:
            self._told.set()
            self._pass_on(signal.SIGTERM)
            for slot in self._slots:
                slot.end()
            for number, handler in before.items():
                signal.signal(number, handler)
        ending = Ending.DONE
        if any(slot.killed for slot in self._slots):
            seen = words_of_seen(self._config.processing_guarantee)
            _log.warning("%s", words_of_early_end(self._program, seen))
            ending = Ending.INTERRUPTED if self._told_again else ending
        return next((slot.ending for slot in self._slots if slot.ending is not Ending.DONE), ending)

    @staticmethod
    def _signals() -> list[signal.Signals]:
        """Those that end it. A terminal that closes is one, unless nohup has it ignored."""
        nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        return [signal.SIGTERM, signal.SIGINT, *([] if nohup else [signal.SIGHUP])]

    def _stop(self, number: int, frame: object) -> None:
        """The first signal has them commit and end; another kills them, which loses nothing that was committed."""
        self._told_again = self._told.is_set()
        self._told.set()
        if not self._told_again:
            _log.warning("%s", words_of_end(self._program, number))
        self._pass_on(signal.SIGKILL if self._told_again else signal.SIGTERM)

    def _pass_on(self, number: signal.Signals) -> None:
        for slot in self._slots:
            slot.send(number)


def _words_of(code: int) -> str:
    """How a worker's process has ended that is started again."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with {code}" + (
        "" if code else ", which its parent had not told it to (as os._exit() in a function does)"
    )


class _Slot(threading.Thread):
    """Keeps one worker running."""

    def __init__(self, parent: Parent, number: int) -> None:
        super().__init__(name=f"worker {number}", daemon=True)
        self._command = parent.command(number)
        self._parent = parent
        self._worker: subprocess.Popen[bytes] | None = None
        self.ending = Ending.DONE
        self.killed = False
        """Its worker was killed after it had been told to end, so before its last commit."""

    def run(self) -> None:
        """Until the worker fails for good, or the parent was told to stop; the first such end ends the others."""
        self.ending = self._keep_running()
        self._parent._over.set()

    def _keep_running(self) -> Ending:
        parent = self._parent
        delay_s = _FIRST_DELAY_S
        while not parent._told.is_set():
            began = time.monotonic()
            # Its own group: Ctrl+C reaches the parent, which passes it on once.
            # It reads to the end of the pipe, which comes when the parent has died, however it did.
            worker = self._worker = subprocess.Popen(
                self._command, cwd=parent._directory, env=parent._env, start_new_session=True, stdin=subprocess.PIPE
            )
            if parent._told.is_set():
                worker.send_signal(signal.SIGTERM)
            code = worker.wait()
            if parent._told.is_set() and code < 0:
                self.killed = code == -signal.SIGKILL
                return Ending.DONE  # before it could take the signal, or because it did not end
            if parent._told.is_set() or code in (Ending.FAILED, Ending.FENCED):
                return Ending(code) if code in list(Ending) else Ending.LOST
            delay_s = _FIRST_DELAY_S if time.monotonic() - began > _QUIET_S else delay_s
            _log.warning("worker %d %s; the next starts in %.0f s", worker.pid, _words_of(code), delay_s)
            parent._told.wait(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
        return Ending.DONE

    def send(self, number: signal.Signals) -> None:
        """Pass a signal on."""
        if self._worker is not None and self._worker.poll() is None:
            self._worker.send_signal(number)

    def end(self) -> None:
        """Wait until the worker has ended; kill it if it does not."""
        self.join(_ENDS_WITHIN_S)
        if self.is_alive():
            self.send(signal.SIGKILL)
            self.join()
