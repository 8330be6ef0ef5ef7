"""
What a stopped broker's data directory holds, read without changing a byte of it.

``python -m headrace_broker.dump`` prints it; ``headrace debug dump-log --data-dir`` runs that. A directory in use is
refused: ask the broker instead.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace_broker.adapters.rocksdb_keys import (
    OWN_LOG,
    Kind,
    decode_aborted,
    decode_epoch,
    decode_index,
    decode_segment,
    decode_state,
    make_key,
    split_key,
)
from headrace_broker.adapters.rocksdb_store import RocksDbStore, StoreOptions
from headrace_broker.core.compaction.rules import HORIZON_BIT
from headrace_broker.core.rows import IndexRow, SegmentRow
from headrace_common.core.batch import check_crc, read_header, read_marker
from headrace_common.core.errors import Conflict, HeadraceError, NotFound

NUMBER_END = 2**64 - 1


def dump_logs(data_dir: Path, *, batches: int = 0) -> Iterator[dict[str, Any]]:
    """
    One mapping for each log: partition, offsets, how far it is compacted, epochs, segments, and its newest ``batches``
    batch headers, with how many offsets each spans and how many records are left.

    Raises:
        NotFound: this is no data directory of a broker.
        Conflict: a broker is running on it.
        StorageFailed: the store cannot be read.
    """
    database = data_dir / "db"
    if not database.is_dir():
        raise NotFound(f"{data_dir} is no data directory of a broker; give the one that has db/ and identity in it")
    with (data_dir / "lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            raise Conflict(f"a broker is running on {data_dir}; stop it, or leave --data-dir out to ask it") from None
        store = RocksDbStore(database, StoreOptions(), read_only=True)
        try:
            log = OWN_LOG + 1
            while (
                row := store.first_from(make_key(log, Kind.STATE, 0), make_key(2**32 - 1, Kind.STATE, 0))
            ) is not None:
                log = split_key(row[0])[0]
                yield _describe(store, log, batches)
                log += 1
        finally:
            store.close()


def identity(data_dir: Path) -> dict[str, Any]:
    """Whose data these are; empty for a directory that was never bound to a cluster."""
    path = data_dir / "identity"
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _rows(store: RocksDbStore, log: int, kind: Kind) -> Iterator[tuple[int, bytes]]:
    for key, value in store.scan(make_key(log, kind, 0), make_key(log, kind, NUMBER_END)):
        yield split_key(key)[2], value


def _describe(store: RocksDbStore, log: int, batches: int) -> dict[str, Any]:
    state = store.get(make_key(log, Kind.STATE, 0))
    last = store.last_below(make_key(log, Kind.INDEX, 0), make_key(log, Kind.INDEX, NUMBER_END))
    newest = None if last is None else decode_index(split_key(last[0])[2], last[1])
    found: dict[str, Any] = {"log_id": log}
    if state is not None:
        row = decode_state(state)
        found |= {"topic_id": row.partition.topic_id.hex(), "partition": row.partition.partition}
        found |= {"log_start_offset": row.log_start, "high_watermark_checkpoint": row.high_watermark}
        if row.cleaned_to or row.clean_points or row.forgotten_to:
            found["compacted"] = {
                "to_offset": row.cleaned_to,
                "forgotten_to_offset": row.forgotten_to,
                "points": [{"end_offset": point.end, "at_ms": point.at_ms} for point in row.clean_points],
            }
        if row.fences:
            found["fences"] = [{"offset": fence.offset, "token": fence.token} for fence in row.fences]
    found["log_end_offset"] = newest.next_offset if newest else found.get("log_start_offset", 0)
    found["epochs"] = [
        {"epoch": row.epoch, "start": row.start}
        for row in (decode_epoch(n, value) for n, value in _rows(store, log, Kind.EPOCH))
    ]
    found["segments"] = [_segment(decode_segment(n, value), newest) for n, value in _rows(store, log, Kind.SEGMENT)]
    aborted = [decode_aborted(n, value) for n, value in _rows(store, log, Kind.ABORTED)]
    if aborted:
        found["aborted"] = [
            {"producer_id": row.producer_id, "first_offset": row.first, "last_offset": row.last} for row in aborted
        ]
    if batches:
        found["batches"] = _newest_batches(store, log, batches)
    return found


def _segment(row: SegmentRow, newest: IndexRow | None) -> dict[str, Any]:
    """The row; of the active one, what the last batch in it says."""
    if row.sealed_at_ms is None and newest is not None and newest.segment_base == row.base_offset:
        row = replace(
            row,
            end_offset=newest.next_offset,
            size=newest.segment_bytes,
            min_timestamp=newest.segment_min_timestamp,
            max_timestamp=newest.segment_max_timestamp,
        )
    return {
        "base_offset": row.base_offset,
        "end_offset": row.base_offset if row.end_offset is None else row.end_offset,
        "size_bytes": row.size,
        "created_at_ms": row.created_at_ms,
        "sealed_at_ms": row.sealed_at_ms,
        "min_timestamp": row.min_timestamp,
        "max_timestamp": row.max_timestamp,
    }


def _newest_batches(store: RocksDbStore, log: int, count: int) -> list[dict[str, Any]]:
    headers: list[dict[str, Any]] = []
    low, high = make_key(log, Kind.INDEX, 0), make_key(log, Kind.INDEX, NUMBER_END)
    while len(headers) < count and (row := store.last_below(low, high)) is not None:
        base = split_key(row[0])[2]
        headers.append(_header(base, store.get(make_key(log, Kind.BATCH, base))))
        if base == 0:
            break
        high = make_key(log, Kind.INDEX, base - 1)
    return headers[::-1]


def _header(base: int, batch: bytes | None) -> dict[str, Any]:
    if batch is None:
        return {"base_offset": base, "error": "the batch is missing"}
    try:
        header = read_header(batch)
        check_crc(batch, header)
        marker = read_marker(batch, header)
    except HeadraceError as error:
        return {"base_offset": base, "size": len(batch), "error": str(error)}
    said: dict[str, Any] = {}
    if marker is not None:
        said["marker"] = "commit" if marker.commit else "abort"
        if header.attributes & HORIZON_BIT:
            said["kept_until_ms"] = header.base_timestamp
    offsets = header.last_offset_delta + 1
    if header.record_count < offsets:
        gap = header.record_count == 0 and header.producer_id < 0
        said["compacted"] = "gap" if gap else "emptied" if header.record_count == 0 else "sparse"
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "offsets": offsets,
        "records": header.record_count,
        "size": header.size,
        "magic": header.magic,
        "codec": header.codec.name.lower(),
        "leader_epoch": header.leader_epoch,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.transactional,
        "control": header.control,
        **said,
    }
