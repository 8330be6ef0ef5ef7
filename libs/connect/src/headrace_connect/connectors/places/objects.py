"""A bucket, through Arrow's file system of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType

from headrace_connect.connectors.places.bucket import Bucket
from headrace_connect.connectors.places.port import (
    FILES_MAX,
    TEMPORARY,
    OpenFile,
    Seen,
    is_name,
    is_temporary,
    matches,
    retriable,
)
from headrace_connect.plugin import RetriableError


class ObjectPlace:
    """Satisfies ``Place`` in a bucket."""

    objects = True

    def __init__(self, files: FileSystem, root: str, url: str = "") -> None:
        self._files = files
        self._root = root.rstrip("/")
        self._bucket = Bucket(url)

    def check(self) -> None:
        with retriable(f"{self._root} cannot be listed"):
            self._files.get_file_info(FileSelector(self._root))

    def find(self, pattern: str, files_max: int = FILES_MAX) -> list[str]:
        with retriable(f"{self._root} cannot be listed"):
            if is_name(pattern):
                infos = self._files.get_file_info([self._path(pattern)])
            else:
                infos = self._files.get_file_info(FileSelector(self._root, recursive=True, allow_not_found=True))
        found = [info.path.removeprefix(f"{self._root}/") for info in infos if info.type == FileType.File]
        names = sorted(name for name in found if matches(name, pattern) and not is_temporary(name))
        if len(names) > files_max:
            raise RetriableError(
                f"{len(names)} files match, more than {files_max}; delete or move what was read, or narrow the pattern"
            )
        return names

    def is_there(self) -> bool:
        return True

    def list_directory(self, directory: str) -> list[str]:
        with retriable(f"{directory} cannot be listed"):
            infos = self._files.get_file_info(FileSelector(self._path(directory), allow_not_found=True))
        found = [info.path.removeprefix(f"{self._root}/") for info in infos if info.type == FileType.File]
        return sorted(name for name in found if not is_temporary(name))

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

    def see(self, name: str) -> Seen | None:
        return None

    def find_renamed(self, name: str, file_id: str) -> str | None:
        return None

    def write(self, name: str, data: bytes, *, whole: bool = True) -> None:
        path = self._path(name)
        with retriable(f"{name} cannot be written"):
            # A stream that fails leaves what it has: under its name there is never half a file.
            with self._files.open_output_stream(f"{path}{TEMPORARY}" if whole else path) as target:
                target.write(data)
            if whole:
                self._files.move(f"{path}{TEMPORARY}", path)

    def create(self, name: str, data: bytes) -> bool:
        if self._bucket.create(name, data):
            return True
        file = self.open(name)  # a try that was repeated finds its own object
        if file is None:
            return False
        with file:
            return file.seen.size == len(data) and file.read_at(0, len(data)) == data

    def sync(self, directory: str) -> None:
        """See ``Place``: an object is durable when it is seen."""

    def delete(self, name: str) -> None:
        with retriable(f"{name} cannot be deleted"):
            try:
                self._files.delete_file(self._path(name))
            except FileNotFoundError:
                return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
