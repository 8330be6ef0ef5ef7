"""
RocksDB as a sorted map of bytes: the only module that imports rocksdict, and that knows its traps.

``rocksdb_log`` builds partition logs on it. Threads: ``write``, ``floor``, ``scan`` and ``free``-standing reads are
called on the event loop's thread (rocksdict holds the GIL in them); ``sync``, ``get_many``, ``flush`` and ``compact``
release it and are for threads. Errors are typed by ``rocksdb_errors``; a failed write or sync latches the store.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    ChecksumType,
    CompactOptions,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from headrace_broker.adapters.rocksdb_errors import CORRUPT, map_errors
from headrace_broker.ports import WriteStalled
from headrace_common.core.errors import StorageFailed

__all__ = ["RocksDbStore", "StoreOptions", "WriteBatch"]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Sizes of one store. The defaults are for a broker; tests make them small."""

    memtable_bytes: int = 64 << 20
    """A memtable is flushed at this size."""
    memtables_max: int = 4
    """Memtables in memory before writes stall."""
    wal_bytes_max: int = 256 << 20
    """Above this the oldest memtable is flushed, so that its WAL can go."""
    blob_size_min: int = 2 << 10
    """Values from this size on are kept in blob files."""
    blob_file_bytes: int = 64 << 20
    block_cache_bytes: int = 64 << 20
    open_files_max: int = 256
    """Table and blob files kept open."""
    background_jobs: int = 2

    def __post_init__(self) -> None:
        for field in fields(self):
            assert getattr(self, field.name) > 0, f"{field.name} must be above 0"


def _rocks_options(sizes: StoreOptions) -> Options:
    table = BlockBasedOptions()
    table.set_block_size(16 << 10)
    table.set_block_cache(Cache(sizes.block_cache_bytes))
    table.set_checksum_type(ChecksumType.xxh3())
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.none())
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_write_buffer_size(sizes.memtable_bytes)
    options.set_max_write_buffer_number(sizes.memtables_max)
    options.set_max_total_wal_size(sizes.wal_bytes_max)
    options.set_enable_blob_files(True)
    options.set_min_blob_size(sizes.blob_size_min)
    options.set_blob_file_size(sizes.blob_file_bytes)
    options.set_blob_compression_type(DBCompressionType.none())
    options.set_enable_blob_gc(False)  # the reclaimer switches it on where it pays
    options.set_blob_gc_age_cutoff(0.25)
    options.set_blob_gc_force_threshold(0.5)
    options.set_level_zero_slowdown_writes_trigger(24)
    options.set_level_zero_stop_writes_trigger(48)
    options.set_max_background_jobs(sizes.background_jobs)
    options.set_bytes_per_sync(1 << 20)
    options.set_wal_bytes_per_sync(1 << 20)
    options.set_max_open_files(sizes.open_files_max)
    options.set_max_manifest_file_size(1 << 20)
    options.set_keep_log_file_num(2)  # RocksDB's own diary counts on the disk too
    options.set_max_log_file_size(512 << 10)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def _list_expected_options(sizes: StoreOptions) -> dict[str, str]:
    """What must stand in the OPTIONS file; rocksdict says nothing when a setting had no effect."""
    return {
        "wal_recovery_mode": "kPointInTimeRecovery",
        "max_total_wal_size": str(sizes.wal_bytes_max),
        "bytes_per_sync": str(1 << 20),
        "wal_bytes_per_sync": str(1 << 20),
        "max_background_jobs": str(sizes.background_jobs),
        "max_open_files": str(sizes.open_files_max),
        "paranoid_checks": "true",
        "recycle_log_file_num": "0",
        "manual_wal_flush": "false",
        "unordered_write": "false",
        "write_buffer_size": str(sizes.memtable_bytes),
        "max_write_buffer_number": str(sizes.memtables_max),
        "enable_blob_files": "true",
        "min_blob_size": str(sizes.blob_size_min),
        "blob_file_size": str(sizes.blob_file_bytes),
        "enable_blob_garbage_collection": "false",
        "blob_garbage_collection_age_cutoff": "0.250000",
        "blob_garbage_collection_force_threshold": "0.500000",
        "blob_compression_type": "kNoCompression",
        "compression": "kNoCompression",
        "level0_slowdown_writes_trigger": "24",
        "level0_stop_writes_trigger": "48",
        "block_size": str(16 << 10),
        "checksum": "kXXH3",
    }


