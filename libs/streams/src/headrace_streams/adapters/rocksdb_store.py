"""
Cold tiers in RocksDB: one directory for each task.

The write-ahead log is off: after a crash an earlier prefix of the commits is there, each whole, with the checkpoint
that belongs to it, and the changelog has the rest.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, Self
from urllib.parse import quote, unquote

import ormsgpack
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DbClosedError,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)
from rocksdict import Checkpoint as Copy

from headrace_common.core.errors import ErrorCode, Internal
from headrace_streams.core.state.changelog import prefix
from headrace_streams.core.state.store import Changes, Cold
from headrace_streams.ports import Checkpoint

_CHECKPOINT: Final = b"\xff"
_VERSION: Final = 1
_WRITE_BUFFER_BYTES: Final = 32 << 20
_WRITE_BUFFERS_BYTES: Final = 128 << 20
"""Of all tasks together."""
_BLOCK_CACHE_BYTES: Final = 64 << 20
_OPENED_AT_ONCE: Final = 8
_WORKERS_MAX: Final = 1_000
"""Of one app on one machine."""
_LOOK_S: Final = 60.0
"""So long a task waits at most until its directory was looked at."""
_ELSEWHERE: Final = "; give another state_dir (--state-dir)"
_LOCK: Final = "lock"
_DAMAGED: Final = "damaged"
"""A file in the directory of a task whose rows could not be read: it begins empty when it is opened again."""
_log: Final = logging.getLogger(__name__)


class StateStorageFailed(Internal, code=ErrorCode.KAFKA_STORAGE_ERROR):
    """The disk refuses a task's state; what is committed is in the changelog, so it can be given another directory."""


@contextmanager
def _told(path: Path, doing: str, do: str = "") -> Iterator[None]:
    try:
        yield
    except Exception as error:  # rocksdict raises nothing narrower
        if "lock file" in str(error):
            raise StateStorageFailed(
                f"another process uses the state in {path}; a worker of the same app lets go within seconds"
            ) from error
        if _is_damage(error):
            with suppress(OSError):
                (path / _DAMAGED).touch()
        raise StateStorageFailed(f"{doing} the state in {path} failed: {error}{do}") from error


def _is_damage(error: BaseException) -> bool:
    """Whether files are not what was written; RocksDB tells its errors by their words alone."""
    return str(error).startswith(("Corruption:", "IO error: No such file"))


