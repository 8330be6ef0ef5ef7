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
    """Satisfies ``Spool``: a file for each transaction, in a directory of its own that ``close`` deletes."""

    def __init__(self, directory: str) -> None:
        """
        Args:
            directory: empty: the system's for temporary files.

        Raises:
            OSError: nothing can be written there.
        """
        self._directory = Path(tempfile.mkdtemp(prefix="headrace-connect-", dir=directory or None))

    def append(self, xid: int, block: bytes) -> None:
        """See ``Spool``."""
        with self._path(xid).open("ab") as file:
            file.write(_SIZE.pack(len(block)) + block)

    def read(self, xid: int) -> Iterator[bytes]:
        """See ``Spool``."""
        with self._path(xid).open("rb") as file:
            while head := file.read(_SIZE.size):
                (size,) = _SIZE.unpack(head)
                yield file.read(size)

    def drop(self, xid: int) -> None:
        """See ``Spool``."""
        self._path(xid).unlink(missing_ok=True)

    def close(self) -> None:
        """Forget all."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _path(self, xid: int) -> Path:
        return self._directory / str(xid)
