"""Another Unix user of the machine of a local cluster, at every port and file that the cluster has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.integration.access import as_other_user

from headrace_admin.rpc.access_table import ACCESS as ADMIN
from headrace_broker.rpc.access_table import ACCESS as BROKER
from headrace_cli.local import LocalCluster
from headrace_common.rpc.access_rules import NOBODY
from headrace_controller.rpc.access_table import ACCESS as CONTROLLER
from headrace_coordinator.rpc.access_table import ACCESS as COORDINATOR

TABLES = {"broker": BROKER, "coordinator": COORDINATOR, "admin": ADMIN, "controller": CONTROLLER}
LISTENS = "0A"
"""The state of a socket, in /proc."""
REFUSED = {"UNAUTHENTICATED", "UNAVAILABLE"}
"""By the service, or by TLS before that."""


def listening(pid: int) -> set[int]:
    """The ports that a process listens at."""
    sockets = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(fd))
        except FileNotFoundError:
            continue
    found = set()
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in sockets:
                found.add(int(local.rpartition(":")[2], 16))
    return found


def ports_of(cluster: LocalCluster) -> dict[str, list[str]]:
    """All but those of metrics and health, which tell everybody; each with the operations of its process."""
    public = {one.metrics for one in cluster.processes}
    found = {}
    for one in cluster.processes:
        assert one.pid is not None
        operations = [
            name for name, rule in TABLES.get(one.role, {"Broker/Metadata": None}).items() if rule is not NOBODY
        ]
        for port in listening(one.pid):
            if (at := f"127.0.0.1:{port}") not in public:
                found[at] = operations
    return found


def everything_under(*roots: Path) -> list[str]:
    return [str(path) for root in roots for path in [root, *root.rglob("*")]]


def ask_as_nobody(cluster: LocalCluster, paths: Iterable[str] = ()) -> dict[str, Any]:
    """What ``as_other_user`` finds."""
    ca = cluster.address.ca
    told = {
        "ports": ports_of(cluster),
        "paths": list(paths),
        "ca": None if ca is None else Path(ca).read_text(),
    }
    done = subprocess.run(
        [sys.executable, "-P", as_other_user.__file__],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["user"] == as_other_user.NOBODY
    return found


def check_refused(found: dict[str, Any]) -> None:
    """Nobody was answered anywhere."""
    for at, one in found["asked"].items():
        for operation, code in one["grpc"].items():
            assert code in REFUSED, (at, operation, code)
        assert one["http"] in (None, 401), (at, one["http"])
        assert one["https"] in (None, 401), (at, one["https"])
