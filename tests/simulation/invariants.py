"""
What must hold after every step (docs/replication.md, invariants). ``committed`` is the ghost: everything that any
leader ever showed, with who wrote it; nothing in it may change or be missing where it must be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.compaction import Contents, covered
from tests.simulation.controllers import _bytes
from tests.simulation.store import Snapshot
from tests.simulation.writers import FIRST_PRODUCER

from headrace_broker.core.fences import token_in
from headrace_broker.core.rows import IndexRow
from headrace_common.core.batch import read_header
from headrace_common.core.errors import HeadraceError, OutOfOrderSequence
from headrace_common.core.ids import NO_NODE, NodeId, Offset, PartitionId
from headrace_controller.core import election

if TYPE_CHECKING:
    from tests.simulation.brokers import Broker, Replica
    from tests.simulation.clients import Request
    from tests.simulation.world import World

Entry = tuple[int, int, int, int, int, int]
"""Base offset, next offset, leader epoch, producer id, producer epoch, sequence."""


class Violation(AssertionError):
    """An invariant does not hold; ``name`` says which."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Invariants:
    """The checks of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        ids = world.store.snapshot.partitions
        self.log: dict[PartitionId, list[Entry]] = {id: [] for id in ids}
        self.end: dict[PartitionId, int] = dict.fromkeys(ids, 0)
        self._at: dict[PartitionId, dict[int, Entry]] = {id: {} for id in ids}
        self._leaders: dict[tuple[PartitionId, int], tuple[NodeId, int]] = {}
        self._touched: list[tuple[Broker, PartitionId]] = []
        self._moved = True
        self._bases: dict[PartitionId, list[int]] = {id: [] for id in ids}
        self._contents = None if world.keyed is None else Contents(world, world.keyed)
        self.fences: dict[PartitionId, list[tuple[int, int]]] = {id: [] for id in ids}
        """Offsets and tokens of the fences that are committed."""

    # --- noted as it happens ------------------------------------------------------------------------------

    def touched(self, broker: Broker, id: PartitionId) -> None:
        """A core has taken an event in."""
        self._touched.append((broker, id))

    def elected(self, broker: Broker, id: PartitionId) -> None:
        """A broker begins to lead."""
        epoch = broker.replicas[id].core.leader_epoch
        assert epoch is not None
        if epoch == self._world.store.snapshot.partitions[id].leader_epoch:  # or it has not heard who came after it
            self._look_into(broker, id)
        known = self._leaders.setdefault((id, epoch), (broker.id, broker.incarnation))
        if known != (broker.id, broker.incarnation) and known[0] != broker.id:
            raise Violation("two-leaders", f"{known[0]} and {broker.id} lead {id.partition} in epoch {epoch}")

    def committed(self, broker: Broker, id: PartitionId) -> None:
        """A leader shows more to readers."""
        core = broker.replicas[id].core
        log, at, end = self.log[id], self._at[id], self.end[id]
        if core.high_watermark <= end:
            return
        if end < core.log_start:
            raise Violation("lost-committed", f"{broker.id} shows {core.log_start} on, committed are {end}")
        for row in broker.disk.index(core.log, Offset(end), core.high_watermark):
            if row.base_offset != end or row.next_offset > core.high_watermark:
                raise Violation("gap", f"{broker.id} shows {id.partition} {row.base_offset}, committed ends at {end}")
            entry = entry_of(row)
            self._check_token(broker, id, row)
            log.append(entry)
            at[row.base_offset] = entry
            self._bases[id].append(row.base_offset)
            if self._contents is not None:
                self._contents.committed(id, row.base_offset, entry[3:])
            end = row.next_offset
        if end != core.high_watermark:
            raise Violation("high-watermark", f"{broker.id} shows up to {core.high_watermark}, its log has {end}")
        self.end[id] = end
        self._moved = True

    def rewritten(self, broker: Broker, id: PartitionId) -> None:
        """A step of a compaction was written."""
        replica = broker.replicas[id]
        replica.verified = (replica.core.truncations, 0)
        self._verify(broker, id, replica, replica.core.high_watermark)
        self._look_into(broker, id, replica.core.high_watermark)

    def written_in(self, id: PartitionId, row: IndexRow) -> list[tuple[int, tuple[int, int, int]]]:
        """Base and identity of what was written where there is this batch now: one batch, or the many of a gap."""
        if not is_gap(row):
            return [(row.base_offset, (row.producer_id, row.producer_epoch, row.base_sequence))]
        within = covered(self._bases[id], row.base_offset, row.next_offset)
        return [(entry[0], entry[3:]) for entry in (self.log[id][number] for number in within)]

    def _look_into(self, broker: Broker, id: PartitionId, end: int | None = None) -> None:
        """Record by record, in worlds with compaction; ``end``: of what it has of what is committed, by default all."""
        if self._contents is None or broker.replicas[id].damaged:
            return
        wrong = self._contents.wrong(broker, id, self.end[id] if end is None else end)
        if wrong is not None:
            raise Violation(*wrong)

    def _check_token(self, broker: Broker, id: PartitionId, row: IndexRow) -> None:
        """Tokens of fences grow, and between two fences only the writer of the first one writes."""
        fences = self.fences[id]
        present = fences[-1][1] if fences else -1
        batch = broker.disk._live[broker.replicas[id].core.log].batches[row.base_offset]
        token = token_in(read_header(batch), batch)
        if token is not None:
            if token <= present:
                raise Violation("token", f"{id.partition}@{row.base_offset} sets {token} after {present}")
            fences.append((row.base_offset, token))
        elif row.producer_id >= FIRST_PRODUCER and row.producer_id - FIRST_PRODUCER != present:
            written = row.producer_id - FIRST_PRODUCER
            raise Violation("zombie", f"{id.partition}@{row.base_offset} was written under {written}, not {present}")

    def refused(self, broker: Broker, request: Request, error: HeadraceError) -> None:
        """An acks=all batch whose predecessors were all acknowledged cannot be out of order at the true leader."""
        if not (isinstance(error, OutOfOrderSequence) and request.first):
            return
        if request.sent.attempt != request.attempt or request.sent.offset is not None:
            return
        partition = self._world.store.snapshot.partitions[request.id]
        core = broker.replicas[request.id].core
        if partition.leader == broker.id and partition.leader_epoch == core.leader_epoch:
            raise Violation("sequence-lost", f"{broker.id} {request.id.partition}: {error}")

    def stored(self, old: Snapshot, new: Snapshot) -> None:
        """The store has a new revision."""
        self._moved = True
        for id, partition in new.partitions.items():
            before = old.partitions[id]
            if partition is before:
                continue
            election.check(partition)
            if partition.partition_epoch <= before.partition_epoch or partition.leader_epoch < before.leader_epoch:
                raise Violation("epochs", f"{before} became {partition}")
            if partition.leader != before.leader and partition.leader_epoch == before.leader_epoch:
                raise Violation("epochs", f"another leader in the same epoch: {before} became {partition}")
            min_isr = self._world.rules_of(partition).min_isr
            if len(partition.isr) >= min_isr and partition.elr:
                raise Violation("elr", f"ELR beside a full ISR: {partition}")
            for member in partition.isr:
                if member not in before.isr and id in self._world.brokers[member].replicas:
                    self._look_into(self._world.brokers[member], id)
                if member not in before.isr and (new.nodes[member].fenced or new.nodes[member].in_controlled_shutdown):
                    raise Violation("fenced-in-isr", f"{member} joins {partition}")

    # --- after each step ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that the last step may have broken."""
        touched, self._touched = self._touched, []
        if self._moved:
            self._moved = False
            self._check_members()
        else:
            for broker, id in touched:
                self._check_member(broker, id)
        for broker, id in touched:
            self._check_core(broker, id)

    def _check_members(self) -> None:
        for id, partition in self._world.store.snapshot.partitions.items():
            for member in (*partition.isr, *partition.elr):
                self._check_member(self._world.brokers[member], id)

    def _check_member(self, broker: Broker, id: PartitionId) -> None:
        """ISR and ELR hold everything that is committed; that is leader completeness, too."""
        snapshot = self._world.store.snapshot
        partition = snapshot.partitions[id]
        if broker.id not in partition.isr and broker.id not in partition.elr:
            return
        node = snapshot.nodes.get(broker.id)
        if (
            node is None
            or not broker.up
            or broker.broker_epoch != node.epoch
            or node.incarnation != _bytes(broker.incarnation)
        ):
            return
        replica = broker.replicas.get(id)
        end = self.end[id]
        if replica is None:
            if end > 0:
                raise Violation("incomplete", f"{broker.id} is in sync and has no log of {id.partition}")
            return
        if replica.core.written_end < end:
            where = "ISR" if broker.id in partition.isr else "ELR"
            raise Violation(
                "incomplete",
                f"{broker.id} in the {where} of {id.partition} has {replica.core.written_end}, committed are {end}",
            )
        self._verify(broker, id, replica, end)

    def _check_core(self, broker: Broker, id: PartitionId) -> None:
        replica = broker.replicas.get(id)
        if replica is None:
            return
        core = replica.core
        if not core.log_start <= core.high_watermark <= core.written_end <= core.log_end:
            raise Violation(
                "order", f"{broker.id}: {core.log_start} {core.high_watermark} {core.written_end} {core.log_end}"
            )
        if core.high_watermark > self.end[id]:
            raise Violation("high-watermark", f"{broker.id} knows {core.high_watermark}, committed are {self.end[id]}")
        self._verify(broker, id, replica, core.high_watermark)
        committed = next((t for offset, t in reversed(self.fences[id]) if offset < core.high_watermark), -1)
        newer = bool(self.fences[id]) and self.fences[id][-1][0] >= core.log_end
        superseded = newer and self._contents is not None  # fences go where newer ones are, which it is to copy yet
        if core.fences.token < committed and not superseded:
            raise Violation("token-lost", f"{broker.id} {id.partition} has {core.fences.token}, not {committed}")
        leading = core.leading
        if leading is None:
            return
        partition = self._world.store.snapshot.partitions[id]
        if leading.assignment.leader_epoch == partition.leader_epoch and leading.enough:
            missing = [m for m in (*partition.isr, *partition.elr) if m not in leading.maximal]
            if missing:
                raise Violation(
                    "maximal-isr", f"leader {broker.id} of {id.partition} counts {set(leading.maximal)}, not {missing}"
                )

    def _verify(self, broker: Broker, id: PartitionId, replica: Replica, end: int) -> None:
        """The log below ``end`` is what was committed; what was compared before is not compared again."""
        core = replica.core
        truncations, upto = replica.verified
        if truncations != core.truncations:
            upto = 0
        if upto >= end:
            return
        at = self._at[id]
        start = max(upto, core.log_start)
        holder = broker.disk.floor(core.log, Offset(start))
        if holder is not None and holder.next_offset > start:
            start = int(holder.base_offset)  # the log start may be inside a batch
        for row in broker.disk.index(core.log, Offset(start), Offset(end)):
            if is_gap(row):
                self._verify_gap(broker, id, row, start)
            elif at.get(row.base_offset) != entry_of(row):
                raise Violation(
                    "diverged",
                    f"{broker.id} {id.partition}@{row.base_offset} has {entry_of(row)}, committed is"
                    f" {at.get(row.base_offset)}",
                )
            start = row.next_offset
        if start < end:
            raise Violation("hole", f"{broker.id} {id.partition} has nothing from {start}, committed are {end}")
        replica.verified = (core.truncations, end)

    def _verify_gap(self, broker: Broker, id: PartitionId, row: IndexRow, start: int) -> None:
        """Whole batches of one epoch were there, or the end of one in which the log began."""
        entries = [self.log[id][number] for number in covered(self._bases[id], row.base_offset, row.next_offset)]
        begins = row.base_offset in self._at[id] or row.base_offset == broker.replicas[id].core.first_batch
        ends = row.next_offset == self.end[id] or row.next_offset in self._at[id]
        if not (begins and ends and row.base_offset <= start) or any(e[2] != row.leader_epoch for e in entries):
            raise Violation("gap", f"{broker.id} {id.partition} has {row} in the place of {entries}")

    # --- at the end ---------------------------------------------------------------------------------------

    def replicas_agree(self) -> None:
        """Byte for byte up to the high watermark; where logs are compacted, record by record."""
        world = self._world
        for id, partition in world.store.snapshot.partitions.items():
            if partition.leader == NO_NODE:
                continue
            found: dict[int, bytes] = {}
            for member in partition.isr:
                broker = world.brokers[member]
                replica = broker.replicas.get(id)
                if replica is None:
                    continue
                if self._contents is not None:
                    self._look_into(broker, id)
                    continue
                batches = broker.disk._live[replica.core.log].batches
                for base in sorted(batches):
                    shown = base < replica.core.high_watermark
                    if shown and found.setdefault(base, batches[base]) != batches[base]:
                        raise Violation("bytes", f"{member} {id.partition}@{base} differs")


def is_gap(row: IndexRow) -> bool:
    """Whether compaction has left it of whatever was there."""
    return row.record_count == 0 and row.producer_id < 0


def entry_of(row: IndexRow) -> Entry:
    """What makes a batch that batch."""
    return (
        row.base_offset,
        row.next_offset,
        row.leader_epoch,
        row.producer_id,
        row.producer_epoch,
        row.base_sequence,
    )
