"""
The sink ``files-sink``: ``TOPIC/PARTITION/FIRST-END.FORMAT`` has the records from offset FIRST up to END.

FIRST is a multiple of ``file.offsets``, and a file grows by being written again with a larger END, after which the
shorter one is deleted. What a name has in it follows from the topic alone, so a repeat writes the same file; of two
holders of a partition, each deletes what is shorter than the longest, whoever wrote it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from headrace.records import TopicPartition
from headrace_connect.connectors.files.sink_settings import SinkSettings
from headrace_connect.connectors.files.written import FORMS, Compressed, Form
from headrace_connect.connectors.places import Place, find_place
from headrace_connect.plugin import Guarantee, RetriableError, Rows, RowsRefused, Sink

_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.[a-z.]+")
_ENDINGS: Final = {"gzip": ".gz", "zstd": ".zst", "none": ""}


@dataclass(slots=True)
class _Partition:
    """What is known of an open partition."""

    stored: dict[int, int]
    """First offset of each file that may grow -> its end."""
    end: int
    """Everything below it is in files."""
    tables: dict[int, pa.Table] = field(default_factory=dict)
    """All rows of the files that are being written, by their first offset."""
    changed: set[int] = field(default_factory=set)


class FilesSink(Sink[SinkSettings]):
    """Writes records of a partition into files that are cut at fixed offsets."""

    guarantee = Guarantee.IDEMPOTENT
    commit_interval_ms = 10_000
    commit_rows = 100_000

    def __init__(self, settings: SinkSettings) -> None:
        super().__init__(settings)
        self._place: Place | None = None
        self._form: Form = FORMS[settings.format]
        self._ending = f".{settings.format}"
        if settings.format in ("jsonl", "csv") and settings.compression != "none":
            self._form = Compressed(self._form, settings.compression)
            self._ending += _ENDINGS[settings.compression]
        self._open: dict[TopicPartition, _Partition] = {}

    def check(self) -> Sequence[str]:
        """See ``Connector``; writes a small file and deletes it."""
        try:
            place = find_place(self.settings.path)
            place.write("headrace-check", b"")
            place.delete("headrace-check")
        except RetriableError as error:
            return [f"{error}; check that path is right, and that it may be written"]
        return []

    def start(self) -> None:
        """See ``Connector``."""
        self._place = find_place(self.settings.path)

    def open(self, partitions: Sequence[TopicPartition], epoch: int) -> Mapping[TopicPartition, int]:
        """See ``Sink``."""
        for partition in partitions:
            stored = self._clean(partition)
            self._open[partition] = _Partition(stored, max(stored.values(), default=0))
        return {}

    def write(self, rows: Rows) -> None:
        """See ``Sink``; rows that are in files are left out."""
        partition = self._open[rows.source]
        nulls: list[Any] = rows.values.is_null().to_pylist()
        if any(nulls):
            raise RowsRefused({row: "the record has no value" for row, is_null in enumerate(nulls) if is_null})
        offsets: list[Any] = rows.offsets.to_pylist()
        first = bisect_left(offsets, partition.end)
        while first < len(rows):
            start = self._first_of(offsets[first])
            end = bisect_left(offsets, start + self.settings.file_offsets)
            self._add(partition, rows, start, first, end - first)
            first = end

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        """See ``Sink``."""
        for key, position in positions.items():
            partition = self._open[key]
            for start in sorted(partition.changed):
                self._write_file(key, partition, start, min(position, start + self.settings.file_offsets))
            partition.changed.clear()
            partition.end = max(partition.end, position)
            for start in [start for start in partition.tables if start + self.settings.file_offsets <= position]:
                del partition.tables[start]

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        """See ``Sink``."""
        for partition in partitions:
            self._open.pop(partition, None)

    def _first_of(self, offset: int) -> int:
        return offset // self.settings.file_offsets * self.settings.file_offsets

    def _add(self, partition: _Partition, rows: Rows, start: int, first: int, count: int) -> None:
        """Put some rows behind the others of their file."""
        table = partition.tables.get(start)
        if table is None and start in partition.stored:
            table = self._read_file(rows.source, start, partition)
        try:
            added = self._form.prepare(rows.slice(first, count).table)
            joined = added if table is None else pa.concat_tables([table, added], promote_options="permissive")
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as wrong:
            if count == 1:
                raise RowsRefused({first: f"it cannot be written with the rows before it: {wrong}"}) from wrong
            raise
        partition.tables[start] = joined
        partition.changed.add(start)

    def _read_file(self, key: TopicPartition, start: int, partition: _Partition) -> pa.Table:
        name = self._name(key, start, partition.stored[start])
        file = self._live.open(name)
        if file is None:
            raise RetriableError(f"{name} was there, and is not there any more")
        with file:
            return self._form.read(file.read_at(0, file.seen.size))

    def _write_file(self, key: TopicPartition, partition: _Partition, start: int, end: int) -> None:
        self._live.write(self._name(key, start, end), self._form.write(partition.tables[start]))
        self._clean(key, start)
        partition.stored[start] = end

    def _clean(self, key: TopicPartition, only: int | None = None) -> dict[int, int]:
        """Delete files that a longer one has the records of; the end of each file that is left."""
        found: dict[int, list[tuple[int, str]]] = {}
        for name in self._live.list_directory(_directory(key)):
            match = _NAME.fullmatch(name.rpartition("/")[2])
            if match is not None and only in (None, int(match[1])):
                found.setdefault(int(match[1]), []).append((int(match[2]), name))
        for files in found.values():
            for _, name in sorted(files)[:-1]:
                self._live.delete(name)
        return {start: max(files)[0] for start, files in found.items()}

    def _name(self, key: TopicPartition, start: int, end: int) -> str:
        return f"{_directory(key)}/{start:020}-{end:020}{self._ending}"

    @property
    def _live(self) -> Place:
        assert self._place is not None, "start comes first"
        return self._place


def _directory(key: TopicPartition) -> str:
    return f"{key.topic}/{key.partition}"
