"""
Opens the store of a data directory, and puts one aside that RocksDB cannot open any more.

``RocksDbLogs.open`` calls ``open_store``. When a table file is too short, or the MANIFEST is damaged, RocksDB refuses
the whole store at every start. Other brokers have what such a broker held, so it starts with a new, empty store in
which each log that the evidence names is damaged, and ``DataDirectory.emptied`` says so until the cluster was told.
The old store stays beside as ``db.damaged``. It is put aside only for bytes that are gone or wrong, seen twice: never
for a disk that is full or fails, for rights, limits or another process, or for a format that is not known here.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from dataclasses import dataclass
from typing import Final

from headrace_broker.adapters import evidence_file, rocksdb_recovery, rocksdb_rewrite, wal_guard
from headrace_broker.adapters.data_directory import DataDirectory, sync_directory
from headrace_broker.adapters.evidence_file import Evidence, EvidenceUnreadable
from headrace_broker.adapters.rocksdb_errors import means_lost_bytes
from headrace_broker.adapters.rocksdb_keys import LOG_ID_MAX, OWN_LOG, make_key
from headrace_broker.adapters.rocksdb_recovery import Recovery
from headrace_broker.adapters.rocksdb_store import RocksDbStore, StoreOptions
from headrace_broker.adapters.wal_guard import Guarded
from headrace_broker.core.rows import LogId
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import Offset

PAUSE_S: Final = 0.3
"""Before a store that could not be opened is tried again."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """A store that can be used, and what was found in it."""

    store: RocksDbStore
    found: Recovery
    guarded: Guarded


def open_store(
    directory: DataDirectory, sizes: StoreOptions, evidence: dict[LogId, Evidence] | None, notes: list[str]
) -> Opened:
    """
    Open and check the store. ``evidence`` None: there is none to be had, though there should be. Blocks.

    Raises:
        StorageFailed: it cannot be opened and was not put aside; the text says what to do.
    """
    database = directory.database
    try:
        rocksdb_rewrite.settle(database)
    except OSError as error:
        raise StorageFailed(f"{database} cannot be used: {error}") from error
    try:
        return _open(directory, sizes, evidence or {})
    except StorageFailed as error:
        if not means_lost_bytes(error):
            raise
        _log.warning("the store cannot be opened; trying once more", extra={"reason": str(error)})
    time.sleep(PAUSE_S)
    try:
        return _open(directory, sizes, evidence or {})
    except StorageFailed as error:
        if not means_lost_bytes(error):
            raise
        if evidence is None:
            raise StorageFailed(
                f"{error}; the evidence file beside it is not readable either, so the store was left as it is: is it "
                f"the right volume? If it is, move {directory.path} away: with an empty one all is copied again"
            ) from error
        notes.append(_put_aside(directory, error))
        reason = f"the store was put aside: {error}"
    return _open(directory, sizes, evidence, reason)


def _open(directory: DataDirectory, sizes: StoreOptions, evidence: dict[LogId, Evidence], cause: str = "") -> Opened:
    guarded = wal_guard.guard(directory.database, directory.cut)
    if directory.identity is not None and not (directory.database / "CURRENT").exists():
        directory.note_emptied()  # the guard saw that no data is left: this makes a new store
    store = RocksDbStore(directory.database, sizes)
    try:
        if directory.emptied and store.first_from(make_key(OWN_LOG, 0, 0), make_key(LOG_ID_MAX + 1, 0, 0)):
            directory.forget_gone()  # somebody put the old one back
        clean = directory.token is not None
        cause = "; ".join(filter(None, (cause, *guarded.cuts)))
        found = rocksdb_recovery.recover(store, evidence, clean, cause, emptied=directory.emptied)
        store = rocksdb_rewrite.sound_store(directory, store, sizes, found, evidence)
    except BaseException:
        close_after_failure(store)
        raise
    return Opened(store, found, guarded)


def close_after_failure(store: RocksDbStore) -> None:
    """Close a store because of an error, which counts; not one more of closing."""
    try:
        store.close()
    except StorageFailed as error:
        _log.warning("the store closed with an error", extra={"reason": str(error)})


def _put_aside(directory: DataDirectory, reason: StorageFailed) -> str:
    """
    Move the store away; what is to be told of it.

    The name goes first: a bound directory without a store is one that lost it, whatever happens next.
    """
    database = directory.database
    aside = rocksdb_rewrite.damaged_path(database)
    try:
        if _holds_data(directory) or not aside.exists():
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(database, aside)
        else:
            shutil.rmtree(database)  # what is there already is worth more
        sync_directory(database.parent)
        rocksdb_rewrite.forget_suspects(directory)
    except OSError as error:
        raise StorageFailed(f"{database} cannot be opened ({reason}), nor be put aside: {error}") from error
    directory.forget_token()
    text = (
        f"the store could not be opened and was put aside as {aside}; every log of this broker is copied again from "
        f"others, and one that has no other replica stays offline until an operator decides ({reason})"
    )
    _log.error("the store was put aside", extra={"reason": text})
    return text


def _holds_data(directory: DataDirectory) -> bool:
    return any(
        file.suffix in (".sst", ".blob") or (file.suffix == ".log" and file.stat().st_size > 0)
        for file in directory.database.iterdir()
    )


def load_evidence(directory: DataDirectory, cuts: list[str]) -> dict[LogId, Evidence] | None:
    """
    What the last process noted. None: it is damaged, or missing beside a store.

    Raises:
        StorageFailed: it cannot be read.
    """
    had_logs = directory.database.exists()
    try:
        loaded = evidence_file.load(directory.evidence)
    except OSError as error:
        raise StorageFailed(f"the evidence file {directory.evidence} cannot be read: {error}") from error
    except EvidenceUnreadable as error:
        cuts.append(
            f"the evidence file {directory.evidence} is damaged ({error}): loss before this start would not show"
        )
        return None
    if loaded is None and had_logs:
        cuts.append(f"the evidence file {directory.evidence} is missing: loss before this start would not show")
        return None
    return loaded[0] if loaded else {}


def entries_after(found: Recovery, before: dict[LogId, Evidence]) -> dict[LogId, Evidence]:
    """One entry for each log that is there, and for each that should be."""
    nothing = Offset(0)
    return {log.log: before.get(log.log, Evidence(log.state.partition, nothing, -1, nothing)) for log in found.logs}
