"""
Fields to values of a column: exact, or the row is wrong. Nothing is cut or rounded.

Numbers that are equal are the same: 1.50 and 1.5, 3.0 in a column of integers. A decimal in a column of doubles is
exact where the double's shortest form has the same digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace_connect.connectors.sql_sink.kinds import Kind, is_bytes, is_text
from headrace_connect.core.json_text import dump

Array: TypeAlias = "pa.Array[Any]"
_SHOWN_CHARS_MAX: Final = 60
_EXPONENT_MAX: Final = 16_000
"""Of a decimal that is written out; databases have no more digits behind the point."""
_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")


class Misfit(ValueError):
    """A value that the column does not hold exactly."""


def fit(values: Array, kind: Kind) -> tuple[Array, dict[int, str]]:
    """
    ``values`` as the column takes them, with nulls where they do not fit, and for each of these rows the reason.

    Numeric columns, dates and timestamps are written as text, which databases read exactly.
    """
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    fitted, rows = _halve(values, kind)
    return fitted, {row: f"{_show(values[row])} ({values.type}) does not fit into {_describe(kind)}" for row in rows}


def _halve(values: Array, kind: Kind) -> tuple[Array, list[int]]:
    try:
        return _cast(values, kind), []
    except (pa.ArrowException, Misfit, OverflowError, InvalidOperation, ValueError, TypeError, RecursionError):
        if len(values) == 1:
            return pa.nulls(1), [0]
    half = len(values) // 2
    left, wrong_left = _halve(values.slice(0, half), kind)
    right, wrong_right = _halve(values.slice(half), kind)
    if pa.types.is_null(left.type):
        left = left.cast(right.type)
    elif pa.types.is_null(right.type):
        right = right.cast(left.type)
    return pa.concat_arrays([left, right]), wrong_left + [half + row for row in wrong_right]


def _cast(values: Array, kind: Kind) -> Array:
    if values.null_count == len(values):
        return pa.nulls(len(values))
    return _CASTS[kind.name](values, kind)


def _wire(kind: Kind) -> pa.DataType:
    return _WIRE.get(kind.name, pa.string())


def _to_integer(values: Array, kind: Kind) -> Array:
    if not (_is_number(values.type) or is_text(values.type)):
        raise Misfit
    if is_text(values.type):
        _each_text(values, r"[+-]?\d+")
    return values.cast(_wire(kind))


def _to_float(values: Array, kind: Kind) -> Array:
    if pa.types.is_integer(values.type):
        return values.cast(_wire(kind))
    if pa.types.is_floating(values.type):
        cast = values.cast(_wire(kind))
        same = pc.or_(pc.equal(cast.cast(pa.float64()), values.cast(pa.float64())), pc.is_nan(values))
        return cast if pc.all(same, min_count=0).as_py() else _raise()
    if pa.types.is_decimal(values.type) or is_text(values.type):
        floats = pa.array([None if one is None else _exact_float(str(one)) for one in values.to_pylist()], pa.float64())
        return _to_float(floats, kind)
    raise Misfit


def _to_numeric(values: Array, kind: Kind) -> Array:
    if not (_is_number(values.type) or is_text(values.type)):
        raise Misfit
    plain: list[Any] = values.drop_null().to_pylist()
    numbers = [Decimal(repr(one) if isinstance(one, float) else one) for one in plain]
    written = iter([_written_out(number, kind) for number in numbers])
    return pa.array([next(written) if valid else None for valid in values.is_valid().to_pylist()], pa.string())


def _to_number(values: Array, kind: Kind) -> Array:
    """Of a column of SQLite: it converts text that looks like a number, and makes null of NaN."""
    source = values.type
    if pa.types.is_boolean(source):
        return values.cast(pa.int64())
    if pa.types.is_integer(source):
        return values.cast(pa.int64())
    if pa.types.is_floating(source):
        return _raise() if pc.any(pc.is_nan(values), min_count=0).as_py() else values.cast(pa.float64())
    if pa.types.is_decimal(source):
        values = pa.array([None if one is None else format(one, "f") for one in values.to_pylist()], pa.string())
    if is_text(values.type):
        for text in values.to_pylist():
            if text is not None and _NUMBER.fullmatch(text) and not _stays(text):
                raise Misfit
        return values.cast(pa.string())
    return values.cast(pa.binary()) if is_bytes(source) else _to_text(values, Kind("text"))


def _stays(text: str) -> bool:
    """Whether the number that ``text`` looks like is that number in 64 bits or a double, written in the usual way."""
    if re.fullmatch(r"-?(0|[1-9]\d*)", text):
        return -(1 << 63) <= int(text[:20]) < 1 << 63 and len(text) <= 20
    if not re.fullmatch(r"-?(0|[1-9]\d*)\.\d+", text):
        return False
    return isfinite(float(text)) and Decimal(text) == Decimal(repr(float(text)))


def _to_text(values: Array, kind: Kind) -> Array:
    if is_bytes(values.type) or pa.types.is_duration(values.type):
        raise Misfit
    texts = _to_json(values, kind) if pa.types.is_nested(values.type) else values.cast(pa.string())
    if pa.types.is_temporal(values.type) and pc.any(pc.match_substring(texts, "<"), min_count=0).as_py():
        raise Misfit  # a year that Arrow does not write
    if kind.digits is not None and any(len(text or "") > kind.digits for text in texts.to_pylist()):
        raise Misfit
    if kind.members and not set(texts.drop_null().to_pylist()) <= set(kind.members):
        raise Misfit
    return texts


def _to_boolean(values: Array, kind: Kind) -> Array:
    if not (pa.types.is_boolean(values.type) or is_text(values.type)):
        raise Misfit
    return values.cast(pa.bool_())


def _to_bytes(values: Array, kind: Kind) -> Array:
    if not is_bytes(values.type):
        raise Misfit
    if kind.digits is not None and any(one is not None and len(one) != kind.digits for one in values.to_pylist()):
        raise Misfit  # shorter ones would be filled up
    return values.cast(pa.binary())


def _to_date(values: Array, kind: Kind) -> Array:
    if not (pa.types.is_date(values.type) or pa.types.is_timestamp(values.type) or is_text(values.type)):
        raise Misfit
    dates = values.cast(pa.date32())
    if pa.types.is_timestamp(values.type) and not dates.cast(values.type).equals(values):
        raise Misfit
    return _written_date(dates.cast(pa.string()))


def _to_timestamp(values: Array, kind: Kind) -> Array:
    """Times without a zone are UTC."""
    if is_text(values.type):
        values = _parse_timestamps(values)
    elif pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("us"))
    elif not pa.types.is_timestamp(values.type):
        raise Misfit
    unit = {0: "s", 3: "ms"}.get(6 if kind.digits is None else kind.digits, "us")
    naive = values.cast(pa.timestamp(values.type.unit, "UTC")).cast(pa.timestamp(values.type.unit))
    naive = naive.cast(pa.timestamp(unit)).cast(pa.timestamp("us"))
    if kind.digits not in (None, 0, 3, 6):
        rest = 10 ** (6 - kind.digits)
        micros = naive.cast(pa.int64())
        if not pc.all(pc.equal(pc.multiply(pc.divide(micros, rest), rest), micros), min_count=0).as_py():
            raise Misfit
    written = _written_date(naive.cast(pa.string()))
    if kind.name == "timestamp":
        return written
    return pa.array([None if text is None else f"{text}+00" for text in written.to_pylist()], pa.string())


def _parse_timestamps(texts: Array) -> Array:
    try:
        return texts.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return texts.cast(pa.timestamp("us", "UTC"))


def _to_json(values: Array, kind: Kind) -> Array:
    if is_text(values.type):
        return values.cast(pa.string())
    return pa.array([None if one is None else dump(one) for one in values.to_pylist(maps_as_pydicts="strict")])


def _to_other(values: Array, kind: Kind) -> Array:
    if pa.types.is_time(values.type):
        values = values.cast(pa.time64("us")).cast(pa.string())
        digits, more = kind.digits, "0*[1-9]"
    else:
        digits, more = 6 if kind.digits is None else kind.digits, r"\d"
    if not is_text(values.type):
        raise Misfit
    if digits is not None and pc.any(pc.match_substring_regex(values, rf"\.\d{{{digits}}}{more}"), min_count=0).as_py():
        raise Misfit  # of a time, more digits of a second than the column keeps
    return values.cast(pa.string())


def _to_nothing(values: Array, kind: Kind) -> Array:
    raise Misfit


_CASTS: Final[Mapping[str, Callable[[Array, Kind], Array]]] = {
    **dict.fromkeys(("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"), _to_integer),
    "float32": _to_float,
    "float64": _to_float,
    "numeric": _to_numeric,
    "number": _to_number,
    "text": _to_text,
    "boolean": _to_boolean,
    "bytes": _to_bytes,
    "date": _to_date,
    "timestamp": _to_timestamp,
    "timestamptz": _to_timestamp,
    "json": _to_json,
    "other": _to_other,
    "unsupported": _to_nothing,
}
_WIRE: Final[Mapping[str, pa.DataType]] = {
    "int8": pa.int8(),
    "uint8": pa.uint8(),
    "int16": pa.int16(),
    "uint16": pa.uint16(),
    "int32": pa.int32(),
    "uint32": pa.uint32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "bytes": pa.binary(),
}


def _is_number(source: pa.DataType) -> bool:
    return bool(pa.types.is_integer(source) or pa.types.is_floating(source) or pa.types.is_decimal(source))


def _each_text(values: Array, pattern: str) -> None:
    if not pc.all(pc.match_substring_regex(values, f"^(?:{pattern})$"), min_count=0).as_py():
        raise Misfit


def _exact_float(text: str) -> float:
    number = float(text)
    if not isfinite(number) or Decimal(text) != Decimal(repr(number)):
        raise Misfit
    return number


def _written_out(number: Decimal, kind: Kind) -> str:
    if not number.is_finite():
        raise Misfit
    number = number if number else Decimal(0)
    digits, exponent = number.as_tuple().digits, number.as_tuple().exponent
    assert isinstance(exponent, int), "it is finite"
    if abs(exponent) > _EXPONENT_MAX:
        raise Misfit
    text = format(number, "f")
    if kind.digits is not None:
        fraction = text.partition(".")[2].rstrip("0")
        scale = kind.scale or 0
        if len(fraction) > max(0, scale) or number.adjusted() + 1 > kind.digits - scale:
            raise Misfit
        if scale < 0 and digits and number % (Decimal(10) ** -scale):
            raise Misfit
    return text


def _written_date(texts: Array) -> Array:
    if pc.any(pc.match_substring_regex(texts, "^[<-]"), min_count=0).as_py():
        raise Misfit  # before the year 0, or beyond what Arrow writes
    return texts


def _raise() -> Array:
    raise Misfit


def _describe(kind: Kind) -> str:
    bounds = [str(one) for one in (kind.digits, kind.scale) if one is not None]
    return f"a column of {kind.name}" + (f"({','.join(bounds)})" if bounds else "")


def _show(value: pa.Scalar[Any]) -> str:
    try:
        text = repr(value.as_py())
    except (ValueError, OverflowError):
        return "a date that is beyond the year 9999, or before 1"
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
