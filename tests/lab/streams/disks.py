"""A machine's disk: cold tiers in memory that lose their newest commits when the process dies, as without a WAL."""

from __future__ import annotations

from random import Random

from headrace_streams.adapters.memory_store import MemoryStores, MemoryTaskStore
from headrace_streams.core.state.store import Changes
from headrace_streams.ports import Checkpoint


class DiskStore(MemoryTaskStore):
    """Remembers what was written since it was wiped."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[Changes, Checkpoint]] = []

    def write(self, rows: Changes, checkpoint: Checkpoint) -> None:
        super().write(rows, checkpoint)
        self.written.append((list(rows), checkpoint))

    def wipe(self) -> None:
        super().wipe()
        self.written.clear()

    def rows(self) -> dict[bytes, bytes]:
        """All that is there."""
        return dict(self._rows.scan())


class Disk(MemoryStores):
    """Satisfies ``TaskStores``; what is opened again is as it was."""

    def open(self, sub_topology: str, partition: int) -> DiskStore:
        store = self.stores.setdefault((sub_topology, partition), DiskStore())
        assert isinstance(store, DiskStore)
        return store

    def crash(self, random: Random) -> None:
        """The process was killed: of each task's commits the first are there, up to any."""
        for at, store in self.stores.items():
            assert isinstance(store, DiskStore)
            count = len(store.written)
            left = self.stores[at] = DiskStore()
            for rows, checkpoint in store.written[: random.choice((count, max(0, count - 1), _any(random, count)))]:
                left.write(rows, checkpoint)

    def wipe(self) -> None:
        """Nothing is left."""
        self.stores.clear()


def _any(random: Random, count: int) -> int:
    return int(random.random() * (count + 1))
