"""What Streams does on a cluster, beside other libraries too: the records, how output is read, a run of a worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, Protocol

import numpy as np
import orjson

from bench.headrace_side import HeadraceSide
from bench.machine import cpu_seconds
from headrace import AdminClient, Consumer, Producer
from headrace.errors import GroupNotFound

CLIENTS = Path(__file__).with_name("clients")
PARTITIONS = 6
USERS, TABLE_USERS = 10_000, 100_000
WORDS_A_LINE, VOCABULARY = 8, 20_000
WINDOWS = 5
WINDOW_MS, HOUR_MS = 10_000, 3_600_000
WARM = 0.2
"""So much of the output warms the side and is not counted."""
LIMIT_S = 600.0
CPU_STEP_S: Final = 0.01
"""CPU is counted in steps of this; quick runs may take less."""


@dataclass(frozen=True, slots=True)
class Records:
    """What is put into a topic, in this order."""

    values: list[bytes]
    keys: list[bytes] | None = None
    times_ms: list[int] | None = None
    last_ms: int = 0
    """Other than 0: the last record of each partition, which closes windows, has this time."""
    rounds: int = 1
    """All of them are written so often, each time ``round_ms`` later than before."""
    round_ms: int = 0

    @property
    def count(self) -> int:
        """How many there are in all rounds."""
        return len(self.values) * self.rounds


class Tally(Protocol):
    """Reads output."""

    done: int
    """Inputs that are in the output."""

    def add(self, key: bytes, value: bytes) -> None:
        """One record."""

    def answer(self) -> object:
        """What is equal if two sides have done the same."""


class Counts:
    """A count for each word, of which the last one holds: a number, or JSON with an ``n``."""

    def __init__(self) -> None:
        self.done = 0
        self._words = 0
        self._counts: dict[bytes, int] = {}

    def add(self, key: bytes, value: bytes) -> None:
        count = orjson.loads(value)
        n = count if isinstance(count, int) else int(count["n"])
        self._words += n - self._counts.get(key, 0)
        self._counts[key] = n
        self.done = self._words // WORDS_A_LINE

    def answer(self) -> object:
        return self._counts


class Totals:
    """Rows with a sum and a count, each of them final."""

    def __init__(self) -> None:
        self.done = self._rows = 0
        self._total = 0.0

    def add(self, key: bytes, value: bytes) -> None:
        row = orjson.loads(value)
        self._rows += 1
        self._total += row["total"]
        self.done += row["n"]

    def answer(self) -> object:
        return self._rows, self._total, self.done


class Sum:
    """A row for each input. They are read afterwards, a million at a time where a run is long."""

    KEPT: Final = 1_000_000

    def __init__(self, of: Callable[[dict[str, Any]], float]) -> None:
        self.done, self._sum = 0, 0.0
        self._of = of
        self._values: list[bytes] = []

    def add(self, key: bytes, value: bytes) -> None:
        self._values.append(value)
        self.done += 1
        if len(self._values) == self.KEPT:
            self._fold()

    def answer(self) -> object:
        self._fold()
        return self.done, self._sum

    def _fold(self) -> None:
        self._sum += sum(self._of(orjson.loads(value)) for value in self._values)
        self._values.clear()


@dataclass(frozen=True, slots=True)
class Workload:
    """A program in each library, by this name in ``bench/clients``, and what is given to it."""

    name: str
    about: str
    make: Callable[[int], Records]
    """So many inputs."""
    tally: Callable[[], Tally]
    table: Callable[[], Records] | None = None
    by_position: bool = True
    """How far an app is shows in what it has committed of its source; else what it has read waits in another topic."""


def lines(count: int) -> Records:
    """Lines of words, each word as likely as the others."""
    chance = np.random.default_rng(2)
    vocabulary = np.array([f"word{number}" for number in range(VOCABULARY)])
    rows = vocabulary[chance.integers(0, VOCABULARY, (count, WORDS_A_LINE))]
    return Records([" ".join(row).encode() for row in rows])


def orders(count: int, users: int = USERS) -> Records:
    """JSON of three fields, keyed by the user, over five windows of event time; sums of amounts are exact."""
    chance = np.random.default_rng(1)
    first_ms = int(time.time() * 1000) // HOUR_MS * HOUR_MS - 2 * HOUR_MS
    names = [b"u%d" % user for user in chance.integers(0, users, count).tolist()]
    times = [first_ms + place * WINDOWS * WINDOW_MS // count for place in range(count)]
    amounts = (chance.integers(0, 400, count) / 4).tolist()
    rows = zip(names, amounts, times, strict=True)
    values = [b'{"user":"%b","amount":%.2f,"at":%d}' % row for row in rows]
    return Records(values, names, times)


def closed_orders(count: int) -> Records:
    """As ``orders``, and records that close their windows."""
    made = orders(count)
    return replace(made, last_ms=max(made.times_ms or [0]) + HOUR_MS)


def every_user_once(count: int) -> Records:
    """As ``orders``, each of another user."""
    return replace(orders(count), keys=[b"u%d" % user for user in range(count)])


def users() -> Records:
    """One record of each user, older than all orders."""
    values = [b'{"name":"name %d","rate":%d.0}' % (user, user % 7) for user in range(TABLE_USERS)]
    long_ago = int(time.time() * 1000) - 24 * HOUR_MS
    return Records(values, [b"u%d" % user for user in range(TABLE_USERS)], [long_ago] * TABLE_USERS)


WORDS = Workload("words", f"word count, lines of {WORDS_A_LINE} words", lines, Counts, by_position=False)
WINDOWED = Workload("windows", "tumbling 10 s, sum and count, final", closed_orders, Totals)
JOIN = Workload(
    "join",
    f"join with a table of {TABLE_USERS:,}",
    lambda count: orders(count, TABLE_USERS),
    lambda: Sum(lambda row: row["amount"] * (row["rate"] or 0.0)),
    users,
)
FUNCTION = Workload("function", "function per record with state", orders, lambda: Sum(lambda row: row["seen"]))
KEYS = Workload("keys", "sum and count by key", every_user_once, Totals)


@dataclass(frozen=True, slots=True)
class Worker:
    """A process, and a file with what it says."""

    process: subprocess.Popen[bytes]
    said: IO[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """
        Raises:
            RuntimeError: it has ended.
        """
        if self.process.poll() is not None:
            self.said.seek(0)
            raise RuntimeError(f"the worker ended: {self.said.read()[-3000:].decode()}")


@contextmanager
def running(command: Sequence[str], environment: dict[str, str]) -> Iterator[Worker]:
    """A worker, which is asked to end with the block, and killed if it has not after half a minute."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=said, stderr=subprocess.STDOUT)
        try:
            yield Worker(process, said)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def our_worker(name: str, topics: dict[str, str], settings: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The command and environment of a worker of one of the programs in ``bench/clients``."""
    program = str(CLIENTS / f"streams_{name}.py")
    return [sys.executable, "-m", "headrace_streams", program, json.dumps(settings)], topics


def fill(cluster: HeadraceSide, topic: str, records: Records) -> None:
    """Write it, and wait until it is acknowledged."""
    with Producer(cluster.bootstrap) as producer:
        for number in range(records.rounds):
            for first in range(0, len(records.values), 10_000):
                part = slice(first, first + 10_000)
                keys = None if records.keys is None else records.keys[part]
                times = None if records.times_ms is None else records.times_ms[part]
                if times is not None and number:
                    times = [time_ms + number * records.round_ms for time_ms in times]
                producer.send_many(topic, records.values[part], keys, timestamps_ms=times)
        if records.last_ms:
            everywhere = list(range(PARTITIONS))
            values, keys = [records.values[0]] * PARTITIONS, [b"end"] * PARTITIONS
            producer.send_many(topic, values, keys, partition=everywhere, timestamps_ms=[records.last_ms] * PARTITIONS)


@contextmanager
def output(cluster: HeadraceSide, topic: str) -> Iterator[Callable[[int], Iterable[tuple[bytes, bytes]]]]:
    """Reads the next records of a topic from its beginning, committed ones."""
    with Consumer(
        topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        yield lambda most: [(record.key, record.value) for record in consumer.poll(100, max_records=most)]


def measure(
    poll: Callable[[int], Iterable[tuple[bytes, bytes]]], tally: Tally, total: int, workers: Sequence[Worker]
) -> dict[str, Any]:
    """Inputs a second, and what the workers spend on one, from the end of the warm-up to the last one."""
    pids = [worker.pid for worker in workers]
    begun = cpu = first = 0.0
    until = time.monotonic() + LIMIT_S
    while tally.done < total:
        for key, value in poll(max(1, min(50_000, total // 20))):
            tally.add(key, value)
        if not first and tally.done >= WARM * total:
            begun, cpu, first = time.perf_counter(), cpu_seconds(pids), tally.done
        for worker in workers:
            worker.check()
        if time.monotonic() > until:
            raise TimeoutError(f"{tally.done:,} of {total:,} inputs were done in {LIMIT_S:.0f} s")
    seconds, used = time.perf_counter() - begun, max(CPU_STEP_S, cpu_seconds(pids) - cpu)
    rows = max(1.0, total - first)
    return {"rows_s": rows / seconds, "cpu_us": used / rows * 1e6, "answer": tally.answer()}


@dataclass(frozen=True, slots=True)
class Started:
    """A worker of an app whose source is full."""

    worker: Worker
    poll: Callable[[int], Iterable[tuple[bytes, bytes]]]
    """The next records of its output."""
    read: Callable[[], int]
    """How many records of its source it has committed."""


class Ours:
    """A workload by ourselves; each run is an app of its own."""

    def __init__(self, cluster: HeadraceSide, workload: Workload, count: int, root: Path) -> None:
        self._cluster, self._workload, self._root = cluster, workload, root
        self.records = workload.make(count)
        self.table = workload.table() if workload.table is not None else None

    def run(self, **settings: Any) -> dict[str, Any]:
        """One run with these settings of the app."""
        with self.started(self.records, **settings) as app:
            return measure(app.poll, self._workload.tally(), self.records.count, [app.worker])

    @contextmanager
    def started(self, records: Records, **settings: Any) -> Iterator[Started]:
        """An app of its own with these records, for a block."""
        cluster = self._cluster
        topics = {"SOURCE": cluster.topic(PARTITIONS), "TARGET": cluster.topic(PARTITIONS)}
        if self.table is not None:
            topics["TABLE"] = cluster.topic(PARTITIONS)
            fill(cluster, topics["TABLE"], self.table)
        source = topics["SOURCE"]
        fill(cluster, source, records)
        settings = {**settings, "bootstrap_servers": cluster.bootstrap, "state_dir": tempfile.mkdtemp(dir=self._root)}
        with ExitStack() as stack:
            poll = stack.enter_context(output(cluster, topics["TARGET"]))
            worker = stack.enter_context(running(*our_worker(self._workload.name, topics, settings)))
            admin = stack.enter_context(AdminClient(cluster.bootstrap))
            yield Started(worker, poll, lambda: _read(admin, f"bench-{source}", source))


def _read(admin: AdminClient, app: str, source: str) -> int:
    with suppress(GroupNotFound):
        return sum(lag.committed_offset or 0 for lag in admin.group_lag(app, [source], ages=False).values())
    return 0
