"""
A process of the checker's load: ``client.py BOOTSTRAP TOPIC SLOT NUMBER SEED STOP HISTORY KIND``.

KIND: ``assign`` and ``subscribe`` do transactions of one to four sends and polls, with positions chosen or given by a
group; ``plain`` sends and polls without. What is called and what comes of it is written to HISTORY, call by call
(``headrace_verify.checker_history``). It ends when the file STOP exists; with 3 when it is fenced.
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace import Consumer, HeadraceError, Producer, Record, TopicPartition
from headrace_common.core.errors import ErrorCode
from headrace_verify.checker import Key, Outcome
from headrace_verify.checker_history import (
    MICRO_OPS_MAX,
    NOTHING,
    F,
    Micro,
    Operation,
    Polled,
    Sent,
    Type,
    outcome_of_send,
    outcome_of_transaction,
    to_line,
)

FENCED = 3
VALUES = 1_000_000
"""Of one process, at most: values are its number and a count."""
ABORTED, MOVED = 0.08, 0.02
"""How often a transaction is given up, and how often a process goes back to the beginning."""
PAUSE_S = 0.02
TIMEOUT_MS = 8_000
POLL_MS, POLL_RECORDS = 60, 40
TYPES = {Outcome.OK: Type.OK, Outcome.FAIL: Type.FAIL, Outcome.INFO: Type.INFO}


class ChangedMind(Exception):
    """Leaves a transaction that nothing is wrong with."""


class History:
    """Entries of one process, each written down before anything else happens."""

    def __init__(self, path: Path, process: int) -> None:
        self._file = path.open("ab", buffering=0)
        self._process = process
        self._index = 0

    def note(self, kind: Type, f: F, value: tuple[Micro, ...] | tuple[Key, ...] = ()) -> None:
        """One entry, now."""
        entry = Operation(self._index, self._process, kind, f, value, time.monotonic_ns())
        self._index += 1
        self._file.write(to_line(entry) + b"\n")


def polled(records: Sequence[Record]) -> Polled:
    """In the order in which they came."""
    points: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for record in records:
        points[str(record.partition)].append((record.offset, int(record.value)))
    return Polled(points)


class Client:
    """What all kinds have."""

    def __init__(self, producer: Producer, consumer: Consumer, topic: str, history: History, number: int) -> None:
        self.producer, self.consumer, self.topic, self.history = producer, consumer, topic, history
        self.partitions = [TopicPartition(topic, one) for one in sorted(consumer.partitions_for(topic))]
        self._next = number * VALUES

    def send(self, chance: random.Random) -> Sent:
        """A value that nobody else sends, for one of the keys."""
        self._next += 1
        return Sent(str(chance.choice(self.partitions).partition), self._next)

    def choose(self, *, begin: bool) -> None:
        """All keys, from the beginning or where its group is."""
        keys = tuple(str(one.partition) for one in self.partitions)
        self.history.note(Type.INVOKE, F.ASSIGN, keys)
        self.consumer.assign(self.partitions)
        if begin:
            self.consumer.seek_to_beginning(*self.partitions)
        self.history.note(Type.OK, F.ASSIGN, keys)

    def subscribe(self) -> None:
        """As the group gives them."""
        self.history.note(Type.INVOKE, F.SUBSCRIBE)
        self.consumer.subscribe([self.topic])
        self.history.note(Type.OK, F.SUBSCRIBE)

    def poll(self) -> Polled:
        """What is there now, or soon."""
        return polled(self.consumer.poll(timeout_ms=POLL_MS, max_records=POLL_RECORDS))


def transact(client: Client, chance: random.Random) -> bool:
    """One transaction; false: this process is over."""
    plan = [client.send(chance) if chance.random() < 0.5 else NOTHING for _ in range(chance.randint(1, MICRO_OPS_MAX))]
    client.history.note(Type.INVOKE, F.TXN, tuple(plan))
    done, deliveries = list[Micro](), []
    commit: ErrorCode | None = None
    abort: ErrorCode | None = ErrorCode.NONE
    over, asked = False, False
    try:
        with client.producer.transaction(client.consumer):
            for micro in plan:
                if isinstance(micro, Sent):
                    value = b"%d" % micro.value
                    deliveries.append(client.producer.send(client.topic, value, partition=int(micro.key)))
                done.append(micro if isinstance(micro, Sent) else client.poll())
            if chance.random() < ABORTED:
                raise ChangedMind
            asked = True
        commit, abort = ErrorCode.NONE, None
    except ChangedMind:
        pass  # nobody ever asked to commit it
    except HeadraceError as error:
        print(f"{type(error).__name__} {error.then}, asked {asked}: {error}", flush=True)
        over = error.then == "fenced"
        if asked and error.then != "abort":  # "abort" promises that it is not committed
            commit, abort = error.code, None
    outcome = outcome_of_transaction(commit, abort)
    done += [micro for micro in plan[len(done) :] if isinstance(micro, Sent)]
    if outcome is Outcome.OK:
        offsets = iter([delivery.result(0).offset for delivery in deliveries])
        done = [replace(micro, offset=next(offsets)) if isinstance(micro, Sent) else micro for micro in done]
    client.history.note(TYPES[outcome], F.TXN, tuple(done))
    return not over


def plain(client: Client, chance: random.Random) -> bool:
    """One send, or one poll."""
    if chance.random() < 0.5:
        client.history.note(Type.INVOKE, F.POLL, (NOTHING,))
        try:
            found = client.poll()
        except HeadraceError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            client.history.note(Type.FAIL, F.POLL)
        else:
            client.history.note(Type.OK, F.POLL, (found,))
        return True
    send = client.send(chance)
    client.history.note(Type.INVOKE, F.SEND, (send,))
    try:
        offset = client.producer.send(client.topic, b"%d" % send.value, partition=int(send.key)).result().offset
    except HeadraceError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        client.history.note(TYPES[outcome_of_send(error.code)], F.SEND, (send,))
    else:
        client.history.note(Type.OK, F.SEND, (replace(send, offset=offset),))
    return True


def main(bootstrap: str, topic: str, slot: str, number: int, seed: str, stop: Path, history: Path, kind: str) -> int:
    """Until it is told to end."""
    chance = random.Random(seed)
    group = {"assign": f"{topic}-{slot}", "subscribe": topic, "plain": None}[kind]
    reading: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    reading |= {} if group is None else {"group_id": group, "enable_auto_commit": False}
    writing: dict[str, Any] = (
        {} if kind == "plain" else {"transactional_id": f"{topic}-{slot}", "transaction_timeout_ms": TIMEOUT_MS}
    )
    with (
        Producer(bootstrap, linger_ms=0, **writing) as producer,
        Consumer(bootstrap_servers=bootstrap, **reading) as consumer,
    ):
        client = Client(producer, consumer, topic, History(history, number), number)
        if kind == "subscribe":
            client.subscribe()
        else:
            client.choose(begin=kind == "plain")
        ready = ["ready"]
        step = plain if kind == "plain" else transact
        while not stop.exists():
            if not step(client, chance):
                return FENCED
            if kind != "subscribe" and chance.random() < MOVED:
                client.choose(begin=True)
            if ready:
                print(ready.pop(), flush=True)
            time.sleep(PAUSE_S)
    return 0


if __name__ == "__main__":
    args = sys.argv[1:]
    sys.exit(main(args[0], args[1], args[2], int(args[3]), args[4], Path(args[5]), Path(args[6]), args[7]))
