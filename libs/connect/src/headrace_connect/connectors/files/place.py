"""Where files are: a directory of this machine, or what Arrow has a file system for. Only this module opens files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Final, Protocol, Self

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from headrace_connect.connectors.files.identity import Seen
from headrace_connect.plugin import RetriableError

_SCHEMES: Final = ("file", "s3", "gs", "gcs", "abfs", "abfss")
FILES_MAX: Final = 100_000
"""A directory with more is refused: each file is a split."""


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
    """Files under one directory; names are relative to it, with ``/``."""

    objects: bool
    """Whether files are objects, which are replaced whole and never grow."""

    def find(self, pattern: str) -> list[str]:
        """
        The names that match, sorted. ``*`` stops at ``/``, ``**`` does not.

        Raises:
            RetriableError: not now.
        """
        ...

    def check(self) -> None:
        """
        Raises:
            RetriableError: the directory or bucket is not there, or cannot be listed.
        """
        ...

    def list_directory(self, directory: str) -> list[str]:
        """The names of the files in one directory, without those below it; none: it is not there."""
        ...

    def open(self, name: str) -> OpenFile | None:
        """The file of that name now; None: there is none."""
        ...

    def find_renamed(self, name: str, file_id: str) -> str | None:
        """Another name in the same directory under which the file with that id is now."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Put a file under its name, whole or not at all; durable when this returns."""
        ...

    def delete(self, name: str) -> None:
        """Delete it, if it is there."""
        ...


def check_url(url: str) -> None:
    """
    Raises:
        ValueError: it is no path or URL of a place. Nothing is asked of the place.
    """
    if not url:
        raise ValueError("path is empty")
    scheme, colon, rest = url.partition("://")
    if not colon:
        return
    if scheme not in _SCHEMES:
        raise ValueError(
            f"path {url!r} cannot be used; there are directories, s3://BUCKET/PATH, gs://BUCKET/PATH, "
            "abfs://CONTAINER@ACCOUNT/PATH and file:///PATH"
        )
    if not rest.strip("/") or (scheme != "file" and rest.startswith("/")):
        raise ValueError(f"path {url!r} names no bucket or directory")


def find_place(url: str) -> Place:
    """
    The place of a path or URL; may ask where its bucket is.

    Raises:
        RetriableError: not now.
    """
    with retriable(f"{url} cannot be used"):
        files, root = FileSystem.from_uri(url if "://" in url else os.path.abspath(url))
    return LocalPlace(files, root) if isinstance(files, LocalFileSystem) else ObjectPlace(files, root)


class ObjectPlace:
    """Satisfies ``Place`` in a bucket."""

    objects = True

    def __init__(self, files: FileSystem, root: str) -> None:
        self._files = files
        self._root = root.rstrip("/")

    def check(self) -> None:
        with retriable(f"{self._root} cannot be listed"):
            self._files.get_file_info(FileSelector(self._root))

    def find(self, pattern: str) -> list[str]:
        with retriable(f"{self._root} cannot be listed"):
            infos = self._files.get_file_info(FileSelector(self._root, recursive=True, allow_not_found=True))
        found = [info.path.removeprefix(f"{self._root}/") for info in infos if info.type == FileType.File]
        names = sorted(name for name in found if matches(name, pattern) and not _is_temporary(name))
        if len(names) > FILES_MAX:
            raise RetriableError(
                f"{len(names)} files match, more than {FILES_MAX}; delete or move what was read, or narrow the pattern"
            )
        return names

    def list_directory(self, directory: str) -> list[str]:
        with retriable(f"{directory} cannot be listed"):
            infos = self._files.get_file_info(FileSelector(self._path(directory), allow_not_found=True))
        found = [info.path.removeprefix(f"{self._root}/") for info in infos if info.type == FileType.File]
        return sorted(name for name in found if not _is_temporary(name))

    def open(self, name: str) -> OpenFile | None:
        with retriable(f"{name} cannot be opened"):
            info = self._files.get_file_info(self._path(name))
            if info.type != FileType.File:
                return None
            try:
                file = self._files.open_input_file(info.path)
            except FileNotFoundError:
                return None
            return OpenFile(self._see(info, file), file)

    def _see(self, info: FileInfo, file: pa.NativeFile) -> Seen:
        metadata: Any = file.metadata() or {}
        etag = metadata.get("ETag", b"").decode().strip('"')
        return Seen(etag or f"{info.mtime_ns}", file.size(), info.mtime_ns or 0)

    def find_renamed(self, name: str, file_id: str) -> str | None:
        return None

    def write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with retriable(f"{name} cannot be written"):
            # A stream that fails leaves what it has: under its name there is never half a file.
            with self._files.open_output_stream(f"{path}{_TEMPORARY}") as target:
                target.write(data)
            self._files.move(f"{path}{_TEMPORARY}", path)

    def delete(self, name: str) -> None:
        with retriable(f"{name} cannot be deleted"):
            try:
                self._files.delete_file(self._path(name))
            except FileNotFoundError:
                return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


class LocalPlace(ObjectPlace):
    """Satisfies ``Place`` on this machine."""

    objects = False

    def open(self, name: str) -> OpenFile | None:
        with retriable(f"{name} cannot be opened"):
            if not os.path.isfile(self._path(name)):  # a pipe would block
                return None
            try:
                file = pa.OSFile(self._path(name), "rb")
            except FileNotFoundError:
                return None
            found = os.fstat(file.fileno())
            return OpenFile(Seen(str(found.st_ino), found.st_size, found.st_mtime_ns), file)

    def find_renamed(self, name: str, file_id: str) -> str | None:
        directory = PurePosixPath(self._path(name)).parent
        with retriable(f"{directory} cannot be listed"), os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_file() and str(entry.inode()) == file_id:
                    return str(PurePosixPath(name).with_name(entry.name))
        return None

    def write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with retriable(f"{name} cannot be written"):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            temporary = f"{path}{_TEMPORARY}"
            with open(temporary, "wb") as target:
                target.write(data)
                target.flush()
                os.fsync(target.fileno())
            os.replace(temporary, path)
            _sync_directory(os.path.dirname(path))


_TEMPORARY: Final = ".part"


def _is_temporary(name: str) -> bool:
    return name.endswith(_TEMPORARY) or PurePosixPath(name).name.startswith(".")


def _sync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
