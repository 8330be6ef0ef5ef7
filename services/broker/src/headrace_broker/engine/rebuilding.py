"""
What depends on the end of a log, found anew for an earlier end. Called before a log is cut or trimmed, and at opening.
"""

from __future__ import annotations

from headrace_broker.core.local_log import LocalLog, segment_rows
from headrace_broker.core.partition_events import Rebuilt, TrimAsked
from headrace_broker.core.producers import Producers
from headrace_broker.core.rows import IndexRow, LogId, SegmentRow
from headrace_broker.core.segments import Segments
from headrace_broker.ports import LogStore
from headrace_common.core.ids import Offset


def rebuild(store: LogStore, log: LocalLog, end: Offset, now_ms: int) -> Rebuilt:
    """Producers and segments as they are when the log ends at ``end``; reads a snapshot and the index rows after it."""
    producers, since = _restore_producers(store, log, end, now_ms)
    last = store.floor(log.log, Offset(end - 1)) if end > log.first_batch else None
    kept = [row for row in segment_rows(log) if row.base_offset < end]
    if kept and kept[-1].end_offset is not None and kept[-1].end_offset > end:
        open_again = kept.pop()
        kept.append(SegmentRow(open_again.base_offset, open_again.created_at_ms))
    segments = Segments.recover(kept, last, end, now_ms, log.segments.roll_jitter)
    return Rebuilt(producers, segments, sum(row.size for row in since))


def prepare_trim(store: LogStore, log: LocalLog, offset: Offset, now_ms: int) -> TrimAsked:
    """
    What trims a log to ``offset``.

    What producers sent before goes with the batches that it would be found from, so it is written down as of where the
    log then begins: a later cut of the end must not take it along.
    """
    boundary = find_batch_boundary(store, log, offset)
    if boundary <= log.first_batch:
        return TrimAsked(offset, boundary)
    return TrimAsked(offset, boundary, _restore_producers(store, log, boundary, now_ms)[0].snapshot())


def _restore_producers(store: LogStore, log: LocalLog, end: Offset, now_ms: int) -> tuple[Producers, list[IndexRow]]:
    """All producers as they were before ``end``, and the rows since their last snapshot."""
    at, rows = store.producers_before(log.log, end) or (log.log_start, ())
    producers = Producers(rows)
    since = read_rows(store, log.log, at, end)
    producers.replay(since, now_ms)
    return producers, since


def read_rows(store: LogStore, log: LogId, start: Offset, end: Offset) -> list[IndexRow]:
    """Rows of the batches from the one that holds ``start`` on; one that ends at ``start`` is left out."""
    holder = store.floor(log, start)
    inside = holder is not None and holder.next_offset > start  # the log start may be inside a batch
    replay_from = holder.base_offset if holder is not None and inside else start
    return list(store.index(log, replay_from, end))


def find_batch_boundary(store: LogStore, log: LocalLog, offset: Offset) -> Offset:
    """The base of the batch that holds ``offset``; the offset itself where it is between batches."""
    if not log.log_start <= offset < log.log_end:
        return offset
    row = store.floor(log.log, offset)
    return offset if row is None or row.next_offset <= offset else row.base_offset
