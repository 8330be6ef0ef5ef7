"""
JSON: one object for each value.

A batch of sound values is parsed by Arrow, all at once. Arrow's parser is more lenient than JSON (NaN), does not see
where one value ends, and crashes on a bare null, so ``_is_sound`` looks at the bytes first. What Arrow refuses, or
might take wrongly, goes through ``json_rows``, which decides: both give the same rows for any cutting into batches.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from pyarrow import compute
from pyarrow import json as parsing

from headrace_common.core.batch.byte_columns import as_binary
from headrace_streams.core.formats.ddl import TIMESTAMP, parse_schema
from headrace_streams.core.formats.json_rows import FLOAT_END, Misfit, row_reader
from headrace_streams.core.formats.json_text import (
    MS_MAX,
    MS_MIN,
    Unwritable,
    check_writable,
    find_unwritable,
    object_texts,
)
from headrace_streams.core.formats.port import Decoded, Problem

pc: Any = compute  # their stubs are narrower than they are
arrow_json: Any = parsing
_PIECES: Final = 4
"""A batch that has a bad value is cut into so many, of which only those with one are read value by value."""
_QUICK_ROWS_MIN: Final = 256
"""One call of Arrow's parser costs as much as to read so many values one by one."""
_BLOB_BYTES_MAX: Final = 1 << 30
"""Arrow wants the whole batch as one block, whose size is an int32."""
_DEPTH_MAX: Final = 1_000
"""orjson refuses values that are nested more than 1,024 deep."""
_DIGITS_MAX: Final = 300
"""From 309 digits on a whole number may be infinite."""
_PER_MS: Final = {TIMESTAMP: 1, pa.timestamp("us", tz="UTC"): 1_000, pa.timestamp("ns", tz="UTC"): 1_000_000}
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")


