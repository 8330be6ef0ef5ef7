"""
Decides which bytes of the write-ahead log RocksDB may see: garbled ones can keep its opening busy for ever.

``RocksDbLogs.open`` calls ``guard`` before RocksDB. It walks the record headers, checksums and sequence numbers of each
WAL that is still needed (the MANIFEST says from which on), cuts at the first fault, and sets aside every later WAL that
does not go on exactly where the sound part ends: what comes back is one moment of the past, for all logs. The parts
cut off are kept in ``cut/``.

The format is RocksDB's log format (LevelDB's, with recyclable records): blocks of 32 KiB; a record is a masked CRC-32C,
a length, a type, for recyclable types the log number, and a payload that never crosses a block.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from headrace_broker.adapters.data_directory import sync_directory
from headrace_broker.adapters.rocksdb_errors import StoreBroken
from headrace_common.core.batch.checksum import crc32c
from headrace_common.core.errors import StorageFailed

BLOCK: Final = 32 << 10
_HEADER = struct.Struct("<IHB")
_LOG_NUMBER = struct.Struct("<I")
_BATCH_HEAD = struct.Struct("<QI")
_RECYCLABLE: Final = frozenset({5, 6, 7, 8, 11, 131})
_FULL: Final = frozenset({1, 5})
_FIRST: Final = frozenset({2, 6})
_MIDDLE: Final = frozenset({3, 7})
_LAST: Final = frozenset({4, 8})
_META: Final = frozenset({9, 10, 11, 130, 131})
"""Compression type, timestamp sizes, predecessor: whole records that carry no writes."""
_SAFE_TO_IGNORE: Final = 0x80
_ONLY_ZEROS: Final = "only zeros follow"
_NOT_KNOWN: Final = "is not known"

# Tags at the start of a VersionEdit, before the lists of files: number → has a length before its bytes.
_EDIT_TAGS: Final = {1: True, 2: False, 3: False, 4: False, 9: False, 10: False, 203: False, 8193: True}
_TAG_LOG_NUMBER: Final = 2
_TAG_LAST_SEQUENCE: Final = 4
_TAG_MIN_LOG_NUMBER: Final = 10


class Record(NamedTuple):
    """One whole logical record."""

    end: int
    """The file offset after it."""
    head: bytes
    """Its first bytes, up to 12; empty for a record without writes."""
    at: int
    """The file offset of its first fragment."""


class Fault(NamedTuple):
    """Why a walk ended before the end of the file."""

    at: int
    reason: str
    torn: bool
    """The file ends within the record, as after a crash while it was written."""


@dataclass(slots=True)
class Guarded:
    """What the guard did."""

    bytes_checked: int = 0
    cuts: list[str] = field(default_factory=list)
    newest: int = 0
    """Number of the newest WAL that was there."""


def records(data: memoryview, number: int) -> Iterator[Record | Fault]:
    """The logical records of one log file; last comes a ``Fault`` if there is one."""
    at, start, head = 0, -1, b""
    size = len(data)
    while at < size:
        room = BLOCK - at % BLOCK
        if room < _HEADER.size:
            at += room
            continue
        found = _physical(data, at, room, number)
        if isinstance(found, Fault):
            yield found if start < 0 or found.torn else Fault(start, found.reason, False)
            return
        kind, payload, after = found
        whole = kind in _FULL or kind in _META or kind >= _SAFE_TO_IGNORE
        if (whole or kind in _FIRST) != (start < 0):
            yield Fault(at, f"record type {kind} is out of place", False)
            return
        if whole:
            yield Record(after, bytes(data[payload : min(after, payload + 12)]) if kind in _FULL else b"", at)
        else:
            start = at if kind in _FIRST else start
            head += bytes(data[payload : min(after, payload + 12 - len(head))])
            if kind in _LAST:
                yield Record(after, head, start)
                start, head = -1, b""
        at = after
    if start >= 0:
        yield Fault(start, "the last record is not complete", True)


def _physical(data: memoryview, at: int, room: int, number: int) -> tuple[int, int, int] | Fault:
    """Type, payload offset and end of the fragment at ``at``."""
    size = len(data)
    if size - at < _HEADER.size:
        return Fault(at, "the last record is not complete", True)
    crc, length, kind = _HEADER.unpack_from(data, at)
    payload = at + _HEADER.size
    if kind in _RECYCLABLE:
        payload += _LOG_NUMBER.size
    after = payload + length
    if kind == 0 and length == 0 and crc == 0:
        return Fault(at, _ONLY_ZEROS if _all_zero(data[at:]) else "zeros instead of a record", False)
    if after - at > room:
        return Fault(at, f"a record of {length} bytes cannot start here", False)
    if after > size:
        return Fault(at, "the last record is not complete", True)
    if kind in _RECYCLABLE and _LOG_NUMBER.unpack_from(data, at + _HEADER.size)[0] != number & 0xFFFFFFFF:
        return Fault(at, "what follows is left from an older log", False)
    if _mask(crc32c(data[at + 6 : after])) != crc:
        return Fault(at, "a record's checksum is wrong", False)
    if not (1 <= kind <= 11 or kind >= _SAFE_TO_IGNORE):
        return Fault(at, f"record type {kind} {_NOT_KNOWN}", False)
    return kind, payload, after


def _mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _all_zero(data: memoryview) -> bool:
    return all(not any(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK))


def guard(database: Path, cut: Path) -> Guarded:
    """
    Make the WAL files in ``database`` safe to open; keep what is cut off in ``cut``.

    Raises:
        StorageFailed: the database cannot be opened without loss; the text names the file. Nothing was changed.
            StoreBroken where that will not change.
    """
    result = Guarded()
    if not database.exists():
        return result
    try:
        needed_from, last_sequence = _manifest(database)
        wals = sorted((int(path.stem), path) for path in database.glob("*.log"))
        result.newest = max((number for number, _ in wals), default=0)
        live = [(number, path) for number, path in wals if number >= needed_from]
        _guard_wals(live, last_sequence + 1, cut, result)
    except OSError as error:
        raise StorageFailed(f"the write-ahead log in {database} cannot be checked: {error}") from error
    return result


def _guard_wals(wals: list[tuple[int, Path]], first_max: int, cut: Path, result: Guarded) -> None:
    """``first_max``: the highest number with which the first write can begin."""
    expected: int | None = None
    for at, (number, path) in enumerate(wals):
        size = path.stat().st_size
        result.bytes_checked += size
        sound, expected, fault = _walk(path, number, expected, first_max)
        if fault is None:
            continue
        zeros = fault.reason == _ONLY_ZEROS
        if not zeros:
            result.cuts.append(f"{path.name}: cut from byte {sound} to {size}: {fault.reason} (at byte {fault.at})")
        later = [(n, p) for n, p in wals[at + 1 :] if p.stat().st_size > 0]
        next_first = _first_sequence(*later[0]) if later else None
        if expected is None and zeros:  # nothing was ever written to it, as far as one can see
            goes_on = next_first is None or next_first <= first_max
        else:
            goes_on = not later or next_first == expected
        if not goes_on:
            # Newest first, and all of them before the cut: a crash in between leaves what the next run sees again.
            for _, aside in reversed(later):
                _set_aside(aside, cut)
            reason = f"because it does not go on where {path.name} ends"
            result.cuts += [f"{aside.name}: set aside whole, {reason}" for _, aside in later]
        _cut_tail(path, sound, cut, keep=not zeros)
        if not goes_on:
            return


def _walk(path: Path, number: int, expected: int | None, first_max: int) -> tuple[int, int | None, Fault | None]:
    """End of the sound part, the number of the write that comes next (None: not known), and the fault."""
    sound = 0
    with _map_file(path) as data:
        for found in records(data, number):
            if isinstance(found, Fault):
                return sound, expected, found
            if len(found.head) == _BATCH_HEAD.size:
                sequence, count = _BATCH_HEAD.unpack(found.head)
                if sequence > first_max if expected is None else sequence != expected:
                    missing = f"writes {first_max if expected is None else expected} to {sequence - 1} are missing"
                    return sound, expected, Fault(found.at, missing, False)
                expected = sequence + count
            elif found.head:
                return sound, expected, Fault(found.at, "a record is too short for a write", False)
            sound = found.end
    return sound, expected, None


def _first_sequence(number: int, path: Path) -> int | None:
    with _map_file(path) as data:
        for found in records(data, number):
            if isinstance(found, Record) and len(found.head) == _BATCH_HEAD.size:
                sequence: int = _BATCH_HEAD.unpack(found.head)[0]
                return sequence
    return None


@contextmanager
def _map_file(path: Path) -> Iterator[memoryview]:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as data:
            yield data


def _cut_tail(path: Path, sound: int, cut: Path, *, keep: bool) -> None:
    with open(path, "r+b") as file:
        if keep:
            file.seek(sound)
            _keep(file, cut, f"{path.name}.from-{sound}")
        file.truncate(sound)
        os.fsync(file.fileno())


def _keep(tail: BinaryIO, cut: Path, name: str) -> None:
    with open(_free_name(cut, name), "wb") as file:
        shutil.copyfileobj(tail, file)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(cut)


def _set_aside(path: Path, cut: Path) -> None:
    os.replace(path, _free_name(cut, path.name))
    sync_directory(cut)
    sync_directory(path.parent)


def _free_name(cut: Path, name: str) -> Path:
    cut.mkdir(exist_ok=True)
    sync_directory(cut.parent)
    taken = sum(1 for _ in cut.iterdir())
    return cut / f"{taken + 1:04d}-{name}"


def _manifest(database: Path) -> tuple[int, int]:
    """
    The number of the oldest WAL that RocksDB will read, and that of a write at or after the last flushed one.

    Both stand in the MANIFEST, whose records are checked on the way.
    """
    current = database / "CURRENT"
    if not current.exists():
        left = [path.name for path in database.iterdir() if path.suffix in (".sst", ".blob", ".log")]
        if left:
            raise StoreBroken(
                f"{current} is missing beside {len(left)} data files; restore it, or move {database} away"
            )
        return 0, 0
    manifest = database / current.read_text(errors="replace").strip()
    if not manifest.name.startswith("MANIFEST-") or not manifest.is_file():
        raise StoreBroken(f"{current} does not name a MANIFEST that is there; restore it, or move {database} away")
    needed = last_sequence = 0
    with open(manifest, "rb") as file:
        data = memoryview(file.read())
    for found in records(data, 0):
        if isinstance(found, Fault):
            if found.torn:
                break  # the last edit was being written; RocksDB takes the state before it
            text = f"{manifest} is damaged at byte {found.at} ({found.reason}); the replica must be copied again"
            raise StorageFailed(text) if found.reason.endswith(_NOT_KNOWN) else StoreBroken(text)
        numbers = _edit_numbers(_payload(data, found))
        needed = max(needed, numbers.get(_TAG_LOG_NUMBER, 0), numbers.get(_TAG_MIN_LOG_NUMBER, 0))
        last_sequence = max(last_sequence, numbers.get(_TAG_LAST_SEQUENCE, 0))
    return needed, last_sequence


def _payload(data: memoryview, record: Record) -> bytes:
    """All of a logical record's bytes."""
    at, parts = record.at, []
    while at < record.end:
        room = BLOCK - at % BLOCK
        if room < _HEADER.size:
            at += room
            continue
        _, length, _ = _HEADER.unpack_from(data, at)
        parts.append(bytes(data[at + _HEADER.size : at + _HEADER.size + length]))
        at += _HEADER.size + length
    return b"".join(parts)


def _edit_numbers(edit: bytes) -> dict[int, int]:
    """The numbers in the fixed part of a VersionEdit, by tag; it stands before the lists of files."""
    at, numbers = 0, {}
    while at < len(edit):
        tag, at = _varint(edit, at)
        if tag not in _EDIT_TAGS:
            break
        value, at = _varint(edit, at)
        if _EDIT_TAGS[tag]:
            at += value
        else:
            numbers[tag] = value
    return numbers


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, at
