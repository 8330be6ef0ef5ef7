"""
What must hold of transactions, whoever looks: three truths and the rules between them.

The truth about a transaction, and about a group's positions, is what the committed log of its shard says
(``verdicts``; ``positions``, ``pending``); about a partition it is what any leader ever counted as committed there
(``shown``). What is answered, what is marked, and what is read must agree with these three. ``watch`` brings them what
happens inside brokers and coordinators; whatever does not hold is told, and ends the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from headrace_broker.core.rows import COMMITS_BIT, TRANSACTIONAL_BIT, IndexRow
from headrace_common.core.ids import PartitionId
from headrace_coordinator.core.records import NOTE, OffsetKey, PendingKey, read_key, read_offset, read_pending
from headrace_coordinator.core.transactions.effects import TransactionDescription
from headrace_coordinator.core.transactions.records import Kind, read_owner, read_transaction
from headrace_coordinator.core.transactions.records import read_key as read_transaction_key
from headrace_coordinator.core.transactions.transaction import Transaction
from headrace_coordinator.core.transactions.values import (
    AT_REST,
    NO_CLAIM,
    EndCause,
    Producer,
    Token,
    TxnState,
    owner_of,
)
from headrace_coordinator.core.values import CommittedOffset

WITH_PARTITIONS = (TxnState.ONGOING, TxnState.PREPARED)

Points = list[tuple[int, int]]
"""Offsets and values."""


@dataclass(eq=False)
class Txn:
    """One transaction as its writer sees it."""

    number: int
    transactional_id: str
    producer: Producer | None = None
    """What it is written under, once anybody has seen that."""
    verdict: bool | None = None
    """What somebody was told."""


@dataclass
class Batch:
    """Some records of a partition that are committed there."""

    base: int
    end: int
    producer: Producer
    points: Points
    visible: bool | None
    """None: its transaction has no marker here yet."""


@dataclass
class Shown:
    """A partition as the leaders showed it."""

    end: int = 0
    batches: list[Batch] = field(default_factory=list)
    open: dict[int, list[Batch]] = field(default_factory=dict)
    """By producer id."""
    marks: dict[int, int] = field(default_factory=dict)
    """Producer id → epoch of the last marker."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, first offset and marker of each transaction that was aborted."""

    @property
    def stable(self) -> int:
        """Up to where everything is decided and its marker committed; replicas may know of less, never of more."""
        return min((batches[0].base for batches in self.open.values()), default=self.end)


@dataclass(frozen=True)
class Asked:
    """What was so when somebody asked."""

    event: object
    moment: int = 0
    """How many records of shards were committed."""
    positions: dict[OffsetKey, int] = field(default_factory=dict)
    """Of a read: the positions that were committed."""
    pending: dict[bytes, Producer] = field(default_factory=dict)
    """Of a read: keys of positions that were pending, and whose they were."""
    ended: bool = False
    """Of an enrolment: its transaction had a verdict."""


def _is_overtaken(told: TransactionDescription, states: Sequence[tuple[int, TxnState, Producer]]) -> bool:
    """
    Whether others have taken over from ``told`` before it was in the log.

    Of all that take over while an append is under way only the last one's record is in the next.
    """
    id, epoch = told.producer
    return told.state is TxnState.EMPTY and any(
        state is TxnState.EMPTY
        and last.producer_id == id
        and (before[2].epoch if before[2].producer_id == id else -1) < epoch < last.epoch
        for before, (_, state, last) in pairwise(states)
    )


