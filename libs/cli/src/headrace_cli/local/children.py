"""
One child of the supervisor: its process, whether it is ready, and when it is due to be started again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace_cli.local.etcd import etcd_serves
from headrace_cli.local.plan import ProcessPlan
from headrace_cli.local.processes import ProcessId, spawn
from headrace_cli.local.restarts import Died, RestartPolicy
from headrace_cli.local.state import Health, ProcessState
from headrace_common.runtime.held_ports import keep_alone

KILL_WAIT_SECONDS: Final = 5.0


class Child:
    """Owned by the supervisor's loop; times are monotonic seconds."""

    def __init__(self, plan: ProcessPlan, log: Path, restart_delay_ms: int, held: Sequence[socket.socket] = ()) -> None:
        """``held`` are its ports, which nobody else gets while it is dead."""
        self.plan = plan
        self._held = held
        self.log = log
        self.policy = RestartPolicy(restart_delay_ms)
        self.state = ProcessState(plan.name, plan.role, plan.grpc, plan.metrics, plan.http)
        self.startup_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._ready_at: float | None = None
        self._due: float | None = None

    def start(self, now: float) -> None:
        """Raises: OSError when the program cannot be run."""
        assert not self.running(), "one process at a time"
        if self.plan.ready_file is not None:
            Path(self.plan.ready_file).unlink(missing_ok=True)
        self._due, self._ready_at, self._started_at = None, None, now
        self._process = spawn(self.plan.argv, self.log, self._held)
        identity = ProcessId.of(self._process.pid)
        self.state.pid = self._process.pid
        self.state.started = identity.started if identity is not None else 0
        self.state.health = Health.STARTING

    def running(self) -> bool:
        """Whether a process was started that was not seen to end."""
        return self._process is not None

    def due(self) -> float | None:
        """When to start it again; None: not waiting for that."""
        return self._due

    def reap(self, now: float) -> Died | None:
        """Notice that the process has ended."""
        if self._process is None or self._process.poll() is None:
            return None
        code = self._process.returncode
        self._process = None
        for held in self._held:
            keep_alone(held)  # it may have died while it began to listen
        self.state.note = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        self.state.pid = None
        return Died(None if self._ready_at is None else (now - self._ready_at) * 1000, signalled=code < 0)

    def how_it_ended(self) -> str:
        """For a sentence about the last death."""
        return self.state.note or "ended"

    def start_again_at(self, due: float, note: str) -> None:
        self._due = due
        self.state.health, self.state.note = Health.WAITING, note

    def stays_dead(self, note: str) -> None:
        """Only a command starts it again."""
        self._due = None
        self.state.health, self.state.note = Health.DEAD, note

    def became_ready(self, now: float) -> bool:
        """Look whether it serves; True once per start."""
        if self._process is None or self.state.health is not Health.STARTING:
            return False
        if not (etcd_serves(self.plan.metrics) if self.plan.ready_file is None else self._ready_file_is_ours()):
            return False
        self._ready_at = now
        self.startup_seconds = now - self._started_at
        self.state.health = Health.READY
        return True

    def _ready_file_is_ours(self) -> bool:
        assert self.plan.ready_file is not None
        try:
            data = json.loads(Path(self.plan.ready_file).read_bytes())
        except (OSError, ValueError):
            return False
        return isinstance(data, dict) and data.get("pid") == self.state.pid

    def terminate(self) -> None:
        """Ask it to stop."""
        if self._process is not None:
            # A stopped process (SIGSTOP) would not hear it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)
                os.kill(self._process.pid, signal.SIGCONT)

    def wait(self, timeout_seconds: float) -> bool:
        """Whether it ended in time."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self.wait(KILL_WAIT_SECONDS)

    def stopped(self) -> None:
        """It has ended, by our wish."""
        self._process, self._due = None, None
        self.state.pid, self.state.started = None, 0
        self.state.health = Health.STOPPED
