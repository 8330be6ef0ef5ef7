"""Large transactions that are not committed yet wait on disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final

_SIZE: Final = Struct(">Q")


class DiskSpool:
    """Satisfies ``Spool``: a file for each transaction, in a directory of its own, made when it is needed."""

    def __init__(self, directory: str) -> None:
        """
        Args:
            directory: empty: the system's for temporary files.
        """
        self._parent = directory
        self._directory: Path | None = None

    def append(self, xid: int, block: bytes) -> None:
        """See ``Spool``."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="headrace-connect-", dir=self._parent or None))
        with (self._directory / str(xid)).open("ab") as file:
            file.write(_SIZE.pack(len(block)) + block)

    def read(self, xid: int) -> Iterator[bytes]:
        """See ``Spool``."""
        assert self._directory is not None, "something was appended"
        with (self._directory / str(xid)).open("rb") as file:
            while head := file.read(_SIZE.size):
                (size,) = _SIZE.unpack(head)
                yield file.read(size)

    def drop(self, xid: int) -> None:
        """See ``Spool``."""
        if self._directory is not None:
            (self._directory / str(xid)).unlink(missing_ok=True)

    def close(self) -> None:
        """Forget all, and delete the directory."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
