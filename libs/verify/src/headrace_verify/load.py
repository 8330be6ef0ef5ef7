"""
The load of one round: a thread for each process, until it is told to end.

Kinds: ``plain`` sends and polls one by one, ``batch`` sends several at once, ``assign`` and ``subscribe`` run
transactions of sends and polls with positions chosen or given by a group, ``group`` members read and commit, ``copier``
members copy with the offsets in the transaction. Members of ``group`` and ``copier`` go on until they are at the ends.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from headrace import Consumer, HeadraceError, Producer
from headrace_verify.checker_history import Operation, Polled
from headrace_verify.client import MOVED, VALUES, Client, History, batch, plain, read_in_group, transact
from headrace_verify.copying import copy_records, copy_turn
from headrace_verify.plan import KINDS, PACED, Names, Plan

AGAIN_S: Final = 1.0
"""How long a process waits before it makes clients anew."""
IDLE_S: Final = 0.2
"""How long a member of a group waits that had nothing to read."""
JOIN_S: Final = 150.0
"""How long a process may take to end beyond the time to settle: what a client promises to wait at most, and more."""
WRITING: Final[dict[str, Any]] = {
    "acks": "all",
    "linger_ms": 0,
    "request_timeout_ms": 10_000,
    "delivery_timeout_ms": 30_000,
    "max_block_ms": 30_000,
}
READING: Final[dict[str, Any]] = {
    "auto_offset_reset": "earliest",
    "isolation_level": "read_committed",
    "enable_auto_commit": False,
}
TRANSACTION_TIMEOUT_MS: Final = 10_000
GIVEN_UP: Final = 0.05
"""How often a copier leaves a transaction in the middle."""
IN_GROUPS: Final = ("subscribe", "group", "copier")
STEPS: Final[dict[str, Callable[[Client, random.Random], bool]]] = {
    "plain": plain,
    "batch": batch,
    "assign": transact,
    "subscribe": transact,
}


class Load:
    """
    All processes of one round.

    Args:
        first: the number of the first process; each that follows has the next, so that no value comes twice.
    """

    def __init__(self, plan: Plan, names: Names, round_number: int, first: int) -> None:
        self.plan, self.names = plan, names
        self.stop = threading.Event()
        self.histories: list[list[Operation]] = []
        self.errors: Counter[str] = Counter()
        """What applications saw, by the name of the error and what they did."""
        self.bugs: list[str] = []
        """What no application should ever see: errors that are none of ours, threads that do not end."""
        self.members: set[int] = set()
        """Processes of kind ``group``."""
        self.events = 0
        self.next_process = first
        self.drained_by = float("inf")
        self._lock = threading.Lock()
        seed = f"{plan.seed}-{round_number}"
        self._workers = [Worker(self, slot, kind, random.Random(f"{seed}-{slot}")) for slot, kind in enumerate(KINDS)]

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def end(self) -> None:
        """No process begins anything new; wait until all have ended."""
        self.drained_by = time.monotonic() + self.plan.settle_s
        self.stop.set()
        deadline, seconds = self.drained_by + JOIN_S, self.plan.settle_s + JOIN_S
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                self.bugs.append(f"a client of kind {worker.kind} hangs: it did not end in {seconds:.0f} s")

    def new_process(self, kind: str) -> tuple[int, History]:
        """Its number, and where it writes what it does; it has one entry under way at most."""
        with self._lock:
            number = self.next_process
            self.next_process += 1
            entries: list[Operation] = []
            self.histories.append(entries)
            if kind == "group":
                self.members.add(number)

        def write(entry: Operation) -> None:
            entries.append(entry)
            self.events += 1 + sum(
                len(points) for one in entry.value if isinstance(one, Polled) for points in one.points.values()
            )  # torn adds of several threads only make the bound a little late

        return number, History(write, number)

    def tell(self, error: HeadraceError, doing: str) -> None:
        """An application saw an error, which may well be while things are broken."""
        with self._lock:
            self.errors[f"{doing.partition(',')[0]}: {type(error).__name__}"] += 1


class Worker(threading.Thread):
    """One slot of the load; a process that is over is followed by another."""

    def __init__(self, load: Load, slot: int, kind: str, chance: random.Random) -> None:
        super().__init__(name=f"verify-{slot}-{kind}", daemon=True)
        self.kind = kind
        self._load, self._slot, self._chance = load, slot, chance
        self._pause = PACED / load.plan.rate
        self._due = time.monotonic()

    def run(self) -> None:
        """Until the load ends; the boundary where what nobody expects becomes a finding."""
        while not self._load.stop.is_set():
            try:
                if self.kind == "copier":
                    self._copy()
                else:
                    self._work()
            except HeadraceError as error:  # there is nothing to talk to
                self._load.tell(error, self.kind)
                self._load.stop.wait(AGAIN_S)
            except Exception as error:  # noqa: BLE001 - reported with the verdict
                self._load.bugs.append(f"a client of kind {self.kind} raised {error!r}")
                return

    def _work(self) -> None:
        with self._producer() as producer, self._consumer() as consumer:
            number, history = self._load.new_process(self.kind)
            client = Client(producer, consumer, self._load.names.log, history, number, self._load.tell)
            if self.kind in IN_GROUPS:
                client.subscribe()
            else:
                client.choose(begin=True)
            if self.kind == "group":
                self._follow(client)
                return
            step = STEPS[self.kind]
            for _ in range(VALUES // 100):  # no process uses up its values
                if not self._paced() or not step(client, self._chance):
                    return
                if self.kind != "subscribe" and self._chance.random() < MOVED:
                    client.choose(begin=self.kind != "plain" or self._chance.random() < 0.5)

    def _follow(self, client: Client) -> None:
        while not self._over(client.consumer, more=(found := read_in_group(client))):
            if not found:
                self._load.stop.wait(IDLE_S)

    def _copy(self) -> None:
        names = self._load.names
        with self._producer() as producer, self._consumer() as consumer:
            consumer.subscribe([names.log])
            copied: int | None = None
            while not self._over(consumer, more=copied != 0):
                give_up = self._chance.random() < GIVEN_UP
                try:
                    copied = copy_turn(producer, consumer, names.copies, copy_records, give_up=give_up)
                except HeadraceError as error:
                    self._load.tell(error, "copy")
                    if error.then == "fenced":
                        return
                    copied = None

    def _over(self, consumer: Consumer, *, more: bool) -> bool:
        """Whether a member of a group has nothing left to do, or no time to do it in."""
        load = self._load
        if not load.stop.is_set():
            return False
        if time.monotonic() > load.drained_by:
            return True
        own = consumer.assignment()
        ends = consumer.end_offsets(own)
        return not more and all(consumer.position(one) >= end for one, end in ends.items())

    def _paced(self) -> bool:
        """Wait for its turn; false: the load has ended."""
        self._due = max(self._due + self._pause, time.monotonic() - 1.0)
        return not self._load.stop.wait(max(0.0, self._due - time.monotonic()))

    def _producer(self) -> Producer:
        writing = dict(WRITING)
        if self.kind in ("assign", "subscribe", "copier"):
            writing["transactional_id"] = f"{self._load.names.stem}-{self._slot}"
            writing["transaction_timeout_ms"] = TRANSACTION_TIMEOUT_MS
        return Producer(self._load.plan.servers, **writing)

    def _consumer(self) -> Consumer:
        reading = dict(READING)
        if self.kind in IN_GROUPS:
            reading["group_id"] = self._load.names.group(self.kind)
        elif self.kind == "assign":
            reading["group_id"] = self._load.names.group(f"{self.kind}-{self._slot}")
        else:
            reading.pop("enable_auto_commit")
        return Consumer(bootstrap_servers=self._load.plan.servers, **reading)
