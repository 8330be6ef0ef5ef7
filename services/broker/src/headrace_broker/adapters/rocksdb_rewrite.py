"""
Rids a store of table and blob files that cannot be read: what can be is copied into a new store that takes its place.

``RocksDbLogs.open`` calls it; it acts when a log's rows were not readable, or when the last process stopped over such a
file or over a batch that was asked for. The damaged logs are left out, so they can be copied anew from other brokers
without a read of what is broken, and no compaction stumbles over it again. The old store stays beside as
``db.damaged`` until the next such event.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Final

from headrace_broker.adapters import rocksdb_recovery
from headrace_broker.adapters.data_directory import DataDirectory, sync_directory, write_durably
from headrace_broker.adapters.evidence_file import Evidence
from headrace_broker.adapters.rocksdb_keys import OWN_LOG, make_key
from headrace_broker.adapters.rocksdb_recovery import Recovery
from headrace_broker.adapters.rocksdb_store import RocksDbStore, StoreOptions
from headrace_broker.core.rows import LogId
from headrace_broker.ports import WriteStalled
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import Offset

GROUP_BYTES: Final = 4 << 20
STALL_PAUSE_S: Final = 0.05
STALLS_MAX: Final = 1_200
SUSPECT: Final = "suspect"
"""The name of a file beside the store: the last process stopped because stored bytes were not what was written. In it
are the ids of logs of which that is known, one in a line."""

_log = logging.getLogger(__name__)


def settle(database: Path) -> None:
    """Finish or undo a rewrite that a crash has interrupted; before the store is opened. Raises OSError."""
    fresh = _make_fresh(database)
    if not fresh.exists():
        return
    if database.exists():
        shutil.rmtree(fresh)
    else:
        os.rename(fresh, database)
        sync_directory(database.parent)


def suspect(directory: DataDirectory, log: LogId) -> None:
    """Note that bytes of ``log`` cannot be read. Raises StorageFailed."""
    path = directory.path / SUSPECT
    try:
        _note(path, {*_read_suspects(path), log})
    except OSError as error:
        raise StorageFailed(f"{path} cannot be written: {error}") from error


def _note(path: Path, logs: Iterable[LogId]) -> None:
    write_durably(path, "".join(f"{log}\n" for log in sorted(logs)).encode())


def forget_suspects(directory: DataDirectory) -> None:
    """The store that they were noted of is gone. Raises OSError."""
    (directory.path / SUSPECT).unlink(missing_ok=True)


def damaged_path(database: Path) -> Path:
    """Where the last store that was replaced is kept."""
    return database.with_name(database.name + ".damaged")


def _read_suspects(path: Path) -> list[LogId]:
    if not path.exists():
        return []
    return [LogId(int(line)) for line in path.read_bytes().split() if line.isdigit()]


def _has_room(database: Path) -> bool:
    """Whether the disk takes a second store of this size."""
    size = sum(file.stat().st_size for file in database.iterdir())
    return shutil.disk_usage(database).free > size


def _rewrite(
    store: RocksDbStore, sizes: StoreOptions, logs: Iterable[LogId], known: Container[LogId]
) -> tuple[RocksDbStore, dict[LogId, str]]:
    """
    A store with all rows of ``logs`` that can be read, in the place of ``store``, which is closed; and why a log could
    not be copied. Blocks.

    Raises:
        StorageFailed: a log that is not ``known`` cannot be read, or the new store fails; the old one is where it was,
            and open.
    """
    database = store.path
    settle(database)
    fresh = RocksDbStore(_make_fresh(database), sizes)
    lost: dict[LogId, str] = {}
    try:
        for log in [OWN_LOG, *logs]:
            try:
                _copy(store, fresh, log)
            except StorageFailed as error:
                fresh.check()
                if log == OWN_LOG:
                    continue  # what it says, the identity file and the logs say too
                if log not in known:
                    raise
                lost[log] = f"its rows are not readable: {error}"
                batch = fresh.batch()
                batch.delete_range(make_key(log, 0, 0), make_key(log + 1, 0, 0))
                fresh.write(batch)
        fresh.sync()
        fresh.flush()
    finally:
        fresh.close()
    try:
        store.close()
    except StorageFailed as error:  # a compaction has met what is broken; all that counts is in the new one
        _log.warning("the store that is replaced closed with an error", extra={"reason": str(error)})
    damaged = damaged_path(database)
    shutil.rmtree(damaged, ignore_errors=True)
    os.rename(database, damaged)
    os.rename(_make_fresh(database), database)
    sync_directory(database.parent)
    _log.warning("the store was rewritten without what cannot be read", extra={"lost": len(lost), "old": str(damaged)})
    return RocksDbStore(database, sizes), lost


def sound_store(
    directory: DataDirectory,
    store: RocksDbStore,
    sizes: StoreOptions,
    found: Recovery,
    evidence: dict[LogId, Evidence],
) -> RocksDbStore:
    """The store, written anew where it has files that cannot be read; ``found`` says what that left out."""
    noted = directory.path / SUSPECT
    found.unreadable.update((log, "a batch of it was not readable") for log in _read_suspects(noted) if log in evidence)
    if not found.unreadable and not noted.exists():
        return store
    if not _has_room(store.path):
        found.cuts.append("files that cannot be read stay: the disk has no room to rewrite the others")
        rocksdb_recovery.forget_lost(found, found.unreadable, evidence)
        found.kept.update((log, Offset(0)) for log in found.unreadable)
        if noted.exists():
            _note(noted, [])
        return store
    readable = [log for log in rocksdb_recovery.log_ids(store, evidence) if log not in found.unreadable]
    anew, lost = _rewrite(store, sizes, readable, evidence)
    rocksdb_recovery.forget_lost(found, {**found.unreadable, **lost}, evidence)
    noted.unlink(missing_ok=True)
    return anew


def _make_fresh(database: Path) -> Path:
    return database.with_name(database.name + ".rewritten")


def _copy(store: RocksDbStore, fresh: RocksDbStore, log: LogId) -> None:
    group: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in store.scan(make_key(log, 0, 0), make_key(log + 1, 0, 0)):
        group.append((key, value))
        size += len(key) + len(value)
        if size >= GROUP_BYTES:
            _put(fresh, group)
            group, size = [], 0
    _put(fresh, group)


def _put(fresh: RocksDbStore, group: list[tuple[bytes, bytes]]) -> None:
    for _ in range(STALLS_MAX):
        batch = fresh.batch()
        for key, value in group:
            batch.put(key, value)
        try:
            fresh.write(batch)
        except WriteStalled:
            time.sleep(STALL_PAUSE_S)
        else:
            return
    raise StorageFailed(f"{fresh.path} takes no more rows: it is behind with flushes; is the disk very slow?")
