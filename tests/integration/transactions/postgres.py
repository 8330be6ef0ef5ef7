"""A PostgreSQL of the machine's own package, in a directory of the test, for the recipes that write into a database."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from libs.common.tests.kit.ports import free_port

UNPRIVILEGED = "nobody"
"""PostgreSQL refuses to run as root."""


class PostgresMissing(Exception):
    """It is not installed."""


@contextmanager
def started_postgres(**settings: str) -> Iterator[str]:
    """
    Run a server while the block runs; the connection string, of a socket that only this machine has.

    Args:
        settings: of the server, beside its defaults.

    Raises:
        PostgresMissing: ``make setup`` installs it where it can.
    """
    programs = _programs()
    directory = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
    owner = UNPRIVILEGED if os.getuid() == 0 else None
    if owner is not None:
        shutil.chown(directory, owner)
    data = directory / "data"
    try:
        _run([programs / "initdb", "--auth=trust", "--username=headrace", "--no-sync", "-D", data], owner)
        options = f"-p {free_port()} -c listen_addresses=127.0.0.1 -c unix_socket_directories={directory} -c fsync=off"
        options += "".join(f" -c {name}={value}" for name, value in settings.items())
        control = [programs / "pg_ctl", "-D", data, "-w", "-s", "-l", directory / "log"]
        _run([*control, "-o", options, "start"], owner)
        try:
            port = (data / "postmaster.pid").read_text().splitlines()[3]
            yield f"host=127.0.0.1 port={port} user=headrace dbname=postgres"
        finally:
            _run([*control, "-m", "immediate", "stop"], owner)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _programs() -> Path:
    found = shutil.which("initdb")
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found is None and not packaged:
        raise PostgresMissing("the recipes for databases are tested with PostgreSQL: install the package postgresql")
    return (Path(found) if found else packaged[-1]).resolve().parent


def _run(command: list[object], owner: str | None) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        user=owner,
        env={**os.environ, "LC_ALL": "C"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{command[0]} failed: {done.stderr}"
