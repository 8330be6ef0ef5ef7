"""
Decides what of each log is sound after opening, and whether a log lost what it is known to have had.

``RocksDbLogs.open`` calls it once. After a clean shutdown only the ends are read. Else, from the last verified point:
the index must be dense and the newest batches must have their checksum; what follows the first fault is cut off, or,
when the log is damaged, kept until something is written there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace_broker.adapters.evidence_file import Evidence
from headrace_broker.adapters.rocksdb_errors import StoreBroken, means_lost_bytes
from headrace_broker.adapters.rocksdb_groups import reopen
from headrace_broker.adapters.rocksdb_keys import (
    LOG_ID_MAX,
    NUMBER_MAX,
    OWN_LOG,
    Kind,
    RowUnreadable,
    decode_aborted,
    decode_epoch,
    decode_index,
    decode_producers,
    decode_segment,
    decode_state,
    make_key,
    split_key,
)
from headrace_broker.adapters.rocksdb_store import RocksDbStore
from headrace_broker.core.recovered import Damage, RecoveredLog
from headrace_broker.core.rows import AbortedRow, EpochRow, IndexRow, LogId, SegmentRow, StateRow
from headrace_common.core.batch.checksum import crc32c
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import Offset

_BATCH_FIELDS = struct.Struct(">qiibI2xi")  # base offset, length, leader epoch, magic, crc, (attributes), last delta
_CRC_FROM = 21


@dataclass(slots=True)
class Recovery:
    """What was found."""

    logs: list[RecoveredLog] = field(default_factory=list)
    bytes_checked: int = 0
    cuts: list[str] = field(default_factory=list)
    to_cut: dict[LogId, Offset] = field(default_factory=dict)
    """Logs with rows after their sound end that nobody was promised."""
    kept: dict[LogId, Offset] = field(default_factory=dict)
    """Damaged logs with rows after their sound end."""
    unreadable: dict[LogId, str] = field(default_factory=dict)
    """Logs with rows that cannot be read, and why."""
    highest: LogId = OWN_LOG
    """The highest id that is in use, or was when the evidence was written."""


@dataclass(slots=True)
class _Meta:
    state: StateRow
    segments: list[SegmentRow]
    epochs: list[EpochRow]
    aborted: list[AbortedRow]


def fault_of(row: IndexRow, batch: bytes | None) -> str | None:
    """What is wrong with ``batch`` as the one that ``row`` describes."""
    wrong = _difference(row, batch)
    if wrong is None and batch is not None and _checksum(batch) != _BATCH_FIELDS.unpack_from(batch)[4]:
        return "its checksum is wrong"
    return wrong


def _checksum(batch: bytes) -> int:
    return crc32c(memoryview(batch)[_CRC_FROM:])


def _difference(row: IndexRow, batch: bytes | None) -> str | None:
    """What the bytes say that the checksum does not cover."""
    if batch is None:
        return "it is missing"
    if len(batch) != row.size:
        return f"it has {len(batch)} bytes instead of {row.size}"
    base, length, epoch, magic, _, delta = _BATCH_FIELDS.unpack_from(batch)
    if base != row.base_offset:
        return f"it says base offset {base}"
    if length + 12 != row.size:
        return f"it says {length + 12} bytes"
    if epoch != row.leader_epoch:
        return f"it says leader epoch {epoch} instead of {row.leader_epoch}"
    if magic not in (2, 3):
        return f"it says magic {magic}"
    if delta != row.last_offset_delta:
        return f"it says last offset delta {delta} instead of {row.last_offset_delta}"
    return None


def recover(
    store: RocksDbStore, evidence: Mapping[LogId, Evidence], clean: bool, cause: str, *, emptied: bool = False
) -> Recovery:
    """
    Walk all logs. ``cause``: what the WAL guard found, for the reasons of damage; empty: nothing. ``emptied``: the
    store is new in place of one that was lost, so logs are missing also where the evidence has no end to show.

    Raises:
        StorageFailed: rows cannot be read; StoreBroken where the bytes are wrong.
    """
    found = Recovery()
    found.highest = max(evidence, default=OWN_LOG)
    for log in log_ids(store, evidence):
        found.highest = max(found.highest, log)
        entry = evidence.get(log)
        try:
            _recover_log(store, log, entry, clean, cause, found)
        except (RowUnreadable, StorageFailed) as error:
            if entry is None:
                kind = StoreBroken if means_lost_bytes(error) else StorageFailed
                raise kind(f"the rows of log {log} in {store.path} are not readable: {error}") from error
            found.unreadable[log] = f"its rows are not readable: {error}"
            found.logs.append(_unreadable_log(log, entry, found.unreadable[log]))
            found.kept[log] = Offset(0)
    seen = {log.log for log in found.logs}
    for log, entry in evidence.items():
        if log not in seen and (emptied or entry.end > 0):
            found.logs.append(_unreadable_log(log, entry, cause or "the whole log is missing"))
    return found


def forget_lost(found: Recovery, lost: Mapping[LogId, str], evidence: Mapping[LogId, Evidence]) -> None:
    """Change ``found`` to what it is after the store was written anew without the rows of ``lost``."""
    found.logs = [log for log in found.logs if log.log not in lost]
    found.logs += [_unreadable_log(log, evidence[log], reason) for log, reason in lost.items()]
    for log in lost:
        found.kept.pop(log, None)
        found.to_cut.pop(log, None)


def log_ids(store: RocksDbStore, evidence: Mapping[LogId, Evidence]) -> Iterator[LogId]:
    """Ids of all logs with rows, ascending. Where rows cannot be read, those that the evidence knows."""
    at = 1
    while True:
        try:
            row = store.first_from(make_key(at, 0, 0), make_key(LOG_ID_MAX + 1, 0, 0))
        except StorageFailed:
            known = min((log for log in evidence if log >= at), default=None)
            if known is None:
                raise
            yield known
            at = known + 1
            continue
        if row is None:
            return
        log = LogId(split_key(row[0])[0])
        yield log
        at = log + 1


def _recover_log(
    store: RocksDbStore, log: LogId, entry: Evidence | None, clean: bool, cause: str, found: Recovery
) -> None:
    meta = _read_meta(store, log)
    if meta is None:
        found.cuts.append(f"log {log} has rows but no state; it is kept and not served")
        return
    last = _last_row(store, log, NUMBER_MAX)
    fault = ""
    if not clean or not _verified_whole(entry, last):
        sound, fault = _sound_end(store, log, meta.state, entry, last, found)
        last = sound if fault else last
    end = Offset(max(meta.state.log_start, last.next_offset)) if last else meta.state.log_start
    damage = _damage(meta.state, entry, end, last, "; ".join(filter(None, (fault, cause))))
    if fault:
        found.cuts.append(f"partition {meta.state.partition}: {fault}; the log ends at {end}")
        (found.kept if damage else found.to_cut)[log] = end
        meta = _cut_meta(meta, end)
    snapshot = store.last_below(make_key(log, Kind.PRODUCER, 0), make_key(log, Kind.PRODUCER, end))
    found.logs.append(
        RecoveredLog(
            log=log,
            state=meta.state,
            log_end=end,
            last_row=last,
            segments=tuple(meta.segments),
            epochs=tuple(meta.epochs),
            producers_at=Offset(split_key(snapshot[0])[2]) if snapshot else meta.state.log_start,
            producers=decode_producers(snapshot[1]) if snapshot else (),
            aborted=tuple(meta.aborted),
            damage=damage,
        )
    )


def _read_meta(store: RocksDbStore, log: LogId) -> _Meta | None:
    state: StateRow | None = None
    segments, epochs, aborted = [], [], []
    for key, value in store.scan(make_key(log, 0, 0), make_key(log, Kind.PRODUCER, 0)):
        _, kind, number = split_key(key)
        if kind == Kind.STATE:
            state = decode_state(value)
        elif kind == Kind.SEGMENT:
            segments.append(decode_segment(number, value))
        elif kind == Kind.EPOCH:
            epochs.append(decode_epoch(number, value))
        elif kind == Kind.ABORTED:
            aborted.append(decode_aborted(number, value))
    return _Meta(state, segments, epochs, aborted) if state else None


def _cut_meta(meta: _Meta, end: Offset) -> _Meta:
    segments = [row for row in meta.segments if row.base_offset < end]
    if segments and segments[-1].end_offset is not None and segments[-1].end_offset > end:
        segments[-1] = reopen(segments[-1])
    epochs = [row for row in meta.epochs if row.start < end]
    return _Meta(meta.state.cut(end), segments, epochs, [row for row in meta.aborted if row.last < end])


def _last_row(store: RocksDbStore, log: LogId, number: int) -> IndexRow | None:
    found = store.last_below(make_key(log, Kind.INDEX, 0), make_key(log, Kind.INDEX, number))
    return decode_index(split_key(found[0])[2], found[1]) if found else None


def _verified_whole(entry: Evidence | None, last: IndexRow | None) -> bool:
    """Whether the log was seen sound up to its end: a damaged one was not, and stays so over clean stops."""
    return last is None or (entry is not None and entry.verified >= last.next_offset)


def _sound_end(
    store: RocksDbStore, log: LogId, state: StateRow, entry: Evidence | None, last: IndexRow | None, found: Recovery
) -> tuple[IndexRow | None, str]:
    """The last sound row, and what is wrong after it; an empty text: nothing."""
    verified = max(state.log_start, entry.verified if entry else 0)
    if last is None or last.next_offset <= verified:
        return last, ""
    sound, fault = _dense(store, log, verified)
    if sound is None and not fault:
        return last, ""
    while sound is not None and sound.next_offset > verified:
        wrong = _tail_fault(store, log, sound, found)
        if not wrong:
            break
        fault = f"the batch at {sound.base_offset} is not sound: {wrong}"
        sound = _last_row(store, log, sound.base_offset - 1) if sound.base_offset > 0 else None
    return sound, fault


def _dense(store: RocksDbStore, log: LogId, start: int) -> tuple[IndexRow | None, str]:
    """The last row of the dense run that holds ``start``, and the hole after it, if any."""
    row = _last_row(store, log, start)
    expected, previous = start, None
    low = row.base_offset if row is not None and row.next_offset > start else start
    for key, value in store.scan(make_key(log, Kind.INDEX, low), make_key(log, Kind.INDEX + 1, 0)):
        base = split_key(key)[2]
        if base != expected and not (previous is None and base < start):
            before = previous or _last_row(store, log, start - 1) if start > 0 else previous
            return before, f"offsets {expected} to {base - 1} are missing before {base}"
        previous = decode_index(base, value)
        expected = previous.next_offset
    return previous, ""


def _tail_fault(store: RocksDbStore, log: LogId, row: IndexRow, found: Recovery) -> str | None:
    found.bytes_checked += row.size
    try:
        (batch,) = store.get_many([make_key(log, Kind.BATCH, row.base_offset)])
    except StorageFailed as error:
        return str(error)
    return fault_of(row, batch)


def _damage(state: StateRow, entry: Evidence | None, end: Offset, last: IndexRow | None, reason: str) -> Damage | None:
    if entry is None or end >= entry.end:
        return None
    if last is not None and last.leader_epoch > entry.epoch:
        return None  # written anew under a later epoch
    reason = reason or "the store came up without them"
    return Damage(
        state.partition, end, entry.end, f"offsets {end} to {entry.end - 1} were on disk and are lost: {reason}"
    )


def _unreadable_log(log: LogId, entry: Evidence, reason: str) -> RecoveredLog:
    state = StateRow(entry.partition, Offset(0), Offset(0))
    damage = _damage(state, entry, Offset(0), None, reason) or Damage(entry.partition, Offset(0), entry.end, reason)
    return RecoveredLog(log, state, Offset(0), None, (), (), Offset(0), (), (), damage)
