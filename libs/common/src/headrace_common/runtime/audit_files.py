"""
Where lines of the audit are on disk: numbered files of whole lines in a directory of one process. Blocking; one thread
at a time.

A start begins a file of its own, and so does whatever comes after a write that failed: a line that was cut off is the
last of its file, was promised to nobody, and is passed over by readers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

SUFFIX: Final = ".jsonl"
SPOOL: Final = "spool"
"""The directory, in that of a process, of what is not delivered yet."""
_PREFIX: Final = "audit-"
_DIGITS: Final = 12


class Sink(Protocol):
    """Takes lines."""

    def append(self, lines: Sequence[bytes]) -> None:
        """
        Write the lines, in order; they outlast the process when this returns.

        Raises:
            OSError: some may be written; the same lines may be given again.
        """
        ...

    def close(self) -> None:
        """Nothing is given to it any more."""
        ...


class Files:
    """See the module's text. Files are made with the rights of their user alone."""

    def __init__(self, directory: Path, *, file_bytes_max: int, lines_max: int = sys.maxsize) -> None:
        self._directory = directory
        self._file_bytes_max = file_bytes_max
        self._lines_max = lines_max
        self._descriptor: int | None = None
        self._path: Path | None = None
        self._bytes = self._lines = 0

    def append(self, lines: Sequence[bytes]) -> None:
        """See ``Sink``."""
        for at in range(0, len(lines), self._lines_max):
            self._append(lines[at : at + self._lines_max])

    def roll(self) -> None:
        """What is written next begins a new file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = self._path = None

    close = roll

    def complete(self) -> list[Path]:
        """All files but the one that is being written, the oldest first."""
        return [path for path in list_files(self._directory) if path != self._path]

    @property
    def idle(self) -> bool:
        """Whether no file is being written."""
        return self._path is None

    def _append(self, lines: Sequence[bytes]) -> None:
        data = b"".join(line + b"\n" for line in lines)
        if self._bytes + len(data) > self._file_bytes_max or self._lines + len(lines) > self._lines_max:
            self.roll()
        if self._descriptor is None:
            self._begin()
        assert self._descriptor is not None
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fdatasync(self._descriptor)
        except OSError:
            self.roll()  # what the file has of it now is not known
            raise
        self._bytes += len(data)
        self._lines += len(lines)

    def _begin(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        last = list_files(self._directory)[-1:]
        number = 1 + (int(last[0].stem.removeprefix(_PREFIX)) if last else 0)
        path = self._directory / f"{_PREFIX}{number:0{_DIGITS}}{SUFFIX}"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._path, self._bytes, self._lines = path, 0, 0
        sync_directory(self._directory)


class BoundedFiles(Files):
    """Files of which the oldest are deleted when all together are too large."""

    def __init__(self, directory: Path, *, bytes_max: int) -> None:
        super().__init__(directory, file_bytes_max=max(1 << 18, bytes_max // 8))
        self._bytes_max = bytes_max

    def roll(self) -> None:
        super().roll()
        sizes = [(path, path.stat().st_size) for path in list_files(self._directory)]
        total = sum(size for _, size in sizes) + self._file_bytes_max
        for path, size in sizes:
            if total <= self._bytes_max:
                break
            path.unlink(missing_ok=True)
            total -= size

    close = Files.roll


class Spool(Files):
    """
    Files that are read, delivered, and deleted, the oldest first.

    A file has so few lines that whoever is given all of it again knows them for repeats.
    """

    def __init__(self, directory: Path, *, bytes_max: int = 64 << 20, lines_max: int = 500) -> None:
        super().__init__(directory, file_bytes_max=1 << 20, lines_max=lines_max)
        self._bytes_max = bytes_max

    def append(self, lines: Sequence[bytes]) -> None:
        """
        See ``Sink``.

        Raises:
            OSError: also where as much waits to be delivered as may.
        """
        waiting = sum(path.stat().st_size for path in list_files(self._directory))
        if waiting + sum(map(len, lines)) + len(lines) > self._bytes_max:
            raise OSError(f"{waiting} bytes wait for the topic __audit, and {self._bytes_max} are the most")
        super().append(lines)

    def oldest(self) -> Path | None:
        """The file to deliver next; None: everything is delivered. Nothing is added to it any more."""
        complete = self.complete()
        if not complete and not self.idle:
            self.roll()
            complete = self.complete()
        return complete[0] if complete else None


class Stdout:
    """Lines go to the process's standard output, where its logs are not."""

    def append(self, lines: Sequence[bytes]) -> None:
        """See ``Sink``."""
        sys.stdout.buffer.write(b"".join(line + b"\n" for line in lines))
        sys.stdout.buffer.flush()

    def close(self) -> None:
        """It stays open."""


def list_files(directory: Path) -> list[Path]:
    """The files of one process, the oldest first."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    numbers = {name: name.removeprefix(_PREFIX).removesuffix(SUFFIX) for name in names}
    return [directory / name for name in sorted(names) if len(numbers[name]) == _DIGITS and numbers[name].isdigit()]


def read_lines(path: Path) -> Iterator[bytes]:
    """Whole lines of a file; one that was cut off at its end is left out."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line[:-1]


def sync_directory(directory: Path) -> None:
    """What was made or deleted in it outlasts the machine."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
