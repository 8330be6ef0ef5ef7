"""
Whose data a directory holds, and that only one process uses it.

A data directory has ``lock``, ``identity``, ``clean-shutdown`` (only while the broker is down after a clean stop),
``emptied`` (only from the loss of the store until the cluster knows), ``evidence``, ``retention-time``,
``topic-notes``, ``db/`` (RocksDB) and ``cut/`` (what recovery cut off). ``main`` opens it before the store, and binds
it when the broker has learned its cluster.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
from pathlib import Path
from typing import Final

from headrace_broker.adapters.rocksdb_keys import FORMAT
from headrace_broker.ports import Identity
from headrace_common.core.batch.checksum import crc32c
from headrace_common.core.errors import Conflict, InconsistentClusterId, Rejected, StorageFailed, UnsupportedVersion
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.tasks import first_of

_LOCK: Final = "lock"
_IDENTITY: Final = "identity"
_TOKEN: Final = "clean-shutdown"  # a file name
_EMPTIED: Final = "emptied"

_LOOK_MS: Final = 50.0
"""How often to look whether a directory is free."""

_log = logging.getLogger(__name__)


def write_durably(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: after a crash at any moment it has the old content or the new. Raises OSError."""
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make names in ``path`` that came, changed or went durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class DataDirectory:
    """One locked data directory. Close it after the store in it."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self.identity: Identity | None = None
        """None: not bound to a broker of a cluster yet."""
        self._token: int | None = None
        self._emptied = False

    @classmethod
    def open(cls, path: Path | str) -> DataDirectory:
        """
        Lock the directory, make it if it is not there, and read its identity and clean-shutdown token.

        Raises:
            Conflict: another process has it; the text says its pid.
            UnsupportedVersion: a newer format.
            StorageFailed: it cannot be used; the text says why.
        """
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            directory = cls(path, _take_lock(path))
        except OSError as error:
            raise StorageFailed(f"the data directory {path} cannot be used: {error}") from error
        try:
            directory._read_identity()
            directory._token = directory._take_token()
            directory._emptied = (path / _EMPTIED).exists()
        except OSError as error:
            directory.close()
            raise StorageFailed(f"the data directory {path} cannot be read: {error}") from error
        except BaseException:
            directory.close()
            raise
        return directory

    @property
    def database(self) -> Path:
        return self.path / "db"

    @property
    def evidence(self) -> Path:
        return self.path / "evidence"

    @property
    def cut(self) -> Path:
        """Where cut-off parts of WAL files are kept."""
        return self.path / "cut"

    @property
    def token(self) -> int | None:
        """The broker epoch that a clean shutdown left here before this opening; None: unclean, or new."""
        return self._token

    def forget_token(self) -> None:
        """The last shutdown does not count as clean: what it left is not what is here now."""
        self._token = None

    @property
    def emptied(self) -> bool:
        """Whether the store was lost and a new one made, and the cluster has not been told yet."""
        return self._emptied

    def note_emptied(self) -> None:
        """
        Durably note that what the broker held is gone: the cluster must take it for one with an empty directory.

        Raises:
            StorageFailed: the disk refused.
        """
        try:
            write_durably(self.path / _EMPTIED, b"the store was lost; the cluster is to be told\n")
        except OSError as error:
            raise StorageFailed(f"{self.path / _EMPTIED} cannot be written: {error}") from error
        self._emptied = True
        self.forget_token()

    def forget_gone(self) -> None:
        """The cluster knows what is gone here. Raises StorageFailed."""
        if self._emptied:
            try:
                (self.path / _EMPTIED).unlink()
                sync_directory(self.path)
            except OSError as error:
                raise StorageFailed(f"{self.path / _EMPTIED} cannot be removed: {error}") from error
            self._emptied = False

    def check(self, cluster_id: str | None, broker_id: int) -> None:
        """
        Refuse a directory that is another's. ``cluster_id`` None: not known yet.

        Raises:
            InconsistentClusterId, Rejected: the text names both sides.
        """
        if self.identity is None:
            return
        if cluster_id is not None and cluster_id != self.identity.cluster_id:
            raise InconsistentClusterId(
                f"the data directory {self.path} belongs to cluster {self.identity.cluster_id!r} (broker "
                f"{self.identity.broker_id}), this broker to cluster {cluster_id!r}; give it the right volume"
            )
        if broker_id != self.identity.broker_id:
            raise Rejected(
                f"the data directory {self.path} belongs to broker {self.identity.broker_id} of cluster "
                f"{self.identity.cluster_id!r}, this is broker {broker_id}; give it the right volume or node id"
            )

    def bind(self, cluster_id: str, broker_id: int) -> None:
        """
        Durably say whose data this is, once; the same again changes nothing.

        Raises:
            InconsistentClusterId, Rejected: it is another's; the text names both.
            StorageFailed: the disk refused.
        """
        assert cluster_id, "a cluster has an id"
        self.check(cluster_id, broker_id)
        if self.identity is None:
            self._write_identity(Identity(cluster_id, broker_id, FORMAT))

    def leave_token(self, broker_epoch: int) -> None:
        """The last step of a clean shutdown. Raises StorageFailed."""
        text = str(broker_epoch)
        try:
            write_durably(self.path / _TOKEN, f"{text} {crc32c(text.encode()):08x}\n".encode())
        except OSError as error:
            raise StorageFailed(f"the clean-shutdown token cannot be written: {error}") from error

    def close(self) -> None:
        """Unlock. A second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _read_identity(self) -> None:
        file = self.path / _IDENTITY
        if not file.exists():
            if self.database.exists():
                raise StorageFailed(
                    f"{self.path} has a database but no identity file: it is not known whose data this is; restore "
                    f"{file}, or move the directory away"
                )
            self._write_identity(None)
            return
        try:
            text, check = file.read_bytes().rstrip(b"\n").rsplit(b"\n", 1)
            sound = int(check, 16) == crc32c(text)
            fields = json.loads(text) if sound else {}
        except ValueError:
            sound, fields = False, {}
        if not sound:
            raise StorageFailed(f"{file} is damaged: it is not known whose data this is; restore it from a copy")
        if fields["format"] > FORMAT:
            raise UnsupportedVersion(
                f"{self.path} has data format {fields['format']}, this broker knows up to {FORMAT}; use a newer version"
            )
        if fields["cluster_id"] is not None:
            self.identity = Identity(fields["cluster_id"], fields["broker_id"], fields["format"])

    def _write_identity(self, identity: Identity | None) -> None:
        fields = {
            "format": FORMAT,
            "cluster_id": identity.cluster_id if identity else None,
            "broker_id": identity.broker_id if identity else None,
        }
        text = json.dumps(fields).encode()
        try:
            write_durably(self.path / _IDENTITY, text + f"\n{crc32c(text):08x}\n".encode())
        except OSError as error:
            raise StorageFailed(f"the identity of {self.path} cannot be written: {error}") from error
        self.identity = identity

    def _take_token(self) -> int | None:
        file = self.path / _TOKEN
        try:
            words = file.read_bytes().split()
        except FileNotFoundError:
            return None
        file.unlink()
        sync_directory(self.path)
        if len(words) != 2 or not words[0].isdigit():
            return None
        return int(words[0]) if f"{crc32c(words[0]):08x}".encode() == words[1] else None


async def open_when_free(path: Path, wait_ms_max: float, clock: Clock, stop: asyncio.Event) -> DataDirectory | None:
    """
    Open a directory that another process may use a little longer: one that was told to end and takes its time, as that
    of a pod which was deleted by force.

    Returns:
        The directory; None when ``stop`` was set meanwhile.

    Raises:
        Conflict: it is still in use after ``wait_ms_max``.
        UnsupportedVersion, StorageFailed: as ``DataDirectory.open``.
    """
    deadline, told = clock.monotonic_ms() + wait_ms_max, False
    while not stop.is_set():
        try:
            return DataDirectory.open(path)
        except Conflict as error:
            if clock.monotonic_ms() >= deadline:
                raise
            if not told:
                _log.warning("%s; waiting up to %.0f s for it to end", error, wait_ms_max / 1_000)
                told = True
        await first_of(stop.wait(), clock.sleep_ms(_LOOK_MS))
    return None


def _take_lock(path: Path) -> int:
    handle = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(handle)
        raise Conflict(
            f"the data directory {path} is in use by process {owner}; stop it, or give this broker another directory"
        ) from error
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return handle
