"""
Who writes in transactions, and between them: the SDK's producers, as applications use them.

A process begins anew with a new producer when its old one failed for good, as applications do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.lab.transactions.processes import Process
from tests.lab.transactions.truth import Txn
from tests.lab.transactions.watch import DATA

from headrace import aio
from headrace.delivery import Delivery
from headrace.errors import AlreadyDecided, HeadraceError, TransactionAbortable
from headrace.records import Committed
from headrace.transactions import PreparedTransaction
from headrace_verify.checker_history import F, Micro, Polled, Sent, Type

if TYPE_CHECKING:
    from tests.lab.transactions.world import World

GROUP = "transformers"
CALLS: dict[str, Any] = {"request_timeout_ms": 1_500, "retry_backoff_ms": 20, "retry_backoff_max_ms": 300}
WRITES: dict[str, Any] = {**CALLS, "delivery_timeout_ms": 5_000, "max_block_ms": 8_000, "linger_ms": 0, "trace": False}
DECIDES: dict[str, Any] = {**CALLS, "default_api_timeout_ms": 8_000}
READS: dict[str, Any] = {
    **CALLS,
    "isolation_level": "read_committed",
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "default_api_timeout_ms": 8_000,
}
KILLED_WITHIN_S = 0.03
"""A doomed process is killed so long after it asked for an end."""


@dataclass
class Open:
    """A transaction while its writer is at it."""

    txn: Txn
    polled: tuple[Polled, ...] = ()
    sent: list[tuple[str, int, Delivery]] = field(default_factory=list)
    """Key, value, and what became of it."""

    def micros(self) -> tuple[Micro, ...]:
        """For the history."""
        return (*self.polled, *(Sent(key, value, _offset(delivery)) for key, value, delivery in self.sent))


def _offset(delivery: Delivery) -> int | None:
    done = delivery.done() and delivery.exception() is None
    return delivery.result().offset if done else None


class Writer(Process):
    """One process with one transactional id."""

    def __init__(self, world: World, name: str, transactional_id: str) -> None:
        super().__init__(world, name)
        self.transactional_id = transactional_id
        self.timeout_ms = world.random.choice((1_500, 4_000, 8_000))
        self.doomed = ""
        """It is killed a moment after it asks for this: an end, or positions to be taken."""

    def twin(self, name: str) -> Writer:
        """Another process with the same id."""
        return type(self)(self.world, name, self.transactional_id)

    async def _live(self) -> None:
        world = self.world
        while not self.idle:
            try:
                async with self._producer(self.transactional_id) as producer:
                    await self._begin(producer)
                    while not world.quiet:
                        await self._work(producer)
                        await self._sleep(world.profile.think_s)
                    self.idle = True
            except HeadraceError as error:
                world.counts[f"writers stopped by {type(error).__name__}"] += 1
                await self._sleep(0.6)

    def _producer(self, transactional_id: str, owner_epoch: int | None = None) -> aio.Producer:
        return aio.Producer(
            self.world.servers,
            transactional_id=transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            owner_epoch=owner_epoch,
            **WRITES,
        )

    async def _begin(self, producer: aio.Producer) -> None:
        """Become the only producer of the id; decide what was left prepared."""
        token = await producer.init_transactions()
        if token is not None:
            await decide(self.world, producer, token, commit=self.world.random.random() < 0.7)

    async def _work(self, producer: aio.Producer) -> None:
        random, one = self.world.random, self.world.begin(self.transactional_id)
        try:
            await producer.begin_transaction()
            partitions = range(self.world.profile.partitions)
            for number in random.sample(partitions, random.randint(1, len(partitions))):
                await self._send(producer, one, number, random.randint(1, 3))
                await self._sleep(random.choice((0.005, 0.005, 0.05, 0.4)))
        except HeadraceError:
            await self._end(producer, one, commit=False)
            return
        if random.random() < self.world.profile.prepares:
            await self._prepare(producer, one)
        else:
            await self._end(producer, one, commit=random.random() < 0.75)

    async def _send(self, producer: aio.Producer, one: Open, number: int, count: int, source: int = -1) -> None:
        world = self.world
        for _ in range(count):
            value = world.next_value(one.txn)
            if source >= 0:
                world.sources[value] = source
            one.sent.append((str(number), value, await producer.send(DATA, b"%d" % value, partition=number)))

    async def _end(self, producer: aio.Producer, one: Open, *, commit: bool) -> None:
        """Commit, or abort; a commit that is refused for good becomes an abort."""
        self._ask()
        try:
            if commit:
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()
        except TransactionAbortable:
            await self._end(producer, one, commit=False)
            return
        except BaseException:
            self.world.returns(one, None)
            raise
        self.world.returns(one, commit)

    def _ask(self, what: str = "end") -> None:
        """Something of a coordinator."""
        if self.doomed == what:
            self.doomed = ""
            if what == "positions":
                self.world.stall_answers("coordinator")
            loop = self.world.cluster.lab.loop
            node = self.node
            delay = self.world.random.random() * KILLED_WITHIN_S
            loop.call_later(
                delay, lambda: self.world.kill(self) if self.node is node else None, context=loop.test.context
            )

    async def _prepare(self, producer: aio.Producer, one: Open) -> None:
        world, random = self.world, self.world.random
        self._ask()
        try:
            token = await producer.prepare_transaction()
        except BaseException:
            world.returns(one, None)
            raise
        world.prepared(one, token)
        await self._sleep(random.choice((0.05, 3.0, self.timeout_ms / 500)))  # maybe longer than its timeout
        await decide(world, producer, token, commit=random.random() < 0.7)


async def decide(
    world: World, by: aio.Producer | aio.PreparedTransactions, token: PreparedTransaction, *, commit: bool
) -> None:
    """Decide a token and note what became of it; somebody else may have."""
    try:
        await (by.commit_prepared(token) if commit else by.abort_prepared(token))
    except AlreadyDecided:
        commit = not commit
    world.tokens.pop(token, None)
    one = world.open_of.get(token)
    if one is not None:
        world.returns(one, commit)


class Transformer(Writer):
    """Consumes the first partition and writes what it makes of it to the others."""

    def start(self) -> None:
        """A new process; maybe under another id: then only pending positions tell how far the dead one was."""
        world = self.world
        if world.counts[self.name] and world.profile.successors and world.random.random() < 0.7:
            self.transactional_id = f"{self.transactional_id.partition('.')[0]}.{world.counts[self.name]}"
        world.counts[self.name] += 1
        super().start()

    async def _live(self) -> None:
        world = self.world
        while not self.idle:
            try:
                async with (
                    self._producer(self.transactional_id) as producer,
                    aio.Consumer(bootstrap_servers=world.servers, group_id=GROUP, **READS) as consumer,
                ):
                    await self._begin(producer)
                    await consumer.assign([(DATA, 0)])
                    while not world.quiet and await self._transform(producer, consumer):
                        await self._sleep(world.profile.think_s)
                    self.idle = world.quiet
            except HeadraceError as error:
                world.counts[f"transformers stopped by {type(error).__name__}"] += 1
                await self._sleep(0.6)

    async def _transform(self, producer: aio.Producer, consumer: aio.Consumer[bytes, bytes]) -> bool:
        """What was read, what is made of it and how far it was read, in one transaction; whether it was committed."""
        world, random = self.world, self.world.random
        records = await consumer.poll(timeout_ms=300, max_records=4)
        if not records:
            return True
        points = tuple((record.offset, int(record.value or b"")) for record in records)
        one = world.begin(self.transactional_id, (Polled({"0": points}),))
        commit = random.random() < 0.8
        try:
            await producer.begin_transaction()
            for offset, _ in points:
                await self._send(producer, one, random.randrange(1, world.profile.partitions), 1, offset)
            end = Committed(await consumer.position((DATA, 0)), -1, str(one.txn.number))
            self._ask("positions")
            await producer.send_offsets_to_transaction({(DATA, 0): end}, GROUP)
            await self._sleep(random.choice((0.005, 0.05, 0.4)))
        except HeadraceError:
            commit = False
        await self._end(producer, one, commit=commit)
        return one.txn.verdict is True


class Decider(Process):
    """Finds tokens where they were stored, and decides them."""

    async def _live(self) -> None:
        world = self.world
        async with aio.PreparedTransactions(world.servers, **DECIDES) as prepared:
            while True:
                await self._sleep(0.5 if world.quiet else 4.0)
                if not world.tokens:
                    continue
                token = world.random.choice(list(world.tokens))
                try:
                    await decide(world, prepared, token, commit=world.random.random() < 0.7)
                except HeadraceError as error:
                    if not error.retriable:
                        world.tokens.pop(token, None)


class PlainSender(Process):
    """Records outside of transactions, between those of others."""

    async def _live(self) -> None:
        world = self.world
        while not world.quiet:
            process = world.new_process()
            async with aio.Producer(world.servers, **WRITES) as producer:
                while not world.quiet:
                    await self._sleep(8 * world.profile.think_s)
                    number, value = world.random.randrange(world.profile.partitions), world.next_value()
                    sent = Sent(str(number), value)
                    world.note(process, Type.INVOKE, F.SEND, (sent,))
                    try:
                        delivery = await producer.send(DATA, b"%d" % value, partition=number)
                        done = await delivery
                    except HeadraceError:
                        world.note(process, Type.INFO, F.SEND, (sent,))
                        break
                    world.note(process, Type.OK, F.SEND, (Sent(str(number), value, done.offset),))


class Reader(Process):
    """Reads one partition, what is committed of it."""

    def __init__(self, world: World, name: str, number: int) -> None:
        super().__init__(world, name)
        self.number = number
        self.position = 0

    async def _live(self) -> None:
        world = self.world
        while True:
            process = world.new_process()
            world.note(process, Type.INVOKE, F.ASSIGN, (str(self.number),))
            world.note(process, Type.OK, F.ASSIGN, (str(self.number),))
            try:
                async with aio.Consumer(bootstrap_servers=world.servers, **READS) as consumer:
                    await consumer.assign([(DATA, self.number)])
                    consumer.seek((DATA, self.number), self.position)
                    while True:
                        await self._poll(process, consumer)
            except HeadraceError as error:
                world.counts[f"readers stopped by {type(error).__name__}"] += 1
                await self._sleep(0.6)

    async def _poll(self, process: int, consumer: aio.Consumer[bytes, bytes]) -> None:
        records = await consumer.poll(timeout_ms=1_000)
        start, self.position = self.position, await consumer.position((DATA, self.number))
        points = [(record.offset, int(record.value or b"")) for record in records]
        self.world.was_read(self.name, self.number, (start, self.position), points)
        if points:
            self.world.note_poll(process, self.number, points)
        await self._sleep(0.3)


def find_living(processes: Sequence[Process], kind: type[Process]) -> list[Process]:
    """Those of a kind that live and are not paused."""
    return [one for one in processes if isinstance(one, kind) and one.lives and not one.paused]
