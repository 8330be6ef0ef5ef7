"""A lake of Parquet files, and who writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from libs.connect.tests.connectors.sql_sink.records import P0, TOPIC, rows

from headrace.records import TopicPartition
from headrace_connect.connectors.lake_sink import LakeSink, open_dataset
from headrace_connect.connectors.lake_sink.parquet import ParquetLake
from headrace_connect.connectors.lake_sink.settings import SinkSettings
from headrace_connect.connectors.lake_sink.staging import Staging
from headrace_connect.connectors.places import OpenFile, Place, find_place
from headrace_connect.plugin import PartitionTaken, Rows


def started(directory: Path, **values: Any) -> LakeSink:
    sink = LakeSink(SinkSettings("lake", str(directory), **{"added_columns": ()} | values))
    sink.start()
    return sink


def opened(directory: Path, **values: Any) -> LakeSink:
    sink = started(directory, **values)
    sink.open([P0], 1)
    return sink


def put(sink: LakeSink, start: int, end: int) -> None:
    """Records whose ``n`` is their offset."""
    sink.write(rows([{"n": n} for n in range(start, end)], start=start))


def stored(directory: Path, table: str = TOPIC) -> list[dict[str, Any]]:
    """What a reader sees, by offset where files have it."""
    return open_dataset(str(directory), table).to_table().to_pylist()


def numbers(directory: Path, table: str = TOPIC) -> list[int]:
    return [row["n"] for row in stored(directory, table)]


class Killed(BaseException):
    """The process is no more."""


class Killer:
    """Dies at the n-th moment; counts them."""

    def __init__(self, moment: int) -> None:
        self.left = moment
        self.last = ""

    def __call__(self, moment: str) -> bool:
        self.last = moment
        self.left -= 1
        return self.left == 0


class Mortal:
    """Satisfies ``Place``: a real one, where something happens before or behind each change."""

    objects = False

    def __init__(self, directory: Path, dies: Callable[[str], bool]) -> None:
        self._place: Place = find_place(str(directory))
        self._dies = dies
        self._dead = False

    def find(self, pattern: str, files_max: int = 0) -> list[str]:
        return self._place.find(pattern)

    def check(self) -> None:
        self._place.check()

    def list_directory(self, directory: str) -> list[str]:
        self._die("list")
        return self._place.list_directory(directory)

    def open(self, name: str) -> OpenFile | None:
        self._die("open")
        return self._place.open(name)

    def find_renamed(self, name: str, file_id: str) -> str | None:
        return self._place.find_renamed(name, file_id)

    def write(self, name: str, data: bytes, *, whole: bool = True) -> None:
        self._die("before write")
        self._place.write(name, data, whole=whole)
        self._die("behind write")

    def create(self, name: str, data: bytes) -> bool:
        what = "token" if "/tokens/" in name else name.rpartition(".")[2]
        self._die(f"before {what}")
        made = self._place.create(name, data)
        self._die(f"behind {what}")
        return made

    def sync(self, directory: str) -> None:
        self._place.sync(directory)

    def delete(self, name: str) -> None:
        self._die("before delete")
        self._place.delete(name)

    def _die(self, moment: str) -> None:
        if self._dead or self._dies(moment):
            self._dead = True
            raise Killed


def on(sink: LakeSink, place: Place) -> LakeSink:
    """The sink goes on with this place."""
    lake = sink._lake
    assert isinstance(lake, ParquetLake)
    lake._place = place
    return sink


class Follower:
    """A holder whose rows become files elsewhere, as those of ``lake_follow``: it has a sink's methods."""

    def __init__(self, directory: Path, place: Place) -> None:
        self._settings = SinkSettings("lake", str(directory), added_columns=())
        self._lake = ParquetLake(str(directory), [])
        self._place = self._lake._place = place
        self._open: set[TopicPartition] = set()
        self._staging = self._stage()

    def _stage(self) -> Staging:
        made = Staging(self._settings)
        made._lake._place = self._place
        return made

    def open(self, partitions: Sequence[TopicPartition], epoch: int) -> Mapping[TopicPartition, int]:
        self._staging = self._stage()
        self._open |= set(partitions)
        return self._lake.open(partitions)

    def write(self, rows: Rows) -> None:
        self._staging.write(rows)

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        if not self._open >= positions.keys():
            raise PartitionTaken(positions.keys() - self._open)
        files = self._staging.flush()
        for partition, end in positions.items():
            self._lake.name(partition, end, files.get(partition, ()))

    def settle(self, token: bytes) -> bool:
        return self._lake.settle(token)

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        self._open -= set(partitions)
        self._lake.close(partitions)