class Truth:
    """Of one world."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.transactions: list[Txn] = []
        self.txn_of: dict[int, Txn] = {}
        """By the values that it wrote; others were sent outside of transactions."""
        self.forgetful = False
        """Whether brokers forget producers."""
        self.shown: defaultdict[PartitionId, Shown] = defaultdict(Shown)
        self.verdicts: dict[Producer, bool] = {}
        self.enrolled: defaultdict[Producer, dict[PartitionId, None]] = defaultdict(dict)
        self.positions: dict[OffsetKey, CommittedOffset] = {}
        self.pending: dict[bytes, Producer] = {}
        """Keys of positions of open transactions, and whose they are."""
        self.moment = 0
        self.claims: defaultdict[str, dict[int, int]] = defaultdict(dict)
        """Of each owner: claims and the epochs that they began."""
        self.asked_ends: set[tuple[Producer, bool]] = set()
        """Who asked for which end."""
        self.asked_tokens: set[Token] = set()
        """Of which a decision was asked for."""
        self.units: dict[tuple[str, int], tuple[Token, ...]] = {}
        """Owner and sequence → what the unit that was accepted last lists."""
        self.states: defaultdict[str, list[tuple[int, TxnState, Producer]]] = defaultdict(list)
        """Of each id: what its records said, and since when."""
        self._complete: set[Producer] = set()
        self._epochs: dict[str, int] = {}
        """Of owners, in the log."""
        self._sequences: dict[str, int] = {}
        """Of owners: that of the last unit, in the log."""
        self._came_under: dict[Producer, int] = {}
        """Which epoch of its owner a producer came with."""
        self._tokens: dict[PartitionId, int] = {}
        """Fencing tokens."""
        self._nonces: dict[int, Producer] = {}
        self._handed_out: set[Producer] = set()

    def wrong(self, name: str, text: str) -> None:
        """Something does not hold."""
        self._tell(f"{name}: {text}")

    # --- partitions -------------------------------------------------------------------------------------------

    def batch_committed(self, id: PartitionId, row: IndexRow, values: list[int]) -> None:
        """One more batch is committed in a partition; called once for each, in their order."""
        shown, producer = self.shown[id], Producer(row.producer_id, row.producer_epoch)
        where = f"{id.partition}@{row.base_offset} of {tuple(producer)}"
        shown.end = row.next_offset
        if row.ends_transaction:
            self._marked(id, shown, producer, row, where)
            return
        transactional = bool(row.attributes & TRANSACTIONAL_BIT)
        points = list(enumerate(values, row.base_offset))
        batch = Batch(row.base_offset, row.next_offset, producer, points, None if transactional else True)
        shown.batches.append(batch)
        if not transactional:
            return
        for value in values:
            self.is_under(self.txn_of.get(value), producer, where)
        if producer.epoch < shown.marks.get(producer.producer_id, -1):
            self.wrong("zombie-write", f"{where}; its transaction has ended")
        opened = shown.open.setdefault(producer.producer_id, [])
        if opened and opened[0].producer != producer:
            self.wrong("mixed-transactions", f"{where}; {tuple(opened[0].producer)} is open")
        opened.append(batch)
        if id not in self.enrolled[producer]:
            self.wrong("not-enrolled", f"{where}; its coordinator does not know of it")

    def is_under(self, txn: Txn | None, producer: Producer, where: str) -> None:
        """A transaction is written under an identity, which nobody else has."""
        if txn is None:
            return
        if txn.producer is None:
            txn.producer = producer
        if txn.producer != producer:
            text = f"{where}: transaction {txn.number} of {txn.transactional_id} is under {tuple(txn.producer)} too"
            self.wrong("shared-identity", text)

    def _marked(self, id: PartitionId, shown: Shown, marker: Producer, row: IndexRow, where: str) -> None:
        commit = bool(row.attributes & COMMITS_BIT)
        if marker.epoch <= shown.marks.get(marker.producer_id, -1):
            if not self.forgetful or marker.producer_id in shown.open:
                self.wrong("marker-twice", where)
            return  # nobody knew of it any more, and there is nothing that it could end
        shown.marks[marker.producer_id] = marker.epoch
        opened = shown.open.pop(marker.producer_id, [])
        ended = opened[0].producer if opened else Producer(marker.producer_id, marker.epoch - 1)
        if ended.epoch >= marker.epoch:
            self.wrong("marker-epoch", f"{where} ends {tuple(ended)}")
        verdict = self.verdicts.get(ended)
        if verdict is None:
            self.wrong("undecided-marker", f"{where}; {tuple(ended)} is not decided")
        elif verdict is not commit:
            self.wrong("wrong-marker", f"{where} says {commit}; {tuple(ended)} was decided {verdict}")
        if commit and opened and ended != Producer(marker.producer_id, marker.epoch - 1):
            self.wrong("wrong-marker", f"{where} commits {tuple(ended)}, which is not its transaction")
        for batch in opened:
            batch.visible = commit
        if opened and not commit:
            shown.aborted.append((marker.producer_id, opened[0].base, row.base_offset))
        del id

    def was_read(self, where: str, id: PartitionId, start: int, end: int, found: Points) -> None:
        """A reader of committed records got these between two positions."""
        wanted: Points = []
        for batch in reversed(self.shown[id].batches):
            if batch.end <= start:
                break
            if batch.base >= end:
                continue
            if batch.visible is None:
                self.wrong("undecided-read", f"{where} {id.partition}@{batch.base} of {tuple(batch.producer)}")
            elif batch.visible:
                wanted = [*(point for point in batch.points if start <= point[0] < end), *wanted]
        if wanted != found:
            self.wrong("misread", f"{where} {id.partition} {start} to {end}: {found} were read, committed are {wanted}")

    def points(self, id: PartitionId) -> Points:
        """Offsets and values of everything that is committed, by the shards' logs."""
        found: Points = []
        for batch in self.shown[id].batches:
            if batch.visible or (batch.visible is None and self.verdicts.get(batch.producer)):
                found += batch.points
        return found

    # --- shards -----------------------------------------------------------------------------------------------

    def token_committed(self, id: PartitionId, token: int, *, fence: bool) -> None:
        """An append of a coordinator to a shard's log is committed; with ``fence`` it sets the token."""
        known = self._tokens.get(id, -1)
        if token < known or (not fence and token != known):
            self.wrong("zombie-append", f"token {token} after {known} in shard {id.partition}")
        self._tokens[id] = token

    def transaction_record(self, key: bytes, value: bytes | None) -> None:
        """Of ``__transaction_state``."""
        self.moment += 1
        kind, name = read_transaction_key(key)
        if value is None:
            return
        if kind is Kind.OWNER:
            self._owner_record(name, value)
        elif kind is Kind.TRANSACTION:
            self._id_record(name, read_transaction(name, value))

    def _owner_record(self, name: str, value: bytes) -> None:
        owner = read_owner(name, value)
        self._epochs[name] = owner.epoch
        if owner.claim != NO_CLAIM:
            self.is_claimed(name, owner.claim, owner.claim_epoch)
        for nonce, producer in self._nonces.items():
            if owner.has_committed(nonce):
                self._decided(producer, True, f"unit of {name}")
        if owner.last_sequence > self._sequences.get(name, -1):
            self._sequences[name] = owner.last_sequence
            for token in self.units.get((name, owner.last_sequence), ()):
                if self.verdicts.get(Producer(token.producer_id, token.epoch)) is not True:
                    text = f"unit {owner.last_sequence} of {name} is committed, {token} of it is not"
                    self.wrong("unit-by-parts", text)

    def _id_record(self, name: str, txn: Transaction) -> None:
        self.states[name].append((self.moment, txn.state, txn.producer))
        owner_name = owner_of(name)
        about = txn.producer if txn.state in WITH_PARTITIONS else None
        if about is not None and owner_name is not None:
            self._must_be_current(name, txn.producer, owner_name)
        if txn.state is TxnState.PREPARED:
            self._nonces[txn.nonce] = txn.producer
        if txn.decided is not None:
            decided = txn.decided
            about = about or decided.producer
            new = self._decided(decided.producer, decided.commit, f"{name} by {decided.cause.name}")
            if new and decided.cause is EndCause.CLIENT and (decided.producer, decided.commit) not in self.asked_ends:
                self.wrong("unasked-end", f"{name} {tuple(decided.producer)}: nobody asked for {decided.commit}")
            if decided.nonce and owner_name is None and decided.cause is not EndCause.TOKEN:
                text = f"{name} {tuple(decided.producer)} was prepared; {decided.cause.name} ended it"
                self.wrong("prepared", text)
            if txn.state in AT_REST:
                self._complete.add(decided.producer)
        if about is not None:
            self.enrolled[about] |= dict.fromkeys(txn.list_enrolled())

    def is_complete(self, name: str, marker: Producer) -> None:
        """Its coordinator takes it that every partition has its marker."""
        ended = max((one for one in self.enrolled if one[0] == marker[0] and one < marker), default=None)
        for id in () if ended is None else self.enrolled[ended]:
            if id in self.shown and self.shown[id].marks.get(marker.producer_id, -1) < marker.epoch:
                self.wrong("early-complete", f"{name} {tuple(marker)} is complete without its marker in {id.partition}")
        left = [key for key, producer in self.pending.items() if producer == ended]
        if left:
            text = f"{name} {tuple(marker)} is complete, {len(left)} positions of it are pending"
            self.wrong("early-complete", text)

    def is_claimed(self, owner: str, claim: int, epoch: int) -> None:
        """A claim has one epoch, and a higher claim a higher one."""
        claims = self.claims[owner]
        if claims.setdefault(claim, epoch) != epoch:
            self.wrong("claim-twice", f"{owner}: claim {claim} has epoch {claims[claim]} and {epoch}")
        for other, its in claims.items():
            if other != claim and (other < claim) is not (its < epoch):
                self.wrong("claim-order", f"{owner}: claim {other} has epoch {its}, {claim} has {epoch}")

    def _must_be_current(self, name: str, producer: Producer, owner: str) -> None:
        """Once the log has an epoch of an owner, nothing of those before it goes on."""
        came, epoch = self._came_under.get(producer), self._epochs.get(owner, -1)
        if came is not None and came < epoch:
            self.wrong("older-owner", f"{name} {tuple(producer)} goes on, of epoch {came} of {epoch}")

    def _decided(self, producer: Producer, commit: bool, why: str) -> bool:
        """Whether that is new."""
        new = producer not in self.verdicts
        if self.verdicts.setdefault(producer, commit) is not commit:
            self.wrong("verdict-changed", f"{tuple(producer)} was decided {not commit}, now {commit}: {why}")
        return new

    def position_record(self, key: bytes, value: bytes | None) -> None:
        """Of ``__consumer_offsets``."""
        if key == NOTE:
            return
        self.moment += 1
        found = read_key(key)
        if isinstance(found, PendingKey):
            self.pending.pop(key, None)
            if value is not None:
                one = read_pending(value)
                producer = self.pending[key] = Producer(found.producer_id, one.epoch)
                txn = self.transactions[int(one.committed.metadata)]
                self.is_under(txn, producer, f"a position of {found.group_id}")
                if producer in self._complete:
                    self.wrong("late-position", f"{tuple(producer)} is complete, and has a position pending since")
            return
        if not isinstance(found, OffsetKey) or value is None:
            return
        position = self.positions[found] = read_offset(value)
        if not position.metadata:
            return
        txn = self.transactions[int(position.metadata)]
        if txn.producer is None or not self.verdicts.get(txn.producer):
            self.wrong("position-of-aborted", f"position {position.offset} of transaction {txn.number} is committed")

    # --- what is answered -------------------------------------------------------------------------------------

    def must_be(self, producer: Producer, commit: bool, what: str) -> None:
        """Somebody is told a verdict."""
        if self.verdicts.get(producer) is not commit:
            text = f"{what} says {commit} of {tuple(producer)}; committed is {self.verdicts.get(producer)}"
            self.wrong("early-answer", text)

    def must_be_enrolled(self, asked: Asked, producer: Producer, partitions: Iterable[PartitionId]) -> None:
        """Somebody is told that these are part of a transaction."""
        if asked.ended:
            self.wrong("late-enrolment", f"{tuple(producer)} is taken in, and had ended before that was asked")
        for partition in partitions:
            if partition not in self.enrolled[producer]:
                self.wrong("early-answer", f"{tuple(producer)} in {partition.partition} is answered, not committed")

    def is_handed_out(self, name: str, producer: Producer, owner_epoch: int | None) -> None:
        """Nobody gets what another one has."""
        if producer in self._handed_out:
            self.wrong("identity-twice", f"{name} is {tuple(producer)} again")
        self._handed_out.add(producer)
        if owner_epoch is not None:
            self._came_under[producer] = owner_epoch

    def has_ended_here(self, id: PartitionId, producer_id: int, epoch: int) -> None:
        """A shard of groups says that it has the end of a transaction."""
        for key, producer in self.pending.items():
            if producer.producer_id == producer_id and producer.epoch < epoch:
                text = f"{tuple(producer)} has ended in shard {id.partition}, {key!r} is pending"
                self.wrong("early-answer", text)

    def position_told(self, asked: Asked, key: OffsetKey, offset: int, *, stable: bool) -> None:
        """
        A committed position is answered, -1 for none.

        It is not older than what was committed when it was asked for; with ``stable`` no open transaction moves it.
        """
        known = asked.positions.get(key, -1)
        if offset < known:
            self.wrong("stale-position", f"{key} is told to be {offset}; it was {known} before that was asked")
        if stable and any(self.pending.get(one) == asked.pending[one] for one in asked.pending if _is_of(one, key)):
            self.wrong("unstable-position", f"{key} is told to be {offset}, a transaction is open that moves it")

    def description_told(self, asked: Asked, told: TransactionDescription) -> None:
        """The state of an id is answered; it was so at some time since that was asked."""
        states = self.states[told.transactional_id]
        before = [one for one in states if one[0] <= asked.moment][-1:]
        since = [*before, *(one for one in states if one[0] > asked.moment)]
        known = any((told.state, told.producer) == (state, producer) for _, state, producer in since)
        if since and not known and not _is_overtaken(told, since):
            text = f"{told.transactional_id} is told to be {told.state.name} {tuple(told.producer)}; it is {since}"
            self.wrong("stale-answer", text)

    # --- at the end -------------------------------------------------------------------------------------------

    def describe_hanging(self) -> str:
        """After healing: what is not over; empty: everything is."""
        for id, shown in self.shown.items():
            for batches in shown.open.values():
                first = batches[0]
                return f"partition {id.partition} has {tuple(first.producer)} open since {first.base}"
        return f"{len(self.pending)} positions are pending" if self.pending else ""


def _is_of(pending: bytes, key: OffsetKey) -> bool:
    """Whether a pending position is that one's."""
    one = read_key(pending)
    return isinstance(one, PendingKey) and (one.group_id, one.partition) == key