class JsonFormat:
    """
    ``json(schema)``, or ``json`` as it is for what is only written.

    ``row_class`` is the class whose schema it is, for functions that take its instances.
    """

    def __init__(self, given: str | pa.Schema | type | None = None) -> None:
        self.schema: pa.Schema | None = None
        self.row_class = given if isinstance(given, type) else None
        if given is not None:
            self.schema = parse_schema(given)
            self._read_row = row_reader(self.schema)
            self._quick = all(_is_quick(field) for field in self.schema)

    def __call__(self, schema: str | pa.Schema | type) -> JsonFormat:
        """
        The format of values with these columns.

        Raises:
            InvalidConfig: no such schema, or a type that JSON cannot hold.
        """
        return JsonFormat(schema)

    def __repr__(self) -> str:
        return "json" if self.schema is None else f"json({', '.join(self.schema.names)})"

    def decode(self, values: pa.Array[Any]) -> Decoded:
        """See ``Format``."""
        assert self.schema is not None, "json without a schema only writes"
        values = as_binary(values)
        if not len(values):
            return Decoded(self.schema.empty_table())
        table = self._parse(values)
        if table is not None:
            return Decoded(table)
        rows = max(-(-len(values) // _PIECES), _QUICK_ROWS_MIN)
        parts = [self._decode_piece(values.slice(start, rows), start) for start in range(0, len(values), rows)]
        return Decoded(
            pa.concat_tables([part.table for part in parts]).combine_chunks(),
            [problem for part in parts for problem in part.problems],
        )

    def encode(self, table: pa.Table) -> pa.Array[Any]:
        """See ``Format``: fields in the order of the columns, null where there is none; a schema is not looked at."""
        for field in table.schema:
            check_writable(field.name, field.type)
        columns = [_one_chunk(column) for column in table.columns]

        def write(start: int, count: int) -> Any:
            return object_texts(table.column_names, [column.slice(start, count) for column in columns])

        try:
            return write(0, table.num_rows).cast(pa.binary())  # type: ignore[no-any-return]
        except Unwritable:
            raise find_unwritable(write, table.num_rows) from None

    def _decode_piece(self, values: Any, start: int) -> Decoded:
        """``start``: its place among all the values."""
        table = self._parse(values)
        if table is not None:
            return Decoded(table)
        rows: list[dict[str, Any]] = []
        problems: list[Problem] = []
        for row, value in enumerate(values.to_pylist(), start):
            try:
                rows.append(self._read_row(value))
            except Misfit as misfit:
                problems.append(Problem(row, str(misfit)))
        return Decoded(pa.Table.from_pylist(rows, self.schema), problems)

    def _parse(self, values: Any) -> pa.Table | None:
        """The rows, by Arrow; None where it is not certain that they are what ``json_rows`` would read."""
        assert self.schema is not None
        if not self._quick or len(values) < _QUICK_ROWS_MIN:
            return None
        try:
            table = parse_objects(values, self._asked(values[0].as_py()))
            if table is None:
                return None
            columns = [_as_declared(table.column(field.name), field) for field in self.schema]
        except (pa.ArrowInvalid, orjson.JSONDecodeError, _NotCertain):
            return None
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _asked(self, first: bytes) -> pa.Schema:
        """What Arrow is asked for: timestamps are numbers or text, as in the first value."""
        assert self.schema is not None
        row = orjson.loads(first) if TIMESTAMP in self.schema.types else {}
        if not isinstance(row, dict):
            raise _NotCertain
        return pa.schema([(field.name, _asked_type(field.type, row.get(field.name))) for field in self.schema])


json: Final = JsonFormat()


def parse_objects(values: Any, schema: pa.Schema, *, others: str = "ignore") -> pa.Table | None:
    """
    JSON objects by Arrow, all at once; None where it is not certain that they are what orjson would read.

    Args:
        values: without nulls.
        schema: of ``is_parsed`` types.
        others: "error": no value may have fields beside those.
    """
    if values.nbytes + len(values) > _BLOB_BYTES_MAX:
        return None
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    blob = pc.binary_join(whole, b"\n")[0].as_buffer()
    if not _is_sound(values, blob):
        return None
    try:
        table: pa.Table = arrow_json.read_json(
            pa.BufferReader(blob),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=blob.size + 1),
            parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others),
        )
    except pa.ArrowInvalid:
        return None
    assert table.num_rows == len(values), "sound values are one object each"
    return table


def is_parsed(kind: Any) -> bool:
    """Whether ``parse_objects`` reads values of a type."""
    if pa.types.is_list(kind):
        return bool(kind.value_field.nullable and is_parsed(kind.value_type) and not _has_null_type(kind.value_type))
    if pa.types.is_struct(kind):
        return all(field.nullable and is_parsed(field.type) for field in kind)
    types = pa.types
    simple = types.is_boolean(kind) or types.is_signed_integer(kind) or types.is_float64(kind) or types.is_string(kind)
    return bool(simple or types.is_null(kind))


def _has_null_type(kind: Any) -> bool:
    """Arrow fails on lists of those."""
    if pa.types.is_list(kind):
        return _has_null_type(kind.value_type)
    return bool(any(_has_null_type(field.type) for field in kind) if pa.types.is_struct(kind) else kind == pa.null())


class _NotCertain(Exception):
    """The value by value way decides."""


def _is_quick(field: Any) -> bool:
    """Whether Arrow reads such a column like ``json_rows``."""
    return field.type in (TIMESTAMP, pa.float32()) or is_parsed(field.type)


def _asked_type(kind: pa.DataType, first: Any) -> pa.DataType:
    if kind == TIMESTAMP:
        return pa.int64() if type(first) is int else pa.string()
    return pa.float64() if kind == pa.float32() else kind


def _as_declared(column: Any, field: Any) -> Any:
    """
    Raises:
        _NotCertain: a value is out of range, or null where that is not allowed.
    """
    column = _one_chunk(column)
    if field.type == TIMESTAMP:
        column = _instants(column if column.type == pa.int64() else _milliseconds(column))
    elif field.type == pa.float32():
        if pc.any(pc.greater_equal(pc.abs(column), FLOAT_END)).as_py():
            raise _NotCertain
        column = column.cast(pa.float32())
    if column.null_count and not field.nullable:
        raise _NotCertain
    return column


