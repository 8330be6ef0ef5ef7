"""
What was certainly on disk once, per log: the file that lets opening tell a crash from silent loss.

Pure encoding, and one atomic file. ``evidence_keeper`` decides when it is written; recovery compares it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace_broker.adapters.data_directory import write_durably
from headrace_broker.core.rows import LogId
from headrace_common.core.batch.checksum import crc32c
from headrace_common.core.ids import Offset, PartitionId, TopicId

_MAGIC: Final = b"HREVIDNC"
_VERSION: Final = 1
_HEADER = struct.Struct(">8sBBI")
_ENTRY = struct.Struct(">I16siqiq")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One log's entry."""

    partition: PartitionId
    end: Offset
    """On disk up to here, by a sync or a flush."""
    epoch: int
    """Leader epoch of the batch that ends there; -1: no batch."""
    verified: Offset
    """In table files, and checked to be dense, up to here: recovery starts its walk here. 0: nothing is."""


class EvidenceUnreadable(Exception):
    """The file is not what was written; the text says how."""


def encode(entries: dict[LogId, Evidence], clean: bool) -> bytes:
    """The whole file: header, 44 bytes per log, CRC-32C."""
    parts = [_HEADER.pack(_MAGIC, _VERSION, clean, len(entries))]
    for log, entry in entries.items():
        topic_id, partition = entry.partition
        parts.append(_ENTRY.pack(log, topic_id, partition, entry.end, entry.epoch, entry.verified))
    body = b"".join(parts)
    return body + _CRC.pack(crc32c(body))


def decode(data: bytes) -> tuple[dict[LogId, Evidence], bool]:
    """Entries, and whether the shutdown was clean. Raises EvidenceUnreadable."""
    if len(data) < _HEADER.size + _CRC.size:
        raise EvidenceUnreadable(f"it has only {len(data)} bytes")
    body, (crc,) = data[: -_CRC.size], _CRC.unpack(data[-_CRC.size :])
    if crc32c(body) != crc:
        raise EvidenceUnreadable("its checksum is wrong")
    magic, version, clean, count = _HEADER.unpack_from(body)
    if magic != _MAGIC or version != _VERSION or len(body) != _HEADER.size + count * _ENTRY.size:
        raise EvidenceUnreadable(f"it has version {version}, this broker knows {_VERSION}")
    entries = {}
    for log, topic_id, partition, end, epoch, verified in _ENTRY.iter_unpack(body[_HEADER.size :]):
        name = PartitionId(TopicId(topic_id), partition)
        entries[LogId(log)] = Evidence(name, Offset(end), epoch, Offset(verified))
    return entries, bool(clean)


def load(path: Path) -> tuple[dict[LogId, Evidence], bool] | None:
    """Entries and clean flag; None: there is no file. Raises EvidenceUnreadable, OSError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return decode(data)


def store(path: Path, entries: dict[LogId, Evidence], clean: bool) -> None:
    """Replace the file durably. Raises OSError."""
    write_durably(path, encode(entries, clean))
