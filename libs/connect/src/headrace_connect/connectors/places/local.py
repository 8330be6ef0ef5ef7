"""A directory of this machine, or one that is mounted."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pyarrow as pa

from headrace_common.runtime.entropy import new_uuid
from headrace_connect.connectors.places.objects import ObjectPlace
from headrace_connect.connectors.places.port import TEMPORARY, OpenFile, Seen, retriable


class LocalPlace(ObjectPlace):
    """Satisfies ``Place`` on this machine."""

    objects = False

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
            _make_directory(os.path.dirname(path))
            temporary = f"{path}{TEMPORARY}"
            _write_durably(temporary, data)
            os.replace(temporary, path)
            _sync_directory(os.path.dirname(path))

    def create(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        with retriable(f"{name} cannot be made"):
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


def _seen_of(found: os.stat_result) -> Seen:
    return Seen(str(found.st_ino), found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _write_durably(path: str, data: bytes) -> None:
    with open(path, "wb") as target:
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
