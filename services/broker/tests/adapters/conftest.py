"""What the storage tests share: real batches, small stores, both adapters behind one fixture."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.adapters.rocksdb_log import LogsOptions, RocksDbLogs
from headrace_broker.ports import LogStore

sys.path.insert(0, str(Path(__file__).parent))  # so that storage_child runs as a script with the same modules
from storage_batches import SMALL


class Disk:
    """A store that can be closed, killed and opened again."""

    logs: LogStore

    async def restart(self, clean_epoch: int | None = None) -> LogStore:
        """Close (cleanly with an epoch) and open again."""
        raise NotImplementedError

    async def end(self) -> None:
        """Close whatever is open."""


class MemoryDisk(Disk):
    def __init__(self) -> None:
        self.logs = MemoryLogs()

    async def restart(self, clean_epoch: int | None = None) -> LogStore:
        assert isinstance(self.logs, MemoryLogs)
        await self.logs.close(clean_epoch)
        self.logs = self.logs.reopen()
        return self.logs


class RocksDisk(Disk):
    def __init__(self, path: Path, options: LogsOptions = SMALL) -> None:
        self.path, self.options = path, options
        self.open()

    def open(self) -> RocksDbLogs:
        self.directory = DataDirectory.open(self.path)
        try:
            self.logs = RocksDbLogs.open(self.directory, self.options)
        except BaseException:
            self.directory.close()
            raise
        return self.logs

    async def restart(self, clean_epoch: int | None = None) -> LogStore:
        await self.logs.close(clean_epoch)
        self.directory.close()
        return self.open()

    async def end(self) -> None:
        await self.logs.close(None)
        self.directory.close()


@pytest.fixture(params=["memory", "rocksdb"])
async def disk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Disk]:
    """Either adapter."""
    made = MemoryDisk() if request.param == "memory" else RocksDisk(tmp_path / "data")
    yield made
    await made.end()


@pytest.fixture
async def rocks(tmp_path: Path) -> AsyncIterator[RocksDisk]:
    """The one with a disk."""
    made = RocksDisk(tmp_path / "data")
    yield made
    await made.end()
