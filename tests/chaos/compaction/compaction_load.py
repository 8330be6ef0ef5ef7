"""
A process of the load: ``compaction_load.py ROLE BOOTSTRAP NUMBER HISTORY SEED [RATE]``.

ROLE is ``write`` (two producers, two that write in transactions of which some are given up, and one that trims),
``read`` (two readers that begin again and again, one of them at followers, one that follows, and one that sleeps too
long) or ``group`` (two members, one of which comes and goes). Processes of the history are NUMBER and the next ones. It
says ``ready`` when its work has begun, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from compaction_topics import EXPIRING, GROUPED, KEYS, PARTITIONS, RETENTION_MS

from headrace import LogDiverged, PositionReset, Record, TopicPartition, aio
from headrace_common.core.errors import ErrorCode, HeadraceError
from headrace_verify.checker import Outcome
from headrace_verify.checker_history import outcome_of_send, outcome_of_transaction
from headrace_verify.compaction_history import (
    Began,
    Event,
    GroupAt,
    Handed,
    Kind,
    Point,
    Read,
    Told,
    Write,
    to_line,
)

NUMBERS = 1_000_000
"""Of one process, at most."""
DELETIONS, GIVEN_UP = 0.12, 0.2
PER_TRANSACTION = 6
TRANSACTION_TIMEOUT_MS = 6_000
CODECS = ("none", "gzip", "lz4", "zstd")
RACKS = ("", "rack-2", "rack-3")
COMMIT_SECONDS = 0.5
STAY_SECONDS = 4.0
GROUP = "aging"
READING: Final[Mapping[str, Any]] = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
ALL = [TopicPartition(*each) for each in PARTITIONS]
WHO: contextvars.ContextVar[int] = contextvars.ContextVar("WHO")
"""Which process of the history this task is, and those that it starts."""


class ChangedMind(Exception):
    """Leaves a transaction that nothing is wrong with."""


class Out:
    """One file for all that this process does."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")
        self._errors = path.with_suffix(".errors").open("a", encoding="utf-8")

    def note(self, *events: Event) -> None:
        """What was done or seen."""
        for event in events:
            self._file.write(to_line(event) + b"\n")

    def failed(self, text: str) -> None:
        """What an application should not have seen."""
        self._errors.write(f"process {WHO.get()}: {' '.join(text.split())}\n")

    def flush(self) -> None:
        """Hand all to the operating system."""
        self._file.flush()
        self._errors.flush()


def losses(out: Out, process: int) -> Callable[[PositionReset | LogDiverged], None]:
    """What is to be called when a position does not exist any more."""

    def told(event: PositionReset | LogDiverged) -> None:
        if isinstance(event, PositionReset) and event.position > event.lost:
            out.note(Told(process, str(event.partition), event.lost, event.position, time.monotonic_ns()))
        else:
            out.failed(str(event))

    return told


def point(record: Record) -> Point:
    """What the checker wants of it."""
    number = int(dict(record.headers)["n"] or b"")
    return Point(record.offset, record.key.decode(), number, record.value is None)


def by_log(records: Iterable[Record]) -> dict[str, list[Point]]:
    """In the order in which they came."""
    found: dict[str, list[Point]] = {}
    for record in records:
        found.setdefault(f"{record.topic}-{record.partition}", []).append(point(record))
    return found


# --- writers ----------------------------------------------------------------------------------------------------


class Source:
    """Records that nobody else sends."""

    def __init__(self, process: int, chance: random.Random) -> None:
        self.process, self._chance, self._next = process, chance, process * NUMBERS

    def next(self) -> tuple[Write, bytes | None]:
        """A record, not sent yet, and its value."""
        self._next += 1
        place = self._chance.choice(ALL)
        # Some keys are written again and again, others seldom.
        key = f"k{min(int(self._chance.paretovariate(0.6)), KEYS)}"
        deletes = self._chance.random() < DELETIONS
        value = None if deletes else (b"%d" % self._next).ljust(self._chance.randint(20, 400))
        now = time.monotonic_ns()
        return Write(self.process, str(place), key, self._next, deletes, Outcome.INFO, None, now, now), value


async def send(producer: aio.Producer, write: Write, value: bytes | None) -> aio.Delivery:
    """To where it belongs."""
    topic, _, partition = write.log.rpartition("-")
    headers = [("n", b"%d" % write.number)]
    return await producer.send(topic, value, key=write.key.encode(), headers=headers, partition=int(partition))


async def settle(out: Out, write: Write, delivery: aio.Delivery) -> None:
    """Note how a send without a transaction ended."""
    try:
        offset = (await delivery).offset
    except HeadraceError as error:
        out.failed(f"send of {write.number} to {write.log}: {error!r}")
        out.note(replace(write, outcome=outcome_of_send(error.code), ended_ns=time.monotonic_ns()))
    else:
        out.note(replace(write, outcome=Outcome.OK, offset=offset, ended_ns=time.monotonic_ns()))


