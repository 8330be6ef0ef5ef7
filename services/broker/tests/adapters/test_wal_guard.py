"""The WAL guard: what it lets RocksDB see, byte by byte, and over several logs."""

from __future__ import annotations

import struct
from pathlib import Path
from unittest.mock import Mock

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.adapters import wal_guard
from headrace_broker.adapters.rocksdb_store import RocksDbStore, StoreOptions
from headrace_broker.adapters.wal_guard import BLOCK, Fault, Record, guard, records
from headrace_common.core.errors import StorageFailed

FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def fragment(kind: int, payload: bytes, number: int | None = None) -> bytes:
    """One physical record, as RocksDB writes it."""
    body = bytes([kind]) + (b"" if number is None else struct.pack("<I", number)) + payload
    crc = crc32c.crc32c(body)
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<IH", masked, len(payload)) + body


def write_log(batches: list[bytes], recycled: int | None = None) -> bytes:
    """A log file with these logical records."""
    out = bytearray()
    header = 7 if recycled is None else 11
    shift = 0 if recycled is None else 4
    for batch in batches:
        rest, first = batch, True
        while first or rest:
            room = BLOCK - len(out) % BLOCK
            if room < header:
                out += bytes(room)
                continue
            part, rest = rest[: room - header], rest[room - header :]
            kind = (FULL if not rest else FIRST) if first else (LAST if not rest else MIDDLE)
            out += fragment(kind + shift, part, recycled)
            first = False
    return bytes(out)


def batch(sequence: int, size: int = 100, count: int = 1) -> bytes:
    return struct.pack("<QI", sequence, count) + b"w" * (size - 12)


def write_wals(path: Path, logs: dict[int, bytes]) -> Path:
    """A database directory with nothing but WAL files, and the MANIFEST of an empty database."""
    path.mkdir()
    (path / "MANIFEST-000001").write_bytes(write_log([bytes([2, 0])]))
    (path / "CURRENT").write_text("MANIFEST-000001\n")
    for number, data in logs.items():
        (path / f"{number:06d}.log").write_bytes(data)
    return path


def walk(data: bytes, number: int = 5) -> tuple[int, Fault | None]:
    """Whole records, and the fault."""
    found = list(records(memoryview(data), number))
    fault = found.pop() if found and isinstance(found[-1], Fault) else None
    assert all(isinstance(record, Record) for record in found)
    return len(found), fault


@pytest.mark.parametrize("recycled", [None, 5])
def test_records_of_all_sizes_are_walked(recycled: int | None) -> None:
    sizes = [12, 100, BLOCK - 300, 40, BLOCK, 3 * BLOCK + 17, 12, 5]
    data = write_log([batch(1, size) if size >= 12 else b"x" * size for size in sizes], recycled)
    assert walk(data) == (len(sizes), None)
    heads = [found.head for found in records(memoryview(data), 5) if isinstance(found, Record)]
    assert all(head == batch(1)[:12] for head in heads[:-1])


def test_a_record_left_from_an_older_log_ends_the_walk() -> None:
    data = write_log([batch(1)], 5) + write_log([batch(2)], 4)
    count, fault = walk(data)
    assert count == 1
    assert fault is not None
    assert "older log" in fault.reason


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_any_changed_byte_ends_the_walk_at_its_record(data: st.DataObject) -> None:
    logs = [batch(n, size) for n, size in enumerate([50, BLOCK + 9, 12, 300, 2 * BLOCK, 70])]
    whole = write_log(logs)
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = data.draw(st.integers(1, 255))
    ends = [record.end for record in records(memoryview(whole), 5) if isinstance(record, Record)]
    broken = bytearray(whole)
    broken[at] ^= flipped
    sound = sum(1 for end in ends if end <= at)
    count, fault = walk(bytes(broken))
    in_padding = not any(
        record.at <= at < record.end for record in records(memoryview(whole), 5) if isinstance(record, Record)
    )
    assert (count, fault is None) == ((len(logs), True) if in_padding else (sound, False))


@given(st.binary(max_size=3 * BLOCK))
@settings(max_examples=100, deadline=None)
def test_garbage_is_walked_without_harm(data: bytes) -> None:
    assert len(list(records(memoryview(data), 5))) <= len(data) // 7 + 1


@given(st.integers(0, 70_000))
@settings(max_examples=60, deadline=None)
def test_a_torn_end_keeps_the_whole_records_before_it(cut_at: int) -> None:
    whole = write_log([batch(n, 5000 * n + 12) for n in range(6)])
    ends = [record.end for record in records(memoryview(whole), 5) if isinstance(record, Record)]
    cut_at = min(cut_at, len(whole))
    count, fault = walk(whole[:cut_at])
    assert count == sum(1 for end in ends if end <= cut_at)
    assert fault is None or fault.torn


def test_sound_logs_are_left_as_they_are(tmp_path: Path) -> None:
    logs = {3: write_log([batch(1), batch(2, 90, 4)]), 4: write_log([batch(6)]), 5: b""}
    database = write_wals(tmp_path / "db", logs)
    result = guard(database, tmp_path / "cut")
    assert (result.cuts, result.newest) == ([], 5)
    assert {int(path.stem): path.read_bytes() for path in database.glob("*.log")} == logs
    assert not (tmp_path / "cut").exists()


