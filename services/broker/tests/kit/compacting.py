"""Compaction of one log of a running broker, here and now: for tests of those who read what is left."""

from __future__ import annotations

from headrace_broker.core.compaction.cleaning import Cleaning
from headrace_broker.core.compaction.dirty_keys import DirtyKeys
from headrace_broker.core.compaction.offset_map import OffsetMap
from headrace_broker.core.compaction.plan import dirty_range
from headrace_broker.core.compaction.rules import rules_of
from headrace_broker.core.compaction.steps import Step
from headrace_broker.core.partition_events import Compacted
from headrace_broker.core.rows import IndexRow
from headrace_broker.engine.broker import Broker
from headrace_broker.engine.replicas import Replica
from headrace_broker.ports import LogStore
from headrace_common.core.ids import Offset, PartitionId

MAP_BYTES = 4 << 20
SEED = 0x0123456789ABCDEF_FEDCBA9876543210


async def compact(
    broker: Broker, store: LogStore, partition: PartitionId, *, now_ms: int, delete_retention_ms: int = 0
) -> None:
    """Everything that is decided, as a cleaner would at ``now_ms``; the active segment is sealed before."""
    replica = broker.replicas.get(partition)
    assert replica is not None, "the broker has the log"
    core = replica.core
    if core.segments.active.size:
        await broker.loop.post(replica, core.roll(now_ms))
    dirty = dirty_range(core, lambda offset: store.floor(core.log, offset), 0, now_ms)
    if dirty.end <= dirty.start:
        return
    rules = rules_of(core, dirty.end, core.clean_points, delete_retention_ms, now_ms)
    keys = DirtyKeys(dirty.start, OffsetMap(MAP_BYTES, SEED), rules, replica.topic)
    for row in list(store.index(core.log, dirty.start, dirty.end)):
        more = keys.take(row, await _batch(store, replica, row) if keys.wants(row) else None)
        assert more, "tests are small"
    keys.map.complete()
    cleaning = Cleaning(core.log, replica.topic, rules, keys.map, dirty.start, core.segments.sealed)
    for row in list(store.index(core.log, core.first_batch, keys.end)):
        step = cleaning.take(row, await _batch(store, replica, row) if cleaning.wants(row) else None)
        if step is not None:
            await _apply(broker, replica, step)
    await _apply(broker, replica, cleaning.finish(core.clean_points))


async def _batch(store: LogStore, replica: Replica, row: IndexRow) -> bytes:
    [batch] = await store.read(replica.core.log, [row])
    return batch


async def _apply(broker: Broker, replica: Replica, step: Step) -> None:
    await broker.loop.post(replica, Compacted(step, replica.core.truncations))


def batches_of(store: LogStore, replica: Replica) -> list[tuple[Offset, Offset, int]]:
    """Of each stored batch: where it begins, where the next one does, and how many records are left in it."""
    log = replica.core
    rows = store.index(log.log, log.first_batch, log.log_end)
    return [(row.base_offset, row.next_offset, row.record_count) for row in rows]
