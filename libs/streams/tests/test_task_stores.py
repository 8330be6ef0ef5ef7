"""Disks of tasks: what is copied, put in place and cleared away."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace_common.core.errors import HeadraceError
from headrace_streams.adapters import rocksdb_store
from headrace_streams.adapters.memory_store import MemoryStores
from headrace_streams.adapters.rocksdb_store import RocksDbStores, StateStorageFailed
from headrace_streams.core.state.changelog import prefix
from headrace_streams.ports import Checkpoint, TaskStore, TaskStores

KEY = prefix("n") + b"k"
OLD_MS, NOW_MS = 1_000, 5_000


@pytest.fixture(params=["memory", "rocksdb"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TaskStores]:
    if request.param == "memory":
        yield MemoryStores()
    else:
        with RocksDbStores(tmp_path, "app") as stores:
            yield stores


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[RocksDbStores]:
    with RocksDbStores(tmp_path, "app") as stores:
        yield stores


def put(store: TaskStore, number: int, at_ms: int = NOW_MS) -> None:
    store.write([(KEY, str(number).encode())], Checkpoint("log-0", number, at_ms))


def held(store: TaskStore) -> tuple[list[tuple[bytes, bytes]], Checkpoint | None]:
    return list(store.cold("n").scan()), store.checkpoint()


def test_a_copy_takes_the_place_of_what_was_there(stores: TaskStores) -> None:
    one, other = stores.open("a", 0), stores.open("a", 1)
    put(one, 1)
    put(other, 9)
    other.write([(prefix("n") + b"more", b"x")], Checkpoint("log-1", 10, NOW_MS))
    with other.room() as room:
        one.copy(room)
        put(one, 2)
        other.replace(room)
    assert held(other) == ([(b"k", b"1")], Checkpoint("log-0", 1, NOW_MS))
    assert held(one) == ([(b"k", b"2")], Checkpoint("log-0", 2, NOW_MS))
    put(other, 3)
    assert held(other) == ([(b"k", b"3")], Checkpoint("log-0", 3, NOW_MS))
    one.close()
    other.close()


def test_what_is_no_copy_can_be_wiped_away(stores: TaskStores) -> None:
    store = stores.open("a", 0)
    put(store, 1)
    with store.room() as room:
        (room / "CURRENT").write_bytes(b"nonsense\n")
        with pytest.raises(HeadraceError):
            store.replace(room)
    store.wipe()
    assert held(store) == ([], None)
    put(store, 2)
    assert held(store) == ([(b"k", b"2")], Checkpoint("log-0", 2, NOW_MS))
    store.close()


def test_a_copy_is_as_of_one_commit_while_others_are_made(disks: RocksDbStores) -> None:
    store = disks.open("a", 0)
    other = disks.open("b", 0)
    put(store, 0)
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            rows = [(prefix("n") + str(key).encode(), str(number).encode()) for key in range(50)]
            store.write(rows, Checkpoint("log-0", number, NOW_MS))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            with other.room() as room:
                store.copy(room)
                other.replace(room)
            rows, checkpoint = held(other)
            assert checkpoint is not None
            if checkpoint.next_offset:
                assert [value for key, value in rows if key != b"k"] == [str(checkpoint.next_offset).encode()] * 50
    finally:
        over.set()
        writer.join()
    store.close()
    other.close()


def test_a_disk_that_was_closed_gives_no_copy(disks: RocksDbStores) -> None:
    store = disks.open("a", 0)
    store.close()
    with store.room() as room, pytest.raises(HeadraceError, match="copying the state in"):
        store.copy(room)


def test_a_disk_is_closed_when_its_copy_is_made(disks: RocksDbStores) -> None:
    store = disks.open("a", 0)
    put(store, 1)
    closing = threading.Thread(target=store.close)
    with store._copying:
        closing.start()
        assert held(store) == ([(b"k", b"1")], Checkpoint("log-0", 1, NOW_MS)), "it is still open"
    closing.join()
    with pytest.raises(HeadraceError):
        store.checkpoint()


def test_state_that_moved_away_is_deleted_when_it_is_too_old(disks: RocksDbStores) -> None:
    for number, at_ms in enumerate((OLD_MS, NOW_MS - 1, NOW_MS, NOW_MS)):
        store = disks.open("a", number)
        put(store, 1, at_ms)
        store.close()
    disks.open("a", 9).close()
    used = disks.open("a", 1)
    assert sorted(disks.tidy(NOW_MS)) == [("a", 2), ("a", 3)]
    assert held(used)[1] == Checkpoint("log-0", 1, NOW_MS - 1), "it is open"
    used.close()
    assert sorted(path.name for path in (disks.directory / "a").iterdir()) == ["1", "2", "3"]
    assert sorted(disks.tidy(NOW_MS)) == [("a", 2), ("a", 3)], "it was closed"
    assert sorted(path.name for path in (disks.directory / "a").iterdir()) == ["2", "3"]


def test_tasks_begin_where_old_state_could_not_be_looked_at(
    disks: RocksDbStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, which somebody mends: what was not looked at after the first failure waits for nobody."""
    monkeypatch.setattr(rocksdb_store, "_OPENED_AT_ONCE", 1)
    monkeypatch.setattr(rocksdb_store, "_LOOK_S", 0.1)
    rooms = [disks.directory / "a" / str(number) for number in range(20)]
    for room in rooms:
        room.parent.mkdir(exist_ok=True)
        room.touch()
    with pytest.raises(StateStorageFailed, match="File exists"):
        disks.tidy(NOW_MS)
    for number, room in enumerate(rooms):
        room.unlink()
        disks.open("a", number).close()


