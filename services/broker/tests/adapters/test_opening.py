"""A store that RocksDB refuses is put aside, for bytes that are gone or wrong only; no damage is served as sound."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from storage_batches import SMALL
from storage_image import Image, make_image
from storage_processes import Found, inspect

from headrace_broker.adapters import rocksdb_opening
from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.rocksdb_errors import translate_error
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.adapters.rocksdb_store import RocksDbStore, StoreOptions
from headrace_common.core.errors import StorageFailed

CORRUPTION = "Corruption: Sst file size mismatch: db/000009.sst. Expected 17047, actual size 17037"
SEEDS = 12


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return make_image(tmp_path_factory.mktemp("opening"))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocksdb_opening, "PAUSE_S", 0.0)


def shorter(path: Path) -> None:
    os.truncate(path, max(0, path.stat().st_size - 10))


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x" * 100)


def gone(path: Path) -> None:
    path.unlink()


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def opened(path: Path) -> tuple[DataDirectory, RocksDbLogs]:
    directory = DataDirectory.open(path)
    try:
        return directory, RocksDbLogs.open(directory, SMALL)
    except BaseException:
        directory.close()
        raise


def assert_all_damaged(image: Image, found: Found) -> None:
    assert (found.refused, found.wrong) == ("", [])
    assert not found.clean
    assert {one[0]: one[1:3] for one in found.damaged} == {log: (0, end) for log, end in image.synced.items()}


@pytest.mark.parametrize(
    ("pattern", "harm"),
    [
        *[("*.sst", harm) for harm in (shorter, longer, gone)],
        *[("MANIFEST-*", harm) for harm in (empty, gone)],
        *[("CURRENT", harm) for harm in (shorter, gone)],
    ],
)
def test_a_store_that_cannot_be_opened_is_put_aside_and_every_log_is_damaged(
    whole: Image, tmp_path: Path, pattern: str, harm: Callable[[Path], None]
) -> None:
    image = whole.copy(tmp_path / "data")
    directory = DataDirectory.open(image.path)
    directory.leave_token(7)
    directory.close()
    path = min((image.path / "db").glob(pattern))
    harm(path)
    broken = {one.name: one.read_bytes() for one in (image.path / "db").iterdir() if one.suffix in (".sst", ".blob")}
    found = inspect(image.path)
    assert_all_damaged(image, found)
    assert any("put aside as" in cut for cut in found.cuts)
    assert all(path.name in one[3] or pattern != "*.sst" for one in found.damaged)
    kept = {one.name: one.read_bytes() for one in (image.path / "db.damaged").iterdir() if one.name in broken}
    assert kept == broken, "the old store is there for who can mend it"
    assert_all_damaged(image, inspect(image.path))


@pytest.mark.parametrize("told", [False, True])
def test_a_store_that_was_mended_by_hand_can_be_put_back(whole: Image, tmp_path: Path, told: bool) -> None:
    image = whole.copy(tmp_path / "data")
    lost = min((image.path / "db").glob("*.sst"))
    copy = tmp_path / "copy"
    os.rename(lost, copy)
    assert len(inspect(image.path).damaged) == len(image.synced)
    if told:
        directory = DataDirectory.open(image.path)
        assert directory.emptied
        directory.forget_gone()
        directory.close()
    shutil.rmtree(image.path / "db")
    os.rename(image.path / "db.damaged", image.path / "db")
    os.rename(copy, lost)
    image.assert_synced_is_there(inspect(image.path))
    directory = DataDirectory.open(image.path)
    assert not directory.emptied
    directory.close()


async def test_the_cluster_is_to_be_told_until_it_knows(whole: Image, tmp_path: Path) -> None:
    image = whole.copy(tmp_path / "data")
    min((image.path / "db").glob("*.sst")).unlink()
    for told in (False, False, True):
        directory, logs = opened(image.path)
        assert directory.emptied, "as long as nobody was told"
        assert directory.token is None
        if told:
            directory.forget_gone()
        await logs.close(7 if told else None)
        directory.close()
    directory, logs = opened(image.path)
    assert not directory.emptied
    assert logs.report.damaged, "until they begin anew"
    await logs.close(None)
    directory.close()


@pytest.mark.parametrize("emptied", [False, True])
async def test_a_log_without_an_end_to_show_is_damaged_only_when_the_store_was_lost(
    whole: Image, tmp_path: Path, emptied: bool
) -> None:
    image = whole.copy(tmp_path / "data")
    directory, logs = opened(image.path)
    log = logs.new_log_id()
    logs._keeper.note_created(log, next(iter(logs.list_recovered())).state.partition)
    await logs.close(7)
    directory.close()
    if emptied:
        min((image.path / "db").glob("*.sst")).unlink()
    directory, logs = opened(image.path)
    assert (log in {one.log for one in logs.list_recovered() if one.damage is not None}) is emptied
    await logs.close(None)
    directory.close()


@pytest.mark.parametrize("left", ["nothing", "an empty directory"])
def test_a_lost_database_is_told_to_the_cluster(whole: Image, tmp_path: Path, left: str) -> None:
    image = whole.copy(tmp_path / "data")
    directory = DataDirectory.open(image.path)
    directory.leave_token(7)
    directory.close()
    shutil.rmtree(image.path / "db")
    if left != "nothing":
        (image.path / "db").mkdir()
    assert_all_damaged(image, inspect(image.path))
    directory = DataDirectory.open(image.path)
    assert directory.emptied
    directory.close()


async def test_a_new_directory_has_lost_nothing(tmp_path: Path) -> None:
    directory, logs = opened(tmp_path / "data")
    directory.bind("cluster-1", 1)
    assert not directory.emptied
    await logs.close(7)
    directory.close()
    directory, logs = opened(tmp_path / "data")
    assert (directory.emptied, directory.token) == (False, 7)
    await logs.close(None)
    directory.close()


class Failing:
    """Openings of RocksDB that fail at first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *texts: str) -> None:
        self.left = list(texts)
        self._open = RocksDbStore.__init__
        monkeypatch.setattr(RocksDbStore, "__init__", lambda store, path, sizes: self.open(store, path, sizes))

    def open(self, store: RocksDbStore, path: Path, sizes: StoreOptions) -> None:
        if self.left and path.name == "db":
            raise translate_error(Exception(self.left.pop(0)), f"opening {path}")
        self._open(store, path, sizes)


