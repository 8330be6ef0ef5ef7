"""
Decides whether an etcd has ever written something: one that is killed within a tenth of a second of its first start
leaves a log without an entry, knows nobody by it, not even itself, and elects nobody as long as it lives.

The supervisor of a local cluster and the program beside etcd on Kubernetes ask before they start one. The format is
that of etcd's write-ahead log (etcd 3, ``server/wal/encoder.go`` and ``walpb/record.proto``): eight bytes, with the
length in the lower seven, and the padding in the low three bits of the eighth where its highest bit is set; then a
protobuf message, whose first field is the type; then the padding.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MEMBER: Final = "member"
_FIRST: Final = f"{0:016x}-{0:016x}.wal"
_HEAD_BYTES: Final = 4_096
"""What stands before the first entry has some hundred."""
_METADATA, _CHECKSUM, _SNAPSHOT = 1, 4, 5
_BEFORE_ENTRIES: Final = frozenset({_METADATA, _CHECKSUM, _SNAPSHOT})
_TYPE_TAG: Final = 0x08
_LENGTH: Final = struct.Struct("<Q")


def drop_unwritten(data_dir: Path) -> bool:
    """
    Remove what an etcd left in its data directory that ended before its first entry, so that it can begin anew. Nobody
    may run there.

    Returns:
        Whether there was such; what has an entry, or is not understood, is left alone.

    Raises:
        OSError: it cannot be read or removed.
    """
    if not _is_unwritten(data_dir / MEMBER / "wal"):
        return False
    shutil.rmtree(data_dir / MEMBER)
    return True


def _is_unwritten(log: Path) -> bool:
    if not log.is_dir() or [path.name for path in log.glob("*.wal")] != [_FIRST]:
        return False
    with (log / _FIRST).open("rb") as file:
        head = file.read(_HEAD_BYTES)
    types = list(_types(head))
    return _METADATA in types and _BEFORE_ENTRIES.issuperset(types)


def _types(head: bytes) -> Iterator[int]:
    """Of the records up to the first that is not there; -1: of one that is not understood."""
    at = 0
    while True:
        if at + _LENGTH.size > len(head):
            yield -1
            return
        (frame,) = _LENGTH.unpack_from(head, at)
        if frame == 0:  # the file is made with its full length
            yield from [-1] * any(head[at:])
            return
        length, padding = frame & ~(0xFF << 56), (frame >> 56) & 0x7
        record = head[at + _LENGTH.size : at + _LENGTH.size + length]
        yield record[1] if len(record) == length > 1 and record[0] == _TYPE_TAG else -1
        at += _LENGTH.size + length + padding
