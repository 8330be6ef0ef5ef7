"""
Columns as JSON text, whole columns at a time; values and keys are written with it.

Numbers are printed as orjson prints them, instants as ISO 8601 in UTC with the digits of their unit
("2026-01-01T00:00:00.000Z"), dates as "2026-01-01", decimals as text ("1.50": a number would be rounded by readers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from pyarrow import compute

from headrace.errors import InvalidConfig
from headrace_streams.core.formats.port import NotEncodable

pc: Any = compute  # its stubs are narrower than it is
MS_MIN: Final = -62_135_596_800_000
"""The first millisecond of the year 1."""
MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: text has four digits for the year."""
_DAY_MS: Final = 86_400_000
_PER_MS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_MANY: Final = 64
"""Of fewer rows it is not asked whether they are alike."""


class Unwritable(Exception):
    """A value in the column has no form in JSON."""


def check_writable(name: str, kind: pa.DataType) -> None:
    """
    Raises:
        InvalidConfig: a column of this type has no form in JSON.
    """
    types = pa.types
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        raise InvalidConfig(f"column {name!r} is binary, which JSON cannot hold; write it as base64 text, or drop it")
    if types.is_struct(kind):
        for field in kind:
            check_writable(f"{name}.{field.name}", field.type)
    elif types.is_list(kind) or types.is_large_list(kind):
        check_writable(f"{name}[]", kind.value_type)
    elif types.is_map(kind) and kind.key_type == pa.string():
        check_writable(f"{name}[]", kind.item_type)
    elif types.is_dictionary(kind):
        check_writable(name, kind.value_type)
    elif types.is_map(kind) or (kind != pa.null() and not any(is_such(kind) for is_such in _WRITERS)):
        raise InvalidConfig(f"column {name!r} is {kind}, which JSON cannot hold; cast it, for example to string")


