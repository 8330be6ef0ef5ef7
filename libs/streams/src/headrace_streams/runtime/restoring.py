"""
Brings cold tiers up to their changelogs.

The end is the high watermark, taken after this worker had become the only writer and the group's positions were stable:
every transaction that counts had been decided before, so its records are below. Positions move past markers, aborted
batches and gaps too, so reading committed records gets there as soon as each transaction below has its marker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace.records import PartitionTable, TopicPartition
from headrace_common.runtime.clock import Clock
from headrace_streams.core.state.changelog import CONTROL, Progress, newest
from headrace_streams.ports import Checkpoint, Reader, TaskStore

_WAIT_MS: Final = 1_000
_ROWS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Restored:
    """One changelog partition to follow."""

    store: TaskStore
    log_id: str


async def restore(
    reader: Reader,
    wanted: Mapping[TopicPartition, Restored],
    clock: Clock,
    trusted_ms: int,
    told: Callable[[int, int], None],
    compute: Callable[..., Awaitable[Any]],
) -> None:
    """
    Follow changelogs to their ends.

    Args:
        trusted_ms: a cold tier whose checkpoint is older is wiped first: deletions may be gone from the changelog.
        told: called with the rows restored so far, and those that are left at most.
        compute: runs what takes long beside the event loop.
    """
    if not wanted:
        return
    ends = await reader.ends(list(wanted))
    positions = {tp: _begin(at, ends[tp], clock, trusted_ms) for tp, at in wanted.items()}
    positions = {tp: position for tp, position in positions.items() if max(position, 0) < ends[tp]}
    restored = 0
    if positions:
        await reader.assign(positions)
    while any(position < ends[tp] for tp, position in positions.items()):
        for batch in await reader.poll(_WAIT_MS, _ROWS):
            tp = TopicPartition(batch.topic, batch.partition)
            at = wanted[tp]
            positions[tp] = batch.next_offset
            checkpoint = Checkpoint(at.log_id, batch.next_offset, clock.now_ms())
            await compute(_apply, at.store, batch, checkpoint)
            restored += batch.table.num_rows
        told(restored, sum(max(0, ends[tp] - position) for tp, position in positions.items()))


def _begin(at: Restored, end: int, clock: Clock, trusted_ms: int) -> int:
    """Where to go on; -1: from the start. What is on the disk of another log, or too old, is wiped."""
    checkpoint = at.store.checkpoint()
    if checkpoint is None:
        return -1
    fresh = 0 <= clock.now_ms() - checkpoint.at_ms <= trusted_ms
    if checkpoint.log_id != at.log_id or not fresh or checkpoint.next_offset > end:
        at.store.wipe()
        return -1
    return checkpoint.next_offset


def _apply(store: TaskStore, batch: PartitionTable, checkpoint: Checkpoint) -> None:
    table: pa.Table = batch.table
    keys: list[Any] = table["key"].to_pylist()
    values: list[Any] = table["value"].to_pylist()
    store.write(list(newest(zip(keys, values, strict=True)).items()), checkpoint)


def progress_of(store: TaskStore) -> Progress:
    """What the last commit of a restored task says; nothing was committed: as a new task."""
    found = store.get(CONTROL)
    return Progress() if found is None else Progress.decode(found)
