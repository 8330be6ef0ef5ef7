"""
A cluster and processes that work on it, all hurt at random: what the runs of this folder have in common.

The faults come from a seed, and are told with their time; what was killed comes back, a worker as a new process of the
same slot (so of the same transactional id).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.guard import GUARDED, guarded

from headrace import AdminClient, HeadraceError
from headrace.testing import TestCluster, started_cluster
from headrace_cli.local.failures import NotRunning
from headrace_cli.local.state import Health
from headrace_verify.reading import all_stable, partitions_of

LONG = os.environ.get("TRANSACTIONS_LONG") == "1"
SEED = int(os.environ.get("CHAOS_SEED", "20261121"))
READY = "ready"
"""What a worker says after its first step."""
TOO_YOUNG = 0.7
"""How often one that has not done a step yet is left alone: else a slow machine would only ever start workers."""
FENCED = 3
"""How a worker ends that a newer one has replaced."""
PATIENCE_S = 120.0
LOOK_S = 0.05
LONGER_S = 60.0
"""What a busy machine gets to do what a quiet one does in the time of a storm."""
ZOMBIE_S = (3.0, 12.0) if LONG else (2.0, 5.0)
"""How long a worker sleeps whose place another one has taken."""
SHORT_MS = {"CONSUMER_SESSION_TIMEOUT": 3_000, "CONSUMER_HEARTBEAT_INTERVAL": 500, "REJOIN_GRACE": 500}
TRANSACTION_TIMEOUT_MS = 8_000
RACKS = ("a", "b", "c")

BROKER_1, BROKER_2, BROKER_3 = "kill broker-1", "kill broker-2", "kill broker-3"
COORDINATOR_1, COORDINATOR_2 = "kill coordinator-1", "kill coordinator-2"
STOPS = ("pause coordinator-1", "pause coordinator-2", "pause broker-1", "pause broker-2")
FAULTS: dict[str, int] = {
    "kill worker": 4,
    "replace worker": 2,
    COORDINATOR_1: 2,
    COORDINATOR_2: 2,
    BROKER_1: 1,
    BROKER_2: 1,
    BROKER_3: 1,
    "kill controller-1": 1,
}
"""What happens, and how often beside the others. ``driver``: the worker of the last slot."""


def until(true: Callable[[], bool], why: str, seconds: float = PATIENCE_S) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {why}"
        time.sleep(LOOK_S)


@dataclass
class Worker:
    """One process of a slot."""

    name: str
    slot: int
    process: subprocess.Popen[bytes]
    errors: Path
    wakes_at: float = 0.0
    """When it goes on, if it sleeps while another has its slot."""

    def at_work(self) -> bool:
        """It has done a first step, and said so."""
        return READY in self.errors.read_text(errors="replace")


@dataclass
class Crew:
    """Worker processes, one for each slot; one that dies is followed by the next."""

    directory: Path
    command: Callable[[int, int], Sequence[str]]
    """Slot and number of the process -> what to run."""
    slots: int
    working: dict[int, Worker] = field(default_factory=dict)
    sleeping: list[Worker] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    started: int = 0
    ends: Counter[str] = field(default_factory=Counter)

    def start(self, slot: int) -> None:
        """The next process of this slot."""
        self.started += 1
        name = f"worker-{slot}-{self.started}"
        errors = self.directory / f"{name}.err"
        with errors.open("wb") as file:
            argv = [sys.executable, *self.command(slot, self.started)]
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.working[slot] = Worker(name, slot, process, errors)

    def start_all(self) -> None:
        """All slots, and wait until all are at work."""
        for slot in range(self.slots):
            self.start(slot)

        def all_work() -> bool:
            self.tend()
            return all(worker.at_work() for worker in self.working.values())

        until(all_work, "workers are at work")

    def tend(self) -> None:
        """Start again what died, wake what has slept enough; fails when one ended as none should."""
        now = time.monotonic()
        for worker in [one for one in self.sleeping if now >= one.wakes_at]:
            worker.process.send_signal(signal.SIGCONT)
            worker.wakes_at = float("inf")
        for worker in [one for one in self.sleeping if one.process.poll() is not None]:
            self.sleeping.remove(worker)
            self._ended(worker)
        for slot, worker in list(self.working.items()):
            if worker.process.poll() is None:
                continue
            del self.working[slot]
            self._ended(worker)
            if worker.process.returncode == 0:
                self.done.add(slot)
            else:
                self.start(slot)

    def _ended(self, worker: Worker) -> None:
        code = worker.process.returncode
        self.ends[{0: "done", FENCED: "fenced", -signal.SIGKILL: "killed"}.get(code, str(code))] += 1
        said = worker.errors.read_text(errors="replace")[-4_000:]
        assert code in (0, FENCED, -signal.SIGKILL), f"{worker.name} ended with {code}:\n{said}"

    def kill(self, slot: int) -> None:
        """As -9 does."""
        if slot in self.working:
            self.working[slot].process.kill()
            self.working[slot].process.wait()

    def replace(self, slot: int, seconds: float) -> None:
        """It is stopped, another takes its place, and later it goes on as if nothing had been."""
        worker = self.working.pop(slot, None)
        if worker is None:
            return
        worker.process.send_signal(signal.SIGSTOP)
        worker.wakes_at = time.monotonic() + seconds
        self.sleeping.append(worker)
        self.start(slot)

    def finish(self, seconds: float = PATIENCE_S) -> None:
        """All slots do their work to the end."""
        for worker in self.sleeping:
            worker.wakes_at = min(worker.wakes_at, time.monotonic())

        def ended() -> bool:
            self.tend()
            return not self.working and not self.sleeping

        until(ended, f"workers end: {[one.name for one in (*self.working.values(), *self.sleeping)]}", seconds)

    def end(self) -> None:
        """Whatever still runs is killed."""
        for worker in (*self.working.values(), *self.sleeping):
            worker.process.kill()
            worker.process.wait()


@dataclass
class Storm:
    """Hurts the cluster and a crew."""

    cluster: TestCluster
    crew: Crew
    chance: random.Random
    faults: dict[str, int] = field(default_factory=lambda: dict(FAULTS))
    changes: dict[str, Callable[[], object]] = field(default_factory=dict)
    """What an administrator does in its midst, by names of ``faults``; it may fail while things are broken."""
    pauses: tuple[float, float] = (0.3, 1.5)
    told: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    paused: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def rage(
        self, seconds: float, enough: Callable[[], bool] = lambda: False, too_few: Callable[[], bool] = lambda: False
    ) -> None:
        """Faults for so long, or until there were enough; and a while longer if there are too few to judge by."""
        end = time.monotonic() + seconds
        next_at = time.monotonic() + 1.0
        try:
            while (time.monotonic() < end and not enough()) or (time.monotonic() < end + LONGER_S and too_few()):
                time.sleep(LOOK_S)
                self.crew.tend()
                self._wake()
                if self.faults and time.monotonic() >= next_at:
                    next_at = time.monotonic() + self.chance.uniform(*self.pauses)
                    self._hurt(self.chance.choices(list(self.faults), list(self.faults.values()))[0])
        finally:
            for name in list(self.paused):
                self.paused[name] = 0
            self._wake()
        self._tell("the storm is over")
        self.cluster.local.wait_ready()

    def _hurt(self, fault: str) -> None:
        what, _, who = fault.partition(" ")
        slot = self.crew.slots - 1 if who == "driver" else self.chance.randrange(max(1, self.crew.slots))
        seconds = self.chance.uniform(*ZOMBIE_S)
        if fault in self.changes:
            try:
                self.changes[fault]()
            except HeadraceError as error:
                self._tell(f"{fault}: {error}")
                return
        elif who in ("worker", "driver"):
            worker = self.crew.working.get(slot)
            if worker is None or (not worker.at_work() and self.chance.random() < TOO_YOUNG):
                return
            fault = f"{what} {worker.name}"
            if what == "kill":
                self.crew.kill(slot)
            else:
                self.crew.replace(slot, seconds)
        else:
            with contextlib.suppress(NotRunning):
                if who in self.paused or self.cluster.local.process(who).health is not Health.READY:
                    return  # it has not come back yet
                if what == "kill":
                    self.cluster.local.kill(who)
                else:
                    self.cluster.local.signal(who, signal.SIGSTOP)
                    self.paused[who] = time.monotonic() + seconds
        self.counts[f"{what} {who.partition('-')[0]}"] += 1
        self._tell(fault)

    def _wake(self) -> None:
        for name, at in list(self.paused.items()):
            if time.monotonic() >= at:
                del self.paused[name]
                with contextlib.suppress(NotRunning):
                    self.cluster.local.signal(name, signal.SIGCONT)
                self._tell(f"wake {name}")

    def _tell(self, text: str) -> None:
        self.told.append(f"{time.monotonic() - self.began:8.3f} {text}")


class HurtCluster(TestCluster):
    """Administrators are administrators there, whoever programs are."""

    def admin(self, **settings: Any) -> AdminClient:
        return AdminClient(self.local.administrator, **settings)


@contextlib.contextmanager
def hurt_cluster(
    directory: Path, *names: str, app: str | None = None, connect: str | None = None, tls: bool = GUARDED
) -> Iterator[TestCluster]:
    """
    Three brokers in three racks, two coordinators; what is killed comes back.

    Args:
        names, app, connect: what programs use, see ``guarded``.
    """
    with pytest.MonkeyPatch.context() as patch:
        for setting, value in SHORT_MS.items():
            patch.setenv(f"HEADRACE_COORDINATOR_GROUP_{setting}_MS", str(value))
        options: dict[str, Any] = {
            "brokers": 3,
            "coordinators": 2,
            "racks": list(RACKS),
            "restart": True,
            "restart_delay_ms": 200,
            "tls": tls,
        }
        with (
            started_cluster(directory, **options) as cluster,
            guarded(cluster.local, *names, app=app, connect=connect),
        ):
            yield HurtCluster(cluster.local)


def make_topic(cluster: TestCluster, name: str, partitions: int) -> str:
    """On all three brokers, two of which must have what is acknowledged."""
    with cluster.admin() as admin:
        admin.create_topic(name, partitions, 3, configs={"min.insync.replicas": "2"})
    return name


def nothing_hangs(cluster: TestCluster, topics: Sequence[str]) -> None:
    """Soon after a storm no transaction is open, and none is that nobody ends."""
    until(
        lambda: all_stable(cluster.local.administrator, topics),
        "last stable offsets reach the ends",
        TRANSACTION_TIMEOUT_MS / 1e3 + 30,
    )
    with cluster.admin() as admin:
        hanging = admin.find_hanging_transactions(older_than=0).transactions
    assert not hanging, hanging


def read_values(cluster: TestCluster, topic: str) -> list[bytes]:
    """All that a reader of committed records finds."""
    return [value for value in read_columns(cluster, topic)["value"] if value is not None]


def read_columns(cluster: TestCluster, topic: str) -> dict[str, list[Any]]:
    """Partitions, offsets and values that a reader of committed records finds, from the beginning to the ends."""
    found: dict[str, list[Any]] = {"partition": [], "offset": [], "value": []}
    with cluster.consumer(isolation_level="read_committed") as consumer:
        partitions = partitions_of(consumer, topic)
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        deadline = time.monotonic() + PATIENCE_S
        while any(consumer.position(one) < end for one, end in ends.items()):
            assert time.monotonic() < deadline, f"read to {ends}"
            table = consumer.poll_table(timeout_ms=300, max_records=50_000)
            for name, values in found.items():
                values += table[name].to_pylist()
    return found


def report(name: str, storm: Storm, **figures: object) -> None:
    """One line for people and docs."""
    faults = ", ".join(f"{what} {times}" for what, times in sorted(storm.counts.items()))
    told = ", ".join(f"{key} {value}" for key, value in figures.items())
    print(f"\n{name}: seed {SEED}; {told}; faults: {faults}; workers: {dict(storm.crew.ends)}", file=sys.stderr)
