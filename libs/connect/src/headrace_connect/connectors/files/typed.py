"""Types of columns that a user names, and text cast to them. What does not fit exactly is a row that is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_NAMED: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_DECIMAL_DIGITS_MAX: Final = 76
_SEPARATOR: Final = re.compile(r",(?![^(]*\))")


def parse_types(text: str) -> dict[str, pa.DataType]:
    """
    The columns' types of ``name:type, name:type``.

    Raises:
        ValueError: a type is not known, or a column comes twice.
    """
    types: dict[str, pa.DataType] = {}
    for item in filter(None, (item.strip() for item in _SEPARATOR.split(text))):
        name, colon, kind = item.rpartition(":")
        if not colon or not name.strip():
            raise ValueError(f"{item!r} is not NAME:TYPE")
        if name.strip() in types:
            raise ValueError(f"the column {name.strip()!r} comes twice")
        types[name.strip()] = _parse_type(kind.strip())
    return types


def _parse_type(kind: str) -> pa.DataType:
    if kind in _NAMED:
        return _NAMED[kind]
    if match := _DECIMAL.fullmatch(kind):
        digits, scale = int(match[1]), int(match[2])
        if not 1 <= digits <= _DECIMAL_DIGITS_MAX or scale > digits:
            raise ValueError(f"{kind}: a decimal has 1 to {_DECIMAL_DIGITS_MAX} digits, and no more behind the point")
        return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
    raise ValueError(f"there is no type {kind!r}; there are {', '.join(_NAMED)}, decimal(DIGITS,SCALE)")


def cast_columns(table: pa.Table, types: Mapping[str, pa.DataType]) -> tuple[pa.Table, dict[int, str]]:
    """
    The rows whose text fits the types, cast; and for each other row, by number, what is wrong with it.

    Empty text is null, except in columns of text.
    """
    wrong: dict[int, str] = {}
    columns: dict[str, pa.Array[Any]] = {}
    for name, kind in types.items():
        if name not in table.column_names or pa.types.is_string(kind):
            continue
        text = table.column(name).combine_chunks()
        text = pc.if_else(pc.equal(text, pa.scalar("")), pa.scalar(None, pa.string()), text)
        columns[name], rows = _cast(text, kind)
        for row in rows:
            reason = f"column {name!r}: {text[row].as_py()[:60]!r} is no {kind}"
            wrong[row] = f"{wrong[row]}; {reason}" if row in wrong else reason
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    if wrong:
        table = table.take([row for row in range(len(table)) if row not in wrong])
    return table, wrong


def _cast(text: pa.Array[Any], kind: pa.DataType) -> tuple[pa.Array[Any], list[int]]:
    """``text`` as ``kind`` with nulls where it does not fit, and the rows of those."""
    try:
        return _cast_exactly(text, kind), []
    except pa.ArrowInvalid:
        if len(text) == 1:
            return pa.array([None], kind), [0]
    half = len(text) // 2
    left, wrong_left = _cast(text.slice(0, half), kind)
    right, wrong_right = _cast(text.slice(half), kind)
    return pa.concat_arrays([left, right]), wrong_left + [half + row for row in wrong_right]


def _cast_exactly(text: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """
    Raises:
        pa.ArrowInvalid: a text does not fit exactly.
    """
    if pa.types.is_integer(kind) and pc.any(pc.match_substring(text, "x", ignore_case=True), min_count=0).as_py():
        raise pa.ArrowInvalid("a hexadecimal number")
    cast = text.cast(kind)
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(cast), min_count=0).as_py():
        raise pa.ArrowInvalid("a number that is not finite")
    return cast
