"""
The files in which a local cluster says what it is.

``cluster.json`` is for everybody: addresses and pids. ``supervisor.json`` is the supervisor's: options and ports
for the next start, the state of each process for ``status``. ``supervisor.lock`` is held while a supervisor lives,
so what the files say is checked, never believed. Files are replaced whole, so a reader sees one or the other.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from headrace_cli.local.failures import LocalClusterFailed
from headrace_cli.local.plan import ClusterOptions
from headrace_cli.local.processes import ProcessId

FORMAT: Final = 1


class Phase(StrEnum):
    """Where a cluster is in its life."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Health(StrEnum):
    """Where one process is in its life."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    """It died and will be started again."""
    DEAD = "dead"
    """It died and will not be started again."""
    STOPPED = "stopped"


@dataclass(slots=True)
class ProcessState:
    """One process as the supervisor last saw it."""

    name: str
    role: str
    grpc: str
    metrics: str
    http: str | None = None
    pid: int | None = None
    started: int = 0
    health: Health = Health.STARTING
    restarts: int = 0
    note: str | None = None

    @property
    def identity(self) -> ProcessId | None:
        """The process this speaks of, None when there is none."""
        return None if self.pid is None else ProcessId(self.pid, self.started)

    def alive(self) -> bool:
        """Whether the process runs now."""
        return self.identity is not None and self.identity.alive()


@dataclass(slots=True)
class ClusterState:
    """All that ``supervisor.json`` holds."""

    supervisor: ProcessId
    phase: Phase
    options: ClusterOptions
    ports: dict[str, int] = field(default_factory=dict)
    processes: list[ProcessState] = field(default_factory=list)
    error: str | None = None

    @property
    def bootstrap_servers(self) -> list[str]:
        """The brokers' addresses."""
        return [process.grpc for process in self.processes if process.role == "broker"]

    @property
    def admin_url(self) -> str | None:
        """The REST service's base URL; None before ports were chosen."""
        return next((f"http://{process.http}" for process in self.processes if process.http), None)

    def to_json(self) -> dict[str, Any]:
        """As written."""
        return {
            "format": FORMAT,
            "supervisor": asdict(self.supervisor),
            "phase": self.phase,
            "error": self.error,
            "options": self.options.to_json(),
            "ports": self.ports,
            "processes": [asdict(process) for process in self.processes],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ClusterState:
        """Raises: KeyError, TypeError or ValueError when it is not one."""
        return ClusterState(
            supervisor=ProcessId(**data["supervisor"]),
            phase=Phase(data["phase"]),
            options=ClusterOptions.from_json(data["options"]),
            ports=dict(data["ports"]),
            processes=[ProcessState(**{**p, "health": Health(p["health"])}) for p in data["processes"]],
            error=data.get("error"),
        )


@dataclass(frozen=True, slots=True)
class DataDir:
    """The paths below one data directory."""

    path: Path

    @staticmethod
    def at(path: str | Path) -> DataDir:
        """The directory, which need not exist yet."""
        return DataDir(Path(path).expanduser().absolute())

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.path / "logs"

    @property
    def cluster_file(self) -> Path:
        """What everybody may read."""
        return self.path / "cluster.json"

    @property
    def state_file(self) -> Path:
        """What the supervisor keeps."""
        return self.path / "supervisor.json"

    @property
    def events(self) -> Path:
        """What the supervisor did, one JSON line each."""
        return self.logs / "supervisor.log"

    def create(self) -> None:
        """
        Make the directories.

        Raises:
            LocalClusterFailed: it cannot be made, or holds something else.
        """
        if self.path.is_dir() and not self.state_file.exists() and any(self.path.iterdir()) and not self._ours():
            raise LocalClusterFailed(
                f"{self.path} holds other files; give an empty or new directory with --data-dir, or clear it"
            )
        try:
            for directory in (self.path, self.logs, self.path / "run"):
                directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LocalClusterFailed(
                f"cannot make {error.filename}: {error.strerror}; give another --data-dir"
            ) from error

    def _ours(self) -> bool:
        return (self.path / "supervisor.lock").exists() or self.logs.is_dir()

    def lock(self) -> int | None:
        """Take the lock and return its descriptor, None if a supervisor holds it. Given back by closing."""
        descriptor = os.open(self.path / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def locked(self) -> bool:
        """Whether a supervisor lives."""
        if not (self.path / "supervisor.lock").exists():
            return False
        descriptor = self.lock()
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def read(self) -> ClusterState | None:
        """What the last supervisor wrote, None if there is nothing that can be read."""
        try:
            return ClusterState.from_json(json.loads(self.state_file.read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, state: ClusterState) -> None:
        """Replace both files."""
        _replace(self.state_file, state.to_json())
        _replace(self.cluster_file, public(state))


def public(state: ClusterState) -> dict[str, Any]:
    """``cluster.json``: where the cluster is. A process that does not run has no pid."""
    return {
        "bootstrap_servers": state.bootstrap_servers,
        "admin_url": state.admin_url,
        "processes": [
            {"name": p.name, "role": p.role, "pid": p.pid, "grpc": p.grpc, "metrics": p.metrics}
            for p in state.processes
        ],
    }


def _replace(path: Path, data: Mapping[str, Any]) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(data, indent=2) + "\n")
    draft.replace(path)
