"""Types of columns in table formats, which have fewer than Arrow: the type that holds every value of another one."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyarrow import compute

from headrace_connect.connectors.lake_sink.lake import Array
from headrace_connect.core.kinds import Kind

arrow: Any = pa  # its stubs are narrower than it is
pc: Any = compute
_NORMAL: Final[dict[Kind, Kind]] = {
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_DIGITS_MAX: Final = 38
_DAYS: Final = (-719_162, 2_932_896)
"""The first of the year 1, and the last of 9999, counted from 1970."""
_MICROS_OF_DAY: Final = 86_400_000_000


def normal(kind: Kind) -> Kind:
    """
    The type of a column for fields of a type: signed numbers, timestamps in microseconds. Fields of structs that have
    no type, for they are null, are left out.
    """
    types = pa.types
    if kind in _NORMAL:
        return _NORMAL[kind]
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_decimal(kind) and kind.precision <= _DIGITS_MAX:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_struct(kind):
        fields = [pa.field(one.name, normal(one.type)) for one in kind if not types.is_null(one.type)]
        return pa.struct(fields)
    if types.is_list(kind) or types.is_large_list(kind):
        return arrow.list_(normal(kind.value_type))
    return kind


def find_unstorable(kind: Kind) -> str | None:
    """Why no column can be of a normal type; None: it can."""
    types = pa.types
    if types.is_struct(kind):
        if not list(kind):
            return "an object without fields has no form in a table"
        return next((why for one in kind if (why := find_unstorable(one.type)) is not None), None)
    if types.is_list(kind):
        return find_unstorable(kind.value_type)
    if types.is_null(kind):
        return "the type of its items is not known, for there are none; say it with a schema, or by the transform Cast"
    if types.is_decimal(kind):
        fits = types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision
        return None if fits else f"{kind} has no form in a table, which has up to {_DIGITS_MAX} digits"
    known = (
        types.is_signed_integer(kind)
        or kind in (pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32())
        or types.is_timestamp(kind)
    )
    return None if known else f"{kind} has no form in a table"


def find_beyond_calendar(values: Array) -> dict[int, str]:
    """Dates and timestamps outside the years 1 to 9999."""
    kind = values.type
    if kind == pa.date32():
        numbers, low, high = values.cast(pa.int32()), *_DAYS
    elif pa.types.is_timestamp(kind):
        numbers, low, high = values.cast(pa.int64()), *(_MICROS_OF_DAY * day for day in _DAYS)
        high += _MICROS_OF_DAY - 1
    else:
        return {}
    beyond = pc.or_(pc.less(numbers, low), pc.greater(numbers, high)).fill_null(False).to_pylist()
    return {row: "it is outside the years 1 to 9999" for row, is_beyond in enumerate(beyond) if is_beyond}