def test_a_task_does_not_wait_for_ever_until_the_disk_has_let_go(
    disks: RocksDbStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_store, "_LOOK_S", 0.1)
    disks.open("a", 0).close()
    begun, answers = threading.Event(), threading.Event()

    def stand_still(path: Path) -> None:
        begun.set()
        answers.wait()

    monkeypatch.setattr(rocksdb_store.shutil, "rmtree", stand_still)
    tidying = threading.Thread(target=disks.tidy, args=(NOW_MS,))
    tidying.start()
    try:
        begun.wait()
        with pytest.raises(StateStorageFailed, match=r"has not let go of old state in .* for 0.1 s; give another"):
            disks.open("a", 0)
    finally:
        answers.set()
        tidying.join()
    disks.open("a", 0).close()


def test_a_function_may_change_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with RocksDbStores(Path("states"), "app") as stores:
        store = stores.open("a", 0)
        put(store, 1)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        put(store, 2)
        store.close()
        again = stores.open("a", 0)
        assert held(again) == ([(b"k", b"2")], Checkpoint("log-0", 2, NOW_MS))
        again.close()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_room_of_a_worker_that_was_killed_is_cleared(tmp_path: Path) -> None:
    with RocksDbStores(tmp_path, "app") as disks:
        store = disks.open("a", 0)
        put(store, 1)
        store.close()
        left = disks.directory / "a" / "0.abc" / "deep"
        left.mkdir(parents=True)
    with RocksDbStores(tmp_path, "app") as disks:
        assert not left.parent.exists()
        assert disks.tidy(OLD_MS) == {("a", 0): Checkpoint("log-0", 1, NOW_MS)}


def test_a_state_directory_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StateStorageFailed, match=r"Not a directory.*; give another state_dir \(--state-dir\)$"):
        RocksDbStores(file, "app")


@pytest.mark.parametrize("manifest", [b"MANIFEST-000099\n", b"rubbish"], ids=["missing", "rubbish"])
def test_a_disk_that_is_damaged_begins_empty(
    disks: RocksDbStores, caplog: pytest.LogCaptureFixture, manifest: bytes
) -> None:
    store = disks.open("a", 0)
    put(store, 1)
    store.close()
    (disks.directory / "a" / "0" / "CURRENT").write_bytes(manifest)
    again = disks.open("a", 0)
    assert held(again) == ([], None)
    assert "0 is damaged and is restored from its changelog: " in caplog.text
    put(again, 2)
    again.close()
    assert disks.tidy(OLD_MS) == {("a", 0): Checkpoint("log-0", 2, NOW_MS)}


def test_a_disk_whose_rows_cannot_be_read_begins_empty_when_it_is_opened_again(tmp_path: Path) -> None:
    with RocksDbStores(tmp_path, "app") as disks:
        store = disks.open("a", 0)
        store.write(
            [(prefix("n") + f"{key}".encode(), bytes(100)) for key in range(9_999)], Checkpoint("log-0", 1, NOW_MS)
        )
        store.close()
        (table,) = (disks.directory / "a" / "0").glob("*.sst")
        with table.open("r+b") as file:
            file.seek(table.stat().st_size // 4)
            file.write(b"rubbish" * 99)
    with RocksDbStores(tmp_path, "app") as disks:
        store = disks.open("a", 0)
        with pytest.raises(StateStorageFailed, match=r"reading the state in .* failed: Corruption: "):
            held(store)
        store.close()
        again = disks.open("a", 0)
        assert held(again) == ([], None)
        again.close()
        again = disks.open("a", 0)
        assert held(again) == ([], None)
        again.close()


def test_a_disk_that_is_only_full_keeps_what_it_has(disks: RocksDbStores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = disks.open("a", 0)
    put(store, 1)
    store.close()

    def refuse(*args: object, **settings: object) -> None:
        raise Exception("IO error: No space left on device: While appending to file")  # as rocksdict does

    with monkeypatch.context() as patched:
        patched.setattr(rocksdb_store, "Rdict", refuse)
        with pytest.raises(StateStorageFailed, match="No space left"):
            disks.open("a", 0)
    again = disks.open("a", 0)
    assert held(again) == ([(b"k", b"1")], Checkpoint("log-0", 1, NOW_MS))
    again.close()


@pytest.mark.parametrize("another", [False, True], ids=["deleted", "another-worker"])
def test_a_worker_whose_directory_was_deleted_writes_there_no_more(tmp_path: Path, another: bool) -> None:
    """Another one that starts then takes the same directory: both would write to the same files."""
    with ExitStack() as stack:
        disks = stack.enter_context(RocksDbStores(tmp_path, "app"))
        store = disks.open("a", 0)
        put(store, 1)
        shutil.rmtree(tmp_path / "app")
        if another:
            others = stack.enter_context(RocksDbStores(tmp_path, "app"))
            assert others.directory == disks.directory
            other = others.open("a", 1)
            put(other, 7)
        for use in (lambda: put(store, 2), lambda: disks.open("a", 2), lambda: disks.tidy(NOW_MS), store.close):
            with pytest.raises(StateStorageFailed, match="was deleted or moved while a worker used it"):
                use()
        if another:
            assert held(other) == ([(b"k", b"7")], Checkpoint("log-0", 7, NOW_MS))
            other.close()
            again = others.open("a", 1)
            assert held(again) == ([(b"k", b"7")], Checkpoint("log-0", 7, NOW_MS))
            again.close()
