"""
The lives of a Spark application: a driver with its JVM and all their Python processes, killed in whole or in part.

All processes of one life are one session of the operating system, by which they are found: Spark's Python daemon has a
process group of its own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ..transactions.storm import FENCED, READY, until

TORN = 5
"""Exit code of an application whose session Spark broke; the next one goes on."""
SCRIPT = Path(__file__).parent / "application.py"
PATIENCE_S = 300.0
"""Busy machines take a minute or two to start a JVM and a query."""
ORPHANS_S = 2.0
"""How long Python processes may outlive their JVM before the rest is killed."""

REPEATED = re.compile(r"repeated: batch (\d+) was committed before")
"""What a sink says when it drops what it was given once more."""


def name_of(code: int) -> str:
    """How a life ended."""
    return {0: "done", FENCED: "fenced", TORN: "torn", -signal.SIGKILL: "killed"}.get(code, str(code))


@dataclass
class Life:
    """One driver and all that it started."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    wakes: Callable[[], bool] | None = None
    """When it goes on; None: it is not stopped."""
    bereft: bool = False
    """Its JVM was killed, so it may end as it likes."""

    def said(self) -> str:
        """What it and its JVM wrote."""
        return self.log.read_text(errors="replace")

    def at_work(self) -> bool:
        """Each query has ended a batch."""
        return f"\n{READY}" in self.said()

    def members(self) -> list[psutil.Process]:
        """All of its processes that live."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        return found

    def java(self) -> list[psutil.Process]:
        """The JVM."""
        return [one for one in self.members() if "java" in Path(_argv(one)[0]).name]

    def pythons(self) -> list[psutil.Process]:
        """Spark's Python processes: daemon, workers, planners, readers of offsets."""
        return [one for one in self.members() if any("pyspark.daemon" in arg or "worker" in arg for arg in _argv(one))]

    def send(self, number: int) -> None:
        """To all."""
        for one in self.members():
            _send(one, number)

    def kill(self) -> None:
        """All at once: what is stopped first starts nothing new."""
        self.send(signal.SIGSTOP)
        until(self._kill_all, f"{self.name} is gone")
        self.process.wait()

    def _kill_all(self) -> bool:
        self.send(signal.SIGKILL)
        self.process.poll()
        return not self.members()


def _argv(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() or [""]
    except psutil.NoSuchProcess:
        return [""]


def _send(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


@dataclass
class Lives:
    """One after the other, until one is done; now and then two at once."""

    directory: Path
    plan: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    endings: frozenset[str] = frozenset({"done", "fenced", "killed", "torn"})
    """How a life may end."""
    now: Life | None = None
    asleep: list[Life] = field(default_factory=list)
    started: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    done: bool = False
    logs: list[Path] = field(default_factory=list)

    def start(self) -> Life:
        """The next."""
        self.started += 1
        log = self.directory / f"application-{self.started}.log"
        with log.open("wb") as file:
            self.now = Life(
                log.stem,
                subprocess.Popen(
                    [sys.executable, str(SCRIPT), str(self.plan)],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env={**os.environ, "PYSPARK_PYTHON": sys.executable, **self.environment},
                    start_new_session=True,
                ),
                log,
            )
        self.logs.append(log)
        return self.now

    def tend(self) -> None:
        """Wake what is to go on, and start the next when one has ended; fails when one ended as none should."""
        for life in self.asleep:
            if life.wakes is not None and life.wakes():
                life.wakes = None
                life.send(signal.SIGCONT)
        for life in [one for one in self.asleep if one.process.poll() is not None]:
            self.asleep.remove(life)
            self._ended(life)
        if self.now is not None and self.now.process.poll() is not None:
            ended, self.now = self.now, None
            self._ended(ended)
        if self.now is None and not self.done:
            self.start()

    def _ended(self, life: Life) -> None:
        life.kill()  # what it left behind
        ending = "killed" if life.bereft else name_of(life.process.returncode)
        self.ends[ending] += 1
        self.done = self.done or ending == "done"
        assert ending in self.endings, f"{life.name} ended with {ending}:\n{life.said()[-6_000:]}"

    def kill(self) -> None:
        """Driver, JVM and all Python processes."""
        assert self.now is not None, "somebody is there to be killed"
        self.now.kill()

    def kill_java(self) -> None:
        """The JVM alone; its Python processes go on for a moment with what they were doing."""
        assert self.now is not None, "somebody is there to be killed"
        for one in self.now.java():
            _send(one, signal.SIGKILL)
        self.now.bereft = True
        time.sleep(ORPHANS_S)
        self.now.kill()

    def kill_python(self, pick: Callable[[list[psutil.Process]], psutil.Process]) -> bool:
        """One of Spark's Python processes; False: there is none."""
        pythons = self.now.pythons() if self.now is not None else []
        if pythons:
            _send(pick(pythons), signal.SIGKILL)
        return bool(pythons)

    def replace(self, wakes: Callable[[], bool]) -> None:
        """All of it stops, another takes its place, and when ``wakes`` it goes on as if nothing had been."""
        assert self.now is not None, "somebody is there to be stopped"
        self.now.send(signal.SIGSTOP)
        self.now.wakes = wakes
        self.asleep.append(self.now)
        self.start()

    def finish(self, seconds: float = PATIENCE_S) -> None:
        """One life comes to the end, and so do those that were stopped."""

        def over() -> bool:
            self.tend()
            if self.done:
                for life in self.asleep:
                    life.wakes = life.wakes and (lambda: True)
            return self.done and self.now is None and not self.asleep

        until(over, "the application comes to its end", seconds)

    def end(self) -> None:
        """Whatever still runs is killed."""
        for life in (*self.asleep, *([self.now] if self.now is not None else [])):
            life.kill()

    def count(self, text: str) -> int:
        """How often something was said, in all lives."""
        return sum(log.read_text(errors="replace").count(text) for log in self.logs)

    def repeated(self) -> int:
        """Batches of which a life heard that they had been committed before it."""
        return sum(len(set(REPEATED.findall(log.read_text(errors="replace")))) for log in self.logs)
