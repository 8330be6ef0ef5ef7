"""
What must always hold of transactions, looked at from outside: in the committed logs of partitions and of shards, in
what is answered, in what readers get.

The truth about a transaction is what the committed log of its shard says (``verdicts``); the truth about a partition is
what any leader ever showed. A partition's markers, the positions of groups and everything that is read must agree with
the first; the last stable offset of every replica with the second.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.invariants import Invariants as OfReplicas
from tests.simulation.invariants import Violation
from tests.simulation.store import Snapshot
from tests.simulation.transactions.shard_log import Entry

from headrace_broker.core.rows import COMMITS_BIT, TRANSACTIONAL_BIT, IndexRow
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import PartitionId
from headrace_coordinator.core.effects import OffsetOutcomes, Row
from headrace_coordinator.core.events import TxnCommitAsked
from headrace_coordinator.core.records import OffsetKey, PendingKey, read_key, read_offset
from headrace_coordinator.core.transactions.effects import (
    Answer,
    DecideResult,
    InitResult,
    OwnerResult,
    UnitResult,
    WriteMarkers,
)
from headrace_coordinator.core.transactions.events import (
    DecideAsked,
    EndAsked,
    EnrolAsked,
    InitAsked,
    OwnerInitAsked,
    UnitAsked,
)
from headrace_coordinator.core.transactions.records import Kind, read_owner, read_transaction
from headrace_coordinator.core.transactions.records import read_key as read_transaction_key
from headrace_coordinator.core.transactions.values import NO_CLAIM, EndCause, Producer, TxnState, owner_of
from headrace_coordinator.core.values import CommittedOffset

if TYPE_CHECKING:
    from tests.simulation.brokers import Broker
    from tests.simulation.transactions.clients import Txn
    from tests.simulation.transactions.coordinators import ShownLife, Told
    from tests.simulation.transactions.drivers import Checkpoints
    from tests.simulation.transactions.world import World

WITH_PARTITIONS = (TxnState.ONGOING, TxnState.PREPARED)


@dataclass
class Batch:
    """Some records of a partition that are committed there."""

    base: int
    end: int
    producer: Producer
    sequence: int
    visible: bool | None
    """None: its transaction has no marker here yet."""


@dataclass
class Shown:
    """A partition as the leaders showed it."""

    batches: list[Batch] = field(default_factory=list)
    open: dict[int, list[Batch]] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    """Producer id → epoch of the last marker."""


class Invariants(OfReplicas):
    """Of one world; each method raises ``Violation``."""

    _world: World

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.shown_of: dict[PartitionId, Shown] = {id: Shown() for id in world.store.snapshot.partitions}
        self.verdicts: dict[Producer, bool] = {}
        self.claims: defaultdict[str, dict[int, int]] = defaultdict(dict)
        """Of each owner: claims and the epochs that they began."""
        self._epochs: dict[str, int] = {}
        """Of owners, in the log."""
        self._came_under: dict[Producer, int] = {}
        """Which epoch of its owner a producer came with."""
        self.enrolled: set[tuple[Producer, PartitionId]] = set()
        self.positions: dict[OffsetKey, CommittedOffset] = {}
        self._number = 0
        self._tokens: dict[int, int] = {}
        self._identities: dict[Producer, object] = {}
        self._values: dict[tuple[PartitionId, Producer, int], tuple[int, ...]] = {}
        self._handed_out: set[Producer] = set()
        self.pending: set[bytes] = set()
        """Keys of positions that are pending by the log."""

    def next_number(self) -> int:
        """Of a decision."""
        self._number += 1
        return self._number

    def stored(self, old: Snapshot, new: Snapshot) -> None:
        """Elections are sound here; only what is looked at changes."""
        del old, new
        self._moved = True

    # --- what is sent -----------------------------------------------------------------------------------------

    def is_sent(self, txn: Txn, id: PartitionId, sequence: int, values: tuple[int, ...]) -> None:
        """A writer makes a batch: nobody else has its identity."""
        owner = self._identities.setdefault(txn.producer, txn)
        if owner is not txn:
            raise Violation("shared-identity", f"{txn.producer} writes transaction {txn.number} and another one")
        self._values[id, txn.producer, sequence] = values

    def is_plain(self, id: PartitionId, producer_id: int, sequence: int, value: int) -> None:
        """A record outside of transactions."""
        self._values[id, Producer(producer_id, 0), sequence] = (value,)

    def values_at(self, id: PartitionId, row: IndexRow) -> tuple[int, ...]:
        """What a batch holds."""
        return self._values[id, Producer(row.producer_id, row.producer_epoch), row.base_sequence]

    # --- partitions -------------------------------------------------------------------------------------------

    def _check_token(self, broker: Broker, id: PartitionId, row: IndexRow) -> None:
        """One more batch is committed in a partition; called once for each, in their order."""
        shown, producer = self.shown_of[id], Producer(row.producer_id, row.producer_epoch)
        where = f"{id.partition}@{row.base_offset} of {tuple(producer)}, shown by {broker.id}"
        if row.ends_transaction:
            self._marked(id, shown, producer, bool(row.attributes & COMMITS_BIT), where)
            return
        transactional = bool(row.attributes & TRANSACTIONAL_BIT)
        batch = Batch(row.base_offset, row.next_offset, producer, row.base_sequence, None if transactional else True)
        shown.batches.append(batch)
        if not transactional:
            return
        if producer.epoch < shown.marks.get(producer.producer_id, -1):
            raise Violation("zombie-write", f"{where}; its transaction has ended")
        opened = shown.open.setdefault(producer.producer_id, [])
        if opened and opened[0].producer != producer:
            raise Violation("mixed-transactions", f"{where}; {tuple(opened[0].producer)} is open")
        opened.append(batch)
        if (producer, id) not in self.enrolled:
            raise Violation("not-enrolled", f"{where}; its coordinator does not know of it")

    def _marked(self, id: PartitionId, shown: Shown, marker: Producer, commit: bool, where: str) -> None:
        if marker.epoch <= shown.marks.get(marker.producer_id, -1):
            if self._world.counts["fault expire_producers"] and marker.producer_id not in shown.open:
                return  # nobody knew of it any more, and there is nothing that it could end
            raise Violation("marker-twice", where)
        shown.marks[marker.producer_id] = marker.epoch
        opened = shown.open.pop(marker.producer_id, [])
        ended = opened[0].producer if opened else Producer(marker.producer_id, marker.epoch - 1)
        if ended.epoch >= marker.epoch:
            raise Violation("marker-epoch", f"{where} ends {tuple(ended)}")
        verdict = self.verdicts.get(ended)
        if verdict is None:
            raise Violation("undecided-marker", f"{where}; {tuple(ended)} is not decided")
        if verdict is not commit:
            raise Violation("wrong-marker", f"{where} says {commit}; {tuple(ended)} was decided {verdict}")
        for batch in opened:
            batch.visible = commit
        if commit and opened and opened[0].producer != Producer(marker.producer_id, marker.epoch - 1):
            raise Violation("wrong-marker", f"{where} commits {tuple(ended)}, which is not its transaction")
        del id

    def stable(self, id: PartitionId) -> int:
        """Up to where everything is decided and its marker committed; replicas may know of less, never of more."""
        opened = self.shown_of[id].open.values()
        return min((batches[0].base for batches in opened), default=self.end[id])

    def _check_core(self, broker: Broker, id: PartitionId) -> None:
        super()._check_core(broker, id)
        replica = broker.replicas.get(id)
        if replica is None:
            return
        core = replica.core
        if not core.log_start <= core.last_stable <= core.high_watermark:
            raise Violation("stable-order", f"{broker.id}: {core.log_start} {core.last_stable} {core.high_watermark}")
        if core.last_stable > max(self.stable(id), core.log_start):
            text = f"{broker.id} shows {id.partition} up to {core.last_stable}, decided is up to {self.stable(id)}"
            raise Violation("last-stable", text)

    def was_read(self, broker: Broker, id: PartitionId, start: int, end: int, found: list[tuple[int, int]]) -> None:
        """A reader of committed records got these between two positions."""
        wanted = []
        for batch in reversed(self.shown_of[id].batches):
            if batch.end <= start:
                break
            if batch.base >= end or batch.base < start:
                continue
            if batch.visible is None:
                raise Violation("undecided-read", f"{broker.id} {id.partition}@{batch.base} of {tuple(batch.producer)}")
            if batch.visible:
                wanted = [*self._points(id, batch), *wanted]
        if wanted != found:
            text = f"{broker.id} {id.partition} {start} to {end}: {found} were read, committed are {wanted}"
            raise Violation("misread", text)

    def _points(self, id: PartitionId, batch: Batch) -> list[tuple[int, int]]:
        return list(enumerate(self._values[id, batch.producer, batch.sequence], batch.base))

    def points(self, id: PartitionId) -> list[tuple[int, int]]:
        """Offsets and values of everything that is committed, by the shards' logs."""
        found = []
        for batch in self.shown_of[id].batches:
            if batch.visible or (batch.visible is None and self.verdicts.get(batch.producer)):
                found += self._points(id, batch)
        return found

    # --- shards -----------------------------------------------------------------------------------------------

    def committed(self, where: object, what: object) -> None:
        """A batch of a shard's log, or what a leader of a partition shows, is committed."""
        if isinstance(what, Entry):
            assert isinstance(where, int), "shards have numbers"
            self._entry(where, what)
        else:
            super().committed(where, what)

    def _entry(self, shard: int, entry: Entry) -> None:
        token = self._tokens.get(shard, 0)
        if entry.token < token or (not entry.fence and entry.token != token):
            raise Violation("zombie-append", f"token {entry.token} after {token} in shard {shard}")
        self._tokens[shard] = entry.token
        for one in entry.rows:
            if shard < self._world.profile.transaction_shards:
                self._transaction_row(one.row)
            else:
                self._position_row(one.row)

    def _transaction_row(self, row: Row) -> None:
        key, value = row
        kind, name = read_transaction_key(key)
        if value is None:
            return
        if kind is Kind.OWNER:
            owner = read_owner(name, value)
            self._epochs[name] = owner.epoch
            if owner.claim != NO_CLAIM:
                self._claimed(name, owner.claim, owner.claim_epoch)
            for nonce, producer in self._world.nonces.items():
                if owner.has_committed(nonce):
                    self._verdict(producer, True, f"unit of {name}")
        elif kind is Kind.TRANSACTION:
            txn = read_transaction(name, value)
            owner_name = owner_of(name)
            if txn.state in WITH_PARTITIONS and owner_name is not None:
                self._must_be_current(name, txn.producer, owner_name)
            if txn.state is TxnState.PREPARED:
                self._world.nonces[txn.nonce] = txn.producer
            about = txn.producer if txn.state in WITH_PARTITIONS else None
            if txn.decided is not None:
                decided = txn.decided
                about = about or decided.producer
                self._verdict(decided.producer, decided.commit, f"{name} by {decided.cause.name}")
                if decided.nonce and owner_of(name) is None and decided.cause is not EndCause.TOKEN:
                    raise Violation(
                        "prepared", f"{name} {decided.producer} was prepared; {decided.cause.name} ended it"
                    )
            if about is not None:
                self.enrolled.update((about, partition) for partition in txn.list_enrolled())

    def _claimed(self, owner: str, claim: int, epoch: int) -> None:
        """A claim has one epoch, and a higher claim a higher one."""
        claims = self.claims[owner]
        if claims.setdefault(claim, epoch) != epoch:
            raise Violation("claim-twice", f"{owner}: claim {claim} has epoch {claims[claim]} and {epoch}")
        for other, its in claims.items():
            if (other < claim) is not (its < epoch) and other != claim:
                raise Violation("claim-order", f"{owner}: claim {other} has epoch {its}, {claim} has {epoch}")

    def _must_be_current(self, name: str, producer: Producer, owner: str) -> None:
        """Once the log has an epoch of an owner, nothing of those before it goes on."""
        came, epoch = self._came_under.get(producer), self._epochs.get(owner, -1)
        if came is not None and came < epoch and self.claims[owner]:
            raise Violation("older-owner", f"{name} {tuple(producer)} goes on, of epoch {came} of {epoch}")

    def _verdict(self, producer: Producer, commit: bool, why: str) -> None:
        known = self.verdicts.setdefault(producer, commit)
        if known is not commit:
            raise Violation("verdict-changed", f"{tuple(producer)} was decided {known}, now {commit}: {why}")

    def _position_row(self, row: Row) -> None:
        key, value = row
        found = read_key(key)
        if isinstance(found, PendingKey):
            if value is None:
                self.pending.discard(key)
            else:
                self.pending.add(key)
            return
        if not isinstance(found, OffsetKey) or value is None:
            return
        position = self.positions[found] = read_offset(value)
        txn = self._world.transactions[int(position.metadata)]
        if not self.verdicts.get(txn.producer):
            text = f"position {position.offset} of transaction {txn.number} {tuple(txn.producer)} is committed"
            raise Violation("position-of-aborted", f"{text}, it is decided {self.verdicts.get(txn.producer)}")

    # --- what is answered -------------------------------------------------------------------------------------

    def shown(self, life: ShownLife, told: Told) -> None:
        """An effect goes out: what it stands on is committed."""
        effect, event = told.effect, told.event
        if isinstance(event, OwnerInitAsked) and isinstance(effect, Answer) and isinstance(effect.result, OwnerResult):
            if event.claim is not None:
                self._claimed(event.owner, event.claim, effect.result.owner_epoch)
            return
        if isinstance(effect, WriteMarkers):
            ended = Producer(effect.producer_id, effect.epoch - 1)
            self._must_be(ended, effect.commit, f"markers of {effect.transactional_id}")
            return
        result = getattr(effect, "result", None)
        if isinstance(result, HeadraceError):
            return
        if isinstance(event, EndAsked) and isinstance(result, Producer):
            self._must_be(Producer(event.producer_id, event.epoch), event.commit, f"end of {event.transactional_id}")
        elif isinstance(result, DecideResult):
            assert isinstance(event, DecideAsked), "a verdict answers who decides"
            token = event.token
            self._must_be(Producer(token.producer_id, token.epoch), result.committed, f"token {token}")
        elif isinstance(result, UnitResult):
            assert isinstance(event, UnitAsked), "a unit was asked for"
            for token in () if result.repeated_sequence else event.tokens:
                self._must_be(Producer(token.producer_id, token.epoch), True, f"unit {event.sequence}")
        elif isinstance(result, InitResult):
            self._identity(event, result)
        elif isinstance(event, EnrolAsked):
            self._must_be_enrolled(Producer(event.producer_id, event.epoch), tuple(event.partitions))
        elif isinstance(event, TxnCommitAsked) and isinstance(result, OffsetOutcomes) and not result.outcomes[0].error:
            here = PartitionId(self._world.offsets_topic, life.number)
            self._must_be_enrolled(Producer(event.producer_id, event.producer_epoch), (here,))

    def _must_be(self, producer: Producer, commit: bool, what: str) -> None:
        if self.verdicts.get(producer) is not commit:
            text = f"{what} says {commit} of {tuple(producer)}; committed is {self.verdicts.get(producer)}"
            raise Violation("early-answer", text)

    def _must_be_enrolled(self, producer: Producer, partitions: tuple[PartitionId, ...]) -> None:
        for partition in partitions:
            if (producer, partition) not in self.enrolled:
                raise Violation(
                    "early-answer", f"{tuple(producer)} in {partition.partition} is answered, not committed"
                )

    def _identity(self, event: object, result: InitResult) -> None:
        """Nobody gets what another one has. (A coordinator that was paused answers late what is true still.)"""
        assert isinstance(event, InitAsked), "asked for an identity"
        if result.prepared is not None:
            return
        if result.producer in self._handed_out or result.producer in self._identities:
            raise Violation("identity-twice", f"{event.transactional_id} is {tuple(result.producer)} again")
        self._handed_out.add(result.producer)
        if event.owner_epoch is not None:
            self._came_under[result.producer] = event.owner_epoch

    # --- at the end -------------------------------------------------------------------------------------------

    def units_whole(self) -> None:
        """All transactions of a unit have one verdict; who has none was never decided."""
        for listed in self._world.units:
            verdicts = {self.verdicts.get(txn.producer) for txn in listed}
            if {True, False} <= verdicts:
                text = [(txn.number, tuple(txn.producer), self.verdicts.get(txn.producer)) for txn in listed]
                raise Violation("torn-unit", f"{text}")

    def batches_once(self, checkpoints: Checkpoints) -> None:
        """Of all plans of a batch one was committed, and of one that some driver knows as done at least one."""
        for (owner, batch), plans in checkpoints.units.items():
            committed = [one for one in plans if any(self.verdicts.get(txn.producer) for txn in one)]
            if len(committed) > 1:
                text = f"batch {batch} of {owner}: {[[txn.number for txn in one] for one in committed]}"
                raise Violation("batch-twice", text)
            if batch < checkpoints.done[owner] and not committed:
                raise Violation("batch-lost", f"batch {batch} of {owner} is done, and nothing of it was committed")

    def what_hangs(self) -> str:
        """After healing: what is not over; empty: everything is."""
        for id, shown in self.shown_of.items():
            for batches in shown.open.values():
                first = batches[0]
                return f"partition {id.partition} has {tuple(first.producer)} open since {first.base}"
        return f"{len(self.pending)} positions are pending" if self.pending else ""
