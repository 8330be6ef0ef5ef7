"""Backups of the metadata as files in a directory: written whole or not at all, the newest few kept."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

from headrace_common.core.errors import Conflict, HeadraceError, NotFound
from headrace_controller.adapters.envelopes import BackupKey, BackupKeyMissing, Recipients, read_backup
from headrace_controller.core.backup_file import SUFFIX, Backup, encode, file_name
from headrace_controller.core.encrypted_backup import whose


class BackupFiles:
    """Backups of one cluster in one directory. Blocking: for programs that do nothing else."""

    def __init__(
        self, directory: Path, cluster: str, *, recipients: Recipients | None = None, key: BackupKey | None = None
    ) -> None:
        """
        Args:
            recipients: who may read what is written; None: who may read the file.
            key: opens what is encrypted.
        """
        self._directory = directory
        self._cluster = cluster
        self._recipients = recipients
        self._key = key
        self._name = re.compile(rf"{re.escape(cluster)}-(\d{{8}}T\d{{6}}Z)-(\d+){re.escape(SUFFIX)}")

    def write(self, backup: Backup) -> Path:
        """
        Write it, for this user alone, and read it back; durable when this returns.

        Raises:
            OSError: the disk refused; no backup of this name was made.
            UnsupportedVersion: it cannot be encrypted here.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        utc = datetime.fromtimestamp(backup.time_ms / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")
        target = self._directory / file_name(backup.cluster, utc, backup.revision)
        temporary = self._directory / f".{target.name}.part"
        content = encode(backup) if self._recipients is None else self._recipients.seal(backup)
        temporary.unlink(missing_ok=True)  # of a run that crashed, and may be open to others
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        assert temporary.read_bytes() == content, "what was written is what is read"
        temporary.replace(target)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return target

    def prune(self, keep: int, identity: str | None) -> list[Path]:
        """
        Remove what a write that crashed has left, and all but the newest ``keep`` (1 or more) of the cluster with that
        id; what was removed. Backups of another cluster of that name are never removed for those of this one.
        """
        assert keep >= 1, "the one just written stays"
        gone = [path for path in self._newest_first() if whose(path.read_bytes()) == identity][keep:]
        gone += [p for p in self._directory.glob(f".*{SUFFIX}.part") if self._name.fullmatch(p.name[1:-5])]
        for path in gone:
            path.unlink(missing_ok=True)
        return gone

    def names(self) -> list[str]:
        """Of all backups, the newest first."""
        return [path.name for path in self._newest_first()]

    def newest(self) -> tuple[Path, Backup, list[str]]:
        """
        The newest whole backup, and why newer ones were passed over.

        Raises:
            NotFound: there is none that is whole.
            Conflict: there are backups of several clusters of this name; which one is meant cannot be known.
            BackupKeyMissing: the newest one is encrypted, and the key is not the one; an older one is not meant.
        """
        passed_over: list[str] = []
        for path in self._newest_first():
            try:
                backup = read_backup(path.read_bytes(), self._key)
                self._refuse_to_choose()
                return path, backup, passed_over
            except Conflict:
                raise
            except BackupKeyMissing as error:
                raise BackupKeyMissing(f"{path}: {error}") from error
            except (HeadraceError, OSError) as error:
                passed_over.append(f"{path.name}: {error}")
        why = f" ({'; '.join(passed_over)})" if passed_over else ""
        raise NotFound(f"{self._directory} has no whole backup of cluster {self._cluster}{why}; give a file")

    def _refuse_to_choose(self) -> None:
        newest: dict[str, str] = {}
        for path in self._newest_first():
            identity = whose(path.read_bytes())
            if identity is not None:
                newest.setdefault(identity, path.name)
        if len(newest) > 1:
            some = "; ".join(f"cluster {identity}: newest {name}" for identity, name in newest.items())
            raise Conflict(
                f"{self._directory} has backups of {len(newest)} clusters that are called {self._cluster} ({some}); "
                "where etcd had lost its data, controllers that were started made a new one: that with the latest "
                "backups may be empty. Name the file. Brokers say which cluster their data belongs to"
            )

    def _newest_first(self) -> list[Path]:
        found = [(m[1], int(m[2]), p) for p in self._directory.iterdir() if (m := self._name.fullmatch(p.name))]
        return [path for _, _, path in sorted(found, reverse=True)]
