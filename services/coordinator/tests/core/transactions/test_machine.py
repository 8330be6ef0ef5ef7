"""
Transactional ids under everything at once: zombies, requests that come twice, late or in another order, lost answers,
markers and their acknowledgements in any order, operators, units, time, and coordinators that die at any step, also in
the middle of an append.

The oracle is naive: partitions that know of each producer its epoch and whether it has something open, and a table of
what was told to whom. What must hold is said by ``Told`` and by the end of ``Machine``: a verdict never changes; no
identity is handed to two producers; nobody enrols in what has ended; each record's transaction ends everywhere, and
everywhere the same; a unit is committed whole or not at all; a claim of an owner has one epoch, and a newer epoch ends
what the older ones did not; once all is quiet nothing waits and nothing is open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from headrace_common.core.errors import FencedOwner, HeadraceError
from headrace_common.core.ids import PartitionId
from headrace_coordinator.core.effects import Row
from headrace_coordinator.core.transactions import owner as owner_module
from headrace_coordinator.core.transactions import producers as producers_module
from headrace_coordinator.core.transactions import transaction as transaction_module
from headrace_coordinator.core.transactions.effects import (
    Answer,
    Completed,
    DecideResult,
    InitResult,
    OwnerResult,
    Persist,
    Result,
    TookProducerId,
    UnitResult,
    Visible,
    WriteMarkers,
)
from headrace_coordinator.core.transactions.events import (
    AbortAsked,
    DecideAsked,
    DescribeAsked,
    EndAsked,
    EnrolAsked,
    Event,
    GaveUp,
    InitAsked,
    Loaded,
    MarkersWritten,
    OwnerInitAsked,
    PrepareAsked,
    UnitAsked,
    Woken,
)
from headrace_coordinator.core.transactions.settings import TransactionSettings
from headrace_coordinator.core.transactions.shard import TransactionShard
from headrace_coordinator.core.transactions.values import AT_REST, Producer, Token, TxnState
from headrace_coordinator.core.values import Moment
from headrace_coordinator.engine.outbox import Outbox

from .world import WALL, parts

PARTITIONS = parts(0, 1, 2)
PLAIN = ("t", "u")
OWNED = ("o/a", "o/b", "o/c")
TIMEOUT_MS = 1_000
UNIT_TIMEOUT_MS = 3_000
EXPIRY_MS = 20_000


@dataclass
class Partition:
    """What a leader knows of producers."""

    epochs: dict[int, int] = field(default_factory=dict)
    opened: dict[int, int] = field(default_factory=dict)
    """Producer id and the epoch of its open transaction."""
    written: set[Producer] = field(default_factory=set)
    """Transactions that have records here."""
    ends: dict[Producer, bool] = field(default_factory=dict)
    """Transactions that were ended here by a marker."""
    guards: dict[int, int] = field(default_factory=dict)
    """Markers of a producer id: what void a pending enrolment."""

    def append(self, producer: Producer) -> None:
        """The first records of a transaction, after its enrolment."""
        assert producer.epoch >= self.epochs.get(producer.producer_id, -1), "what was enrolled is not behind"
        assert self.opened.get(producer.producer_id, producer.epoch) == producer.epoch, "one transaction at a time"
        self.epochs[producer.producer_id] = self.opened[producer.producer_id] = producer.epoch
        self.written.add(producer)

    def mark(self, producer_id: int, epoch: int, commit: bool) -> None:
        """A marker, perhaps not for the first time, perhaps late."""
        self.guards[producer_id] = self.guards.get(producer_id, 0) + 1
        ended = Producer(producer_id, epoch - 1)
        if epoch <= self.epochs.get(producer_id, -1):
            assert ended in self.ends, "only a repeat is behind"
            assert self.ends[ended] is commit
            assert self.opened.get(producer_id, epoch) >= epoch, "what is open belongs to a later one"
            return
        open_epoch = self.opened.pop(producer_id, None)
        assert open_epoch in (None, ended.epoch), "a marker ends the transaction before it"
        self.epochs[producer_id] = epoch
        self.ends[ended] = commit


@dataclass
class Told:
    """All that was seen outside, and what must be true of it."""

    verdicts: dict[Producer, bool] = field(default_factory=dict)
    holders: dict[Producer, int] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    """The highest epoch of each producer id that was handed out."""
    tokens: list[Token] = field(default_factory=list)

    def verdict(self, producer: Producer, commit: bool) -> None:
        assert self.verdicts.setdefault(producer, commit) is commit, f"{producer} was decided otherwise"

    def handed(self, producer: Producer, holder: int) -> None:
        first = producer not in self.holders
        assert self.holders.setdefault(producer, holder) == holder, f"{producer} was handed to two producers"
        if first:
            assert producer.epoch > self.latest.get(producer.producer_id, -1), f"epochs of {producer} fall"
            self.latest[producer.producer_id] = producer.epoch

    def enrolled(self, producer: Producer) -> None:
        assert producer not in self.verdicts, f"{producer} has ended"


@dataclass
class Client:
    """One producer process. It goes on with what it has whatever it is told, as a zombie does."""

    number: int
    name: str
    producer: Producer | None = None
    token: Token | None = None
    owner_epoch: int = -1
    """That it came with."""


@dataclass
class Unit:
    """One that was asked for."""

    sequence: int
    tokens: list[Token]
    answered: bool = False


Show = Callable[[Result | HeadraceError], None]


class Machine(RuleBasedStateMachine):
    """One shard, everybody who talks to it, and the log."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = TransactionSettings(
            transaction_max_timeout_ms=TIMEOUT_MS,
            unit_prepared_timeout_ms=UNIT_TIMEOUT_MS,
            transactional_id_expiration_ms=EXPIRY_MS,
            transactional_id_check_interval_ms=5_000,
            transaction_waiting_max=3,
            unit_free_producer_ids_max=3,
        )
        self.now_ms = 0.0
        self.spare, self.nonce, self.refs = 100, 0, 0
        self.log: dict[bytes, bytes | None] = {}
        self.under_way: list[Row] | None = None
        self.partitions = {p: Partition() for p in PARTITIONS}
        self.told = Told()
        self.clients: list[Client] = []
        self.units: list[Unit] = []
        self.singly: set[Token] = set()
        """Tokens that somebody asked to commit outside of a unit."""
        self.owner_epoch, self.sequence = -1, -1
        self.claim = 0
        """The highest that somebody made, and what was told to whom."""
        self.claimed: dict[int, int] = {}
        self.pending: dict[object, tuple[str, Show]] = {}
        self.past: list[tuple[Event, Show]] = []
        """Requests that may come again."""
        self.markers: list[tuple[WriteMarkers, PartitionId]] = []
        """Under way to partitions."""
        self.acks: list[tuple[str, int, int, PartitionId]] = []
        self.start()

    # --- the host -------------------------------------------------------------------------------------------

    @property
    def at(self) -> Moment:
        return Moment(self.now_ms, WALL + int(self.now_ms))

    def start(self) -> None:
        self.shard = TransactionShard(0, self.settings)
        self.shard.replay(sorted(self.log.items(), key=lambda row: row[0][::-1]))  # as compaction leaves them
        self.outbox: Outbox[Visible] = Outbox(lambda _: pytest.fail("no group"), self.show)
        self.pending.clear()
        self.handle(Loaded(self.at))

    def handle(self, event: Event) -> None:
        effects = self.shard.handle(event)
        held: list[Persist | Visible] = []
        for effect in effects:
            if isinstance(effect, TookProducerId):
                assert effect.producer_id == self.spare
                self.spare += 1
            else:
                held.append(effect)
        self.outbox.take(held, proof=False)

    def ask(self, event: Any, show: Show, *, again: bool = False) -> None:
        """A request; its answer goes to ``show`` if it ever comes."""
        self.refs += 1
        changes: dict[str, object] = {"ref": self.refs, "at": self.at}
        if hasattr(event, "spare_producer_id"):
            changes["spare_producer_id"] = self.spare
        if isinstance(event, PrepareAsked):
            self.nonce += 1
            changes["nonce"] = self.nonce
        event = replace(event, **changes)
        if not again:
            self.past.append((event, show))
        name = event.owner if isinstance(event, OwnerInitAsked | UnitAsked) else event.transactional_id
        self.pending[self.refs] = (name, show)
        self.handle(event)

    def show(self, effect: Visible) -> None:
        match effect:
            case Answer(_, ref, result):
                waiting = self.pending.pop(ref, None)
                if waiting is not None:
                    waiting[1](result)
            case WriteMarkers(_, _, producer_id, epoch, commit, partitions):
                self.told.verdict(Producer(producer_id, epoch - 1), commit)
                self.markers += [(effect, partition) for partition in partitions]
            case Completed():
                pass

    def durable(self, rows: list[Row]) -> None:
        for key, value in rows:
            self.log[key] = value

    @rule()
    def append_begins(self) -> None:
        if self.under_way is None and self.outbox.append_wanted:
            self.under_way = self.outbox.begin()

    @rule()
    def append_is_done(self) -> None:
        self.append_begins()
        if self.under_way is not None:
            rows, self.under_way = self.under_way, None
            self.durable(rows)
            self.outbox.done()

    @rule(
        found=st.one_of(st.just([True]), st.just([False]), st.lists(st.booleans(), min_size=1, max_size=8)),
        late_ms=st.sampled_from([0, 0, 100, TIMEOUT_MS, UNIT_TIMEOUT_MS]),
    )
    def coordinator_dies(self, found: list[bool], late_ms: float) -> None:
        """
        Of the append under way the log has any rows, or all, or none.

        A real log has the first ones; but which are the first depends on what else was written of the same keys. Of the
        markers under way some still arrive.
        """
        self.append_begins()
        if self.under_way is not None:
            self.durable([row for at, row in enumerate(self.under_way) if found[at % len(found)]])
            self.under_way = None
        self.markers = [marker for at, marker in enumerate(self.markers) if found[at % len(found)]]
        self.now_ms += late_ms
        self.start()

    # --- producers ------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(PLAIN + OWNED), behind=st.sampled_from([0, 0, 0, 1]))
    def a_producer_comes(self, name: str, behind: int) -> None:
        client = Client(len(self.clients), name)
        self.clients.append(client)
        self.becomes_the_producer(client, behind)

    @precondition(lambda self: self.clients)
    @rule(who=st.integers(0, 9), behind=st.sampled_from([0, 0, 1]))
    def a_producer_comes_again(self, who: int, behind: int) -> None:
        self.becomes_the_producer(self.client(who), behind)

    def becomes_the_producer(self, client: Client, behind: int) -> None:
        epoch = max(self.owner_epoch - behind, 0) if "/" in client.name else None

        def show(result: Result | HeadraceError) -> None:
            if isinstance(result, InitResult):
                client.token = result.prepared
                client.owner_epoch = -1 if epoch is None else epoch
                self.is_current(client)
                if result.prepared is None:
                    self.now_is(client, result.producer)

        self.ask(InitAsked(client.name, None, self.at, TIMEOUT_MS, epoch, 0), show)

    def now_is(self, client: Client, producer: Producer) -> None:
        self.told.handed(producer, client.number)
        if client.producer is None or producer > client.producer or producer.epoch == 0:
            client.producer = producer

    def is_current(self, client: Client) -> None:
        """What is answered to a producer of an owner is of the owner's last epoch."""
        assert "/" not in client.name or client.owner_epoch >= self.owner_epoch, "a new owner fences all before it"

    def client(self, who: int) -> Client:
        return self.clients[-1 - who % len(self.clients)]

    @precondition(lambda self: self.clients)
    @rule(who=st.integers(0, 9), chosen=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def a_producer_writes(self, who: int, chosen: set[PartitionId]) -> None:
        """To each partition for itself, as leaders ask for enrolment."""
        client = self.client(who)
        if client.producer is None:
            return
        for partition in sorted(chosen):
            self.write(client, client.producer, partition)

    def write(self, client: Client, producer: Producer, partition: PartitionId) -> None:
        leader = self.partitions[partition]
        known = leader.epochs.get(producer.producer_id, -1)
        if producer.epoch < known or leader.opened.get(producer.producer_id) == producer.epoch:
            return
        guard = leader.guards.get(producer.producer_id, 0)

        def show(result: Result | HeadraceError) -> None:
            if result is None:
                self.told.enrolled(producer)
                self.is_current(client)
                if leader.guards.get(producer.producer_id, 0) == guard:
                    leader.append(producer)

        self.ask(EnrolAsked(client.name, None, self.at, *producer, [partition]), show)

    @precondition(lambda self: self.clients)
    @rule(who=st.integers(0, 9), commit=st.booleans())
    def a_producer_ends(self, who: int, commit: bool) -> None:
        client = self.client(who)
        producer = client.producer
        if producer is None:
            return

        def show(result: Result | HeadraceError) -> None:
            if isinstance(result, Producer):
                self.told.verdict(producer, commit)
                self.is_current(client)
                self.now_is(client, result)

        self.ask(EndAsked(client.name, None, self.at, *producer, commit, 0), show)

    @precondition(lambda self: self.clients)
    @rule(who=st.integers(0, 9), behind=st.sampled_from([0, 0, 1]))
    def a_producer_prepares(self, who: int, behind: int) -> None:
        client = self.client(who)
        producer = client.producer
        if producer is None:
            return

        def show(result: Result | HeadraceError) -> None:
            if isinstance(result, Token):
                assert self.told.verdicts.get(producer, True), "no token of what was aborted"
                client.token = result
                self.is_current(client)
                self.told.tokens.append(result)

        epoch = max(self.owner_epoch - behind, 0) if "/" in client.name else None
        self.ask(PrepareAsked(client.name, None, self.at, *producer, epoch, 0), show)

    @precondition(lambda self: self.clients)
    @rule(who=st.integers(0, 9), commit=st.booleans())
    def a_producer_decides_its_token(self, who: int, commit: bool) -> None:
        client = self.client(who)
        if client.token is not None:
            self.decide(client.token, commit, client)

    @precondition(lambda self: self.told.tokens)
    @rule(which=st.integers(0, 9), commit=st.booleans())
    def somebody_decides_a_token(self, which: int, commit: bool) -> None:
        self.decide(self.told.tokens[-1 - which % len(self.told.tokens)], commit, None)

    def decide(self, token: Token, commit: bool, client: Client | None) -> None:
        if commit:
            self.singly.add(token)

        def show(result: Result | HeadraceError) -> None:
            if isinstance(result, DecideResult):
                self.told.verdict(Producer(token.producer_id, token.epoch), result.committed)
                if client is not None and result.next is not None:
                    self.now_is(client, result.next)

        self.ask(DecideAsked(token, None, self.at, commit, 0), show)

    # --- owners ---------------------------------------------------------------------------------------------

    @rule(behind=st.sampled_from([0, 0, 0, 1, 2]), first=st.booleans())
    def an_owner_is_claimed(self, behind: int, first: bool) -> None:
        """By the first of those that have this claim, or by the others."""
        self.claim += first
        claim = max(self.claim - behind, 0)

        def show(result: Result | HeadraceError) -> None:
            highest = max(self.claimed, default=-1)
            if isinstance(result, FencedOwner):
                return
            assert isinstance(result, OwnerResult)
            assert claim >= highest, "a higher claim has it"
            assert self.claimed.setdefault(claim, result.owner_epoch) == result.owner_epoch, "a claim has one epoch"
            assert result.owner_epoch >= self.owner_epoch, "epochs of owners grow"
            self.owner_epoch = result.owner_epoch
            assert result.last_sequence >= max((u.sequence for u in self.units if u.answered), default=-1)

        self.ask(OwnerInitAsked("o", None, self.at, claim), show)

    @rule()
    def an_owner_comes(self) -> None:
        def show(result: Result | HeadraceError) -> None:
            assert isinstance(result, OwnerResult)
            assert result.owner_epoch > self.owner_epoch or again, "epochs of owners grow"
            self.owner_epoch = max(self.owner_epoch, result.owner_epoch)
            assert result.last_sequence >= max((u.sequence for u in self.units if u.answered), default=-1)

        again = any(isinstance(event, OwnerInitAsked) for event, _ in self.past)
        self.ask(OwnerInitAsked("o", None, self.at), show)

    @rule(
        ahead=st.sampled_from([1, 1, 0]),
        behind=st.sampled_from([0, 0, 0, 1]),
        leave_out=st.sampled_from([0, 0, 1]),
        stale=st.sampled_from([False, False, True]),
    )
    def an_owner_commits_a_unit(self, ahead: int, behind: int, leave_out: int, stale: bool) -> None:
        prepared = {line.producer for line in self.shard.list_transactions() if line.state is TxnState.PREPARED}
        owned = [token for token in dict.fromkeys(self.told.tokens) if "/" in token.transactional_id]
        tokens = [token for token in owned if Producer(token.producer_id, token.epoch) in prepared][leave_out:]
        if stale:
            tokens += owned[-1:]
        unit = Unit(self.sequence + ahead, tokens)
        self.sequence = unit.sequence
        self.units.append(unit)

        def show(result: Result | HeadraceError) -> None:
            if isinstance(result, UnitResult) and not result.repeated_sequence:
                unit.answered = True
                for token in tokens:
                    self.told.verdict(Producer(token.producer_id, token.epoch), True)

        self.ask(UnitAsked("o", None, self.at, max(self.owner_epoch - behind, 0), unit.sequence, tokens), show)

    # --- shortcuts to where much can go wrong ---------------------------------------------------------------

    @rule(
        names=st.lists(st.sampled_from(PLAIN + OWNED), min_size=1, max_size=3, unique=True),
        chosen=st.sets(st.sampled_from(PARTITIONS)),
        prepared=st.booleans(),
    )
    def producers_have_transactions(self, names: list[str], chosen: set[PartitionId], prepared: bool) -> None:
        """Open or prepared, and all that it takes is in the log."""
        if self.owner_epoch < 0:
            self.an_owner_comes()
            self.settle()
        for name in names:
            self.a_producer_comes(name, 0)
        self.settle()
        for who in range(len(names)):
            if chosen:
                self.a_producer_writes(who, chosen)
        self.settle()
        if prepared:
            for who in range(len(names)):
                self.a_producer_prepares(who, 0)
            self.settle()

    @rule(chosen=st.sets(st.sampled_from(PARTITIONS)), ahead=st.sampled_from([1, 1, 0]))
    def a_unit_is_prepared_and_asked_for(self, chosen: set[PartitionId], ahead: int) -> None:
        """Whether it gets into the log is left to what comes next."""
        self.producers_have_transactions(list(OWNED), chosen, True)
        self.an_owner_commits_a_unit(ahead, 0, 0, False)

    @rule(
        chosen=st.sets(st.sampled_from(PARTITIONS)),
        prepared=st.booleans(),
        found=st.lists(st.booleans(), min_size=2, max_size=4),
    )
    def a_claim_is_cut_off_and_made_again(self, chosen: set[PartitionId], prepared: bool, found: list[bool]) -> None:
        """And those who were there before it try to go on."""
        self.producers_have_transactions(list(OWNED), chosen, prepared)
        self.an_owner_is_claimed(0, True)
        self.coordinator_dies(found, 0)
        self.an_owner_is_claimed(0, False)
        self.settle()
        for who in range(len(OWNED)):
            self.a_producer_writes(who, set(PARTITIONS))
            self.a_producer_ends(who, True)

    @rule()
    def everything_arrives(self) -> None:
        self.settle()

    # --- the world ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.past)
    @rule(which=st.integers(0, 30))
    def a_request_comes_again(self, which: int) -> None:
        """Repeated because its answer was lost, or sent long ago."""
        event, show = self.past[-1 - which % len(self.past)]
        if not isinstance(event, EnrolAsked | OwnerInitAsked | InitAsked):
            self.ask(event, show, again=True)
        elif isinstance(event, EnrolAsked):
            client = next(c for c in self.clients if c.name == event.transactional_id)
            self.write(client, Producer(event.producer_id, event.epoch), event.partitions[0])
        else:
            self.ask(event, lambda _: None, again=True)

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 9))
    def somebody_gives_up(self, which: int) -> None:
        ref = list(self.pending)[which % len(self.pending)]
        name, _ = self.pending.pop(ref)
        self.handle(GaveUp(name, ref))

    @precondition(lambda self: self.markers)
    @rule(which=st.integers(0, 9), acked=st.booleans(), again=st.booleans())
    def a_marker_arrives(self, which: int, acked: bool, again: bool) -> None:
        """What is not acknowledged is sent again, what is may come twice."""
        at = which % len(self.markers)
        effect, partition = self.markers.pop(at) if acked and not again else self.markers[at]
        self.partitions[partition].mark(effect.producer_id, effect.epoch, effect.commit)
        ack = (effect.transactional_id, effect.producer_id, effect.epoch, partition)
        self.acks.append(ack)
        if acked:
            self.acknowledge(ack)

    @precondition(lambda self: self.acks)
    @rule(which=st.integers(0, 9))
    def an_acknowledgement_comes_late(self, which: int) -> None:
        self.acknowledge(self.acks[-1 - which % len(self.acks)])

    def acknowledge(self, ack: tuple[str, int, int, PartitionId]) -> None:
        name, producer_id, epoch, partition = ack
        self.handle(MarkersWritten(name, self.at, producer_id, epoch, [partition]))

    @rule(ms=st.sampled_from([10, 400, TIMEOUT_MS, UNIT_TIMEOUT_MS, EXPIRY_MS]))
    def time_passes(self, ms: float) -> None:
        """Owners are used all the time, so that none is forgotten: ``test_owner_expiry`` has what follows from that."""
        self.now_ms += ms
        for owner in self.shard._register.owners.values():
            owner.used_at_ms = self.at.wall_ms
        self.handle(Woken(self.at))

    @rule(name=st.sampled_from(PLAIN + OWNED))
    def an_operator_aborts(self, name: str) -> None:
        self.ask(AbortAsked(name, None, self.at), lambda _: None)

    # --- what must hold -------------------------------------------------------------------------------------

    @invariant()
    def the_shard_knows_what_it_has_to_do(self) -> None:
        states = [line.state for line in self.shard.list_transactions()]
        tally = self.shard.tally()
        ending = sum(state in (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT) for state in states)
        assert tally.open == states.count(TxnState.ONGOING)
        assert tally.prepared == states.count(TxnState.PREPARED)
        assert tally.ending == ending
        assert tally.open == 0 or self.shard.next_wake_ms() is not None

    @invariant()
    def no_two_ids_have_one_producer_id(self) -> None:
        ids = [line.producer.producer_id for line in self.shard.list_transactions()]
        assert len(ids) == len(set(ids))

    def settle(self) -> None:
        """Everything that is under way arrives."""
        while self.under_way is not None or self.outbox.append_wanted or self.markers:
            self.append_is_done()
            for effect, partition in self.markers:
                self.partitions[partition].mark(effect.producer_id, effect.epoch, effect.commit)
                self.acknowledge((effect.transactional_id, effect.producer_id, effect.epoch, partition))
            self.markers.clear()

    def teardown(self) -> None:
        self.settle()
        if self.refs % 2:  # what is known only to the log must do, and what is known only to memory
            self.coordinator_dies([True], 0)
            self.settle()
        for line in self.shard.list_transactions():
            if line.state is TxnState.PREPARED and "/" not in line.transactional_id:
                token = Token(line.transactional_id, *line.producer, self.nonce_of(line.transactional_id))
                self.decide(token, False, None)
        self.settle()
        for _ in range(2):
            self.now_ms += TIMEOUT_MS + UNIT_TIMEOUT_MS
            self.handle(Woken(self.at))
            self.settle()
        open_ones = [line for line in self.shard.list_transactions() if line.state not in AT_REST]
        assert not open_ones, f"every end is completed: {open_ones}"
        assert not self.pending, "nothing waits for ever"
        self.everything_ended_everywhere_alike()
        self.units_are_whole()

    def nonce_of(self, name: str) -> int:
        (answer,) = self.shard.handle(DescribeAsked(name, None))
        return answer.result.token.nonce

    def everything_ended_everywhere_alike(self) -> None:
        for leader in self.partitions.values():
            assert not leader.opened, "no transaction is left open"
            for producer in leader.written:
                assert producer in leader.ends, f"{producer} wrote here and was never ended"
            for producer, commit in leader.ends.items():
                self.told.verdict(producer, commit)

    def units_are_whole(self) -> None:
        """What nobody committed singly some unit committed, with all else that it lists."""

        def verdicts(unit: Unit) -> set[bool | None]:
            """None: nobody was told, because nothing was written."""
            alone = [token for token in unit.tokens if token not in self.singly]
            return {self.told.verdicts.get(Producer(token.producer_id, token.epoch)) for token in alone}

        for unit in self.units:
            assert not unit.answered or verdicts(unit) <= {True}, f"unit {unit.sequence} was answered as committed"
        for token in self.told.tokens:
            if self.told.verdicts.get(Producer(token.producer_id, token.epoch)) and token not in self.singly:
                units = [unit for unit in self.units if token in unit.tokens]
                assert any(False not in verdicts(unit) for unit in units), f"a unit committed {token} and not all"


def run(machine: type[Machine], examples: int) -> None:
    """A failure is told as it was found: to make it shorter takes longer than a test may."""
    told = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        phases=(Phase.reuse, Phase.generate),
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=told)


def test_any_order() -> None:
    run(Machine, 100)


def test_any_order_where_epochs_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (transaction_module, producers_module, owner_module):
        monkeypatch.setattr(module, "EPOCH_LAST", 3)
    run(Machine, 100)