def wrong_options(path: Path, expected: dict[str, str]) -> list[str]:
    """What the newest OPTIONS file in ``path`` says otherwise, one sentence each."""
    newest = max(path.glob("OPTIONS-*[0-9]"), key=lambda p: int(p.name.rpartition("-")[2]))
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
    parser.read_string(newest.read_text())
    found = {name: value for section in parser.sections() for name, value in parser.items(section)}
    return [
        f"{name} is {found.get(name)} instead of {value}"
        for name, value in expected.items()
        if found.get(name) != value
    ]


class RocksDbStore:
    """One open database. Close it with no call in flight."""

    def __init__(self, path: Path, sizes: StoreOptions, *, read_only: bool = False) -> None:
        """With ``read_only`` nothing on disk changes, the WAL included, and no write is allowed: for dumps."""
        self.path = path
        self._failure: StorageFailed | None = None
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        with map_errors(f"opening {path}"):
            options = _rocks_options(sizes)
            # Without the second, rocksdict takes the column family's settings from the OPTIONS file on disk.
            self._db = Rdict(str(path), options, column_families={"default": options}, access_type=access)
        wrong = [] if read_only else wrong_options(path, _list_expected_options(sizes))
        assert not wrong, f"RocksDB did not take its options: {'; '.join(wrong)}"
        # Multi-get takes its read options from the handle only, so blobs get a handle of their own.
        unchecked = ReadOptions()
        unchecked.set_verify_checksums(False)
        self._blobs = self._db.get_column_family("default")
        self._blobs.set_read_options(unchecked)
        self._unsynced = WriteOptions()
        self._unsynced.no_slowdown = True

    @staticmethod
    def batch() -> WriteBatch:
        """An empty write batch. One use: a batch whose write stalled is built anew."""
        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch) -> None:
        """
        Apply ``batch`` atomically, unsynced. Inline.

        Raises:
            WriteStalled: nothing was written.
            StorageFailed: now and from now on.
        """
        self.check()
        try:
            with map_errors("writing"):
                self._db.write(batch, self._unsynced)
        except StorageFailed as error:
            self.fail(error)
            raise

    def sync(self) -> None:
        """Bring the WAL to disk. In a thread, one at a time."""
        self.check()
        try:
            with map_errors("syncing the write-ahead log"):
                self._db.flush_wal(True)
        except (StorageFailed, WriteStalled) as error:
            failed = error if isinstance(error, StorageFailed) else StorageFailed(str(error))
            self.fail(failed)
            raise failed from error
        self.check()

    def check(self) -> None:
        """Raise the failure that latched the store, if there was one."""
        if self._failure is not None:
            raise StorageFailed(f"the store failed before: {self._failure}") from self._failure

    def fail(self, error: StorageFailed) -> None:
        """Latch: nothing is written any more."""
        self._failure = self._failure or error

    @property
    def failed(self) -> bool:
        """Whether the store is latched."""
        return self._failure is not None

    @property
    def corrupt(self) -> bool:
        """Whether it is latched because stored bytes were not what was written."""
        return self._failure is not None and CORRUPT in str(self._failure)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of ``keys`` without block and blob checksums; callers compare what they get. In a thread."""
        with map_errors("reading"):
            found: Any = self._blobs.get([*keys])
            return list(found)

    def get(self, key: bytes) -> bytes | None:
        """One value, checksums on."""
        with map_errors("reading"):
            found: bytes | None = self._db.get(key)
            return found

    def last_below(self, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        """The last row with ``low <= key <= high``."""
        with map_errors("reading"):
            iterator = self._db.iter()
            iterator.seek_for_prev(high)
            if not iterator.valid():
                iterator.status()
                return None
            key = iterator.key()
            return (key, iterator.value()) if key >= low else None

    def first_from(self, low: bytes, high: bytes) -> tuple[bytes, bytes] | None:
        """The first row with ``low <= key < high``."""
        return next(self.scan(low, high), None)

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """
        Rows with ``low <= key < high``, ascending, checksums on.

        Without the upper bound the step after the last index row would load the first batch. rocksdict borrows the
        bound's memory: ``bound`` and ``high`` must live as long as the iterator, and they do, in this frame. A corrupt
        block raises; rocksdict's ``items()`` would end silently.
        """
        with map_errors("reading"):
            bound = ReadOptions()
            bound.set_iterate_upper_bound(high)
            iterator = self._db.iter(bound)
            iterator.seek(low)
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            iterator.status()

    def oldest_wal(self) -> int:
        """The number of the oldest WAL that still holds something that is in no table file."""
        with map_errors("reading a property"):
            return int(self._db.property_int_value("rocksdb.min-log-number-to-keep") or 0)

    def newest_wal(self) -> int:
        return max((int(p.stem) for p in self.path.glob("*.log")), default=0)

    def memtable_bytes(self) -> int:
        """Bytes that are in no table file yet."""
        with map_errors("reading a property"):
            return int(self._db.property_int_value("rocksdb.cur-size-all-mem-tables") or 0)

    def flush(self) -> None:
        """Write all memtables to table files; returns when they are on disk. In a thread."""
        self.check()
        with map_errors("flushing memtables"):
            self._db.flush(True)

    def collect_blobs(self, on: bool, share: float) -> None:
        """
        Whether compactions move live blobs out of the oldest ``share`` of all blob files. Files without any live blob
        go always.
        """
        with map_errors("setting an option"):
            self._db.set_options(
                {
                    "enable_blob_garbage_collection": "true" if on else "false",
                    "blob_garbage_collection_age_cutoff": f"{share:.4f}",
                }
            )

    def count_stored_bytes(self) -> int:
        """Bytes of table and blob files."""
        with map_errors("reading a property"):
            return int(self._db.property_int_value("rocksdb.live-sst-files-size") or 0) + self.blob_bytes()[0]

    def free_bytes(self) -> int:
        """What can still be written to the disk."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def blob_bytes(self) -> tuple[int, int]:
        """Bytes of all blob files, and how much of it is dead as far as compactions have noticed."""
        with map_errors("reading a property"):
            size = self._db.property_int_value("rocksdb.live-blob-file-size")
            dead = self._db.property_int_value("rocksdb.live-blob-file-garbage-size")
        return int(size or 0), int(dead or 0)

    def blob_files(self) -> int:
        """How many there are."""
        with map_errors("reading a property"):
            return int(self._db.property_int_value("rocksdb.num-blob-files") or 0)

    def list_tables(self) -> list[tuple[bytes, bytes]]:
        """First and last key of each table of the lowest level, where nearly all is, ascending; level 0 is not one."""
        with map_errors("listing tables"):
            files = self._db.live_files()
        lowest = max((file["level"] for file in files), default=0)
        return sorted((file["start_key"], file["end_key"]) for file in files if 0 < file["level"] == lowest)

    def compact(self, low: bytes, high: bytes) -> None:
        """Rewrite what overlaps the range, so that deleted rows leave the disk. In a thread; not during close."""
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
        options.set_exclusive_manual_compaction(False)
        with map_errors("compacting"):
            self._db.compact_range(low, high, options)

    def close(self) -> None:
        """
        Close, which flushes. No call may be in flight, no iterator in use. A latched store closes without a word.

        Raises:
            StorageFailed: not everything is in table files.
        """
        failed: StorageFailed | None = None
        for handle in (self._blobs, self._db):
            try:
                with map_errors("closing"):
                    handle.close()
            except StorageFailed as error:
                failed = error
        if failed is not None and self._failure is None:
            raise failed
