"""
Reads Parquet and Arrow files, which are written once and never grow: a position is a row group, and rows of it.

A file without its end is being written; where it never gets one, it is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import ipc, parquet

from headrace_connect.connectors.files.identity import FilePosition, sample
from headrace_connect.connectors.files.parsed import Damage
from headrace_connect.connectors.files.reading import Piece, Step
from headrace_connect.connectors.places import OpenFile, retriable

REFUSED: Final = "refused"
_WRONG: Final = (OSError, pa.ArrowException, ValueError)


class Groups(Protocol):
    """A file's row groups."""

    count: int

    def offset_of(self, group: int) -> int:
        """Where it begins, in bytes."""
        ...

    def batches(self, group: int, rows: int) -> Iterator[pa.RecordBatch]:
        """The group, at most ``rows`` rows at once; always cut at the same rows."""
        ...


class ParquetGroups:
    """Satisfies ``Groups``."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = parquet.ParquetFile(file)
        self.count = self._file.num_row_groups

    def offset_of(self, group: int) -> int:
        """See ``Groups``."""
        columns = self._file.metadata.row_group(group)
        if not columns.num_columns:
            return 0
        column = columns.column(0)
        return int(column.dictionary_page_offset or column.data_page_offset)

    def batches(self, group: int, rows: int) -> Iterator[pa.RecordBatch]:
        """See ``Groups``."""
        yield from self._file.iter_batches(batch_size=rows, row_groups=[group], use_threads=False)


class ArrowGroups:
    """Satisfies ``Groups``: each record batch of an Arrow file is one."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = ipc.open_file(file)
        self.count = self._file.num_record_batches

    def offset_of(self, group: int) -> int:
        """See ``Groups``; the footer is not for us to read."""
        return 0

    def batches(self, group: int, rows: int) -> Iterator[pa.RecordBatch]:
        """See ``Groups``."""
        batch = self._file.get_batch(group)
        batch.validate(full=True)
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


@dataclass(slots=True)
class _Reading:
    """The group that is being read of an open file."""

    file: OpenFile
    groups: Groups
    batches: Iterator[pa.RecordBatch] | None = None
    group: int = 0
    row: int = 0


class ColumnReader:
    """Satisfies ``Reader``."""

    def __init__(self, groups_of: type[ParquetGroups | ArrowGroups], batch_rows: int) -> None:
        self._groups_of = groups_of
        self._batch_rows = batch_rows
        self._reading: _Reading | None = None

    def step(self, file: OpenFile, position: FilePosition, complete: bool) -> Step:
        """See ``Reader``."""
        if position.state == REFUSED:
            if file.seen.size == position.tail_end:
                return Step()
            position = FilePosition(file.seen.id, 0)
        if self._reading is None or self._reading.file is not file:
            try:
                self._reading = _Reading(file, self._groups_of(file.file))
            except _WRONG as wrong:
                return self._without_end(file, position, wrong, complete)
        if position.offset >= self._reading.groups.count:
            return Step()
        try:
            batch = self._next(self._reading, position)
        except _WRONG as wrong:
            return self._damaged_group(file, position, self._reading, wrong)
        if batch is None:
            return Step(self._piece(file, position.offset + 1), more=True)
        rows = pa.Table.from_batches([batch])
        return Step(self._piece(file, position.offset, position.row + len(rows), rows), more=True)

    def _next(self, reading: _Reading, position: FilePosition) -> pa.RecordBatch | None:
        """The rows at ``position``; None: the group has no more."""
        at = (position.offset, position.row)
        if reading.batches is None or at != (reading.group, reading.row):
            reading.batches = reading.groups.batches(position.offset, self._batch_rows)
            reading.group, reading.row = position.offset, 0
        for batch in reading.batches:
            start = reading.row
            reading.row += batch.num_rows
            if reading.row > position.row:
                return batch.slice(position.row - start)
        reading.batches = None
        return None

    def _without_end(self, file: OpenFile, position: FilePosition, wrong: Exception, complete: bool) -> Step:
        self._read_all(file, max(0, file.seen.size - 1), 1)
        if not complete:
            return Step(waiting=f"the file is not whole yet: {wrong}")
        reason = f"the file cannot be read: {wrong}"
        at = FilePosition(file.seen.id, 1, state=REFUSED, **sample(file.read_at, file.seen.size))
        return Step(Piece(at, damage=[Damage(0, reason, b"")]))

    def _damaged_group(self, file: OpenFile, position: FilePosition, reading: _Reading, wrong: Exception) -> Step:
        """One that cannot be read is left out, if it is the file's fault."""
        self._read_all(file, 0, file.seen.size)
        self._reading = None  # the library stays in error for the other groups
        reason = f"row group {position.offset} cannot be read from row {position.row} on: {wrong}"
        damage = Damage(reading.groups.offset_of(position.offset), reason, b"")
        return Step(self._piece(file, position.offset + 1, damage=[damage]), more=True)

    def _read_all(self, file: OpenFile, start: int, end: int) -> None:
        """
        Raises:
            RetriableError: the bytes cannot be had, so it is the place's fault.
        """
        step = 16 << 20
        with retriable("the file cannot be read"):
            for at in range(start, end, step):
                file.read_at(at, min(step, end - at))

    def _piece(self, file: OpenFile, group: int, row: int = 0, rows: Any = None, damage: Any = ()) -> Piece:
        at = FilePosition(file.seen.id, group, row, **sample(file.read_at, file.seen.size))
        return Piece(at, [] if rows is None else rows, damage)
