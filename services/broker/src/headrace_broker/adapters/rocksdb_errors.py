"""
Decides what a RocksDB error means: the one place where its texts are read.

rocksdict raises plain ``Exception`` with RocksDB's status as text. ``rocksdb_store`` wraps every call in
``map_errors``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headrace_broker.ports import BytesLost, WriteStalled
from headrace_common.core.errors import StorageFailed

__all__ = ["CORRUPT", "StoreBroken", "map_errors", "means_lost_bytes", "translate_error"]

_STALL = "Write stall"
_NO_SPACE = ("No space", "NoSpace", "Disk quota", "File too large")
CORRUPT: Final = "stored bytes are not what was written"
_LOST = ("Corruption", "No such file", "Input/output error")
_MEANINGS = (
    ("Corruption", f"{CORRUPT}; keep the directory for `headrace debug`, then replace it"),
    ("Too many open files", "the process may not open more files; raise its limit (ulimit -n)"),
    ("IO error", "the disk failed; check it (dmesg, SMART) before the broker is started again"),
    ("Shutdown in progress", "the store is closing"),
)
_NOT_SEEN = ("newer version", "unknown", "Unknown", "not supported", "Not implemented")
"""RocksDB calls a format that it does not know a corruption, too."""


class StoreBroken(BytesLost):
    """Files of the store are gone, or are not what was written, so that it cannot be opened."""


def means_lost_bytes(error: Exception) -> bool:
    """
    Whether it says that stored bytes are gone or wrong.

    Not where the disk, a right or a limit kept them from being read, which RocksDB may call a corruption as well, nor
    where they are of a format that is not known.
    """
    text = str(error)
    if isinstance(error, StoreBroken):
        return True
    if not isinstance(error, BytesLost) or "Corruption" not in text or any(sign in text for sign in _NOT_SEEN):
        return False
    return "IO error" not in text or "No such file" in text


def translate_error(error: Exception, doing: str) -> StorageFailed | WriteStalled:
    """What ``error``, raised by rocksdict while ``doing`` something, is for callers."""
    text = " ".join(str(error).split())
    if _STALL in text:
        return WriteStalled(f"{doing}: the store is behind with flushes or compaction; write the same group again")
    if any(sign in text for sign in _NO_SPACE):
        return StorageFailed(f"{doing}: the disk is full; free space, then start the broker again ({text})")
    kind = BytesLost if any(sign in text for sign in _LOST) else StorageFailed
    for sign, meaning in _MEANINGS:
        if sign in text:
            return kind(f"{doing}: {meaning} ({text})")
    return StorageFailed(f"{doing}: the store failed ({text or type(error).__name__})")


@contextmanager
def map_errors(doing: str) -> Iterator[None]:
    """Raise rocksdict's errors of the block as ``StorageFailed`` or ``WriteStalled``; all others pass."""
    try:
        yield
    except (AssertionError, StorageFailed, WriteStalled, MemoryError):
        raise
    except Exception as error:
        raise translate_error(error, doing) from error
