"""
Compaction in the world of replication: keyed records, a cleaner at every broker, and what must be left of each key.

The cleaner drives the core's two passes as the engine does, one step at a time, with anything in between: crashes,
elections, cuts, trims, logs that begin anew. ``Contents`` judges each replica against everything that was committed.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import patch

from services.broker.tests.kit.batches import NOW_MS, batch_of

from headrace_broker.core.compaction import cleaning as cleaning_core
from headrace_broker.core.compaction.cleaning import Cleaning
from headrace_broker.core.compaction.dirty_keys import DirtyKeys
from headrace_broker.core.compaction.offset_map import KEY_BYTES, OffsetMap
from headrace_broker.core.compaction.plan import dirty_range
from headrace_broker.core.compaction.rules import rules_of
from headrace_broker.core.compaction.steps import Step, StepOutdated
from headrace_broker.core.local_log import segment_rows
from headrace_broker.core.partition_events import Compacted, RetentionChecked
from headrace_broker.core.rows import IndexRow
from headrace_common.core.batch import RecordColumns, build_batch, decode_batch
from headrace_common.core.configs import TopicConfig
from headrace_common.core.ids import NodeId, Offset, PartitionId

if TYPE_CHECKING:
    from tests.simulation.brokers import Broker, Replica
    from tests.simulation.world import World

COMPACTED_EVERY = 16
"""One of so many seeds; the others stay as they were."""
CLEAN_EVERY_MS = 120.0
STEP_MS = 15.0
KEYS = 6
CLOCK_RATE_MAX = 1.15
"""How much faster than the world a broker's clock is at most."""
Record = tuple[bytes, bytes | None]
BatchId = tuple[int, int, int]
"""Producer, its epoch, sequence: what the value of a batch is found by."""


@dataclass(frozen=True)
class Terms:
    """What of compaction differs from world to world."""

    delete_retention_ms: int
    away_ms: float
    """How long the leader spares followers that it does not hear."""
    retention_bytes: int
    """-1: nothing goes for the size of a log."""
    keys_max: int
    """Of one pass."""
    step_writes_max: int

    @staticmethod
    def drawn(rng: Random) -> Terms:
        """From the seed."""
        return Terms(
            delete_retention_ms=rng.choice((0, 100, 100, 600, 2_000)),
            away_ms=rng.choice((50.0, 300.0, 300.0, 2_000.0)),
            retention_bytes=rng.choice((-1, -1, 8_000)),
            keys_max=rng.choice((4, 100, 100)),
            step_writes_max=rng.choice((1, 3, 10)),
        )


class Keyed:
    """What producers of a compacted world write: values under few keys, and deletions."""

    def __init__(self, seed: int, config: TopicConfig) -> None:
        self.rng = Random(seed ^ 0x5EED)
        self.terms = Terms.drawn(self.rng)
        self.config = replace(
            config,
            compacts=True,
            retention_bytes=self.terms.retention_bytes,
            retention_ms=-1,
            delete_retention_ms=self.terms.delete_retention_ms,
        )
        self.records: dict[BatchId, tuple[Record, ...]] = {(-1, -1, -1): ()}

    def batch(self, values: tuple[int, ...], producer: int, epoch: int, sequence: int) -> bytes:
        """A batch of these; some are deletions, in which a value stands for nobody to see."""
        rng = self.rng
        records = tuple((b"%d" % rng.randrange(KEYS), None if rng.random() < 0.3 else b"%d" % v) for v in values)
        self.records[producer, epoch, sequence] = records
        columns = RecordColumns([v for _, v in records], [k for k, _ in records], timestamps_ms=NOW_MS)
        return build_batch(columns, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)

    def config_of(self, broker: NodeId) -> TopicConfig:
        """Segments have another size at each broker, so that replicas are cut differently."""
        return replace(self.config, segment_bytes=700 + 300 * broker)


def plain_batch(values: tuple[int, ...], producer: int, epoch: int, sequence: int) -> bytes:
    """A batch of a world without compaction."""
    return batch_of([b"%d" % v for v in values], producer_id=producer, epoch=epoch, sequence=sequence)


@dataclass
class Pass:
    """One compaction of one log, under way."""

    id: PartitionId
    replica: Replica
    truncations: int
    cleaning: Cleaning
    at: Offset
    end: Offset
    step: Step | None = None
    """To be applied next."""
    last: bool = False


