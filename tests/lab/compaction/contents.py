"""
Compaction in the world of replication: keyed records, and what must be left of each key.

``Contents`` judges each replica, record by record, against everything that was committed.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

from tests.lab.replication.clients import NOW_MS
from tests.lab.replication.ghost import Ghost, batch_at
from tests.lab.watch import Process, Truth

from headrace_broker.core.partition import Partition as Core
from headrace_broker.core.partition_events import Compacted, Elected
from headrace_broker.core.rows import IndexRow
from headrace_broker.engine.replicas import Replica
from headrace_common.core.batch import RecordColumns, build_batch, decode_batch
from headrace_common.core.ids import PartitionId

HOT_KEYS = 4
COLD_KEYS = 12
"""Written as often as the hot ones together: what was last said of one of them is old at times."""
Record = tuple[bytes, bytes | None]
BatchId = tuple[int, int, int]
"""Producer, its epoch, sequence: what the value of a batch is found by."""


@dataclass(frozen=True)
class Terms:
    """What of compaction differs from world to world."""

    delete_retention_ms: int
    away_ms: int
    """How long the leader spares followers that it does not hear."""
    retention_bytes: int
    """-1: nothing goes for the size of a log."""
    keys_max: int
    """Of one pass."""
    step_writes_max: int
    read_s_max: float
    """How long each read of a pass takes at most."""
    segment_bytes: int

    @staticmethod
    def drawn(random: Random) -> Terms:
        """From the seed."""
        return Terms(
            delete_retention_ms=random.choice((0, 100, 100, 600, 2_000)),
            away_ms=random.choice((50, 300, 300, 2_000)),
            retention_bytes=random.choice((-1, -1, 3_000)),
            keys_max=random.choice((6, 100, 100)),
            step_writes_max=random.choice((1, 3, 10)),
            read_s_max=random.choice((0.001, 0.02, 0.1)),
            segment_bytes=random.choice((250, 700)),
        )


class Keyed:
    """What producers of a compacted world write: values under few keys, and deletions."""

    def __init__(self, random: Random) -> None:
        self.records: dict[BatchId, tuple[Record, ...]] = {}
        self._random = random
        self._value = 0

    def batch(self, count: int, producer: int, epoch: int, sequence: int) -> bytes:
        """A batch of so many records; some are deletions."""
        random, records = self._random, list[Record]()
        for _ in range(count):
            self._value += 1
            key = random.randrange(HOT_KEYS) if random.random() < 0.5 else HOT_KEYS + random.randrange(COLD_KEYS)
            records.append((b"%d" % key, None if random.random() < 0.3 else b"%d" % self._value))
        self.records[producer, epoch, sequence] = tuple(records)
        columns = RecordColumns([value for _, value in records], [key for key, _ in records], timestamps_ms=NOW_MS)
        return build_batch(columns, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


@dataclass(frozen=True)
class _Written:
    """A record that was committed."""

    record: Record
    at_s: float


class Contents(Ghost):
    """A ghost that also knows every committed record of every partition, by offset."""

    def __init__(self, tell: Callable[[str], None], keyed: Keyed, terms: Terms) -> None:
        super().__init__(tell)
        self.has_gaps = True
        self.steps = 0
        """Of compactions."""
        self._keyed = keyed
        self._terms = terms
        self._records: dict[PartitionId, dict[int, _Written]] = {}
        self._newest: dict[PartitionId, dict[bytes, int]] = {}
        self._missing: dict[tuple[Process, PartitionId], tuple[int, frozenset[int]]] = {}
        self._bases: dict[PartitionId, list[int]] = {}

    # --- when it looks ----------------------------------------------------------------------------------------

    def handled(self, core: Core, event: Any, effects: Any) -> None:
        """After each step of a compaction, and when somebody begins to lead."""
        super().handled(core, event, effects)
        if not isinstance(event, Compacted | Elected):
            return
        process = self.running()
        replica = None if process is None else process.replicas.get(core.id)
        if process is None or replica is None or replica.core is not core:
            return
        if isinstance(event, Compacted):
            self.steps += 1
            process.verified.pop(core.id, None)
            self.compare(process, replica, self.truth(core.id), core.high_watermark)
            self._look(process, replica, core.high_watermark)
        elif core.leader_epoch == self.partitions()[core.id].leader_epoch:  # or it has not heard who came after it
            self._look(process, replica, self.truth(core.id).end)

    def joined(self, process: Process, id: PartitionId) -> None:
        """And when somebody joins."""
        super().joined(process, id)
        replica = process.replicas.get(id)
        if replica is not None:
            self._look(process, replica, self.truth(id).end)

    def took(self, process: Process, replica: Replica, row: IndexRow) -> None:
        """See ``Ghost``."""
        super().took(process, replica, row)
        id, now = replica.id, asyncio.get_running_loop().time()
        self._bases.setdefault(id, []).append(row.base_offset)
        records = self._keyed.records.get((row.producer_id, row.producer_epoch, row.base_sequence), ())
        for offset, record in enumerate(records, start=row.base_offset):
            self._records.setdefault(id, {})[offset] = _Written(record, now)
            self._newest.setdefault(id, {})[record[0]] = offset

    # --- what must hold ---------------------------------------------------------------------------------------

    def check_gap(self, process: Process, replica: Replica, row: IndexRow, truth: Truth) -> None:
        """Whole batches of one epoch were there, or the end of one in which the log began."""
        bases, core = self._bases.get(replica.id, []), replica.core
        within = bases[bisect_right(bases, row.base_offset - 1) : bisect_right(bases, row.next_offset - 1)]
        begins = row.base_offset in truth.batches or row.base_offset == core.first_batch
        ends = row.next_offset == truth.end or row.next_offset in truth.batches
        if not (begins and ends) or any(truth.batches[base][2] != row.leader_epoch for base in within):
            self.wrong("gap", process, core, f"{row} is in the place of {[truth.batches[base] for base in within]}")

    def _look(self, process: Process, replica: Replica, end: int) -> None:
        """All that a replica has, of which everything below ``end`` is committed."""
        if replica.damage is not None:
            return
        core, ghost = replica.core, self._records.get(replica.id, {})
        found: dict[int, Record] = {}
        for row in process.store.index(core.log, core.first_batch, core.log_end):
            found.update(_records_of(batch_at(process, replica, row)))
        for offset, record in found.items():
            if offset < end and (offset not in ghost or ghost[offset].record != record):
                self.wrong("record changed", process, core, f"{offset} has {record}, committed is {ghost.get(offset)}")
                return
        within = range(core.log_start, min(core.log_end, end))
        missing = frozenset(offset for offset in within if offset in ghost and offset not in found)
        truncations, gone = self._missing.get((process, replica.id), (-1, frozenset()))
        self._missing[process, replica.id] = core.truncations, missing
        if truncations == core.truncations:
            back = [offset for offset in sorted(gone) if offset >= core.log_start and offset in found]
            if back:
                self.wrong("reappeared", process, core, f"{back} are there again")
        self._check_missing(process, replica, found, missing)

    def _check_missing(
        self, process: Process, replica: Replica, found: dict[int, Record], missing: frozenset[int]
    ) -> None:
        core, ghost, newest = replica.core, self._records[replica.id] if missing else {}, self._newest
        oldest: dict[bytes, int] = {}
        for offset in sorted(found):
            if offset >= core.log_start:
                oldest.setdefault(found[offset][0], offset)
        for offset in sorted(missing):
            key, value = ghost[offset].record
            if newest[replica.id][key] > offset:
                continue
            if value is not None:
                self.wrong("key lost", process, core, f"{offset}, the last value of {key!r}, is missing")
            if oldest.get(key, offset) < offset:
                self.wrong("resurrected", process, core, f"{key!r} was deleted at {offset}, and is at {oldest[key]}")
            if value is None and offset >= core.forgotten_to:
                text = f"the deletion at {offset} is gone, and it says that all from {core.forgotten_to} on are there"
                self.wrong("not noted", process, core, text)
            told_ms = (asyncio.get_running_loop().time() - ghost[offset].at_s) * 1_000
            if told_ms + 2 < self._terms.delete_retention_ms:
                self.wrong("deleted early", process, core, f"the deletion of {key!r} is gone after {told_ms:.0f} ms")


@lru_cache(4_096)
def _records_of(batch: bytes) -> dict[int, Record]:
    decoded = decode_batch(batch)
    if decoded.is_control or decoded.record_count == 0:
        return {}
    offsets, keys = decoded.offsets(), decoded.keys()
    return {o: (bytes(k or b""), v) for o, k, v in zip(offsets, keys, decoded.values(), strict=True)}