async def test_a_failure_that_passes_throws_nothing_away(
    whole: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = whole.copy(tmp_path / "data")
    Failing(monkeypatch, CORRUPTION)
    directory, logs = opened(image.path)
    assert (logs.report.damaged, directory.emptied) == ((), False)
    assert not (image.path / "db.damaged").exists()
    await logs.close(None)
    directory.close()


@pytest.mark.parametrize(
    "text",
    [
        "IO error: While open a file for random read: db/000009.sst: Input/output error",
        "Corruption: IO error: While open a file for random read: db/000009.sst: Input/output error",
        "Corruption: IO error: While open a file for random read: db/000009.sst: Permission denied",
        "Corruption: IO error: While open a file for random read: db/000009.sst: Too many open files",
        "IO error: While lock file: db/LOCK: Resource temporarily unavailable",
        "IO error: No space left on device: While appending to file: db/MANIFEST-000020",
        "Corruption: IO error: No space left on device: While appending to file: db/MANIFEST-000020",
        "Corruption: Unknown Footer version. Maybe this file was created with newer version of RocksDB?",
        "Corruption: VersionEdit: unknown tag",
        "Invalid argument: leveldb.BytewiseComparator: does not match existing comparator",
    ],
)
async def test_what_is_no_loss_of_bytes_throws_nothing_away(
    whole: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    image = whole.copy(tmp_path / "data")
    with monkeypatch.context() as patch:
        Failing(patch, CORRUPTION, text)
        with pytest.raises(StorageFailed):
            opened(image.path)
        Failing(patch, text)
        with pytest.raises(StorageFailed):
            opened(image.path)
    image.assert_synced_is_there(inspect(image.path))
    assert not (image.path / "db.damaged").exists()


@pytest.mark.parametrize("harm", [gone, half])
def test_without_evidence_nothing_is_put_aside(whole: Image, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    image = whole.copy(tmp_path / "data")
    harm(image.path / "evidence")
    lost = min((image.path / "db").glob("*.sst"))
    lost.unlink()
    found = inspect(image.path)
    assert lost.name in found.refused
    assert "evidence" in found.refused
    assert not (image.path / "db.damaged").exists()


@pytest.mark.parametrize("harm", [gone, half, None])
async def test_a_clean_stop_counts_only_with_the_evidence_of_it(
    whole: Image, tmp_path: Path, harm: Callable[[Path], None] | None
) -> None:
    image = whole.copy(tmp_path / "data")
    directory, logs = opened(image.path)
    await logs.close(7)
    directory.close()
    if harm is not None:
        harm(image.path / "evidence")
    directory, logs = opened(image.path)
    expected = 7 if harm is None else None
    assert (directory.token, logs.read_token()) == (expected, expected)
    assert logs.report.clean is (harm is None)
    await logs.close(None)
    directory.close()


def test_a_new_store_does_not_push_out_the_one_that_was_put_aside(whole: Image, tmp_path: Path) -> None:
    image = whole.copy(tmp_path / "data")
    shorter(min((image.path / "db").glob("*.sst")))
    inspect(image.path)
    tables = {one.name for one in (image.path / "db.damaged").glob("*.sst")}
    assert tables
    (image.path / "db" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    assert_all_damaged(image, inspect(image.path))
    assert {one.name for one in (image.path / "db.damaged").glob("*.sst")} == tables


def harm_at_random(chance: random.Random, path: Path) -> str:
    """One file, one way."""
    size = path.stat().st_size
    data = bytearray(path.read_bytes())
    kind = chance.choice(["flip", "cut", "longer", "gone", "zeros", "garbage", "block"])
    at = chance.randrange(size) if size else 0
    if kind == "gone":
        path.unlink()
        return kind
    if kind == "flip" and size:
        data[at] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "longer":
        data += chance.randbytes(chance.randint(1, 9_000))
    elif kind in ("zeros", "garbage"):
        end = min(size, at + chance.choice([16, 4096, size]))
        data[at:end] = bytes(end - at) if kind == "zeros" else chance.randbytes(end - at)
    else:
        data[at : at + 512] = data[:512]
    path.write_bytes(data)
    return f"{kind} at {at} of {size}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_store_with_any_one_file_harmed_comes_up_and_serves_no_short_log_as_sound(
    whole: Image, tmp_path: Path, seed: int
) -> None:
    """Two starts each: what the first one leaves must be sound, or damaged still."""
    image = whole.copy(tmp_path / "data")
    chance = random.Random(seed)
    files = sorted(one for one in (image.path / "db").iterdir() if one.name not in ("LOCK", "LOG"))
    path = chance.choice(files)
    did = f"{path.name}: {harm_at_random(chance, path)}"
    for start in ("first", "second"):
        found = inspect(image.path)
        about = f"{did}, {start} start: {found}"
        assert not found.refused, about
        assert all(text.startswith("refused: ") for text in found.wrong), about
        damaged = {one[0] for one in found.damaged}
        short = {log for log, end in image.synced.items() if found.logs.get(log, (0, 0))[1] < end}
        assert short == damaged, about
        if path.suffix not in (".blob", ".sst"):  # their batches are looked at when they are read
            assert not found.wrong, about
