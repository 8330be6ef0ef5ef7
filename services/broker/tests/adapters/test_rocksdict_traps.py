"""Each trap of rocksdict that the store works around: that it is there, and that the store does not fall into it."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import DBCompressionType, Options, Rdict, ReadOptions, WriteBatch, WriteOptions
from storage_batches import Writer, partition

from headrace_broker.adapters import rocksdb_store
from headrace_broker.adapters.rocksdb_store import RocksDbStore, StoreOptions
from headrace_broker.core.rows import DropPrefix, DropSuffix, PutState, StateRow
from headrace_broker.ports import WriteStalled
from headrace_common.core.errors import StorageFailed
from headrace_common.core.ids import Offset

from .conftest import RocksDisk

TINY = StoreOptions(memtable_bytes=1 << 20, memtables_max=2, blob_file_bytes=1 << 20)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksDbStore]:
    made = RocksDbStore(tmp_path / "db", TINY)
    yield made
    made.close()


def fill(store: RocksDbStore, count: int, size: int = 10) -> None:
    batch = store.batch()
    for number in range(count):
        batch.put(b"k%06d" % number, bytes([number % 256]) * size)
    store.write(batch)


def flip_in_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_lower_bound_setter_sets_the_upper_bound(store: RocksDbStore) -> None:
    fill(store, 10)
    options = ReadOptions()
    bound = b"k000005"
    options.set_iterate_lower_bound(bound)
    iterator = store._db.iter(options)
    iterator.seek_to_first()
    assert iterator.key() == b"k000000", "fixed in this rocksdict? then the store may use lower bounds"


def test_a_scan_keeps_its_bound_alive(store: RocksDbStore) -> None:
    fill(store, 3000)
    scan = store.scan(b"k%06d" % 10, b"k%06d" % 2000)
    first = [next(scan) for _ in range(5)]
    junk = [b"k%06d" % number for number in range(5000)]
    gc.collect()
    rest = list(scan)
    assert junk
    assert [key for key, _ in first + rest] == [b"k%06d" % number for number in range(10, 2000)]


def test_a_corrupt_block_ends_items_silently_but_not_a_scan(tmp_path: Path) -> None:
    store = RocksDbStore(tmp_path / "db", TINY)
    fill(store, 5000, 200)
    store.flush()
    store.close()
    flip_in_middle(next((tmp_path / "db").glob("*.sst")))
    store = RocksDbStore(tmp_path / "db", TINY)
    assert len(list(store._db.items())) < 5000, "fixed in this rocksdict? then items() may be used"
    with pytest.raises(StorageFailed, match=r"Corruption.*\.sst"):
        list(store.scan(b"", b"z"))
    store.close()


def test_multi_get_takes_checksums_from_its_handle_only(tmp_path: Path) -> None:
    store = RocksDbStore(tmp_path / "db", TINY)
    fill(store, 1, 100_000)
    store.flush()
    store.close()
    flip_in_middle(next((tmp_path / "db").glob("*.blob")))
    store = RocksDbStore(tmp_path / "db", TINY)
    unchecked = ReadOptions()
    unchecked.set_verify_checksums(False)
    with pytest.raises(Exception, match="Corruption"):
        store._db.get([b"k000000"], read_opt=unchecked)
    (value,) = store.get_many([b"k000000"])
    assert value is not None
    assert len(value) == 100_000
    with pytest.raises(StorageFailed, match="Corruption"):
        store.get(b"k000000")
    store.close()


def test_an_inverted_range_latches_rocksdb(tmp_path: Path) -> None:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(tmp_path / "db"), options)
    batch = WriteBatch(raw_mode=True)
    batch.delete_range(b"b", b"a")
    with pytest.raises(Exception, match=r"end key comes before start key"):
        database.write(batch)
    with pytest.raises(Exception, match=r"."):
        database.put(b"c", b"d")
    with pytest.raises(Exception, match=r"end key comes before start key"):
        database.close()


async def test_drops_never_make_an_inverted_range(rocks: RocksDisk) -> None:
    writer = Writer(rocks.logs.new_log_id(), end=100)
    rocks.logs.write([*writer.create(), *writer.append(3)])
    rocks.logs.write([DropPrefix(writer.log, Offset(0)), DropSuffix(writer.log, Offset(130))])
    rocks.logs.write([PutState(writer.log, StateRow(partition(1), Offset(130), Offset(0)))])
    rocks.logs.write([DropPrefix(writer.log, Offset(130)), DropSuffix(writer.log, Offset(130))])
    rocks.logs.write(writer.append(1))
    assert [row.base_offset for row in rocks.logs.index(writer.log, Offset(0), Offset(999))] == [130]


def test_a_failed_write_latches_the_store(tmp_path: Path) -> None:
    store = RocksDbStore(tmp_path / "db", TINY)
    bad = store.batch()
    bad.delete_range(b"b", b"a")
    with pytest.raises(StorageFailed):
        store.write(bad)
    good = store.batch()
    good.put(b"a", b"b")
    with pytest.raises(StorageFailed, match="failed before"):
        store.write(good)
    with pytest.raises(StorageFailed, match="failed before"):
        store.sync()
    assert store.get(b"a") is None
    store.close()


def test_a_stall_writes_nothing_and_latches_nothing(store: RocksDbStore) -> None:
    value, stalls, number = bytes(400_000), 0, 0
    while stalls == 0:
        batch = store.batch()
        batch.put(b"k%06d" % number, value)
        batch.put(b"n%06d" % number, b"x")
        try:
            store.write(batch)
            number += 1
        except WriteStalled:
            stalls += 1
            assert store.get(b"k%06d" % number) is None
            assert store.get(b"n%06d" % number) is None
            with pytest.raises(Exception, match=r"."):
                store._db.write(batch, WriteOptions())
        assert number < 5000, "writes never stalled"
    store.flush()
    batch = store.batch()
    batch.put(b"k%06d" % number, value)
    store.write(batch)
    assert len(list(store.scan(b"k", b"l"))) == number + 1
    assert len(list(store.scan(b"n", b"o"))) == number


def test_a_setting_that_had_no_effect_is_found(tmp_path: Path) -> None:
    options = rocksdb_store._rocks_options(TINY)
    options.set_compression_type(DBCompressionType.lz4())
    Rdict(str(tmp_path / "db"), options).close()
    wrong = rocksdb_store.wrong_options(tmp_path / "db", rocksdb_store._list_expected_options(TINY))
    assert wrong == ["compression is kLZ4Compression instead of kNoCompression"]


def test_settings_of_a_store_that_is_there_come_from_its_options_file_unless_given_twice(tmp_path: Path) -> None:
    RocksDbStore(tmp_path / "db", TINY).close()
    other = StoreOptions(memtable_bytes=2 << 20, memtables_max=3, blob_file_bytes=2 << 20)
    Rdict(str(tmp_path / "db"), rocksdb_store._rocks_options(other)).close()
    wrong = rocksdb_store.wrong_options(tmp_path / "db", rocksdb_store._list_expected_options(other))
    assert "write_buffer_size is 1048576 instead of 2097152" in wrong, "fixed in this rocksdict?"


def test_a_store_opens_with_other_settings_than_it_was_made_with(tmp_path: Path) -> None:
    store = RocksDbStore(tmp_path / "db", TINY)
    fill(store, 10)
    store.close()
    other = StoreOptions(memtable_bytes=2 << 20, memtables_max=3, blob_file_bytes=2 << 20)
    store = RocksDbStore(tmp_path / "db", other)
    assert len(list(store.scan(b"k", b"l"))) == 10
    store.close()


@pytest.mark.parametrize("harm", ["flip", "cut", "gone"])
def test_a_damaged_options_file_is_replaced(tmp_path: Path, harm: str) -> None:
    store = RocksDbStore(tmp_path / "db", TINY)
    fill(store, 10)
    store.close()
    newest = max((tmp_path / "db").glob("OPTIONS-*"))
    data = newest.read_bytes()
    if harm == "flip":
        newest.write_bytes(data.replace(b"max_write_buffer_number=2", b"max_write_buffer_number=3"))
    elif harm == "cut":
        newest.write_bytes(data[: data.index(b"level0_stop_writes_trigger")])
    else:
        newest.unlink()
    for _ in range(2):
        store = RocksDbStore(tmp_path / "db", TINY)
        assert len(list(store.scan(b"k", b"l"))) == 10
        store.close()


def test_only_bytes_are_taken(store: RocksDbStore) -> None:
    batch = store.batch()
    with pytest.raises(Exception, match=r"."):
        batch.put(bytearray(b"key"), b"value")
    with pytest.raises(Exception, match=r"."):
        batch.put(b"key", memoryview(b"value"))


CLOSED_UNDER_AN_ITERATOR = """
import sys
from pathlib import Path
from headrace_broker.adapters.rocksdb_store import RocksDbStore, StoreOptions
store = RocksDbStore(Path(sys.argv[1]), StoreOptions())
batch = store.batch()
for number in range(1000):
    batch.put(b"%06d" % number, bytes(5000))
store.write(batch)
scan = store.scan(b"", b"z")
next(scan)
store.close()
del store, scan
print("ended well")
"""


def test_closing_under_a_forgotten_iterator_does_not_crash(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CLOSED_UNDER_AN_ITERATOR, str(tmp_path / "db")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (run.stdout.strip(), run.returncode) == ("ended well", 0), run.stderr


def test_a_database_that_is_open_elsewhere_is_refused(store: RocksDbStore) -> None:
    with pytest.raises(StorageFailed, match="lock"):
        RocksDbStore(store.path, TINY)
