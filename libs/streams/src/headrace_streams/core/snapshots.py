"""
Which snapshots of a task's state can be used, which are deleted, and whether the files of one are what was written.

A snapshot is a copy of a task's cold tier as of one of its commits. Its name says as of which, and whose: whoever owned
the task then. So two workers that both believe to own a task write beside each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from headrace_common.core.errors import DataLost, ErrorCode

KEPT: Final = 2
"""So many snapshots of a task stay."""
_VERSION: Final = 1
_NAME: Final = re.compile(r"(\d{20})-(\d{20})-(\d{15})-([\w-]+)")


class SnapshotDamaged(DataLost, code=ErrorCode.CORRUPT_MESSAGE):
    """Files of a snapshot are missing or not what was written."""


@dataclass(frozen=True, slots=True, order=True)
class Snapshot:
    """One that was begun; the later commit is the greater."""

    next_offset: int
    """Of the changelog: everything before is in it."""
    epoch: int
    """Of the task, when it was taken."""
    at_ms: int
    """When the commit was written, by the clock."""
    log_id: str
    """Of the changelog's partition."""
    complete: bool = field(default=True, compare=False)
    """Whether it has its manifest."""

    @property
    def name(self) -> str:
        """Of its directory."""
        return f"{self.next_offset:020}-{self.epoch:020}-{self.at_ms:015}-{self.log_id}"

    @staticmethod
    def parse(name: str, *, complete: bool) -> Snapshot | None:
        """From the name of a directory; None: it is of something else."""
        found = _NAME.fullmatch(name)
        return None if found is None else Snapshot(int(found[1]), int(found[2]), int(found[3]), found[4], complete)


@dataclass(frozen=True, slots=True)
class Log:
    """A partition of a changelog, as far as copies of its rows are held against it."""

    id: str
    start: int
    end: int
    """Its high watermark."""
    oldest_ms: int
    """What is older may lack deletions that are gone from the log."""
    newest_ms: int
    """Now: what is newer was written by another clock."""

    def continues(self, log_id: str, next_offset: int, at_ms: int) -> bool:
        """Whether a copy and what is behind it in the log are together what the whole log says."""
        in_log = self.start <= next_offset <= self.end
        return log_id == self.id and in_log and self.oldest_ms <= at_ms <= self.newest_ms


def useful(found: Iterable[Snapshot], log: Log, begin: int, lag: int) -> list[Snapshot]:
    """
    Those that can be trusted and are worth it, the newest first.

    Args:
        begin: up to where the disk has followed the changelog.
        lag: so many records are read from the changelog rather than from a snapshot.
    """
    trusted = (s for s in found if s.complete and log.continues(s.log_id, s.next_offset, s.at_ms))
    return sorted((s for s in trusted if s.next_offset - begin > lag), reverse=True)


def obsolete(found: Iterable[Snapshot], log_id: str, oldest_ms: int) -> list[Snapshot]:
    """
    What can be deleted: snapshots before the last ``KEPT``, what was begun before these and never ended, and what is
    too old for anyone. Of another log only that: whoever writes there may be right.
    """
    found = list(found)
    of_log = sorted((s for s in found if s.log_id == log_id and s.complete), reverse=True)
    kept = of_log[:KEPT]

    def goes(one: Snapshot) -> bool:
        if one in kept:
            return False
        return one.at_ms < oldest_ms or (one.log_id == log_id and bool(kept) and one < kept[0])

    return [one for one in found if goes(one)]


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a file of a snapshot holds."""

    size: int
    """Bytes."""
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a snapshot. It is written last: without it there is none."""

    files: Mapping[str, FileFacts]

    def encode(self) -> bytes:
        """As JSON."""
        files = {name: [facts.size, facts.sha256] for name, facts in self.files.items()}
        return orjson.dumps({"v": _VERSION, "files": files})

    @staticmethod
    def decode(text: bytes) -> Manifest:
        """
        Raises:
            SnapshotDamaged: it is cut off, of another version, or something else.
        """
        try:
            read = orjson.loads(text)
            if read["v"] != _VERSION:
                raise SnapshotDamaged(f"its manifest is of version {read['v']}, and this worker reads {_VERSION}")
            files = {name: FileFacts(int(size), str(sha256)) for name, (size, sha256) in read["files"].items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SnapshotDamaged(f"its manifest cannot be read: {error!r}") from error
        strange = next((name for name in files if "/" in name or name in ("", ".", "..")), None)
        if strange is not None:
            raise SnapshotDamaged(f"its manifest names a file {strange!r}")
        return Manifest(files)

    def check(self, name: str, facts: FileFacts) -> None:
        """
        Raises:
            SnapshotDamaged: a file is not what was written.
        """
        if facts != self.files[name]:
            raise SnapshotDamaged(f"its file {name} has {facts.size} bytes that are not those that were written")