async def produce(out: Out, bootstrap: str, chance: random.Random, stop: asyncio.Event, rate: float) -> None:
    """``rate`` records a second."""
    source, due = Source(WHO.get(), chance), time.monotonic()
    notes: set[asyncio.Task[None]] = set()
    async with aio.Producer(bootstrap, linger_ms=5, compression_type=chance.choice(CODECS)) as producer:
        while not stop.is_set():
            write, value = source.next()
            task = asyncio.ensure_future(settle(out, write, await send(producer, write, value)))
            notes.add(task)
            task.add_done_callback(notes.discard)
            due = max(due + 1 / rate, time.monotonic() - 1)
            await asyncio.sleep(max(due - time.monotonic(), 0))
        await asyncio.gather(*notes)


async def transact(out: Out, bootstrap: str, chance: random.Random, stop: asyncio.Event, rate: float) -> None:
    """As many, a few in each transaction."""
    source, due = Source(WHO.get(), chance), time.monotonic()
    settings = {"transactional_id": f"aging-{WHO.get()}", "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS}
    while not stop.is_set():
        async with aio.Producer(bootstrap, linger_ms=2, compression_type=chance.choice(CODECS), **settings) as producer:
            going = True
            while going and not stop.is_set():
                going = await transaction(out, producer, source, chance)
                due = max(due + PER_TRANSACTION / rate, time.monotonic() - 1)
                await asyncio.sleep(max(due - time.monotonic(), 0))


async def transaction(out: Out, producer: aio.Producer, source: Source, chance: random.Random) -> bool:
    """One; false: the producer is of no use any more."""
    sent: list[tuple[Write, aio.Delivery]] = []
    began: list[Write] = []
    commit, abort = None, ErrorCode.NONE
    asked = over = False
    try:
        async with producer.transaction():
            for _ in range(chance.randint(1, PER_TRANSACTION)):
                write, value = source.next()
                began.append(write)
                sent.append((write, await send(producer, write, value)))
            if chance.random() < GIVEN_UP:
                await asyncio.sleep(chance.random() / 10)  # some of it is in the logs
                raise ChangedMind
            asked = True
        commit, abort = ErrorCode.NONE, None
    except ChangedMind:
        pass  # nobody ever asked to commit it
    except HeadraceError as error:
        print(f"{type(error).__name__} {error.then}, asked {asked}: {error}", file=sys.stderr)
        over = error.then == "fenced"
        if asked and error.then != "abort":  # "abort" promises that it is not committed
            commit, abort = error.code, None
    outcome = outcome_of_transaction(commit, abort)
    now = time.monotonic_ns()
    if outcome is Outcome.OK:
        for write, delivery in sent:
            out.note(replace(write, outcome=outcome, offset=(await delivery).offset, ended_ns=now))
    else:
        out.note(*(replace(write, outcome=outcome, ended_ns=now) for write in began))
    return not over


async def trim(out: Out, bootstrap: str, chance: random.Random, stop: asyncio.Event, rate: float) -> None:
    """Again and again a part of what there is goes, up to anywhere."""
    del out, rate
    tp = TopicPartition("trimmed", 0)
    async with aio.AdminClient(bootstrap) as admin, aio.Consumer(bootstrap_servers=bootstrap) as consumer:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), chance.uniform(0.3, 2))
            try:
                start, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
                await admin.delete_records({tp: start + round((end - start) * chance.random() / 2)})
            except HeadraceError as error:
                print(f"trim: {error!r}", file=sys.stderr)


# --- readers ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def reader(
    out: Out, bootstrap: str, rack: str = "", partitions: Sequence[TopicPartition] = ALL, **limits: int
) -> AsyncIterator[aio.Consumer]:
    """Of what is committed, in these partitions."""
    settings = {"bootstrap_servers": bootstrap, "client_rack": rack, "fetch_max_wait_ms": 100, **READING, **limits}
    async with aio.Consumer(on_position_reset=losses(out, WHO.get()), **settings) as consumer:
        await consumer.assign(partitions)
        yield consumer


