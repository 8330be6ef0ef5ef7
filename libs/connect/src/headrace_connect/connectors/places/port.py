"""What connectors need of a place where files are, and what all places have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final, Protocol, Self

import pyarrow as pa

from headrace_connect.plugin import RetriableError

FILES_MAX: Final = 100_000
"""A directory with more is refused: each file is a split."""
TEMPORARY: Final = ".part"
"""Names that end so are of files that are being written."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it is now."""

    id: str
    """Its inode, or its ETag; changes when another file takes its name."""
    size: int
    modified_ns: int
    changed_ns: int = 0
    """When anything of it has changed last, its times too; 0 where that is not known."""


class OpenFile:
    """A file that stays the same one while it is open, whatever happens to its name."""

    def __init__(self, seen: Seen, file: pa.NativeFile) -> None:
        self.seen = seen
        self.file = file
        self._start = 0
        self._last = b""

    def read_at(self, start: int, count: int) -> bytes:
        """
        Up to ``count`` bytes; fewer at the end.

        Raises:
            RetriableError: the place cannot be read now.
        """
        skipped = start - self._start
        if skipped >= 0 and skipped + count <= len(self._last):  # a bucket is not asked twice
            return self._last[skipped : skipped + count]
        with retriable(f"the file cannot be read at byte {start}"):
            self.file.seek(start)
            self._start, self._last = start, self.file.read(count)
        return self._last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        self.file.close()


class Place(Protocol):
    """Files under one directory; names are relative to it, with ``/``. All calls raise RetriableError: not now."""

    objects: bool
    """Whether files are objects, which are replaced whole and never grow."""

    def find(self, pattern: str, files_max: int = FILES_MAX) -> list[str]:
        """The names that match, sorted, at most so many. ``*`` stops at ``/``, ``**`` does not."""
        ...

    def check(self) -> None:
        """
        Raises:
            RetriableError: the directory or bucket is not there, or cannot be listed.
        """
        ...

    def is_there(self) -> bool:
        """Whether there is a directory; of a bucket, which has none, it is true. Asks little."""
        ...

    def list_directory(self, directory: str) -> list[str]:
        """The names of the files in one directory, without those below it; none: it is not there."""
        ...

    def open(self, name: str) -> OpenFile | None:
        """The file of that name now; None: there is none."""
        ...

    def see(self, name: str) -> Seen | None:
        """As ``open(name).seen``, at little cost. None: there is no file, or that would cost as much as opening it."""
        ...

    def find_renamed(self, name: str, file_id: str) -> str | None:
        """Another name in the same directory under which the file with that id is now."""
        ...

    def write(self, name: str, data: bytes, *, whole: bool = True) -> None:
        """
        Put a file under its name; durable when this returns.

        Args:
            whole: there is never a part of it under its name. False: if this fails, there may be.
        """
        ...

    def create(self, name: str, data: bytes) -> bool:
        """
        Put a file under a name that nobody has, whole; whether it is there now. Durable when this returns.

        No two calls with one name and other data succeed, wherever they are made. A call whose outcome got lost is
        recognized by its data, so the data must be the caller's alone.

        Raises:
            RetriableError: it may come to be there yet.
            InvalidConfig: the place cannot do this; says what to do.
        """
        ...

    def sync(self, directory: str) -> None:
        """What is in the directory now stays there, whatever fails; no files of directories below it."""
        ...

    def delete(self, name: str) -> None:
        """Delete it, if it is there."""
        ...


def is_temporary(name: str) -> bool:
    """Whether the name is of no finished file."""
    return name.endswith(TEMPORARY) or PurePosixPath(name).name.startswith(".")


def is_name(pattern: str) -> bool:
    """Whether only one name fits the pattern: itself."""
    return not set(pattern) & set("*?[") and all(part not in ("", ".", "..") for part in pattern.split("/"))


def matches(name: str, pattern: str) -> bool:
    """Whether a name fits a pattern, part by part; ``**`` is any number of directories, none too."""
    return _match(name.split("/"), pattern.split("/"))


def _match(names: list[str], patterns: list[str]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        return any(_match(names[skipped:], patterns[1:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], patterns[0]) and _match(names[1:], patterns[1:])


@contextmanager
def retriable(what: str) -> Iterator[None]:
    """Errors of the place are the world's."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise RetriableError(f"{what}: {error}") from error
