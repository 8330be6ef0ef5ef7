"""
A directory of this machine, or one that is mounted.

Others may write to it, so no link in it leads further than it does: else whoever puts files there would read and write
whatever this process may.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path, PurePosixPath
from typing import Final

import pyarrow as pa
from pyarrow.fs import FileSystem

from headrace_common.runtime.entropy import new_uuid
from headrace_connect.connectors.places.objects import ObjectPlace
from headrace_connect.connectors.places.port import TEMPORARY, OpenFile, Seen, retriable

_OPEN_FILES: Final = "/proc/self/fd"
_log: Final = logging.getLogger(__name__)


class LocalPlace(ObjectPlace):
    """Satisfies ``Place`` on this machine. A link that leads out of the directory is no file of it."""

    objects = False

    def __init__(self, files: FileSystem, root: str) -> None:
        super().__init__(files, root)
        self._told: set[str] = set()
        """Links that lead out."""

    def is_there(self) -> bool:
        return os.path.isdir(self._root)

    def open(self, name: str) -> OpenFile | None:
        with retriable(f"{name} cannot be opened"):
            if not os.path.isfile(self._path(name)):  # a pipe would block
                return None
            try:
                file = pa.OSFile(self._path(name), "rb")
            except FileNotFoundError:
                return None
            if not self._is_inside(_path_of(file, self._path(name))):
                file.close()
                self._tell(name)
                return None
            return OpenFile(_seen_of(os.fstat(file.fileno())), file)

    def see(self, name: str) -> Seen | None:
        with retriable(f"{name} cannot be looked at"):
            try:
                found = os.stat(self._path(name))
            except FileNotFoundError:
                return None
        return _seen_of(found)

    def find_renamed(self, name: str, file_id: str) -> str | None:
        directory = PurePosixPath(self._path(name)).parent
        with retriable(f"{directory} cannot be listed"), os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_file() and str(entry.inode()) == file_id:
                    return str(PurePosixPath(name).with_name(entry.name))
        return None

    def write(self, name: str, data: bytes, *, whole: bool = True) -> None:
        path = self._path(name)
        with retriable(f"{name} cannot be written"):
            self._check_inside(path)
            _make_directory(os.path.dirname(path))
            temporary = f"{path}{TEMPORARY}"
            _write_durably(temporary, data)
            os.replace(temporary, path)
            _sync_directory(os.path.dirname(path))

    def create(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        with retriable(f"{name} cannot be made"):
            self._check_inside(path)
            _make_directory(os.path.dirname(path))
            temporary = f"{path}.{new_uuid()}{TEMPORARY}"
            try:
                _write_durably(temporary, data)
                os.link(temporary, path)
            except FileExistsError:
                created = Path(path).read_bytes() == data  # network file systems may lose the answer
            else:
                created = True
            finally:
                Path(temporary).unlink(missing_ok=True)
            _sync_directory(os.path.dirname(path))
        return created

    def sync(self, directory: str) -> None:
        with retriable(f"{directory} cannot be written"):
            if os.path.isdir(self._path(directory)):
                _sync_directory(self._path(directory))

    def _check_inside(self, path: str) -> None:
        directory = os.path.dirname(path)
        if not self._is_inside(os.path.realpath(directory)):
            raise OSError(f"a link in {directory} leads out of {self._root}")

    def _is_inside(self, real: str) -> bool:
        """Whether a path without links is below the directory, or is it."""
        root = os.path.realpath(self._root or "/")
        return real == root or real.startswith(root.rstrip("/") + "/")

    def _tell(self, name: str) -> None:
        if name not in self._told:
            self._told.add(name)
            _log.warning("%s is a link that leads out of %s, so it is not read", name, self._root)


def _path_of(file: pa.OSFile, path: str) -> str:
    """Where an open file is, without links. What is at ``path`` by now counts only where the system does not tell."""
    told = f"{_OPEN_FILES}/{file.fileno()}"
    return os.path.realpath(told if os.path.islink(told) else path)


def _seen_of(found: os.stat_result) -> Seen:
    return Seen(str(found.st_ino), found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _write_durably(path: str, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    with open(handle, "wb") as target:
        target.write(data)
        target.flush()
        os.fsync(target.fileno())


def _make_directory(path: str) -> None:
    """With all above it; durable when this returns."""
    missing = Path(path)
    made: list[Path] = []
    while not missing.is_dir():
        made.append(missing)
        missing = missing.parent
    os.makedirs(path, exist_ok=True)
    for directory in made:
        _sync_directory(str(directory.parent))


def _sync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