class Walk:
    """Somebody who reads all partitions of a consumer, noted."""

    def __init__(self, out: Out, consumer: aio.Consumer) -> None:
        self._out, self._consumer = out, consumer
        self.at: dict[TopicPartition, int] = {}
        self._moved: dict[TopicPartition, int] = {}
        """Positions that moved without a record; a loss is told with the poll after that."""

    async def begin(self, kind: Kind = Kind.READER) -> None:
        """From the first offsets."""
        self._consumer.seek_to_beginning()
        self.at.clear()
        self._moved.clear()
        for tp in sorted(self._consumer.assignment()):
            # At once: while others are looked up, it may be told that this one is lost.
            self.at[tp] = position = await self._consumer.position(tp)
            self._out.note(Began(WHO.get(), str(tp), position, time.monotonic_ns(), kind, first=True))

    async def read_on(self, records_max: int) -> None:
        """One poll."""
        records = by_log(await self._consumer.poll(timeout_ms=200, max_records=records_max))
        now = time.monotonic_ns()
        for tp, before in self.at.items():
            after, points = await self._consumer.position(tp), records.get(str(tp), [])
            if points or (after != before and self._moved.get(tp) == after):
                self._out.note(Read(WHO.get(), str(tp), before, after, tuple(points), now))
                self.at[tp] = after
            self._moved[tp] = after

    def left(self, ends: Mapping[TopicPartition, int]) -> dict[str, int]:
        """How many offsets are ahead."""
        return {str(tp): end - self.at[tp] for tp, end in ends.items() if self.at[tp] < end}


async def sweep(out: Out, bootstrap: str, chance: random.Random, stop: asyncio.Event, rack: str) -> None:
    """From the first offset to what is the end when it begins, and again; now quickly, now slowly."""
    async with reader(out, bootstrap, rack) as consumer:
        while not stop.is_set():
            walk = Walk(out, consumer)
            await walk.begin()
            ends = await consumer.end_offsets(walk.at)
            records_max, pause = chance.choice([(5_000, 0.0), (500, 0.05), (40, 0.05)])
            deadline = time.monotonic() + 8
            while walk.left(ends) and time.monotonic() < deadline and not stop.is_set():
                await walk.read_on(records_max)
                await asyncio.sleep(pause)
            out.flush()
            await asyncio.sleep(chance.random() / 2)


async def follow(out: Out, bootstrap: str, chance: random.Random, stop: asyncio.Event, rack: str) -> None:
    """From the first offset on, as records come."""
    del chance
    async with reader(out, bootstrap, rack) as consumer:
        walk = Walk(out, consumer)
        await walk.begin()
        while not stop.is_set():
            await walk.read_on(5_000)


async def doze(out: Out, bootstrap: str, chance: random.Random, stop: asyncio.Event, rack: str) -> None:
    """With little at hand, and asleep for longer than records are kept: ranges are lost, and it is told."""
    limits = {"fetch_max_bytes": 2_048, "max_partition_fetch_bytes": 2_048}
    partitions = [tp for tp in ALL if tp.topic in EXPIRING]
    async with reader(out, bootstrap, rack, partitions, **limits) as consumer:
        walk = Walk(out, consumer)
        await walk.begin()
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), chance.uniform(0.5, 1.8) * RETENTION_MS / 1000)
            for _ in range(3):
                await walk.read_on(100)


async def read_all(out: Out, bootstrap: str, process: int, rack: str, seconds: float) -> dict[str, int]:
    """The final phase: from the first offsets to the ends, of which those that were not reached are returned."""
    WHO.set(process)
    async with reader(out, bootstrap, rack) as consumer:
        walk = Walk(out, consumer)
        await walk.begin(Kind.FINAL)
        ends = await consumer.end_offsets(walk.at)
        deadline = time.monotonic() + seconds
        while walk.left(ends) and time.monotonic() < deadline:
            await walk.read_on(5_000)
        return walk.left(ends)


# --- group ------------------------------------------------------------------------------------------------------


