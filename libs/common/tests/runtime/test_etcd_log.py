"""Which logs of etcd have an entry: what has one, or may have, is left alone."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from headrace_common.runtime.etcd_log import drop_unwritten

FIRST = "0000000000000000-0000000000000000.wal"
METADATA, ENTRY, STATE, CHECKSUM, SNAPSHOT = range(1, 6)


def frame(kind: int, size: int = 14) -> bytes:
    """A record as etcd frames it."""
    record = bytes((0x08, kind)).ljust(size, b"\x10")
    padding = -size % 8
    length = size | (0x80 | padding) << 56 if padding else size
    return struct.pack("<Q", length) + record + bytes(padding)


BEGUN = frame(CHECKSUM, 4) + frame(METADATA, 30) + frame(SNAPSHOT)


def member(directory: Path, **files: bytes) -> Path:
    """A data directory with these files of a log."""
    log = directory / "member" / "wal"
    log.mkdir(parents=True)
    (directory / "member" / "snap").mkdir()
    (log / "0.tmp").write_bytes(bytes(64))
    for name, content in files.items():
        (log / name).write_bytes(content)
    return directory


def test_one_that_ended_before_its_first_entry_begins_anew(tmp_path: Path) -> None:
    member(tmp_path, **{FIRST: BEGUN + bytes(64_000)})
    assert drop_unwritten(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not drop_unwritten(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        BEGUN + frame(ENTRY, 40) + bytes(64_000),
        BEGUN + frame(STATE, 20) + bytes(64_000),
        BEGUN + frame(SNAPSHOT) * 400,
        BEGUN + bytes(8) + frame(ENTRY) + bytes(64_000),
        BEGUN + b"\x00\x00\x00\x00\x00\x00\x00\x01" + bytes(64_000),
        BEGUN,
        bytes(64_000),
        b"",
        frame(CHECKSUM, 4) + bytes(64_000),
    ],
    ids=["entry", "state", "long", "later", "odd", "short", "zeros", "empty", "no-metadata"],
)
def test_what_has_an_entry_or_is_not_understood_is_left_alone(tmp_path: Path, content: bytes) -> None:
    member(tmp_path, **{FIRST: content})
    assert not drop_unwritten(tmp_path)
    assert (tmp_path / "member" / "wal" / FIRST).read_bytes() == content


def test_a_log_that_goes_on_in_another_file_is_left_alone(tmp_path: Path) -> None:
    member(tmp_path, **{FIRST: BEGUN + bytes(64_000), "0000000000000001-0000000000000002.wal": BEGUN + bytes(64_000)})
    assert not drop_unwritten(tmp_path)
