"""Owners of units: several transactions that are prepared under ids of an owner, and committed as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.transactions.clients import END_MS, INIT_MS, Txn, Writer
from tests.simulation.transactions.processes import Promise, Script

from headrace_common.core.errors import HeadraceError
from headrace_coordinator.core.transactions.effects import OwnerResult
from headrace_coordinator.core.transactions.events import OwnerInitAsked, UnitAsked
from headrace_coordinator.core.transactions.values import Producer, Token
from headrace_coordinator.core.values import Moment

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World


class Part(Writer):
    """One writer of a unit; the owner leads it."""

    def __init__(self, owner: Owner, name: str) -> None:
        super().__init__(owner.id, owner.world, name, consumes=False)
        self.owner = owner
        self.incarnation, self.up = owner.incarnation, True
        self.timeout_ms = 12_000

    def _owner_epoch(self) -> int:
        return self.owner.epoch

    def prepared(self) -> Script:
        """Write and prepare; the transaction and its token."""
        rng = self.world.rng
        yield from self._begin()
        txn = self._new()
        try:
            for _ in range(rng.randint(1, 2)):
                yield from self._send(txn, rng.choice(self.world.data), rng.randint(1, 2))
            token = yield from self._ask_prepare(txn)
        except HeadraceError:
            self.world.returns(txn, None)
            raise
        return txn, token


class Owner(Writer):
    """One process that owns units."""

    def __init__(self, number: int, world: World, name: str) -> None:
        super().__init__(number, world, name, consumes=False)
        self.epoch = -1
        self.sequence = -1

    def _begin(self) -> Script:
        """A new epoch of the owner."""
        result = yield from self.again(lambda: self.to_shard(self.shard, self._own), self.mono + INIT_MS)
        assert isinstance(result, OwnerResult), "asked to be the owner"
        self.epoch, self.sequence = result.owner_epoch, result.last_sequence + 1
        self.world.say("owner", self.id, "epoch", self.epoch, "next unit", self.sequence)
        self.identity = Producer(-1, -1)

    def _own(self, ref: Promise, at: Moment) -> OwnerInitAsked:
        return OwnerInitAsked(self.transactional_id, ref, at)

    def _write(self) -> Script:
        """A unit."""
        world, rng = self.world, self.world.rng
        done: list[tuple[Txn, Token]] = []
        try:
            for number in range(rng.randint(1, 3)):
                reused = rng.random() < 0.5
                name = f"w{number}" if reused else f"n{world.next_nonce()}"
                done.append((yield from Part(self, f"{self.transactional_id}/{name}").prepared()))
            if len(done) > 1 and rng.random() < 0.2:
                world.returns(done.pop()[0], None)  # not listed: it is aborted with this unit
            listed = [txn for txn, _ in done]
            tokens = tuple(token for _, token in done)
            world.units.append(listed)
            epoch, sequence = self.epoch, self.sequence

            def unit(ref: Promise, at: Moment) -> UnitAsked:
                return UnitAsked(self.transactional_id, ref, at, epoch, sequence, tokens)

            world.say("owner", self.id, "commits unit", sequence, [txn.number for txn in listed])
            yield from self.again(lambda: self.to_shard(self.shard, unit), self.mono + END_MS)
        except HeadraceError:
            for txn, _ in done:
                world.returns(txn, None)
            raise
        for txn in listed:
            world.returns(txn, True)
        world.counts["units committed"] += 1
        self.sequence += 1
