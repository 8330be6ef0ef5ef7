"""Cold tiers in memory: for tests, and for apps whose state is restored at each start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import ormsgpack

from headrace_common.core.errors import StorageFailed
from headrace_streams.core.state.changelog import prefix
from headrace_streams.core.state.memory import MemoryCold
from headrace_streams.core.state.store import Changes, Cold
from headrace_streams.ports import Checkpoint

_COPY: Final = "rows"


class MemoryStores:
    """What is opened again is as it was; satisfies ``TaskStores``."""

    def __init__(self) -> None:
        self.stores: dict[tuple[str, int], MemoryTaskStore] = {}

    def open(self, sub_topology: str, partition: int) -> MemoryTaskStore:
        return self.stores.setdefault((sub_topology, partition), MemoryTaskStore())

    def tidy(self, oldest_ms: int) -> dict[tuple[str, int], Checkpoint]:
        found = ((at, store.checkpoint()) for at, store in self.stores.items())
        return {at: checkpoint for at, checkpoint in found if checkpoint is not None}


class MemoryTaskStore:
    """Satisfies ``TaskStore``."""

    def __init__(self) -> None:
        self._rows = MemoryCold()
        self._checkpoint: Checkpoint | None = None

    def checkpoint(self) -> Checkpoint | None:
        return self._checkpoint

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get([key])[0]

    def cold(self, store: str) -> Cold:
        return _Part(self._rows, prefix(store))

    def write(self, rows: Changes, checkpoint: Checkpoint) -> None:
        self._rows.write(rows)
        self._checkpoint = checkpoint

    def wipe(self) -> None:
        self._rows = MemoryCold()
        self._checkpoint = None

    @contextmanager
    def room(self) -> Iterator[Path]:
        with TemporaryDirectory() as name:
            yield Path(name)

    def copy(self, directory: Path) -> None:
        checkpoint = None if self._checkpoint is None else astuple(self._checkpoint)
        (directory / _COPY).write_bytes(ormsgpack.packb([list(self._rows.scan()), checkpoint]))

    def replace(self, directory: Path) -> None:
        self.wipe()
        try:
            rows, checkpoint = ormsgpack.unpackb((directory / _COPY).read_bytes())
            self.write(rows, Checkpoint(*checkpoint))
        except (OSError, ValueError, TypeError) as error:
            raise StorageFailed(f"{directory} holds no copy of a task's state: {error}") from error

    def close(self) -> None:
        pass


class _Part:
    """The rows of one store."""

    def __init__(self, rows: MemoryCold, prefix: bytes) -> None:
        self._rows = rows
        self._prefix = prefix

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._rows.get([self._prefix + key for key in keys])

    def scan(self, prefix: bytes = b"") -> Iterable[tuple[bytes, bytes]]:
        cut = len(self._prefix)
        return ((key[cut:], value) for key, value in self._rows.scan(self._prefix + prefix))
