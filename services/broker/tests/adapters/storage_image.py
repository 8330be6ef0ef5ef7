"""A data directory as it stands at one moment, with what was synced and what was not, to be copied and broken."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from storage_batches import LOGS, SMALL, Writer, size_of
from storage_processes import Found

from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.core.rows import LogWrite
from headrace_common.core.ids import Offset


@dataclass(slots=True)
class Image:
    """Copy it before breaking it."""

    path: Path
    synced: dict[int, int]
    """Ends by log id that a sync confirmed, and that the evidence says."""
    ends: dict[int, int]
    """Ends of everything that was written."""
    wal: str
    """Name of the newest WAL file."""
    wal_synced: int
    """Bytes of it that were synced."""

    def copy(self, path: Path) -> Image:
        """Another directory with the same bytes."""
        shutil.copytree(self.path, path)
        return Image(path, self.synced, self.ends, self.wal, self.wal_synced)

    @property
    def wal_path(self) -> Path:
        """The newest WAL file."""
        return self.path / "db" / self.wal

    def assert_synced_is_there(self, found: Found) -> None:
        """Opened; no damage, no wrong byte, and everything synced is there."""
        assert not found.refused
        assert (found.wrong, found.damaged) == ([], [])
        lost = {log: (end, found.logs[log]) for log, end in self.synced.items() if found.logs[log][1] < end}
        assert lost == {}


def make_image(path: Path, *, flushed_groups: int = 40, synced_groups: int = 25, unsynced_groups: int = 12) -> Image:
    """Some in table and blob files, some in the WAL and synced, some in the WAL and not."""
    return asyncio.run(_make_image(path, flushed_groups, synced_groups, unsynced_groups))


async def _make_image(path: Path, flushed: int, synced: int, unsynced: int) -> Image:
    directory = DataDirectory.open(path / "live")
    directory.bind("cluster-1", 1)
    logs = RocksDbLogs.open(directory, SMALL)
    writers = [Writer(logs.new_log_id()) for _ in range(LOGS)]
    logs.write([one for writer in writers for one in writer.create()])

    def group(turn: int) -> list[LogWrite]:
        chosen = [writers[turn % LOGS], writers[(turn * 3 + 1) % LOGS]]
        return [one for writer in chosen for one in writer.append(1, size=size_of(writer.log, writer.end))]

    for turn in range(flushed):
        logs.write(group(turn))
    logs._store.flush()
    for turn in range(synced):
        logs.write(group(turn))
    await logs.sync()
    for writer in writers:
        logs.note_synced(writer.log, Offset(writer.end), writer.epoch)
    logs._keeper.save(clean=False)
    ends = {int(writer.log): writer.end for writer in writers}
    wal = max((path / "live" / "db").glob("*.log"), key=lambda one: int(one.stem))
    wal_synced = wal.stat().st_size
    for turn in range(unsynced):
        logs.write(group(turn))
    assert wal.stat().st_size > wal_synced > 0, "the memtable was switched: make the image smaller"
    shutil.copytree(path / "live", path / "image")
    await logs.close(None)
    directory.close()
    return Image(path / "image", ends, {int(writer.log): writer.end for writer in writers}, wal.name, wal_synced)
