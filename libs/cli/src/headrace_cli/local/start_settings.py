"""
What ``headrace up --set`` takes beside the settings that the cluster keeps itself, and whether it takes what is given.

The services know their settings; they are asked, each in a process that opens and serves nothing. So what is wrong is
refused before anything starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace_cli.local.plan import FIXED_IN_CONTROLLER, WORKER, flag_of, module_of, split_settings
from headrace_common.core.errors import InvalidConfig

ANSWER_SECONDS: Final = 60.0
_WRONG: Final = 2
_GIVEN_BY_UP: Final = frozenset(
    {"node_id", "controllers", "data_dir", "flush", "rack", "listen", "metrics_listen", "http_listen", "ready_file"}
    | {"bootstrap_servers"}
)
_TAKE: Final = ("broker", "coordinator", "admin", WORKER)


def check_start_settings(settings: Mapping[str, str]) -> None:
    """
    Ask each service that gets some of ``settings`` whether it takes them.

    Raises:
        InvalidConfig: all that is wrong, under the names that were given.
    """
    split = split_settings(settings)
    of_role = {
        "controller": split.controllers,
        "broker": split.brokers,
        "coordinator": split.coordinators,
        "admin": split.admins,
        WORKER: split.workers,
    }
    flags = {flag_of(name): name for name in settings}
    flags |= {flag: name for name, flag in FIXED_IN_CONTROLLER.items()}
    wrong: dict[str, None] = {}
    for role, given in of_role.items():
        done = _run(role, "--check-settings", *given) if given else None
        if done is not None and done.returncode == _WRONG:
            wrong |= dict.fromkeys(_complaints(done.stderr, flags))
    if wrong:
        raise InvalidConfig(f"--set: {'; '.join(wrong)}; `headrace cluster configs --at-start` shows what it takes")


def start_settings() -> list[dict[str, Any]]:
    """What ``--set`` takes and only a start can change: of which service, with type, default and documentation."""
    rows: list[dict[str, Any]] = [
        {"name": name, "service": "controller", "type": "int", "default": None, "documentation": _FIXED[name]}
        for name in FIXED_IN_CONTROLLER
    ]
    for role in _TAKE:
        done = _run(role, "--settings-json")
        for option in json.loads(done.stdout) if done.returncode == 0 else []:
            name = f"{WORKER}." * (role == WORKER) + option["name"].replace("_", ".")
            if option["name"] not in _GIVEN_BY_UP and _goes_to(role, name):
                rows.append({**option, "name": name, "service": role})
    return sorted(rows, key=lambda row: (row["name"], row["service"]))


_FIXED: Final = {
    "broker.heartbeat.interval.ms": "How often brokers tell the controller that they live.",
    "broker.session.timeout.ms": "A broker that was silent for so long is fenced.",
}


def _goes_to(role: str, name: str) -> bool:
    split = split_settings({name: ""})
    taken = {"broker": split.brokers, "coordinator": split.coordinators, "admin": split.admins, WORKER: split.workers}
    return bool(taken[role])


def _complaints(text: str, flags: Mapping[str, str]) -> list[str]:
    """The lines that say what is wrong, with the names that were given for the flags that they became."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("  ")] or [text.strip()]
    return [
        " ".join(flags.get(word.rstrip(":"), word.rstrip(":")) + ":" * word.endswith(":") for word in line.split())
        for line in lines
    ]


def _run(role: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = [sys.executable, "-P", "-m", module_of(role), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
