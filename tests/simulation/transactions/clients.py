"""
Who writes in transactions: producers with a transactional id, some of them consuming what they transform, and twins.

They do what the SDK's producer does, in the fewest words: one identity, sequences from 0 in each transaction, attempts
that are repeated while errors are retriable, an abort when something went wrong, a new identity when that fails too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from services.broker.tests.kit.batches import batch_of
from tests.simulation.transactions.callers import Caller
from tests.simulation.transactions.processes import Promise, Script

from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId
from headrace_coordinator.core.effects import OffsetOutcomes, OffsetsFound
from headrace_coordinator.core.events import OffsetsAsked, OffsetToCommit, TxnCommitAsked
from headrace_coordinator.core.transactions.effects import DecideResult, InitResult
from headrace_coordinator.core.transactions.events import DecideAsked, EndAsked, InitAsked, PrepareAsked
from headrace_coordinator.core.transactions.values import Producer, Token
from headrace_coordinator.core.values import Moment
from headrace_verify.checker import Outcome
from headrace_verify.checker_history import F, Micro, Polled, Sent, Type

if TYPE_CHECKING:
    from tests.simulation.transactions.world import World

INIT_MS = 20_000.0
SEND_MS = 5_000.0
END_MS = 8_000.0
GROUP = "transformers"


@dataclass(eq=False)
class Txn:
    """One transaction as its writer sees it, for the checker and the invariants."""

    number: int
    transactional_id: str
    producer: Producer
    micros: list[Micro] = field(default_factory=list)
    sequences: dict[PartitionId, int] = field(default_factory=dict)
    returned: bool = False
    verdict: bool | None = None
    """What somebody was told."""


class Writer(Caller):
    """One process with one transactional id."""

    def __init__(self, number: int, world: World, transactional_id: str, *, consumes: bool) -> None:
        super().__init__(number, world)
        self.transactional_id = transactional_id
        self.shard = world.shard_of(transactional_id)
        self.consumes = consumes
        self.timeout_ms = world.rng.choice((1_500, 4_000, 8_000))
        self.identity: Producer | None = None
        self.position: int | None = None
        """Where it goes on reading; None: it has to ask."""
        self.idle = False
        """There is nothing more that it has to do."""
        self.doomed: Callable[[], None] | None = None
        """What happens when it asks for an end."""

    def start(self) -> None:
        """A new process."""
        self.up, self.paused, self.idle = True, False, False
        self.identity, self.position = None, None
        if self.consumes and self.incarnation and self.world.profile.successors and self.world.rng.random() < 0.7:
            self._succeed()
        self.world.say("writer", self.id, self.transactional_id, "starts")
        self.run(self._life())

    def _succeed(self) -> None:
        """Another process takes over where the dead one was: only its pending positions can tell how far that is."""
        self.transactional_id = f"{self.transactional_id.partition('.')[0]}.{self.world.next_value()}"
        self.shard = self.world.shard_of(self.transactional_id)

    def _life(self) -> Script:
        rng = self.world.rng
        while True:
            try:
                yield from self._begin()
                while self.identity is not None:
                    self.idle = self.world.quiet
                    if not self.idle:
                        yield from self._transform() if self.consumes else self._write()
                    yield rng.random() * self.world.profile.think_ms
            except HeadraceError as error:
                self.world.counts[f"writers stopped by {type(error).__name__}"] += 1
            self.identity = self.position = None
            yield rng.random() * 600.0

    # --- identity ---------------------------------------------------------------------------------------------

    def _begin(self) -> Script:
        """Become the only producer of the id; decide what was left prepared."""
        world = self.world
        owner_epoch = self._owner_epoch()

        def init(ref: Promise, at: Moment) -> InitAsked:
            spare = world.spare_producer_id()
            return InitAsked(self.transactional_id, ref, at, self.timeout_ms, owner_epoch, spare)

        result = yield from self.again(lambda: self.to_shard(self.shard, init), self.mono + INIT_MS)
        assert isinstance(result, InitResult), "asked for an identity"
        self.identity = result.producer
        world.say("writer", self.id, "is", tuple(result.producer), "token" if result.prepared else "")
        if result.prepared is not None:
            yield from self._decide(result.prepared)

    def _owner_epoch(self) -> int | None:
        return None

    # --- a transaction ----------------------------------------------------------------------------------------

    def _write(self) -> Script:
        world, rng = self.world, self.world.rng
        txn = self._new()
        commit = rng.random() < 0.75
        try:
            for id in rng.sample(world.data, rng.randint(1, len(world.data))):
                for _ in range(rng.choice((1, 1, 2))):
                    yield from self._send(txn, id, rng.randint(1, 2))
                yield rng.random() * rng.choice((5.0, 5.0, 50.0, 400.0))
            if rng.random() < world.profile.prepares:
                yield from self._prepare(txn)
                return
        except HeadraceError as error:
            world.say("writer", self.id, "has to abort", txn.number, type(error).__name__)
            commit = False
        yield from self._end(txn, commit=commit)

    def _new(self) -> Txn:
        assert self.identity is not None, "a transaction has an identity"
        txn = self.world.new_transaction(self.transactional_id, self.identity)
        self.world.say("writer", self.id, "begins", txn.number, tuple(txn.producer))
        return txn

    def _send(self, txn: Txn, id: PartitionId, count: int, values: tuple[int, ...] = ()) -> Script:
        """Some records in one batch; repeated until it is acknowledged."""
        world, sequence = self.world, txn.sequences.get(id, 0)
        values = values or tuple(world.next_value() for _ in range(count))
        producer_id, epoch = txn.producer
        written = [b"%d" % value for value in values]
        batch = batch_of(written, producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=True)
        world.invariants.is_sent(txn, id, sequence, values)
        txn.sequences[id] = sequence + len(values)
        places = range(len(txn.micros), len(txn.micros) + len(values))
        txn.micros += [Sent(world.key(id), value) for value in values]
        base = yield from self.again(
            lambda: self.to_leader(id, "append", batch, self.transactional_id), self.mono + SEND_MS
        )
        for place, value in zip(places, values, strict=True):
            txn.micros[place] = Sent(world.key(id), value, base + place - places[0])

    def _end(self, txn: Txn, *, commit: bool) -> Script:
        """Commit, or abort; a commit that is refused for good becomes an abort."""
        world = self.world
        try:
            self.identity = yield from self._ask_end(txn, commit=commit)
        except HeadraceError as error:
            if error.retriable or not commit:
                world.returns(txn, None)
                raise
            world.say("writer", self.id, "cannot commit", txn.number, type(error).__name__)
            yield from self._end(txn, commit=False)
            return
        world.returns(txn, commit)

    def _ask_end(self, txn: Txn, *, commit: bool) -> Script:
        doomed, self.doomed = self.doomed, None
        if doomed is not None:
            doomed()

        def end(ref: Promise, at: Moment) -> EndAsked:
            return EndAsked(self.transactional_id, ref, at, *txn.producer, commit, self.world.spare_producer_id())

        return (yield from self.again(lambda: self.to_shard(self.shard, end), self.mono + END_MS))

    # --- prepared ---------------------------------------------------------------------------------------------

    def _ask_prepare(self, txn: Txn) -> Script:
        nonce, owner_epoch = self.world.next_nonce(), self._owner_epoch()

        def prepare(ref: Promise, at: Moment) -> PrepareAsked:
            return PrepareAsked(self.transactional_id, ref, at, *txn.producer, owner_epoch, nonce)

        token = yield from self.again(lambda: self.to_shard(self.shard, prepare), self.mono + END_MS)
        assert isinstance(token, Token), "asked for a token"
        self.world.counts["prepared"] += 1
        return token

    def _prepare(self, txn: Txn) -> Script:
        world, rng = self.world, self.world.rng
        token = None
        try:
            token = yield from self._ask_prepare(txn)
        except HeadraceError:
            world.returns(txn, None)
            raise
        world.tokens.append(token)
        yield rng.random() * rng.choice((50.0, 3_000.0))
        yield from self._decide(token)

    def _decide(self, token: Token) -> Script:
        """Decide what is prepared; somebody else may have."""
        world = self.world
        result = yield from decided(self, token, commit=world.rng.random() < 0.7)
        self.identity = result.next

    # --- consume, transform, produce --------------------------------------------------------------------------

    def _transform(self) -> Script:
        """What was read and what is made of it, and how far it was read, in one transaction."""
        world, rng = self.world, self.world.rng
        if self.position is None:
            self.position = yield from self.again(self._ask_position, self.mono + INIT_MS)
        found = self._read(self.position)
        if found is None or not found[1]:
            self.position = self.position if found is None else found[0]
            return
        end, points = found
        txn = self._new()
        txn.micros.append(Polled({world.key(world.input): tuple(points)}))
        commit = rng.random() < 0.9
        try:
            for offset, _ in points:
                value = world.next_value()
                world.sources[value] = offset
                yield from self._send(txn, rng.choice(world.outputs), 1, (value,))
            yield from self.again(lambda: self._hold_position(txn, end), self.mono + SEND_MS)
        except HeadraceError as error:
            world.say("writer", self.id, "has to abort", txn.number, type(error).__name__)
            commit = False
        self.position = None
        yield from self._end(txn, commit=commit)
        if txn.verdict:
            self.position = end

    def _read(self, position: int) -> tuple[int, list[tuple[int, int]]] | None:
        world = self.world
        leader = world.leader_by_hearsay(world.input)
        broker = None if leader == NO_NODE else world.brokers[NodeId(leader)]
        if broker is None or not broker.up or broker.paused or not world.network.both_ways(self.id, leader):
            return None
        return broker.read(world.input, position)

    def _ask_position(self) -> Script:
        world = self.world
        where = ((world.topic, (world.input.partition,)),)

        def fetch(ref: Promise, at: Moment) -> OffsetsAsked:
            return OffsetsAsked(GROUP, ref, at, partitions=where, require_stable=True)

        result = yield from self.to_shard(world.offsets_shard, fetch)
        assert isinstance(result, OffsetsFound), "asked for positions"
        (one,) = result.offsets
        if one.error is not None:
            raise one.error
        return 0 if one.committed is None else one.committed.offset

    def _hold_position(self, txn: Txn, end: int) -> Script:
        world = self.world
        row = OffsetToCommit(world.topic, world.input.partition, end, -1, str(txn.number))

        def commit(ref: Promise, at: Moment) -> TxnCommitAsked:
            return TxnCommitAsked(GROUP, ref, at, "", None, -1, (row,), self.transactional_id, *txn.producer)

        result = yield from self.to_shard(world.offsets_shard, commit)
        assert isinstance(result, OffsetOutcomes), "positions were handed over"
        if result.outcomes[0].error is not None:
            raise result.outcomes[0].error


def decided(who: Caller, token: Token, *, commit: bool) -> Script:
    """Decide a token and note what became of it."""
    world = who.world
    shard = world.shard_of(token.transactional_id)

    def decide(ref: Promise, at: Moment) -> DecideAsked:
        return DecideAsked(token, ref, at, commit, world.spare_producer_id())

    txn = world.transaction_of(token.producer_id, token.epoch)
    try:
        result = yield from who.again(lambda: who.to_shard(shard, decide), who.mono + END_MS)
    except HeadraceError:
        world.returns(txn, None)
        raise
    assert isinstance(result, DecideResult), "asked for a verdict"
    if token in world.tokens:
        world.tokens.remove(token)
    world.returns(txn, result.committed)
    return result


class Decider(Caller):
    """Another process that finds tokens where they were stored, and decides them."""

    def start(self) -> None:
        """A new process."""
        self.up, self.paused = True, False
        self.run(self._life())

    def _life(self) -> Script:
        world = self.world
        while True:
            yield world.rng.random() * (500.0 if world.quiet else 4_000.0)
            if not world.tokens:
                continue
            token = world.rng.choice(world.tokens)
            try:
                yield from decided(self, token, commit=world.rng.random() < 0.7)
            except HeadraceError as error:
                if not error.retriable and token in world.tokens:
                    world.tokens.remove(token)


class PlainSender(Caller):
    """Records outside of transactions, between those of others."""

    def start(self) -> None:
        """A new process."""
        self.up, self.paused = True, False
        self.run(self._life())

    def _life(self) -> Script:
        world = self.world
        producer_id, sequence = world.spare_producer_id(), {}
        process = world.new_process()
        while True:
            yield world.rng.random() * 4 * world.profile.think_ms
            if world.quiet:
                continue
            id, value = world.rng.choice(world.data), world.next_value()
            number = sequence.get(id, 0)
            batch = batch_of([b"%d" % value], producer_id=producer_id, epoch=0, sequence=number)
            world.invariants.is_plain(id, producer_id, number, value)
            sent = Sent(world.key(id), value)
            world.note(process, Type.INVOKE, F.SEND, (sent,))
            try:
                base = yield from self.again(partial(self.to_leader, id, "append", batch, None), self.mono + SEND_MS)
            except HeadraceError:
                world.note(process, Type.INFO, F.SEND, (sent,))
                producer_id, sequence, process = world.spare_producer_id(), {}, world.new_process()
                continue
            sequence[id] = number + 1
            world.note(process, Type.OK, F.SEND, (Sent(world.key(id), value, base),))


class Reader(Caller):
    """Reads one partition from any replica, what is committed of it."""

    def __init__(self, number: int, world: World, id: PartitionId) -> None:
        super().__init__(number, world)
        self.partition = id
        self.position = 0
        self.up = True
        self.process = world.new_process()
        key = world.key(id)
        world.note(self.process, Type.INVOKE, F.ASSIGN, (key,))
        world.note(self.process, Type.OK, F.ASSIGN, (key,))
        self.later(300.0, self._tick)

    def _tick(self) -> None:
        world = self.world
        self.later(500.0 * (0.5 + world.rng.random()), self._tick)
        target = world.rng.choice(world.store.snapshot.partitions[self.partition].replicas)
        broker = world.brokers[target]
        if broker.up and not broker.paused and world.network.both_ways(self.id, target):
            found = broker.read(self.partition, self.position)
            if found is not None:
                self.position = found[0]
                if found[1]:
                    world.note_poll(self.process, self.partition, found[1])


def told(outcome: bool | None) -> Outcome:
    """What a verdict is to the checker."""
    return Outcome.INFO if outcome is None else Outcome.OK if outcome else Outcome.FAIL