class RocksDbStores:
    """
    The tasks' directories of one worker of an app: below ``state_dir``, the app and the worker's number, which is the
    first that no living process has.
    """

    def __init__(self, state_dir: Path, app: str) -> None:
        self._cache = Cache(_BLOCK_CACHE_BYTES)
        self._buffers = WriteBufferManager(_WRITE_BUFFERS_BYTES, allow_stall=False)
        # Absolute: a function of the program may change the working directory.
        self._claim = _claim(state_dir.absolute() / quote(app, safe=""))
        self.directory = self._claim.directory
        self._open: set[Path] = set()
        self._looked_at: set[Path] = set()
        """What ``tidy`` may delete."""
        self._changed = threading.Condition()
        for room in {*self.directory.glob("*/*")} - {*self._paths()}:  # of a worker that was killed
            shutil.rmtree(room, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._claim.lock.close()

    def open(self, sub_topology: str, partition: int) -> RocksDbTaskStore:
        """
        The task's, made if it is not there.

        Raises:
            StateStorageFailed: the disk refuses it, or is still at what ``tidy`` wants of it.
        """
        path = self.directory / quote(sub_topology, safe="") / str(partition)
        self._claim.check()
        with self._changed:
            if not self._changed.wait_for(lambda: path not in self._looked_at, _LOOK_S):
                raise StateStorageFailed(
                    f"the disk has not let go of old state in {path} for {_LOOK_S:g} s{_ELSEWHERE}"
                )
            store = self._at(path, lambda: self._open.discard(path))
            self._open.add(path)
        return store

    def tidy(self, oldest_ms: int) -> dict[tuple[str, int], Checkpoint]:
        """Delete what is not open, and has no checkpoint or an older one; the checkpoints of what else is not open."""
        self._claim.check()
        with self._changed:
            paths = [path for path in self._paths() if path not in self._open]
            self._looked_at.update(paths)
        try:
            # Opening one is to wait for the disk.
            with ThreadPoolExecutor(_OPENED_AT_ONCE, "headrace-tidy") as pool:
                kept = zip(paths, pool.map(lambda path: self._kept(path, oldest_ms), paths), strict=True)
                return {(unquote(path.parent.name), int(path.name)): one for path, one in kept if one is not None}
        finally:
            self._let_go(paths)  # where one fails those behind it do not begin

    def _kept(self, path: Path, oldest_ms: int) -> Checkpoint | None:
        """The checkpoint of what is not deleted."""
        try:
            store = self._at(path)
            checkpoint = store.checkpoint()
            store.close()
            if checkpoint is not None and checkpoint.at_ms >= oldest_ms:
                return checkpoint
            with _told(path, "deleting"):
                shutil.rmtree(path)
            return None
        finally:
            self._let_go([path])

    def _at(self, path: Path, closed: Callable[[], None] = lambda: None) -> RocksDbTaskStore:
        return RocksDbTaskStore(path, self._cache, self._buffers, self._claim, closed)

    def _let_go(self, paths: Iterable[Path]) -> None:
        with self._changed:
            self._looked_at.difference_update(paths)
            self._changed.notify_all()

    def _paths(self) -> list[Path]:
        """The tasks' directories."""
        return [path for path in self.directory.glob("*/*") if path.name.isdigit()]


@dataclass(frozen=True, slots=True)
class _Claim:
    """A directory that this process has, as long as the file that it has locked is there."""

    directory: Path
    lock: BinaryIO

    def check(self) -> None:
        """
        Raises:
            StateStorageFailed: it was deleted or moved, and what is there now may be another worker's.
        """
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self.lock.fileno()), (self.directory / _LOCK).stat()):
                return
        raise StateStorageFailed(
            f"the state in {self.directory} was deleted or moved while a worker used it; nothing that was committed is "
            "lost: the next worker restores it"
        )


def _claim(parent: Path) -> _Claim:
    """The first directory that no process has, held for this one."""
    for number in range(_WORKERS_MAX):
        directory = parent / str(number)
        with _told(directory, "opening", _ELSEWHERE):
            directory.mkdir(parents=True, exist_ok=True)
            lock = (directory / _LOCK).open("wb")
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return _Claim(directory, lock)
    raise StateStorageFailed(
        f"{_WORKERS_MAX} processes use the state in {parent}; give this one another state_dir (--state-dir)"
    )


