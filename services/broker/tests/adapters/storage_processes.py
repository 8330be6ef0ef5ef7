"""Starts, kills and questions ``storage_child`` processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("storage_child.py")
COMPACTING = Path(__file__).with_name("compacting_child.py")
OPEN_S_MAX = 30.0
"""An opening that takes longer hangs."""


@dataclass(slots=True)
class Found:
    """What ``inspect`` said."""

    refused: str = ""
    """The text of the error that kept it from opening; empty: it opened."""
    clean: bool = False
    cuts: list[str] = field(default_factory=list)
    damaged: list[tuple[int, int, int, str]] = field(default_factory=list)
    logs: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Start, or how far it is compacted, and end, by log id."""
    wrong: list[str] = field(default_factory=list)


def inspect(path: Path, child: Path = CHILD) -> Found:
    """Open ``path`` in a process of its own, read everything, close."""
    run = subprocess.run(
        [sys.executable, str(child), "inspect", str(path)],
        capture_output=True,
        text=True,
        timeout=OPEN_S_MAX,
        check=False,
    )
    lines = run.stdout.splitlines()
    assert run.returncode in (0, 4), f"inspect ended with {run.returncode}: {run.stdout[-500:]} {run.stderr[-3000:]}"
    if run.returncode == 4:
        return Found(refused=lines[-1])
    said: dict[str, Any] = json.loads(lines[-1])
    said["logs"] = {int(log): tuple(ends) for log, ends in said["logs"].items()}
    said["damaged"] = [tuple(one) for one in said["damaged"]]
    return Found(**said)


class WritingChild:
    """A process that appends until it is killed or fails."""

    def __init__(
        self, path: Path, policy: str, seed: int, env: dict[str, str] | None = None, child: Path = CHILD
    ) -> None:
        self.acked: dict[int, int] = {}
        self.cleaned: dict[int, int] = {}
        """Up to where a pass of this process has compacted each log."""
        self.last_line = ""
        self._changed = threading.Condition()
        self._count = 0
        self.process = subprocess.Popen(
            [sys.executable, str(child), "write", str(path), policy, str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                break
            words = line.split()
            with self._changed:
                self.last_line = line.strip()
                if words[0] == "a":
                    self.acked[int(words[1])] = int(words[2])
                    self._count += 1
                elif words[0] == "c":
                    self.cleaned[int(words[1])] = int(words[2])
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for_acks(self, count: int) -> None:
        """Until it acknowledged so many times."""
        self._wait(lambda: self._count >= count)

    def wait_for_a_pass(self) -> None:
        """Until it has compacted more of a log; it goes on with the next at once."""
        self._wait(lambda: bool(self.cleaned))

    def _wait(self, enough: Callable[[], bool]) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: enough() or self.process.poll() is not None, 60)
        alive = done and self.process.poll() is None
        assert alive, f"the writer ended: {self.last_line} {self.stderr()}"

    def kill(self) -> dict[int, int]:
        """SIGKILL; what it had acknowledged."""
        self.process.send_signal(signal.SIGKILL)
        return self.wait()

    def wait(self) -> dict[int, int]:
        """Until it ended; what it had acknowledged."""
        self.process.wait(60)
        self._reader.join(60)
        return self.acked

    def stderr(self) -> str:
        """What it wrote there; after its end."""
        assert self.process.stderr is not None
        return self.process.stderr.read() if self.process.poll() is not None else ""


def assert_nothing_lost(found: Found, acked: dict[int, int]) -> None:
    """Opened, sound, and every acknowledged batch is there."""
    assert not found.refused
    assert found.wrong == []
    assert found.damaged == []
    missing = {log: (end, found.logs.get(log)) for log, end in acked.items() if found.logs.get(log, (0, 0))[1] < end}
    assert missing == {}