def _milliseconds(texts: Any) -> Any:
    """Finer digits are cut, as ``json_rows`` does; text without a zone is left to it."""
    for unit, per_ms in _PER_MS.items():
        try:
            ticks = texts.cast(unit).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
        floor = np.floor_divide(ticks.fill_null(0).to_numpy(), per_ms)
        return pc.if_else(ticks.is_valid(), pa.array(floor), None)
    raise _NotCertain


def _instants(ms: Any) -> Any:
    ends = pc.min_max(ms).as_py()
    if ends["min"] is not None and not MS_MIN <= ends["min"] <= ends["max"] <= MS_MAX:
        raise _NotCertain
    return ms.cast(TIMESTAMP)


def _one_chunk(column: pa.ChunkedArray[Any]) -> Any:
    whole = column.combine_chunks()
    assert isinstance(whole, pa.Array), "a batch is far below 2 GiB"
    return whole


def _is_sound(values: Any, blob: Any) -> bool:
    """
    Whether Arrow will take each line of ``blob`` as one object, and no more leniently than orjson.

    A line starts with { and ends with }, and after no } comes what could start another value. So the parser is at its
    outer level only between lines. What looks bad inside a string is called bad too; that only costs time.
    """
    data = np.frombuffer(blob, np.uint8)
    inner = np.flatnonzero(data == ord("\n"))
    return bool(
        len(data) > 0
        and len(inner) == len(values) - 1
        and data[0] == ord("{")
        and (_next_to(data, inner, 1) == ord("{")).all()
        and data[-1] == ord("}")
        and _AFTER_OBJECT[_next_to(data, np.flatnonzero(data == ord("}"))[:-1], 1)].all()
        and not _has_odd_numbers(data)
        and not _is_extreme(values, blob)
        and _is_utf8(values)
    )


def _next_to(data: Any, places: Any, distance: int) -> Any:
    """The bytes so far behind ``places``; the last byte of all where there is none."""
    return data.take(places + distance, mode="clip")


def _has_odd_numbers(data: Any) -> bool:
    """NaN and infinity, which Arrow takes for numbers, and -0, a double for it and an integer for orjson."""
    nan = np.flatnonzero(data == ord("N"))
    infinity = np.flatnonzero(data == ord("I"))
    minus = np.flatnonzero(data == ord("-"))
    return bool(
        ((_next_to(data, nan, 1) == ord("a")) & (_next_to(data, nan, 2) == ord("N"))).any()
        or ((_next_to(data, infinity, 1) == ord("n")) & _AFTER_INF[_next_to(data, infinity, 3)]).any()
        or ((_next_to(data, minus, 1) == ord("0")) & _AFTER_NUMBER[_next_to(data, minus, 2)]).any()
    )


def _is_extreme(values: Any, blob: Any) -> bool:
    """Whether a value may be nested deeper, or have a longer number, than orjson takes."""
    longest = pc.max(pc.binary_length(values)).as_py()
    if longest > 2 * _DEPTH_MAX:
        opening = pc.add(pc.count_substring(values, "["), pc.count_substring(values, "{"))
        if pc.max(opening).as_py() > _DEPTH_MAX:
            return True
    return longest > _DIGITS_MAX and b"0" * _DIGITS_MAX in blob.to_pybytes().translate(_DIGITS)


def _is_utf8(values: Any) -> bool:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _among(characters: bytes) -> Any:
    table = np.zeros(256, bool)
    table[list(characters)] = True
    return table


_AFTER_NUMBER: Final = _among(b",]} \t\r\n")
_AFTER_INF: Final = _among(b",]} \t\r\ni")
_AFTER_OBJECT: Final = _among(b",]}\n")