class RocksDbTaskStore:
    """The changelog's newest rows of one task; satisfies ``TaskStore``."""

    def __init__(
        self, path: Path, cache: Cache, buffers: WriteBufferManager, claim: _Claim, closed: Callable[[], None]
    ) -> None:
        self._path = path
        self._claim = claim
        self._cache = cache
        self._buffers = buffers
        self._closed = closed
        self._copying = threading.Lock()
        self._writing = WriteOptions()
        self._writing.disable_wal = True  # type: ignore[assignment, method-assign]  # its stubs call it a method
        self._db = self._open_or_begin_empty()

    def _open_or_begin_empty(self) -> Rdict:
        """What is damaged is deleted: the changelog has it."""
        try:
            if not (self._path / _DAMAGED).exists():
                return self._open()
            damage = "rows of it could not be read"
        except StateStorageFailed as error:
            if error.__cause__ is None or not _is_damage(error.__cause__):
                raise
            damage = str(error.__cause__)
        _log.warning("the state in %s is damaged and is restored from its changelog: %s", self._path, damage)
        with _told(self._path, "deleting"):
            shutil.rmtree(self._path)
        return self._open()

    def _open(self) -> Rdict:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
        options.set_write_buffer_manager(self._buffers)
        options.set_max_open_files(256)
        options.set_keep_log_file_num(2)
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_bloom_filter(10, block_based=False)
        options.set_block_based_table_factory(table)
        with _told(self._path, "opening", _ELSEWHERE):
            self._path.mkdir(parents=True, exist_ok=True)
            return Rdict(str(self._path), options, access_type=AccessType.read_write())

    def checkpoint(self) -> Checkpoint | None:
        """Where its changelog is followed up to."""
        found = self.get(_CHECKPOINT)
        if found is None:
            return None
        row = ormsgpack.unpackb(found)
        return Checkpoint(row["t"], row["o"], row["a"]) if row["v"] == _VERSION else None

    def get(self, key: bytes) -> bytes | None:
        """One row."""
        with _told(self._path, "reading"):
            found: bytes | None = self._db.get(key)
        return found

    def cold(self, store: str) -> Cold:
        """The rows of one store."""
        return _ColdOfStore(self._db, self._path, prefix(store))

    def write(self, rows: Changes, checkpoint: Checkpoint) -> None:
        """Rows and checkpoint, whole."""
        batch = WriteBatch(raw_mode=True)
        for key, value in rows:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        told = {"v": _VERSION, "t": checkpoint.log_id, "o": checkpoint.next_offset, "a": checkpoint.at_ms}
        batch.put(_CHECKPOINT, ormsgpack.packb(told))
        self._claim.check()
        with _told(self._path, "writing"):
            self._db.write(batch, self._writing)

    def wipe(self) -> None:
        """Forget everything."""
        self._put_in_place(None)

    @contextmanager
    def room(self) -> Iterator[Path]:
        """An empty directory beside it, deleted in the end."""
        with _told(self._path, "making room beside"):
            made = TemporaryDirectory(prefix=f"{self._path.name}.", dir=self._path.parent, ignore_cleanup_errors=True)
        with made as name:
            yield Path(name)

    def copy(self, directory: Path) -> None:
        """Its files as of one commit, as hard links; writing goes on meanwhile."""
        with self._copying, _told(self._path, "copying"):
            self._db.flush(True)  # else that would be done while Python stands still
            directory.rmdir()
            Copy(self._db).create_checkpoint(str(directory))

    def replace(self, directory: Path) -> None:
        """Have the files of a copy."""
        self._put_in_place(directory)

    def _put_in_place(self, directory: Path | None) -> None:
        """Other files, or none, instead of what is here. Cut off anywhere, one of them is here whole, or nothing."""
        with self._copying, self.room() as old:
            with _told(self._path, "deleting"):
                with suppress(DbClosedError):
                    self._db.close()
                self._path.rename(old)
                if directory is not None:
                    directory.rename(self._path)
            self._db = self._open()

    def close(self) -> None:
        """Flush, so that the next start has little to read again."""
        self._claim.check()
        with self._copying, _told(self._path, "closing"):
            self._db.flush(True)
            self._db.close()
        self._closed()


class _ColdOfStore:
    """Satisfies ``Cold``."""

    def __init__(self, db: Rdict, path: Path, prefix: bytes) -> None:
        self._db = db
        self._path = path
        self._prefix = prefix

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with _told(self._path, "reading"):
            found: Any = self._db.get([self._prefix + key for key in keys])
        return list(found)

    def scan(self, prefix: bytes = b"") -> Iterable[tuple[bytes, bytes]]:
        whole, cut = self._prefix + prefix, len(self._prefix)
        with _told(self._path, "reading"):
            iterator = self._db.iter(ReadOptions())
            iterator.seek(whole)
            while iterator.valid():
                key = iterator.key()
                if not key.startswith(whole):
                    break
                yield key[cut:], iterator.value()
                iterator.next()
            iterator.status()
