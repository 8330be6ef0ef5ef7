"""
A step of the demo: a program of ``headrace.streams`` sums up the delays by carrier and hour into a topic, is killed in
the midst of it, goes on, and its sums must be the consumer's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from headrace_cli.demo import tally
from headrace_cli.demo.tally import Carrier
from headrace_cli.exits import CommandFailed, ExitCode

if TYPE_CHECKING:
    from headrace import Consumer

TARGET: Final = "delays-by-carrier-hour"
PARTITIONS: Final = 3
PROGRAM: Final = str(Path(__file__).with_name("delays.py"))
_LIMIT_S: Final = 120.0
_POLL_MS: Final = 200
_LOG_LINES: Final = 12


def can_stream() -> bool:
    """Whether the library is installed."""
    return find_spec("headrace_streams") is not None


@dataclass(frozen=True, slots=True)
class Summed:
    """What the program wrote."""

    rows: int
    """Pairs of carrier and hour."""
    carriers: Mapping[str, Carrier]
    killed: bool
    """Whether it was killed meanwhile: not if an earlier run had done all of it."""


class Streaming:
    """One run of the program, over all departures that are in the topic."""

    def __init__(self, bootstrap: str, state: Path, log: Path) -> None:
        self._bootstrap = bootstrap
        self._state = state
        self._log = log
        self._newest: dict[tuple[str, str], dict[str, Any]] = {}
        self._until = time.monotonic() + _LIMIT_S

    def run(self, records: int) -> Summed:
        """
        Args:
            records: departures in the topic.

        Raises:
            CommandFailed: it ended with an error, or did not come to the end in two minutes.
        """
        from headrace import Consumer
        from headrace_cli.demo.run import create_topic

        create_topic(self._bootstrap, TARGET, PARTITIONS)
        reading = Consumer(
            TARGET, bootstrap_servers=self._bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        )
        killed = False
        with reading as consumer:
            for record in consumer.read_to_end():
                self._take(record.value)
            if self._summed() < records:
                killed = True
                with self._worker() as worker:
                    before = self._summed()
                    self._read(consumer, worker, before + 1)
                    worker.kill()
            with self._worker() as worker:
                self._read(consumer, worker, records)
        return Summed(len(self._newest), self._by_carrier(), killed)

    @contextmanager
    def _worker(self) -> Iterator[subprocess.Popen[bytes]]:
        settings = {"bootstrap_servers": self._bootstrap, "state_dir": str(self._state)}
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "headrace_streams", PROGRAM, json.dumps(settings)]
            worker = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield worker
        finally:
            worker.terminate()
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    def _read(self, consumer: Consumer, worker: subprocess.Popen[bytes], departures: int) -> None:
        """Until so many departures are summed up."""
        while self._summed() < departures:
            for record in consumer.poll(_POLL_MS, max_records=10_000):
                self._take(record.value)
            if worker.poll() is not None:
                raise CommandFailed(f"the program ended with {worker.returncode}:\n{self._last_lines()}")
            if time.monotonic() > self._until:
                raise CommandFailed(
                    f"the program has not come to the end in {_LIMIT_S:.0f} s",
                    ExitCode.TIMED_OUT,
                    f"All it said is in {self._log}.",
                )

    def _take(self, value: bytes) -> None:
        row = orjson.loads(value)
        self._newest[row["carrier"], row["window_start"]] = row

    def _summed(self) -> int:
        return sum(row["departures"] for row in self._newest.values())

    def _by_carrier(self) -> dict[str, Carrier]:
        carriers: dict[str, Carrier] = {}
        for (code, _), row in self._newest.items():
            carrier = carriers.setdefault(code, Carrier())
            carrier.departures += row["departures"]
            carrier.departure_delays += row["delays"]
            carrier.departure_delay_sum += row["minutes"] or 0
        return carriers

    def _last_lines(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def differences(ours: Mapping[str, Carrier], theirs: Mapping[str, Carrier]) -> list[str]:
    """What is not the same as the consumer's sums; empty when all is."""
    return tally.differences(_sums(ours), _sums(theirs), "the program")


def _sums(carriers: Mapping[str, Carrier]) -> dict[str, tuple[int, int, int]]:
    """Departures, known delays, and their sum in minutes."""
    return {
        code: (carrier.departures, carrier.departure_delays, carrier.departure_delay_sum)
        for code, carrier in carriers.items()
    }