class Members:
    """What the members of the group know together."""

    def __init__(self, out: Out, bootstrap: str, processes: tuple[int, ...]) -> None:
        self.out, self.bootstrap, self.processes = out, bootstrap, processes
        self.committed: dict[TopicPartition, int] = {}
        """Positions of which a member was told that they are."""

    @asynccontextmanager
    async def member(self) -> AsyncIterator[aio.Consumer]:
        """One of them."""
        settings = {"bootstrap_servers": self.bootstrap, "enable_auto_commit": False, **READING}
        told = losses(self.out, WHO.get())
        async with aio.Consumer(group_id=GROUP, on_position_reset=told, **settings) as consumer:

            async def assigned(partitions: list[TopicPartition]) -> None:
                for tp in partitions:
                    position, least = await consumer.position(tp), self.committed.get(tp, 0)
                    if position < least:
                        self.out.failed(f"{tp}: {least} was committed, the group goes on at {position}")

            async def revoked(partitions: list[TopicPartition]) -> None:
                del partitions
                await self.commit(consumer)

            await consumer.subscribe(GROUPED, on_assign=assigned, on_revoke=revoked)
            yield consumer

    async def poll(self, consumer: aio.Consumer) -> None:
        """Once, noted."""
        records = by_log(await consumer.poll(timeout_ms=200))
        now = time.monotonic_ns()
        self.out.note(*(Handed(WHO.get(), log, tuple(points), now) for log, points in records.items()))

    async def commit(self, consumer: aio.Consumer) -> None:
        """What was handed out."""
        try:
            positions = {tp: await consumer.position(tp) for tp in consumer.assignment()}
            await consumer.commit(positions)
        except HeadraceError as error:
            print(f"commit: {error!r}", file=sys.stderr)  # somebody else has them by now, or nobody answered
            return
        for tp, position in positions.items():
            self.committed[tp] = max(position, self.committed.get(tp, 0))

    async def stay(self, stop: asyncio.Event, seconds: float) -> None:
        """A member for so long."""
        end = time.monotonic() + seconds
        async with self.member() as consumer:
            due = 0.0
            while not stop.is_set() and time.monotonic() < end:
                await self.poll(consumer)
                if time.monotonic() > due:
                    due = time.monotonic() + COMMIT_SECONDS
                    await self.commit(consumer)
            await self.commit(consumer)

    async def finish(self, seconds: float) -> None:
        """To the ends, as the only member."""
        wanted = {tp for tp in ALL if tp.topic in GROUPED}
        deadline = time.monotonic() + seconds
        async with self.member() as consumer:
            ends = await consumer.end_offsets(wanted)
            while True:
                await self.poll(consumer)
                if consumer.assignment() == wanted:
                    at = {tp: await consumer.position(tp) for tp in wanted}
                    if all(at[tp] >= ends[tp] for tp in wanted):
                        break
                if time.monotonic() > deadline:
                    self.out.failed(f"the group did not come to the ends: it has {consumer.assignment()}")
                    break
            await self.commit(consumer)
            committed = await consumer.committed(list(wanted))
        for tp, found in committed.items():
            self.out.note(GroupAt(self.processes, str(tp), 0, 0 if found is None else found.offset))


# --- processes --------------------------------------------------------------------------------------------------


async def write_all(out: Out, bootstrap: str, number: int, seed: str, stop: asyncio.Event, rate: float) -> None:
    """Two producers of each kind, and somebody who trims."""
    ways: list[Callable[..., Coroutine[None, None, None]]] = [produce, produce, transact, transact, trim]

    async def run(process: int, way: Callable[..., Coroutine[None, None, None]]) -> None:
        WHO.set(process)
        await way(out, bootstrap, random.Random(f"{seed}-{process}"), stop, rate)

    await asyncio.gather(*(run(number + slot, way) for slot, way in enumerate(ways)))


async def read(out: Out, bootstrap: str, number: int, seed: str, stop: asyncio.Event) -> None:
    """Two that begin again and again, one that follows, one that sleeps."""
    ways = [(sweep, RACKS[0]), (sweep, RACKS[1]), (follow, RACKS[0]), (doze, RACKS[2])]

    async def run(process: int, way: Callable[..., Coroutine[None, None, None]], rack: str) -> None:
        WHO.set(process)
        chance = random.Random(f"{seed}-{process}")
        while not stop.is_set():
            try:
                await way(out, bootstrap, chance, stop, rack)
            except HeadraceError as error:
                out.failed(f"{way.__name__}: {error!r}")

    await asyncio.gather(*(run(number + slot, *way) for slot, way in enumerate(ways)))


async def be_group(out: Out, bootstrap: str, number: int, seed: str, stop: asyncio.Event) -> None:
    """One member stays, the other comes and goes; in the end one reads all."""
    del seed
    members = Members(out, bootstrap, (number, number + 1))

    async def run(process: int, seconds: float) -> None:
        WHO.set(process)
        while not stop.is_set():
            try:
                await members.stay(stop, seconds)
            except HeadraceError as error:
                out.failed(f"member: {error!r}")

    await asyncio.gather(run(number, float("inf")), run(number + 1, STAY_SECONDS))
    WHO.set(number)
    await members.finish(60)


async def main() -> None:
    """Until told to end."""
    role, bootstrap, number, path, seed, *more = sys.argv[1:]
    out, stop = Out(Path(path)), asyncio.Event()
    WHO.set(int(number))

    async def told() -> None:
        await asyncio.to_thread(sys.stdin.buffer.read)
        stop.set()

    ending = asyncio.ensure_future(told())
    print("ready", flush=True)
    try:
        match role:
            case "write":
                await write_all(out, bootstrap, int(number), seed, stop, float(more[0]))
            case "read":
                await read(out, bootstrap, int(number), seed, stop)
            case _:
                await be_group(out, bootstrap, int(number), seed, stop)
    finally:
        out.flush()
    await ending


if __name__ == "__main__":
    asyncio.run(main())
