"""What a place of snapshots does, on each kind of it; ``tests/integration`` has a real S3 server do the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from pyarrow.fs import FileSystem

from headrace_common.core.errors import HeadraceError, InvalidConfig
from headrace_streams.adapters.snapshots import ArrowSnapshots, SnapshotFailed
from headrace_streams.core.snapshots import Snapshot, SnapshotDamaged

TASK = "by-word/0"
FILES = {"CURRENT": b"MANIFEST-5\n", "000004.log": b"", "000008.sst": bytes(range(256)) * 40_000}
"""The last is read in several pieces."""


def snapshot(next_offset: int = 7) -> Snapshot:
    return Snapshot(next_offset, 3, 1_000, "ab12-0")


class Place:
    """A place, and the files in it as they are."""

    def __init__(self, url: str) -> None:
        self.snapshots = ArrowSnapshots(url, "app")
        self.files: FileSystem = self.snapshots._files
        self.root = f"{self.snapshots._root}/{TASK}"

    async def put(self, directory: Path, one: Snapshot, task: str = TASK) -> None:
        source = directory / f"source-{one.next_offset}"
        source.mkdir()
        for name, content in FILES.items():
            (source / name).write_bytes(content)
        await self.snapshots.put(task, one, source)

    async def get(self, directory: Path, one: Snapshot) -> dict[str, bytes]:
        target = directory / "target"
        target.mkdir()
        await self.snapshots.get(TASK, one, target)
        return {path.name: path.read_bytes() for path in target.iterdir()}

    def write(self, path: str, content: bytes) -> None:
        self.files.create_dir(f"{self.root}/{path}".rpartition("/")[0], recursive=True)
        with self.files.open_output_stream(f"{self.root}/{path}") as target:
            target.write(content)

    def complete(self, found: list[Snapshot]) -> dict[Snapshot, bool]:
        return {one: one.complete for one in found}


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    url = "mock:///snapshots" if request.param == "memory" else f"file://{tmp_path}/with%20space"
    place = Place(url)
    with place.snapshots:
        yield place


async def test_nothing_is_there(place: Place) -> None:
    assert await place.snapshots.find(TASK) == []


async def test_what_is_written_is_read(place: Place, tmp_path: Path) -> None:
    await place.put(tmp_path, snapshot())
    assert place.complete(await place.snapshots.find(TASK)) == {snapshot(): True}
    assert await place.get(tmp_path, snapshot()) == FILES


async def test_each_task_and_each_commit_has_its_own(place: Place, tmp_path: Path) -> None:
    await place.put(tmp_path, snapshot(7))
    await place.put(tmp_path, snapshot(8))
    await place.put(tmp_path, snapshot(9), "by-word/1")
    assert sorted(await place.snapshots.find(TASK)) == [snapshot(7), snapshot(8)]
    await place.snapshots.delete(TASK, snapshot(7))
    assert await place.snapshots.find(TASK) == [snapshot(8)]
    assert await place.snapshots.find("by-word/1") == [snapshot(9)]


async def test_it_is_complete_with_its_manifest(place: Place, tmp_path: Path) -> None:
    await place.put(tmp_path, snapshot())
    place.files.delete_file(f"{place.root}/{snapshot().name}/manifest.json")
    assert place.complete(await place.snapshots.find(TASK)) == {snapshot(): False}
    with pytest.raises(SnapshotDamaged, match="is not whole"):
        await place.get(tmp_path, snapshot())
    await place.snapshots.delete(TASK, snapshot())
    assert await place.snapshots.find(TASK) == []


@pytest.mark.parametrize("given_up_after", [0, 1])
async def test_one_that_is_given_up_is_not_complete(place: Place, tmp_path: Path, given_up_after: int) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, content in FILES.items():
        (source / name).write_bytes(content)

    class Over(Event):
        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            return self.looks > given_up_after

    with pytest.raises(SnapshotFailed, match="it was given up"):
        place.snapshots._put(place.snapshots._at(TASK, snapshot()), source, Over())
    assert not any(one.complete for one in await place.snapshots.find(TASK))


async def test_what_runs_ends_when_it_is_cancelled(place: Place) -> None:
    began, ended = Event(), Event()

    def work(over: Event) -> None:
        began.set()
        over.wait()
        ended.set()

    waiting = asyncio.create_task(place.snapshots._beside(work))
    await asyncio.get_running_loop().run_in_executor(None, began.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.get_running_loop().run_in_executor(None, ended.wait)


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("000008.sst", FILES["000008.sst"][:-1], "000008.sst has 10239999 bytes that are not"),
        ("000008.sst", bytes(len(FILES["000008.sst"])), "000008.sst has 10240000 bytes that are not"),
        ("CURRENT", b"MANIFEST-6\n", "CURRENT has 11 bytes that are not"),
        ("CURRENT", None, "is not whole"),
        ("manifest.json", b'{"v":1,"fil', "its manifest cannot be read"),
        ("manifest.json", b'{"v":2}', "its manifest is of version 2, and this worker reads 1"),
        ("manifest.json", b'{"v":1,"files":{"../../etc":[1,"x"]}}', "its manifest names a file '../../etc'"),
    ],
)
async def test_damage_is_noticed(place: Place, tmp_path: Path, path: str, content: bytes | None, said: str) -> None:
    await place.put(tmp_path, snapshot())
    if content is None:
        place.files.delete_file(f"{place.root}/{snapshot().name}/{path}")
    else:
        place.write(f"{snapshot().name}/{path}", content)
    with pytest.raises(SnapshotDamaged, match=said):
        await place.get(tmp_path, snapshot())


async def test_one_that_is_half_deleted_is_not_complete(place: Place, tmp_path: Path) -> None:
    class Half:
        """Ends before the files are deleted."""

        get_file_info, delete_file = place.files.get_file_info, place.files.delete_file

        def delete_dir(self, path: str) -> None:
            raise OSError("the connection broke")

    await place.put(tmp_path, snapshot())
    place.snapshots._files = Half()  # type: ignore[assignment]
    with pytest.raises(SnapshotFailed, match="the connection broke"):
        await place.snapshots.delete(TASK, snapshot())
    assert place.complete(await place.snapshots.find(TASK)) == {snapshot(): False}


async def test_what_is_of_somebody_else_is_left_alone(place: Place) -> None:
    place.write("notes/readme.txt", b"x")
    place.write("notes/manifest.json", b"x")
    place.write("readme.txt", b"x")
    assert await place.snapshots.find(TASK) == []


async def test_one_that_is_not_there_cannot_be_deleted(place: Place) -> None:
    with pytest.raises(HeadraceError, match="is not whole"):
        await place.snapshots.delete(TASK, snapshot())


@pytest.mark.parametrize("url", ["nothing://x", "relative/path", "s3://", "file:///", "fsspec+nothing://x"])
def test_a_place_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(
        InvalidConfig, match=f"snapshot_url '{url.replace('+', '[+]')}' cannot be used: .* file:///PATH"
    ):
        ArrowSnapshots(url, "app")