class Cleaner:
    """That of one broker; its passes die with the process."""

    def __init__(self, broker: Broker, world: World, keyed: Keyed) -> None:
        self._broker = broker
        self._world = world
        self._keyed = keyed
        self._pass: Pass | None = None
        self._incarnation = -1

    def tick(self) -> None:
        """Begin a pass, or take the one that is under way a step further."""
        broker, rng = self._broker, self._keyed.rng
        if broker.incarnation != self._incarnation or not broker.up:
            self._pass, self._incarnation = None, broker.incarnation
        if broker.up and not broker.paused and broker.broker_epoch >= 0:
            if self._pass is not None:
                self._apply(self._pass)
            else:
                self._retain()
                self._begin()
        pause = STEP_MS if self._pass is not None else CLEAN_EVERY_MS
        self._world.schedule.after(pause * (0.2 + 1.6 * rng.random()), self.tick)

    def _retain(self) -> None:
        for id, replica in self._broker.replicas.items():
            if replica.core.leading is not None:
                self._broker.handle(id, RetentionChecked(int(self._broker.clock), -(1 << 60)))

    def _begin(self) -> None:
        broker, keyed = self._broker, self._keyed
        sound = [id for id, replica in broker.replicas.items() if not replica.damaged]
        if not sound:
            return
        id = keyed.rng.choice(sound)
        replica, disk, now_ms = broker.replicas[id], broker.disk, int(broker.clock)
        core = replica.core
        dirty = dirty_range(core, lambda offset: disk.floor(core.log, offset), 0, now_ms)
        if dirty.end <= dirty.start:
            return
        spared = core.forgets_below(broker.clock, keyed.terms.away_ms)
        rules = rules_of(core, dirty.end, core.clean_points, keyed.terms.delete_retention_ms, now_ms, spared)
        keys = DirtyKeys(dirty.start, OffsetMap(keyed.terms.keys_max * KEY_BYTES, 7), rules, str(id.partition))
        for row in list(disk.index(core.log, dirty.start, dirty.end)):
            if not keys.take(row, self._batch(core.log, row) if keys.wants(row) else None):
                break
        keys.map.complete()
        name = f"{id.partition} at {broker.id}"
        cleaning = Cleaning(core.log, name, rules, keys.map, dirty.start, segment_rows(core))
        self._pass = Pass(id, replica, core.truncations, cleaning, core.first_batch, keys.end)
        self._world.counts["compactions"] += 1
        self._walk(self._pass)

    def _walk(self, one: Pass) -> None:
        """Up to the next step."""
        with patch.object(cleaning_core, "STEP_WRITES_MAX", self._keyed.terms.step_writes_max):
            self._next_step(one)

    def _next_step(self, one: Pass) -> None:
        log, cleaning = one.replica.core.log, one.cleaning
        for row in list(self._broker.disk.index(log, one.at, one.end)):
            one.at = row.next_offset
            one.step = cleaning.take(row, self._batch(log, row) if cleaning.wants(row) else None)
            if one.step is not None:
                return
        one.step, one.last = cleaning.finish(one.replica.core.clean_points), True

    def _apply(self, one: Pass) -> None:
        assert one.step is not None
        broker = self._broker
        self._pass = None
        if broker.replicas.get(one.id) is not one.replica:
            return
        try:
            broker.rewrite(one.id, Compacted(one.step, one.truncations))
        except StepOutdated:
            self._world.counts["steps outdated"] += 1
            return
        self._world.counts["compaction steps"] += 1
        if not one.last:
            self._pass = one
            self._walk(one)

    def _batch(self, log: int, row: IndexRow) -> bytes:
        return self._broker.disk._live[log].batches[row.base_offset]


class Contents:
    """The ghost: every committed record of every partition, by offset, and what may be missing of it."""

    def __init__(self, world: World, keyed: Keyed) -> None:
        self._world = world
        self._keyed = keyed
        self._records: dict[PartitionId, dict[int, Record]] = {}
        self._since_ms: dict[PartitionId, dict[int, float]] = {}
        self._newest: dict[PartitionId, dict[bytes, int]] = {}

    def committed(self, id: PartitionId, base: int, batch: BatchId) -> None:
        """One more batch is."""
        at = self._records.setdefault(id, {})
        for place, record in enumerate(self._keyed.records[batch]):
            at[base + place] = record
            self._since_ms.setdefault(id, {})[base + place] = self._world.schedule.now
            self._newest.setdefault(id, {})[record[0]] = base + place

    def wrong(self, broker: Broker, id: PartitionId, end: int) -> tuple[str, str] | None:
        """What is wrong with a replica, of which everything below ``end`` is committed: a name, and words."""
        replica = broker.replicas[id]
        core, ghost = replica.core, self._records.get(id, {})
        found: dict[int, Record] = {}
        batches = broker.disk._live[core.log].batches
        for row in broker.disk.index(core.log, core.first_batch, core.log_end):
            found.update(_records_of(batches[row.base_offset]))
        who = f"{broker.id} {id.partition}"
        for offset, record in found.items():
            if offset < end and ghost.get(offset) != record:
                return "record-changed", f"{who}@{offset} has {record}, committed is {ghost.get(offset)}"
        within = range(core.log_start, min(core.log_end, end))
        missing = frozenset(offset for offset in within if offset in ghost and offset not in found)
        truncations, gone = replica.missing
        if truncations == core.truncations:
            back = [offset for offset in gone if offset >= core.log_start and offset in found]
            if back:
                return "reappeared", f"{who} has {back} again"
        replica.missing = core.truncations, missing
        oldest: dict[bytes, int] = {}
        for offset in sorted(found):
            if offset >= core.log_start:
                oldest.setdefault(found[offset][0], offset)
        for offset in missing:
            key, value = ghost[offset]
            if self._newest[id][key] > offset:
                continue
            if value is not None:
                return "key-lost", f"{who}@{offset}: the last value of {key!r} is missing"
            if oldest.get(key, offset) < offset:
                return "resurrected", f"{who}: {key!r} was deleted at {offset} and is still there at {oldest[key]}"
            told_ms = self._world.schedule.now - self._since_ms[id][offset]
            if told_ms * CLOCK_RATE_MAX + 1 < self._keyed.terms.delete_retention_ms:
                return "deleted-early", f"{who}@{offset}: the deletion of {key!r} is gone after {told_ms:.0f} ms"
        return None


@lru_cache(4_096)
def _records_of(batch: bytes) -> dict[int, Record]:
    decoded = decode_batch(batch)
    if decoded.is_control or decoded.record_count == 0:
        return {}
    return {
        o: (bytes(k or b""), v) for o, k, v in zip(decoded.offsets(), decoded.keys(), decoded.values(), strict=True)
    }


def covered(bases: list[int], base: int, end: int) -> range:
    """Which of the batches that begin at ``bases``, ascending, begin within."""
    return range(bisect_right(bases, base - 1), bisect_right(bases, end - 1))
