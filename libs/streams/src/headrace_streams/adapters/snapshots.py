"""
Snapshots of state on whatever Arrow has a file system for: S3, Google's and Azure's storage, directories, and with the
package fsspec all that it knows.

A snapshot is a directory ``APP/SUB-TOPOLOGY/PARTITION/NAME``. Its manifest is written last and deleted first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import BinaryIO, Final, Self, TypeVar, TypeVarTuple

from pyarrow import NativeFile
from pyarrow.fs import FileSelector, FileSystem, FileType

from headrace_common.core.errors import ErrorCode, InvalidConfig, UnknownOutcome
from headrace_common.runtime.threads import run_in_thread
from headrace_streams.core.snapshots import FileFacts, Manifest, Snapshot, SnapshotDamaged

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_MANIFEST: Final = "manifest.json"
_PIECE_BYTES: Final = 4 << 20
_THREADS: Final = 4


class SnapshotFailed(UnknownOutcome, code=ErrorCode.NETWORK_EXCEPTION):
    """The place of snapshots cannot be used now; state is in the changelog all the same."""


class ArrowSnapshots:
    """Satisfies ``Snapshots``."""

    def __init__(self, url: str, app: str) -> None:
        """
        Raises:
            InvalidConfig: there is no such kind of place, or it needs a package.
        """
        try:
            self._files, root = FileSystem.from_uri(url)
            if not root.strip("/"):
                raise ValueError("it has no path")
        except (ValueError, OSError, ImportError) as error:
            raise InvalidConfig(
                f"snapshot_url {url!r} cannot be used: {error}; there are s3://BUCKET/PATH, gs://BUCKET/PATH, "
                "abfs://CONTAINER@ACCOUNT/PATH, file:///PATH and, with the package fsspec, fsspec+PROTOCOL://PATH"
            ) from error
        self._root = f"{root.rstrip('/')}/{app}"
        self._pool = ThreadPoolExecutor(_THREADS, "headrace-snapshots")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(wait=False)

    async def find(self, task: str) -> list[Snapshot]:
        return await self._beside(self._find, task)

    async def put(self, task: str, snapshot: Snapshot, directory: Path) -> None:
        await self._beside(self._put, self._at(task, snapshot), directory)

    async def get(self, task: str, snapshot: Snapshot, directory: Path) -> None:
        await self._beside(self._get, self._at(task, snapshot), directory)

    async def delete(self, task: str, snapshot: Snapshot) -> None:
        await self._beside(self._delete, self._at(task, snapshot))

    async def _beside(self, call: Callable[[*Ts, Event], T], *args: *Ts) -> T:
        """In a thread, which ends soon if this is cancelled."""
        over = Event()
        try:
            return await run_in_thread(call, *args, over, pool=self._pool)
        finally:
            over.set()

    def _at(self, task: str, snapshot: Snapshot) -> str:
        return f"{self._root}/{task}/{snapshot.name}"

    def _find(self, task: str, over: Event) -> list[Snapshot]:
        with _told(f"{self._root}/{task}"):
            found = self._files.get_file_info(
                FileSelector(f"{self._root}/{task}", allow_not_found=True, recursive=True)
            )
        files = [Path(info.path) for info in found if info.type == FileType.File]
        complete = {path.parent.name: False for path in files}
        complete |= {path.parent.name: True for path in files if path.name == _MANIFEST}
        parsed = (Snapshot.parse(name, complete=whole) for name, whole in complete.items())
        return [snapshot for snapshot in parsed if snapshot is not None]

    def _put(self, at: str, directory: Path, over: Event) -> None:
        facts = {}
        with _told(at):
            self._files.create_dir(at, recursive=True)
            for path in sorted(directory.iterdir()):
                with path.open("rb") as source, self._files.open_output_stream(f"{at}/{path.name}") as target:
                    facts[path.name] = _copy(source, target, over)
            with self._files.open_output_stream(f"{at}/{_MANIFEST}") as target:
                target.write(Manifest(facts).encode())

    def _get(self, at: str, directory: Path, over: Event) -> None:
        with _told(at):
            with self._files.open_input_stream(f"{at}/{_MANIFEST}") as source:
                manifest = Manifest.decode(source.read())
            for name in manifest.files:
                with self._files.open_input_stream(f"{at}/{name}") as source, (directory / name).open("wb") as target:
                    manifest.check(name, _copy(source, target, over))

    def _delete(self, at: str, over: Event) -> None:
        with _told(at):
            if self._files.get_file_info(f"{at}/{_MANIFEST}").type == FileType.File:
                self._files.delete_file(f"{at}/{_MANIFEST}")
            self._files.delete_dir(at)


@contextmanager
def _told(at: str) -> Iterator[None]:
    try:
        yield
    except SnapshotDamaged as error:
        raise SnapshotDamaged(f"the snapshot {at} is damaged: {error}") from error
    except FileNotFoundError as error:
        raise SnapshotDamaged(f"the snapshot {at} is not whole: {error}") from error
    except Exception as error:  # each kind of place has errors of its own
        raise SnapshotFailed(f"the snapshot {at} cannot be written or read: {error}") from error


def _copy(source: BinaryIO | NativeFile, target: BinaryIO | NativeFile, over: Event) -> FileFacts:
    """
    Raises:
        InterruptedError: nobody wants it any more.
    """
    size, digest = 0, hashlib.sha256()
    while piece := source.read(_PIECE_BYTES):
        if over.is_set():
            raise InterruptedError("it was given up")
        target.write(piece)
        digest.update(piece)
        size += len(piece)
    return FileFacts(size, digest.hexdigest())
