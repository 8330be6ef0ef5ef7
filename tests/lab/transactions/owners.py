"""Owners of units: several transactions that are prepared under ids of an owner, and committed as one."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.lab.transactions.clients import DECIDES, Open, Writer

from headrace import aio
from headrace.errors import FencedOwner, HeadraceError
from headrace.transactions import PreparedTransaction

if TYPE_CHECKING:
    from tests.lab.transactions.truth import Truth

CHANCE_BITS = 20
Prepared = tuple[Open, PreparedTransaction]


class Checkpoints:
    """What drivers of a query share, and what was asked for each of its batches."""

    def __init__(self) -> None:
        self.done: defaultdict[str, int] = defaultdict(int)
        """The first batch that no driver knows as committed."""
        self.units: defaultdict[tuple[str, int], list[list[Open]]] = defaultdict(list)
        """Owner and batch → what each plan of it listed."""

    def check(self, truth: Truth) -> None:
        """Of all plans of a batch one was committed, and of one that some driver knows as done at least one."""
        for (owner, batch), plans in self.units.items():
            committed = [one for one in plans if any(truth.verdicts.get(each.txn.producer) for each in one)]  # type: ignore[arg-type]  # None has none
            if len(committed) > 1:
                numbers = [[each.txn.number for each in one] for one in committed]
                truth.wrong("batch-twice", f"batch {batch} of {owner}: {numbers}")
            if batch < self.done[owner] and not committed:
                truth.wrong("batch-lost", f"batch {batch} of {owner} is done, and nothing of it was committed")


class Owner(Writer):
    """One process that owns units."""

    def __init__(self, *rest: str | object) -> None:
        super().__init__(*rest)  # type: ignore[arg-type]  # as Writer
        self.timeout_ms = 12_000

    async def _live(self) -> None:
        world = self.world
        while not self.idle:
            try:
                async with aio.UnitOwner(world.servers, self.transactional_id, **DECIDES) as owner:
                    await self._own(owner)
                    self.idle = True
            except HeadraceError as error:
                world.counts[f"owners stopped by {type(error).__name__}"] += 1
                await self._sleep(0.6)

    async def _own(self, owner: aio.UnitOwner) -> None:
        """Until it is quiet."""
        world = self.world
        epoch, sequence = await owner.init()
        while not world.quiet:
            sequence += 1
            names = [f"w{number}" for number in range(world.random.randint(1, 3))]
            done: list[Prepared] = []
            try:
                for name in names:
                    fresh = world.random.random() < 0.5
                    done.append(await self._prepared(f"n{world.next_value()}" if fresh else name, epoch))
                if len(done) > 1 and world.random.random() < 0.2:
                    done.pop()  # not listed: it is aborted with this unit
                await self._commit(owner, sequence, done)
            except HeadraceError:
                self._unknown(done)
                raise
            await self._sleep(world.profile.think_s)

    async def _prepared(self, suffix: str, epoch: int) -> Prepared:
        """One writer of a unit: writes and prepares."""
        world, random = self.world, self.world.random
        name = f"{self.transactional_id}/{suffix}"
        async with self._producer(name, epoch) as producer:
            await producer.init_transactions()
            one = world.begin(name)
            try:
                await producer.begin_transaction()
                for _ in range(random.randint(1, 2)):
                    await self._send(producer, one, random.randrange(world.profile.partitions), random.randint(1, 2))
                token = await producer.prepare_transaction()
            except HeadraceError:
                world.returns(one, None)
                raise
            world.open_of[token] = one
            return one, token

    async def _commit(self, owner: aio.UnitOwner, sequence: int, done: list[Prepared]) -> None:
        world = self.world
        world.units.append([one for one, _ in done])
        self._ask()
        committed = await owner.commit(sequence, [token for _, token in done])
        for one, _ in done:
            world.returns(one, True if committed else None)
        world.counts["units committed" if committed else "units repeated"] += 1

    def _unknown(self, done: list[Prepared]) -> None:
        for one, _ in done:
            self.world.returns(one, None)


class Driver(Owner):
    """
    One process that plans and commits the batches of a query; others may do the same.

    Its tasks claim the owner with the number of their plan, as a streaming query's do.
    """

    async def _own(self, owner: aio.UnitOwner) -> None:
        while not self.world.quiet:
            await self._plan(owner)
            await self._sleep(self.world.profile.think_s)

    async def _plan(self, owner: aio.UnitOwner) -> None:
        """The tasks of the next batch at once, then its unit."""
        world, random = self.world, self.world.random
        checkpoints, name = world.checkpoints, self.transactional_id
        batch = checkpoints.done[name]
        claim = world.wall_ms() << CHANCE_BITS | random.getrandbits(CHANCE_BITS)
        given_up = random.randint(0, 3) == 0
        tasks = [asyncio.ensure_future(self._task(owner, claim, batch)) for _ in range(random.randint(1, 3) + given_up)]
        try:
            done = [await task for task in tasks[given_up:]]  # the message of another attempt was taken
        finally:
            await asyncio.gather(*tasks, return_exceptions=True)
        wrote = [one for _, one in done if one is not None]
        try:
            if len({epoch for epoch, _ in done}) > 1:
                raise FencedOwner("tasks of one plan had several epochs")
            if wrote:
                checkpoints.units[name, batch].append([one for one, _ in wrote])
                await self._commit(owner, batch, wrote)
        except HeadraceError:
            self._unknown(wrote)
            raise
        checkpoints.done[name] = max(checkpoints.done[name], batch + 1)

    async def _task(self, owner: aio.UnitOwner, claim: int, batch: int) -> tuple[int, Prepared | None]:
        """The epoch and what it prepared; or the epoch and None: the batch was committed before."""
        await self._sleep(0.1)
        epoch, last = await owner.init(claim)
        if last > batch:
            raise FencedOwner("a later batch was committed")
        return epoch, None if last == batch else await self._prepared(f"n{self.world.next_value()}", epoch)