def test_a_fault_cuts_there_and_sets_later_logs_aside(tmp_path: Path) -> None:
    first, second, third = write_log([batch(1)]), write_log([batch(2)]), write_log([batch(3)])
    broken = bytearray(first + second + third)
    broken[len(first) + 20] ^= 1
    database = write_wals(tmp_path / "db", {3: bytes(broken), 4: write_log([batch(4)]), 7: write_log([batch(5)])})
    result = guard(database, tmp_path / "cut")
    assert (database / "000003.log").read_bytes() == first
    assert [path.name for path in database.glob("*.log")] == ["000003.log"]
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == [
        "0001-000007.log",
        "0002-000004.log",
        f"0003-000003.log.from-{len(first)}",
    ]
    assert (tmp_path / "cut" / f"0003-000003.log.from-{len(first)}").read_bytes() == broken[len(first) :]
    assert len(result.cuts) == 3
    assert "checksum" in result.cuts[0]
    assert guard(database, tmp_path / "cut").cuts == []


def test_a_torn_tail_does_not_stop_a_log_that_goes_on_from_there(tmp_path: Path) -> None:
    logs = {3: write_log([batch(1), batch(2)]) + b"\x01\x02\x03", 4: write_log([batch(3)])}
    database = write_wals(tmp_path / "db", logs)
    result = guard(database, tmp_path / "cut")
    assert len(result.cuts) == 1
    assert (database / "000004.log").read_bytes() == logs[4]
    assert (database / "000003.log").read_bytes() == logs[3][:-3]


def test_zeros_at_the_end_are_cut_without_a_word(tmp_path: Path) -> None:
    data = write_log([batch(1)])
    database = write_wals(tmp_path / "db", {3: data + bytes(100_000)})
    assert guard(database, tmp_path / "cut").cuts == []
    assert (database / "000003.log").read_bytes() == data


def test_an_empty_file_of_zeros_before_a_sound_log_loses_nothing(tmp_path: Path) -> None:
    database = write_wals(tmp_path / "db", {3: bytes(5000), 4: write_log([batch(1)])})
    assert guard(database, tmp_path / "cut").cuts == []
    assert (database / "000004.log").read_bytes() == write_log([batch(1)])


def test_zeros_where_writes_were_before_a_log_that_goes_on_after_them(tmp_path: Path) -> None:
    database = write_wals(tmp_path / "db", {3: bytes(5000), 4: write_log([batch(9)])})
    assert "set aside" in guard(database, tmp_path / "cut").cuts[0]
    assert [path.name for path in database.glob("*.log")] == ["000003.log"]


def test_a_missing_log_in_the_middle_is_a_gap(tmp_path: Path) -> None:
    logs = {3: write_log([batch(1)]), 9: write_log([batch(7)])}
    database = write_wals(tmp_path / "db", logs)
    result = guard(database, tmp_path / "cut")
    assert "writes 2 to 6 are missing" in result.cuts[0]
    assert (database / "000009.log").read_bytes() == b""


def test_a_first_log_that_lost_all_it_had_is_a_gap(tmp_path: Path) -> None:
    """Without a sync a loss of power can leave an empty file, and the next one whole."""
    database = write_wals(tmp_path / "db", {3: b"", 4: write_log([batch(7)])})
    assert "writes 1 to 6 are missing" in guard(database, tmp_path / "cut").cuts[0]
    assert (database / "000004.log").read_bytes() == b""


def test_a_crash_of_the_guard_itself_is_no_loss_of_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later logs go before the cut, so that the next run meets the same fault."""
    logs = {3: b"garbage" * 9, 4: write_log([batch(2)]), 5: write_log([batch(3)])}
    database = write_wals(tmp_path / "db", logs)
    with monkeypatch.context() as patch:
        patch.setattr(wal_guard, "_cut_tail", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            guard(database, tmp_path / "cut")
    assert [path.name for path in database.glob("*.log")] == ["000003.log"]
    guard(database, tmp_path / "cut")
    assert (database / "000003.log").read_bytes() == b""


def test_writes_missing_within_a_log_are_a_gap(tmp_path: Path) -> None:
    database = write_wals(tmp_path / "db", {3: write_log([batch(1), batch(3)])})
    assert "writes 2 to 2 are missing" in guard(database, tmp_path / "cut").cuts[0]
    assert (database / "000003.log").read_bytes() == write_log([batch(1)])


def test_logs_that_are_not_needed_any_more_are_not_looked_at(tmp_path: Path) -> None:
    database = write_wals(tmp_path / "db", {3: b"garbage" * 9, 9: write_log([batch(7)])})
    (database / "MANIFEST-000001").write_bytes(write_log([bytes([2, 9, 4, 6])]))
    assert guard(database, tmp_path / "cut").cuts == []
    assert (database / "000003.log").read_bytes() == b"garbage" * 9


def test_a_lost_current_beside_data_is_refused(tmp_path: Path) -> None:
    database = write_wals(tmp_path / "db", {3: write_log([batch(1)])})
    (database / "CURRENT").unlink()
    with pytest.raises(StorageFailed, match="CURRENT is missing beside 1 data files"):
        guard(database, tmp_path / "cut")


def test_the_manifest_tells_the_same_as_rocksdb(tmp_path: Path) -> None:
    store = RocksDbStore(tmp_path / "db", StoreOptions(memtable_bytes=1 << 20))
    for turn in range(4):
        for number in range(50):
            one = store.batch()
            one.put(b"%d-%d" % (turn, number), bytes(1000 * number))
            store.write(one)
        store.flush()
    needed, last_sequence = wal_guard._manifest(tmp_path / "db")
    assert needed == store.oldest_wal() > 4
    assert last_sequence == store._db.latest_sequence_number() == 200
    store.close()
