"""
One process of the load: what it can do, each call and what came of it written down as it happens.

A process is a producer, a consumer and a ``History``. Steps (``transact``, ``plain``, ``batch``, ``read_in_group``) do
one operation each and say whether the process can go on. Chaos tests run them in processes that are killed,
``headrace verify run`` in threads.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace import Consumer, HeadraceError, Producer, Record, TopicPartition
from headrace.delivery import Delivery
from headrace.errors import ErrorCode
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

VALUES: Final = 1_000_000
"""Of one process, at most: values are its number and a count."""
ABORTED: Final = 0.08
"""How often a transaction is given up."""
MOVED: Final = 0.02
"""How often a process that chooses its positions goes back to the beginning."""
POLL_MS: Final = 60
POLL_RECORDS: Final = 40
BATCH_MAX: Final = 20
TYPES: Final = {Outcome.OK: Type.OK, Outcome.FAIL: Type.FAIL, Outcome.INFO: Type.INFO}


class ChangedMind(Exception):
    """Leaves a transaction that nothing is wrong with."""


class History:
    """
    Entries of one process, each written down before anything else happens.

    Args:
        write: takes each entry; its time is the machine's monotonic clock in nanoseconds.
        process: the number of the process, which no other has.
    """

    def __init__(self, write: Callable[[Operation], object], process: int) -> None:
        self._write = write
        self._process = process
        self._index = 0

    @classmethod
    def in_file(cls, path: Path, process: int) -> History:
        """One line an entry; it survives the end of the process, at any moment."""
        file = path.open("ab", buffering=0)
        return cls(lambda entry: file.write(to_line(entry) + b"\n"), process)

    def note(self, kind: Type, f: F, value: tuple[Micro, ...] | tuple[Key, ...] = ()) -> None:
        self._write(Operation(self._index, self._process, kind, f, value, time.monotonic_ns()))
        self._index += 1


def make_polled(records: Sequence[Record]) -> Polled:
    """In the order in which they came."""
    points: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for record in records:
        points[str(record.partition)].append((record.offset, int(record.value)))
    return Polled(points)


class Client:
    """
    What all kinds have: the keys are the partitions of ``topic``.

    Args:
        number: of the process; makes its values unique.
        tell: takes every error that an application would see, and what was asked when it came.
    """

    def __init__(
        self,
        producer: Producer,
        consumer: Consumer,
        topic: str,
        history: History,
        number: int,
        tell: Callable[[HeadraceError, str], object] = lambda error, doing: None,
    ) -> None:
        self.producer, self.consumer, self.topic, self.history, self.tell = producer, consumer, topic, history, tell
        self.partitions: list[TopicPartition] = []
        self._next = number * VALUES
        self._find_partitions()

    def _find_partitions(self) -> None:
        numbers = sorted(self.consumer.partitions_for(self.topic))
        self.partitions = [TopicPartition(self.topic, one) for one in numbers]

    def send(self, chance: random.Random) -> Sent:
        """A value that nobody else sends, for one of the keys."""
        self._next += 1
        return Sent(str(chance.choice(self.partitions).partition), self._next)

    def choose(self, *, begin: bool) -> None:
        """All keys there are now, from the beginning or where its group is."""
        try:
            self._find_partitions()
        except HeadraceError as error:  # those it knows will do
            self.tell(error, "partitions")
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

    def poll(self, timeout_ms: int = POLL_MS, records_max: int = POLL_RECORDS) -> Polled:
        """What is there now, or soon."""
        return make_polled(self.consumer.poll(timeout_ms=timeout_ms, max_records=records_max))

    def note_poll(self) -> Polled:
        """A poll without a transaction, written down; what it returned, nothing where it failed."""
        self.history.note(Type.INVOKE, F.POLL, (NOTHING,))
        try:
            found = self.poll()
        except HeadraceError as error:
            self.tell(error, "poll")
            self.history.note(Type.FAIL, F.POLL)
            return NOTHING
        self.history.note(Type.OK, F.POLL, (found,))
        return found


def transact(client: Client, chance: random.Random) -> bool:
    """One transaction of one to four sends and polls; false: this process is over."""
    plan = [client.send(chance) if chance.random() < 0.5 else NOTHING for _ in range(chance.randint(1, MICRO_OPS_MAX))]
    client.history.note(Type.INVOKE, F.TXN, tuple(plan))
    done, deliveries = list[Micro](), list[Delivery]()
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
        client.tell(error, f"transaction, {error.then}, commit asked: {asked}")
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
        client.note_poll()
        return True
    return _send_all(client, [client.send(chance)])


def batch(client: Client, chance: random.Random) -> bool:
    """Two to twenty sends in one call, to any partitions."""
    return _send_all(client, [client.send(chance) for _ in range(chance.randint(2, BATCH_MAX))])


def _send_all(client: Client, plan: Sequence[Sent]) -> bool:
    client.history.note(Type.INVOKE, F.SEND, tuple(plan))
    try:
        values, places = [b"%d" % one.value for one in plan], [int(one.key) for one in plan]
        deliveries = list(client.producer.send_many(client.topic, values, partition=places))
    except HeadraceError as error:
        client.tell(error, "send")
        client.history.note(TYPES[outcome_of_send(error.code)] if len(plan) == 1 else Type.INFO, F.SEND, tuple(plan))
        return True
    done, outcomes = list[Micro](), set[Outcome]()
    for one, delivery in zip(plan, deliveries, strict=True):
        try:
            done.append(replace(one, offset=delivery.result().offset))
            outcomes.add(Outcome.OK)
        except HeadraceError as error:
            client.tell(error, "send")
            done.append(one)
            outcomes.add(outcome_of_send(error.code))
    # One outcome stands for all; of several sends with different ends those with an offset were acknowledged.
    outcome = next(iter(outcomes)) if len(outcomes) == 1 else Outcome.INFO
    client.history.note(TYPES[outcome], F.SEND, tuple(done))
    return True


def read_in_group(client: Client) -> bool:
    """One poll of a member, and a commit of what it returned; whether it returned anything."""
    found = client.note_poll()
    if not found.points:
        return False
    try:
        client.consumer.commit()
    except HeadraceError as error:  # another member reads it again
        client.tell(error, "commit")
    return True
