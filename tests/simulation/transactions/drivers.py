"""
Owners that are several processes at once: drivers that plan batches, and tasks that claim the owner with their plan's
number, as a streaming query's do.

What has to be in the topics is known by batch, whoever planned it: each batch once and whole.
"""

from __future__ import annotations

from collections import defaultdict

from tests.simulation.transactions.clients import END_MS, INIT_MS, Txn
from tests.simulation.transactions.owners import Owner, Part
from tests.simulation.transactions.processes import Promise, Script

from headrace_common.core.errors import FencedOwner, HeadraceError
from headrace_coordinator.core.transactions.effects import OwnerResult, UnitResult
from headrace_coordinator.core.transactions.events import OwnerInitAsked, UnitAsked
from headrace_coordinator.core.transactions.values import Producer, Token
from headrace_coordinator.core.values import Moment

CHANCE_BITS = 20


class Checkpoints:
    """What drivers of a query share, and what was asked for each of its batches."""

    def __init__(self) -> None:
        self.done: defaultdict[str, int] = defaultdict(int)
        """The first batch that no driver knows as committed."""
        self.units: defaultdict[tuple[str, int], list[list[Txn]]] = defaultdict(list)
        """Owner and batch → what each plan of it listed."""


class Task(Part):
    """One attempt of one task."""

    def __init__(self, driver: Driver, claim: int) -> None:
        super().__init__(driver, f"{driver.transactional_id}/n{driver.world.next_nonce()}")
        self.claim = claim
        self.epoch = -1

    def _owner_epoch(self) -> int:
        return self.epoch

    def _claim(self, ref: Promise, at: Moment) -> OwnerInitAsked:
        return OwnerInitAsked(self.owner.transactional_id, ref, at, self.claim)

    def attempt(self, batch: int) -> Script:
        """The epoch and what it prepared; or the epoch and None: the batch was committed before."""
        yield self.world.rng.random() * 100.0
        result = yield from self.again(lambda: self.to_shard(self.owner.shard, self._claim), self.mono + INIT_MS)
        assert isinstance(result, OwnerResult), "asked to be the owner"
        self.epoch = result.owner_epoch
        if result.last_sequence > batch:
            raise FencedOwner("a later batch was committed")
        return self.epoch, None if result.last_sequence == batch else (yield from self.prepared())


class Driver(Owner):
    """One process that plans and commits the batches of a query; others may do the same."""

    def _begin(self) -> Script:
        self.identity = Producer(-1, -1)
        yield 0.0

    def _write(self) -> Script:
        """One plan of the next batch: its tasks at once, then the unit."""
        world, rng = self.world, self.world.rng
        batch = world.checkpoints.done[self.transactional_id]
        claim = int(world.schedule.now) << CHANCE_BITS | rng.getrandbits(CHANCE_BITS)
        given_up = rng.randint(0, 3) == 0
        world.say("driver", self.id, "plans batch", batch, "claim", claim)
        attempts = [self.run(Task(self, claim).attempt(batch)) for _ in range(rng.randint(1, 3) + given_up)]
        epochs: set[int] = set()
        wrote: list[tuple[Txn, Token]] = []
        for attempt in attempts[given_up:]:  # the message of another attempt was taken
            epoch, one = yield attempt
            epochs.add(epoch)
            wrote += [] if one is None else [one]
        if wrote:
            yield from self._commit(batch, epochs, wrote)
        else:
            world.counts["batches found committed"] += 1
        done = world.checkpoints.done
        done[self.transactional_id] = max(done[self.transactional_id], batch + 1)

    def _commit(self, batch: int, epochs: set[int], wrote: list[tuple[Txn, Token]]) -> Script:
        world = self.world
        txns, tokens = [txn for txn, _ in wrote], tuple(token for _, token in wrote)
        world.units.append(txns)
        try:
            if len(epochs) > 1:
                raise FencedOwner("tasks of one plan had several epochs")
            world.checkpoints.units[self.transactional_id, batch].append(txns)
            (epoch,) = epochs

            def unit(ref: Promise, at: Moment) -> UnitAsked:
                return UnitAsked(self.transactional_id, ref, at, epoch, batch, tokens)

            world.say("driver", self.id, "commits batch", batch, [txn.number for txn in txns])
            result = yield from self.again(lambda: self.to_shard(self.shard, unit), self.mono + END_MS)
        except HeadraceError:
            for txn in txns:
                world.returns(txn, None)
            raise
        assert isinstance(result, UnitResult), "a unit was asked for"
        for txn in txns:
            world.returns(txn, None if result.repeated_sequence else True)
        world.counts["batches repeated" if result.repeated_sequence else "batches committed"] += 1
