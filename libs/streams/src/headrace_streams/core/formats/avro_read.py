"""Avro's binary values to columns: fastavro reads each value, Arrow makes columns of what it gives."""

from __future__ import annotations

from io import BytesIO
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError

from headrace_streams.core.formats.avro_schema import Record, check_fits, columns_of
from headrace_streams.core.formats.port import Decoded, Problem

_MESSAGE_CHARACTERS_MAX: Final = 200
_UNREADABLE: Final = (EOFError, ValueError, ArithmeticError, LookupError, TypeError, SchemaResolutionError)
"""What fastavro raises for bytes that are no such value."""


class AvroReader:
    """Reads values that were written with one schema, as columns of another."""

    def __init__(self, writer: Record, wanted: Record) -> None:
        """
        Raises:
            BadSchema: the one cannot be read as the other, or no columns can hold it.
        """
        check_fits(writer, wanted)
        self.schema = columns_of(wanted)
        self._type = pa.struct(list(self.schema))
        self._writer = writer
        self._wanted = None if writer == wanted else wanted

    def decode(self, values: pa.BinaryArray, begin: int = 0) -> Decoded:
        """
        Args:
            values: without nulls.
            begin: where the data begins in each; all have so many bytes.
        """
        problems: list[Problem] = []
        places: list[int] = []
        rows: list[Any] = []
        for place, value in enumerate(values.to_pylist()):
            assert value is not None
            data = BytesIO(value)
            data.seek(begin)
            try:
                row = fastavro.schemaless_reader(data, self._writer, self._wanted)
            except _UNREADABLE as wrong:
                problems.append(_problem(place, wrong))
                continue
            if data.tell() < len(value):
                problems.append(
                    Problem(place, "the value goes on where its schema ends; was it written with another one?")
                )
                continue
            places.append(place)
            rows.append(row)
        parts = self._arrays(rows, places, problems)
        problems.sort(key=lambda problem: problem.row)
        batches = [pa.RecordBatch.from_struct_array(part) for part in parts]
        return Decoded(pa.Table.from_batches(batches, self.schema).combine_chunks(), problems)

    def _arrays(self, rows: list[Any], places: list[int], problems: list[Problem]) -> list[pa.StructArray]:
        """The rows, but for those that a column cannot hold: these are sought by halves."""
        if not rows:
            return []
        try:
            made: Any = pa.array(rows, self._type)
        except (pa.ArrowException, OverflowError) as wrong:
            if len(rows) == 1:
                problems.append(_problem(places[0], wrong))
                return []
            half = len(rows) // 2
            return [
                *self._arrays(rows[:half], places[:half], problems),
                *self._arrays(rows[half:], places[half:], problems),
            ]
        return [made]


def _problem(place: int, wrong: Exception) -> Problem:
    if isinstance(wrong, EOFError):
        message = "the value ends in the middle"
    elif isinstance(wrong, UnicodeDecodeError):
        message = "a text is not UTF-8"
    elif isinstance(wrong, LookupError):
        message = "the value ends early, or has a branch of a union or a symbol of an enum that is not in its schema"
    else:
        message = str(wrong)
    return Problem(place, message[:_MESSAGE_CHARACTERS_MAX])
