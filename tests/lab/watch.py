"""
What must hold inside a cluster of the lab after every step, of replication: looked at in the brokers and in the store
of metadata themselves.

``ended`` and ``batches`` are the truth about a log: all that any leader ever counted as committed. Nothing in it may
change, or be missing where it must be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from headrace_broker.core.partition import Partition as Core
from headrace_broker.core.partition_events import BatchesCopied
from headrace_broker.core.rows import IndexRow
from headrace_broker.engine.image_applier import ImageApplier
from headrace_broker.engine.replicas import Replica, Replicas
from headrace_broker.ports import LogStore
from headrace_common.core.errors import CorruptBatch
from headrace_common.core.ids import NO_NODE, NodeId, Offset, PartitionId
from headrace_common.core.image import Node as NodeMetadata
from headrace_common.core.image import Partition
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_controller.core import election
from headrace_controller.core.election import Brokers, Rules
from headrace_controller.core.isr_changes import Proposal, apply_proposal
from headrace_controller.core.records import NODES_PREFIX, PARTITIONS_PREFIX, decode
from headrace_controller.core.store import Operation, Put
from headrace_controller.engine import isr_changes
from headrace_lab.loop import NODE, Node

REFUSALS_MAX = 4
"""So often a follower is at odds with what its leader sends to go on from its end; then it is for ever."""
Batch = tuple[int, int, int, int, int, int]
"""Base offset, next offset, leader epoch, producer id, producer epoch, sequence."""


@dataclass(eq=False)
class Process:
    """One broker, from its start to its end."""

    node: Node
    incarnation: bytes
    replicas: Replicas
    store: LogStore
    verified: dict[PartitionId, tuple[int, int]] = field(default_factory=dict)
    """Of each log: its truncations, and up to where it was compared since the last."""
    refused: dict[PartitionId, tuple[int, list[float]]] = field(default_factory=dict)
    """Of each log: its end, and when it refused what the leader sent to go on from there."""

    @property
    def id(self) -> NodeId:
        """Of the broker."""
        return self.replicas.broker_id


@dataclass
class Truth:
    """About one partition."""

    end: int = 0
    """Of what is committed."""
    batches: dict[int, Batch] = field(default_factory=dict)
    """By their base offset."""
    leaders: dict[int, Process] = field(default_factory=dict)
    """By leader epoch."""


class Watch:
    """Of one cluster; made before it starts."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        """Called with what does not hold."""
        self._processes: dict[Node, Process] = {}
        self._truth: dict[PartitionId, Truth] = {}
        self._partitions: dict[PartitionId, Partition] = {}
        self._nodes: dict[NodeId, NodeMetadata] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this runs all brokers and stores of this process are looked at."""

        def decided(old: Partition, proposal: Proposal, sender: NodeId, brokers: Brokers, rules: Rules) -> Partition:
            new = apply_proposal(old, proposal, sender, brokers, rules)
            for member in [one for one in new.isr if one not in old.isr]:
                if not brokers.may_lead(member) or proposal.isr[member] != brokers.epochs.get(member):
                    self._tell(f"stranger in ISR: broker {member}, fenced or restarted, is let into {new}")
            return new

        opened, handled, written = ImageApplier.__init__, Core.handle, MemoryStore._write

        def __init__(one: ImageApplier, *rest: Any) -> None:
            opened(one, *rest)
            node = NODE.get()
            self._processes[node] = Process(node, one._incarnation, one._replicas, one._store)

        def handle(core: Core, event: Any) -> Any:
            before = (core.high_watermark, core.written_end, core.truncations, core.leader_epoch)
            try:
                effects = handled(core, event)
            except CorruptBatch:
                if isinstance(event, BatchesCopied):
                    self._refused(core)
                raise
            self.handled(core, event, effects)
            if before != (core.high_watermark, core.written_end, core.truncations, core.leader_epoch):
                self._moved(core)
            return effects

        async def _write(store: MemoryStore, operations: tuple[Operation, ...]) -> None:
            await written(store, operations)
            self._stored(operations)

        with ExitStack() as patches:
            patches.enter_context(patch.object(ImageApplier, "__init__", __init__))
            patches.enter_context(patch.object(Core, "handle", handle))
            patches.enter_context(patch.object(MemoryStore, "_write", _write))
            patches.enter_context(patch.object(isr_changes, "apply_proposal", decided))
            yield

    # --- for kinds that look at more --------------------------------------------------------------------------

    def handled(self, core: Core, event: Any, effects: Any) -> None:
        """A core has taken in an event."""

    def took(self, process: Process, replica: Replica, row: IndexRow) -> None:
        """One more batch is committed."""

    def checked(self, process: Process, replica: Replica) -> None:
        """A log has moved, and was looked at."""

    def check_gap(self, process: Process, replica: Replica, row: IndexRow, truth: Truth) -> None:
        """Compaction has left this in a log of whatever was there."""

    def joined(self, process: Process, id: PartitionId) -> None:
        """A broker is in sync that was not."""

    def process_of(self, broker: int) -> Process | None:
        """That of a broker that runs."""
        running = (one for one in reversed(self._processes.values()) if one.id == broker and one.node.alive)
        return next(running, None)

    def running(self) -> Process | None:
        """That whose code runs now."""
        return self._processes.get(NODE.get())

    def partitions(self) -> dict[PartitionId, Partition]:
        """As the store of metadata has them."""
        return self._partitions

    def nodes(self) -> dict[NodeId, NodeMetadata]:
        """Brokers, as the store has them."""
        return self._nodes

    def truth(self, id: PartitionId) -> Truth:
        """All that is known of a log."""
        return self._truth.setdefault(id, Truth())

    # --- what happens -----------------------------------------------------------------------------------------

    def _moved(self, core: Core) -> None:
        """A log has other ends than before, or another role."""
        process = self._processes.get(NODE.get())
        replica = None if process is None else process.replicas.get(core.id)
        if process is None or replica is None or replica.core is not core:
            return
        truth = self._truth.setdefault(core.id, Truth())
        if core.leader_epoch is not None:
            known = truth.leaders.setdefault(core.leader_epoch, process)
            if known is not process and known.id != process.id:
                self.wrong("two leaders", process, core, f"broker {known.id} leads in epoch {core.leader_epoch} too")
            if core.high_watermark > truth.end:
                self._committed(process, replica, truth)
        self._check(process, replica, truth)

    def _refused(self, core: Core) -> None:
        """A follower takes none of what its leader sends: it may be behind by one answer, but has to get on."""
        process = self.running()
        if process is None:
            return
        end, times = process.refused.setdefault(core.id, (core.log_end, []))
        if end != core.log_end:
            end, times = process.refused[core.id] = core.log_end, []
        now_s = asyncio.get_running_loop().time()
        if now_s not in times:
            times.append(now_s)
        if len(times) == REFUSALS_MAX:
            self.wrong("stuck", process, core, f"what the leader sends does not go on from its end, {core.log_end}")

    def _committed(self, process: Process, replica: Replica, truth: Truth) -> None:
        """A leader counts more as committed."""
        core = replica.core
        if truth.end < core.log_start:
            self.wrong("lost", process, core, f"the log begins at {core.log_start}, committed are {truth.end}")
            return
        before = truth.end
        for row in process.store.index(core.log, Offset(truth.end), core.high_watermark):
            if row.base_offset != truth.end or row.next_offset > core.high_watermark:
                self.wrong("gap", process, core, f"a batch at {row.base_offset}, committed are {truth.end}")
                return
            truth.batches[row.base_offset] = _batch(row)
            truth.end = row.next_offset
            self.took(process, replica, row)
        if truth.end != core.high_watermark:
            self.wrong("high watermark", process, core, f"at {core.high_watermark}, the log has {truth.end}")
        if truth.end > before:
            self._check_members(core.id)

    def _stored(self, operations: tuple[Operation, ...]) -> None:
        puts = [operation for operation in operations if isinstance(operation, Put)]
        for put in puts:
            if put.key.startswith(f"{NODES_PREFIX}broker/"):
                node = decode(put.key, put.value)
                assert isinstance(node, NodeMetadata)
                self._nodes[node.key.id] = node
        for put in puts:
            if put.key.startswith(PARTITIONS_PREFIX):
                partition = decode(put.key, put.value)
                assert isinstance(partition, Partition)
                self._changed(partition)

    def _changed(self, partition: Partition) -> None:
        """The controller has changed a partition."""
        before = self._partitions.get(partition.id)
        self._partitions[partition.id] = partition
        election.check(partition)
        if before is not None and (
            partition.partition_epoch <= before.partition_epoch
            or partition.leader_epoch < before.leader_epoch
            or (partition.leader_epoch == before.leader_epoch and partition.leader not in (before.leader, NO_NODE))
        ):
            self._tell(f"epochs: {before} became {partition}")
        for member in () if before is None else [one for one in partition.isr if one not in before.isr]:
            process = self.process_of(member)
            if process is not None and self._counts(process):
                self.joined(process, partition.id)
        leader = self.process_of(partition.leader)
        if leader is not None and (replica := leader.replicas.get(partition.id)) is not None:
            self._check_maximal(leader, replica.core, partition)
        self._check_members(partition.id)

    # --- what must hold ---------------------------------------------------------------------------------------

    def _check_members(self, id: PartitionId) -> None:
        """Who is in the ISR, or may be elected without loss, has all that is committed."""
        partition, truth = self._partitions.get(id), self._truth.get(id)
        if partition is None or truth is None:
            return
        for process in self._processes.values():
            if process.id not in (*partition.isr, *partition.elr) or not self._counts(process):
                continue
            replica = process.replicas.get(id)
            if replica is None:
                if truth.end > 0:
                    self._tell(f"incomplete: broker {process.id} is in sync and has no log of {id}")
                continue
            core = replica.core
            if core.written_end < truth.end:
                text = f"in sync and written up to {core.written_end}, committed are {truth.end}"
                self.wrong("incomplete", process, core, text)
            else:
                self.compare(process, replica, truth, truth.end)

    def _counts(self, process: Process) -> bool:
        """It runs, and the metadata speaks of it, not of one before or after."""
        node = self._nodes.get(process.id)
        return process.node.alive and node is not None and node.incarnation == process.incarnation

    def _check(self, process: Process, replica: Replica, truth: Truth) -> None:
        core = replica.core
        if not core.log_start <= core.last_stable <= core.high_watermark <= core.written_end <= core.log_end:
            ends = (core.log_start, core.last_stable, core.high_watermark, core.written_end, core.log_end)
            self.wrong("order", process, core, f"log start, last stable, high watermark, written, end: {ends}")
        if core.high_watermark > truth.end:
            self.wrong("high watermark", process, core, f"at {core.high_watermark}, committed are {truth.end}")
        partition = self._partitions.get(core.id)
        self._check_maximal(process, core, partition)
        if replica.damage is None:
            self.compare(process, replica, truth, core.high_watermark)
        counts = partition is not None and process.id in (*partition.isr, *partition.elr) and self._counts(process)
        if counts and core.written_end < truth.end:
            text = f"in sync and written up to {core.written_end}, committed are {truth.end}"
            self.wrong("incomplete", process, core, text)
        self.checked(process, replica)

    def _check_maximal(self, process: Process, core: Core, partition: Partition | None) -> None:
        """Who leads counts at least those who are in the ISR, or may be elected."""
        leading = core.leading
        if partition is None or leading is None or not self._counts(process):
            return
        missing = [m for m in (*partition.isr, *partition.elr) if m not in leading.maximal]
        if missing and leading.enough and leading.assignment.leader_epoch == partition.leader_epoch:
            self.wrong("maximal ISR", process, core, f"it counts {set(leading.maximal)}, without {missing}")

    def compare(self, process: Process, replica: Replica, truth: Truth, end: int) -> None:
        """The log below ``end`` is what was committed; what was compared before is not compared again."""
        core = replica.core
        truncations, upto = process.verified.get(core.id, (core.truncations, 0))
        start = max(upto if truncations == core.truncations else 0, core.log_start)
        if start >= end:
            return
        holder = process.store.floor(core.log, Offset(start))
        if holder is not None and holder.next_offset > start:
            start = int(holder.base_offset)  # the log start may be inside a batch
        for row in process.store.index(core.log, Offset(start), Offset(end)):
            if _is_gap(row):
                self.check_gap(process, replica, row, truth)
            elif truth.batches.get(row.base_offset) != _batch(row):
                text = f"{_batch(row)} is there, committed is {truth.batches.get(row.base_offset)}"
                self.wrong("diverged", process, core, text)
                break
            start = row.next_offset
        if start < end:
            self.wrong("hole", process, core, f"nothing from {start}, committed are {end}")
        process.verified[core.id] = (core.truncations, end)

    def wrong(self, what: str, process: Process, core: Core, text: str) -> None:
        """Tell of a log what does not hold."""
        self._tell(f"{what}: broker {process.id}, {core.id}: {text}")


def _is_gap(row: IndexRow) -> bool:
    """Whether compaction has left it of whatever was there."""
    return row.record_count == 0 and row.producer_id < 0


def _batch(row: IndexRow) -> Batch:
    return (
        row.base_offset,
        row.next_offset,
        row.leader_epoch,
        row.producer_id,
        row.producer_epoch,
        row.base_sequence,
    )
