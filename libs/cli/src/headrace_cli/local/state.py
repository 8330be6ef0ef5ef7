"""
The files in which a local cluster says what it is; all of them are for their user alone.

``cluster.json`` is for clients: addresses and pids. ``supervisor.json`` is the supervisor's: options and ports
for the next start, the state of each process for ``status``. ``supervisor.lock`` is held while a supervisor lives,
so what the files say is checked, never believed. Files are replaced whole, so a reader sees one or the other.

Directories are copied and moved. Both files name the directory that they were written in; elsewhere they speak of
another cluster's processes, which nobody here may show, stop or kill.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from headrace_cli.local.etcd_peers import with_plain_peers
from headrace_cli.local.failures import LocalClusterFailed
from headrace_cli.local.plan import ClusterOptions, node_files
from headrace_cli.local.processes import ProcessId
from headrace_common.runtime.private_files import foreign_owner

FORMAT: Final = 1
NOBODY: Final = ProcessId(0, -1)
"""No process; it never runs."""


_OWN: Final = re.compile(
    r"(cluster|supervisor)\.(json|tmp|lock)|logs|run|certificates|node-token|admin-keys|worker-key|authorization|audit"
    r"|(broker|etcd)-[0-9]+"
)


def is_own_name(name: str) -> bool:
    """Whether an entry of a data directory is the cluster's: people keep other files beside it."""
    return _OWN.fullmatch(name) is not None


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
    """By slot; of an older version's, those in plain text have names of their own (``with_plain_peers``)."""
    processes: list[ProcessState] = field(default_factory=list)
    error: str | None = None
    cluster_id: str | None = None
    """As the brokers' data directories have it; None before a first start was ready."""
    data_dir: str | None = None
    """The directory that this was written in, without symbolic links; None where an older version wrote it."""
    original: str | None = None
    """The directory that this one was copied from; None for one that is no copy."""
    original_ports: tuple[int, ...] = ()
    """Ports of clusters that this one was copied from, which it leaves to them."""

    @property
    def bootstrap_servers(self) -> list[str]:
        return [process.grpc for process in self.processes if process.role == "broker"]

    @property
    def admin_url(self) -> str | None:
        """The REST service's base URL; None before ports were chosen."""
        return self._url_of("admin")

    @property
    def connect_url(self) -> str | None:
        """The Connect worker's; None where there is none."""
        return self._url_of("connect")

    @property
    def client_addresses(self) -> list[str]:
        """Where clients ask: gRPC of all services that take them, and REST, also of the Connect worker."""
        served = [p for p in self.processes if p.role in ("broker", "coordinator", "admin")]
        return [p.grpc for p in served] + [p.http for p in self.processes if p.http is not None]

    @property
    def ca(self) -> str | None:
        """The file of the CA that clients trust; None: in plain text."""
        return str(node_files(Path(self.data_dir)).ca) if self.options.tls and self.data_dir else None

    def _url_of(self, role: str) -> str | None:
        scheme = "https" if self.options.tls else "http"
        return next((f"{scheme}://{process.http}" for process in self.processes if process.role == role), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "supervisor": asdict(self.supervisor),
            "data_dir": self.data_dir,
            "original": self.original,
            "original_ports": self.original_ports,
            "phase": self.phase,
            "error": self.error,
            "options": self.options.to_json(),
            "ports": self.ports,
            "plain_peers_named": True,
            "cluster_id": self.cluster_id,
            "processes": [asdict(process) for process in self.processes],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ClusterState:
        """Raises: KeyError, TypeError or ValueError when it is not one."""
        ports = dict(data["ports"])
        return ClusterState(
            supervisor=ProcessId(**data["supervisor"]),
            phase=Phase(data["phase"]),
            options=ClusterOptions.from_json(data["options"]),
            ports=ports if data.get("plain_peers_named") else with_plain_peers(ports),
            processes=[ProcessState(**{**p, "health": Health(p["health"])}) for p in data["processes"]],
            error=data.get("error"),
            cluster_id=data.get("cluster_id"),
            data_dir=data.get("data_dir"),
            original=data.get("original"),
            original_ports=tuple(data.get("original_ports", ())),
        )

    def without_processes(self) -> ClusterState:
        """The options and ports for a next start, where the processes are another cluster's."""
        return replace(self, supervisor=NOBODY, phase=Phase.STOPPED, processes=[], error=None)


@dataclass(frozen=True, slots=True)
class DataDir:
    """The paths below one data directory."""

    path: Path

    @staticmethod
    def at(path: str | Path) -> DataDir:
        """The directory, which need not exist yet."""
        return DataDir(Path(path).expanduser().absolute())

    @property
    def real(self) -> str:
        """The path without symbolic links, by which a copy is told from its original."""
        return os.path.realpath(self.path)

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def cluster_file(self) -> Path:
        """For clients, of the same user."""
        return self.path / "cluster.json"

    @property
    def state_file(self) -> Path:
        """What the supervisor keeps."""
        return self.path / "supervisor.json"

    @property
    def authorization_file(self) -> Path:
        """The header by which this start of a closed cluster knows its user, for REST: ``curl -H @FILE``."""
        return self.path / "authorization"

    @property
    def events(self) -> Path:
        """What the supervisor did, one JSON line each."""
        return self.logs / "supervisor.log"

    def create(self) -> None:
        """
        Make the directories.

        Raises:
            LocalClusterFailed: it cannot be made, holds something else, or is of another user.
        """
        self._refuse_strange()
        if self.path.is_dir() and not self.state_file.exists() and any(self.path.iterdir()) and not self._ours():
            raise LocalClusterFailed(
                f"{self.path} holds other files; give an empty or new directory with --data-dir, or clear it"
            )
        try:
            for directory in (self.path, self.logs, self.path / "run"):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise LocalClusterFailed(
                f"cannot make {error.filename}: {error.strerror}; give another --data-dir"
            ) from error

    def _refuse_strange(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise LocalClusterFailed(
                f"{self.path} is a file, and a cluster keeps its data in a directory; move it away, or give "
                "another place, as in `headrace up --data-dir DIR`"
            )
        for path in (self.path, self.state_file):
            owner = foreign_owner(path)
            if owner is not None:
                raise LocalClusterFailed(
                    f"{path} belongs to another user (uid {owner}), who could read and change all that a cluster keeps "
                    "there; give a directory of your own, as in `headrace up --data-dir DIR`"
                )

    def _ours(self) -> bool:
        return (self.path / "supervisor.lock").exists() or self.logs.is_dir()

    def lock(self) -> int | None:
        """Take the lock and return its descriptor, None if a supervisor holds it. Given back by closing."""
        descriptor = os.open(self.path / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
        """
        What the last supervisor of this directory wrote; None where no cluster was ever started. In a copied or moved
        directory it has no processes: those that the file names are the original's.

        Raises:
            LocalClusterFailed: the file is damaged, the directory is a file, or one of them is of another user.
        """
        self._refuse_strange()
        try:
            state = ClusterState.from_json(json.loads(self.state_file.read_text()))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LocalClusterFailed(
                f"{self.state_file} cannot be read: {error.strerror}; `headrace up` needs its ports"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise LocalClusterFailed(
                f"{self.state_file} is damaged; it has the ports and the number of brokers of the last start: restore "
                "it, or remove it and name that number again: `headrace up --brokers N`"
            ) from None
        return state.without_processes() if self._is_of_another(state) else state

    def find_original(self, state: ClusterState) -> str | None:
        """The directory that ``state`` was written in, if that is not this one."""
        return state.data_dir if state.data_dir not in (None, self.real) else None

    def original_exists(self, state: ClusterState) -> bool:
        """Whether this is a copy, not a directory that was moved: then the original may be started again."""
        original = self.find_original(state)
        return original is not None and DataDir(Path(original)).state_file.exists()

    def _is_of_another(self, state: ClusterState) -> bool:
        """A supervisor of this directory that lives has its lock, so one that lives without it is not of here."""
        return self.find_original(state) is not None or (state.supervisor.alive() and not self.locked())

    def cluster_id(self) -> str | None:
        """Whose data the brokers' directories hold; None before one of them was told."""
        for file in sorted(self.path.glob("broker-*/identity")):
            try:
                id = json.loads(file.read_text().partition("\n")[0])["cluster_id"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if isinstance(id, str):
                return id
        return None

    def write(self, state: ClusterState) -> None:
        _replace(self.state_file, state.to_json())
        _replace(self.cluster_file, public(state))


def public(state: ClusterState) -> dict[str, Any]:
    """``cluster.json``: where the cluster is. A process that does not run has no pid."""
    return {
        "cluster_id": state.cluster_id,
        "data_dir": state.data_dir,
        "bootstrap_servers": state.bootstrap_servers,
        "admin_url": state.admin_url,
        "connect_url": state.connect_url,
        "ca": state.ca,
        "processes": [
            {"name": p.name, "role": p.role, "pid": p.pid, "grpc": p.grpc, "metrics": p.metrics}
            for p in state.processes
        ],
    }


def _replace(path: Path, data: Mapping[str, Any]) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(data, indent=2) + "\n")
    draft.replace(path)
