"""A MariaDB of the machine's own package, in a directory of the test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
from libs.common.tests.kit.ports import free_port
from tests.integration.transactions.postgres import UNPRIVILEGED

OPTIONS = (
    "--no-defaults",
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--innodb-flush-log-at-trx-commit=2",  # so that a kill loses nothing; the machine's end may
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=0",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=32M",
    "--max-allowed-packet=4M",
    "--character-set-server=utf8mb4",
    "--collation-server=utf8mb4_general_ci",
)
START_S = 60


class MariadbMissing(Exception):
    """It is not installed."""


class MariadbServer:
    """One that may be killed and started again. Satisfies ``Target``, with the database ``shop``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._owner = UNPRIVILEGED if os.getuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.plain_url = f"mariadb://headrace@127.0.0.1:{self.port}/shop"
        self.url = f"{self.plain_url}?sslMode=disable"
        """Without it each connection reads the machine's certificates, which takes longer than most tests."""

    def install(self) -> None:
        """Make the files of an empty server."""
        program = shutil.which("mariadb-install-db")
        if program is None:
            raise MariadbMissing("connectors of databases are tested with MariaDB: install the package mariadb-server")
        if self._owner is not None:
            shutil.chown(self._directory, self._owner)
        command = [program, "--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"]
        command += [f"--datadir={self._directory / 'data'}", "--innodb-log-file-size=32M"]
        done = subprocess.run(command, user=self._owner, cwd="/", capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr.decode()[-2_000:]

    def start(self) -> None:
        """Run it; it answers when this returns."""
        program = shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/libexec")
        if program is None:
            raise MariadbMissing("mariadbd is not there: install the package mariadb-server")
        command = [program, *OPTIONS, f"--datadir={self._directory / 'data'}", f"--port={self.port}"]
        command += [f"--socket={self._directory / 'socket'}", f"--pid-file={self._directory / 'pid'}"]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, user=self._owner, cwd="/", stdout=log, stderr=log)
        end = time.monotonic() + START_S
        while True:
            with suppress(pymysql.err.OperationalError):
                self.connect(user="root", database=None).close()
                return
            assert self._process.poll() is None, (self._directory / "log").read_text()[-2_000:]
            assert time.monotonic() < end, "it does not answer"
            time.sleep(0.05)

    def kill(self) -> None:
        """As the power does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=60)
            self._process = None

    def connect(self, **values: Any) -> Any:
        """A connection of one's own; it commits each statement, and names are in double quotes."""
        made: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "headrace",
            "database": "shop",
            "autocommit": True,
            "charset": "utf8mb4",
            "ssl_disabled": True,
            "sql_mode": "STRICT_ALL_TABLES,ANSI_QUOTES,NO_BACKSLASH_ESCAPES,NO_AUTO_VALUE_ON_ZERO",
        }
        return pymysql.connect(**made | values)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """See ``Target``."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def is_waiting(self) -> bool:
        """
        Whether a statement waits for a lock of another one. InnoDB's tables in the information schema do not say: they
        are not made anew while somebody reads them ten times a second.
        """
        ((_, waits),) = self.query("show global status like 'Innodb_row_lock_current_waits'")
        return int(waits) > 0

    def empty(self) -> None:
        """Make the database anew, whatever holds its tables."""
        self.cut()
        connection = self.connect(user="root", database=None)
        try:
            with connection.cursor() as cursor:
                cursor.execute("drop database if exists shop")
                cursor.execute("create database shop character set utf8mb4 collate utf8mb4_nopad_bin")
        finally:
            connection.close()

    def cut(self) -> None:
        """End all connections of connectors."""
        connection = self.connect(user="root", database=None)
        try:
            with connection.cursor() as cursor:
                for (thread,) in _all(cursor, "select id from information_schema.processlist where user = 'headrace'"):
                    with suppress(pymysql.err.Error):
                        cursor.execute(f"kill {thread}")
        finally:
            connection.close()


def _all(cursor: Any, statement: str) -> list[tuple[Any, ...]]:
    cursor.execute(statement)
    return list(cursor.fetchall())


@contextmanager
def started_mariadb() -> Iterator[MariadbServer]:
    """
    Run a server while the block runs.

    Raises:
        MariadbMissing: ``make setup`` installs it where it can.
    """
    directory = Path(tempfile.mkdtemp(prefix="headrace-mariadb-"))
    server = MariadbServer(directory)
    try:
        server.install()
        server.start()
        connection = server.connect(user="root", database=None)
        with connection.cursor() as cursor:
            cursor.execute("create user headrace@'127.0.0.1'")
            cursor.execute("grant all on *.* to headrace@'127.0.0.1' with grant option")
        connection.close()
        server.empty()
        yield server
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)
