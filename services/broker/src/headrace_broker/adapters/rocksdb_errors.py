"""
Decides what a RocksDB error means: the one place where its texts are read.

rocksdict raises plain ``Exception`` with RocksDB's status as text. ``rocksdb_store`` wraps every call in ``mapped``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headrace_broker.ports import BytesLost, WriteStalled
from headrace_common.core.errors import StorageFailed

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


def typed_error(error: Exception, doing: str) -> StorageFailed | WriteStalled:
    """What ``error``, raised by rocksdict while ``doing`` something, is for callers."""
    text = str(error)
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
def mapped(doing: str) -> Iterator[None]:
    """Raise rocksdict's errors of the block as ``StorageFailed`` or ``WriteStalled``; all others pass."""
    try:
        yield
    except (AssertionError, StorageFailed, WriteStalled, MemoryError):
        raise
    except Exception as error:
        raise typed_error(error, doing) from error