def texts(column: Any) -> Any:
    """
    One JSON text for each value of ``column``, whose type was checked; "null" for nulls.

    Raises:
        Unwritable: a value is NaN, infinite, or outside the years 1 to 9999.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return texts(column.dictionary_decode())
    if kind == pa.null():
        return pa.array(["null"] * len(column), pa.string())
    write = next(write for is_such, write in _WRITERS.items() if is_such(kind))
    return write(column).fill_null("null")


def object_texts(names: list[str], columns: list[Any]) -> Any:
    """
    One JSON object for each row; fields in the order of the columns.

    What is the same in all rows is written once, and objects inside of others are no step of their own.
    """
    if not columns:
        raise InvalidConfig("there is no column to write")
    parts: list[Any] = []
    for part in _members(names, columns):
        if parts and isinstance(part, str) and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    if len(parts) == 1:
        return pa.repeat(pa.scalar(parts[0], pa.string()), len(columns[0]))
    return pc.binary_join_element_wise(*parts, "")


def _members(names: list[str], columns: list[Any]) -> Iterator[Any]:
    """Texts that make an object of each row when they are joined: columns, and what stands between them."""
    for i, (name, column) in enumerate(zip(names, columns, strict=True)):
        yield f"{',' if i else '{'}{orjson.dumps(name).decode()}:"
        if pa.types.is_struct(column.type) and column.type.num_fields and not column.null_count:
            yield from _members([field.name for field in column.type], column.flatten())
        elif _is_constant(column):
            yield texts(column.slice(0, 1))[0].as_py()
        else:
            yield texts(column)
    yield "}"


def _is_constant(column: Any) -> bool:
    """Whether all values are known to have the same text."""
    count = len(column)
    if count < _MANY:
        return False
    if column.null_count:
        return bool(column.null_count == count)
    if not any(is_such(column.type) for is_such in _COMPARED):
        return False
    first = column[0]
    return bool(first == column[count // 2] and first == column[count - 1] and pc.all(pc.equal(column, first)).as_py())


def find_unwritable(write: Callable[[int, int], object], rows: int) -> NotEncodable:
    """The first row that ``write(start, count)`` raises Unwritable for; it does for all ``rows`` together."""
    start, count = 0, rows
    while count > 1:
        half = count // 2
        try:
            write(start, half)
        except Unwritable:
            count = half
        else:
            start, count = start + half, count - half
    try:
        write(start, 1)
    except Unwritable as why:
        return NotEncodable(start, str(why))
    raise AssertionError("what cannot be written does not depend on the rows around it")


def _plain(column: Any) -> Any:
    return column.cast(pa.string())


def _quoted(column: Any) -> Any:
    return pc.binary_join_element_wise('"', column, '"', "")


def _strings(column: Any) -> Any:
    column = column.cast(pa.string())
    if not _has_escapes(column):
        return _quoted(column)
    return pa.array([None if text is None else orjson.dumps(text).decode() for text in column.to_pylist()], pa.string())


def _has_escapes(column: Any) -> bool:
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return False
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    used = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    return bool(((used < 0x20) | (used == ord('"')) | (used == ord("\\"))).any())


def _floats(column: Any) -> Any:
    numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    if not np.isfinite(numbers).all():
        raise Unwritable("NaN and infinity have no form in JSON; filter or replace them")
    if not len(column):
        return _plain(column)
    printed = orjson.dumps(np.ascontiguousarray(numbers), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].decode()
    return _with_nulls_of(column, pc.split_pattern(pa.array([printed]), ",").values)


def _instants(column: Any) -> Any:
    column = column.cast(pa.timestamp("ms" if column.type.unit == "s" else column.type.unit))
    ms = pc.min_max(column.cast(pa.int64())).as_py()
    _check_range(ms["min"], ms["max"], MS_MIN * _PER_MS[column.type.unit], (MS_MAX + 1) * _PER_MS[column.type.unit])
    return pc.binary_join_element_wise('"', pc.binary_replace_slice(_plain(column), 10, 11, "T"), 'Z"', "")


def _dates(column: Any) -> Any:
    days = pc.min_max(column.cast(pa.date32()).cast(pa.int32())).as_py()
    _check_range(days["min"], days["max"], MS_MIN // _DAY_MS, MS_MAX // _DAY_MS + 1)
    return _quoted(_plain(column.cast(pa.date32())))


def _check_range(least: int | None, greatest: int | None, start: int, end: int) -> None:
    if least is not None and greatest is not None and not start <= least <= greatest < end:
        raise Unwritable("the time is outside the years 1 to 9999; is it in the right unit?")


def _objects(column: Any) -> Any:
    names = [field.name for field in column.type]
    if not names:
        return _with_nulls_of(column, pa.array(["{}"] * len(column), pa.string()))
    return _with_nulls_of(column, object_texts(names, column.flatten()))


def _lists(column: Any) -> Any:
    return _with_nulls_of(column, pc.binary_join_element_wise("[", _joined(column, texts(column.flatten())), "]", ""))


def _maps(column: Any) -> Any:
    pairs = column.cast(pa.list_(pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])))
    keys, items = pairs.flatten().flatten()
    members = pc.binary_join_element_wise(texts(keys), texts(items), ":")
    return _with_nulls_of(column, pc.binary_join_element_wise("{", _joined(pairs, members), "}", ""))


def _joined(lists: Any, members: Any) -> Any:
    """The texts of the members of each list, with commas between."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(ends, members), ",")


def _with_nulls_of(column: Any, written: Any) -> Any:
    return pc.if_else(column.is_valid(), written, None) if column.null_count else written


_COMPARED: Final = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_decimal,
)
"""Equal values of these have one text; 0.0 and -0.0 have two."""
_WRITERS: Final[dict[Callable[[Any], bool], Callable[[Any], Any]]] = {
    pa.types.is_boolean: _plain,
    pa.types.is_integer: _plain,
    pa.types.is_floating: _floats,
    pa.types.is_string: _strings,
    pa.types.is_large_string: _strings,
    pa.types.is_large_binary: _plain,  # JSON already; no user's column comes here (``check_writable``)
    pa.types.is_timestamp: _instants,
    pa.types.is_date: _dates,
    pa.types.is_decimal: lambda column: _quoted(_plain(column)),
    pa.types.is_struct: _objects,
    pa.types.is_list: _lists,
    pa.types.is_large_list: _lists,
    pa.types.is_map: _maps,
}
