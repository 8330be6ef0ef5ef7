"""Columns of a result of MariaDB as those of PostgreSQL, whose text ``core.values`` makes columns of. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pymysql.constants import FIELD_TYPE, FLAG

from headrace_connect.connectors.sql_source.copied import Typed

Array: TypeAlias = "pa.Array[Any]"
_BINARY: Final = 63
"""The character set of what is no text."""
_BOOL, _BYTEA, _TEXT = 16, 17, 25
_INT2, _INT4, _INT8, _FLOAT4, _FLOAT8, _NUMERIC = 21, 23, 20, 700, 701, 1700
_DATE, _TIME, _TIMESTAMP, _TIMESTAMPTZ, _BIT = 1082, 1083, 1114, 1184, 1560
_UNSIGNED_DIGITS: Final = 20
_DIGITS_MAX: Final = 6
_HEX: Final = r"\x"
_NUMBERS: Final = {
    FIELD_TYPE.TINY: (_INT2, _INT2, "tinyint"),
    FIELD_TYPE.SHORT: (_INT2, _INT4, "smallint"),
    FIELD_TYPE.INT24: (_INT4, _INT4, "mediumint"),
    FIELD_TYPE.LONG: (_INT4, _INT8, "int"),
    FIELD_TYPE.LONGLONG: (_INT8, _NUMERIC, "bigint"),
    FIELD_TYPE.YEAR: (_INT2, _INT2, "year"),
}
"""With a sign and without, and the name."""
_MOMENTS: Final = {
    FIELD_TYPE.DATE: (_DATE, "date"),
    FIELD_TYPE.NEWDATE: (_DATE, "date"),
    FIELD_TYPE.TIME: (_TIME, "time"),
    FIELD_TYPE.DATETIME: (_TIMESTAMP, "datetime"),
    FIELD_TYPE.TIMESTAMP: (_TIMESTAMPTZ, "timestamp"),
}
Sorts: TypeAlias = Literal["number", "time", "neither"]


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a result."""

    typed: Typed
    name: str
    """Of the type."""
    sorts: Sorts
    is_float: bool = False
    """Its text has six digits alone."""
    orders: bool = True
    """Whether its text, as a literal, stands where its value does."""
    digits: int = 0
    """Of a second's fraction."""
    change: Callable[[Array], Array] | None = None
    """From the server's text to PostgreSQL's."""

    def literal(self, value: str) -> str:
        """
        A value of a position as statements have it.

        Raises:
            ValueError: it is none of this type.
        """
        if self.typed.oid == _BYTEA:
            return f"x'{bytes.fromhex(value.removeprefix(_HEX)).hex()}'"
        if self.sorts == "number":
            if not value.lstrip("+-").replace(".", "", 1).isdecimal() or not value.isascii():
                raise ValueError(f"a position has no number {value[:80]!r}")
            return value
        return "'" + value.replace("'", "''") + "'"


def field_of(described: Any) -> Field:
    """From what PyMySQL knows of a column."""
    type_, flags, digits = described.type_code, described.flags, described.scale
    name = described.name if isinstance(described.name, str) else described.name.decode()
    unsigned = bool(flags & FLAG.UNSIGNED)
    if type_ in _NUMBERS:
        signed_oid, unsigned_oid, shown = _NUMBERS[type_]
        oid = unsigned_oid if unsigned else signed_oid
        modifier = _packed(_UNSIGNED_DIGITS, 0) if oid == _NUMERIC else -1
        return Field(Typed(name, oid, modifier), shown + " unsigned" * unsigned, "number")
    if type_ in (FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL):
        precision = described.length - (digits > 0) - (not unsigned)
        return Field(Typed(name, _NUMERIC, _packed(precision, digits)), "decimal", "number")
    if type_ == FIELD_TYPE.FLOAT:
        return Field(Typed(name, _FLOAT4, -1), "float", "neither", is_float=True, orders=False)
    if type_ == FIELD_TYPE.DOUBLE:
        return Field(Typed(name, _FLOAT8, -1), "double", "neither")
    if type_ in _MOMENTS:
        oid, shown = _MOMENTS[type_]
        change = _in_utc if oid == _TIMESTAMPTZ else None
        fine = min(digits, _DIGITS_MAX)
        sorts: Sorts = "neither" if oid == _TIME else "time"
        return Field(Typed(name, oid, fine), shown, sorts, digits=fine, change=change)
    if type_ == FIELD_TYPE.BIT:
        if described.length == 1:
            return Field(Typed(name, _BIT, 1), "bit", "neither", orders=False, change=_as_bit)
        return Field(Typed(name, _BYTEA, -1), "bit", "neither", orders=False, change=_as_hex)
    if flags & (FLAG.ENUM | FLAG.SET):
        return Field(Typed(name, _TEXT, -1), "enum" if flags & FLAG.ENUM else "set", "neither", orders=False)
    if described.charsetnr == _BINARY or type_ == FIELD_TYPE.GEOMETRY:
        return Field(Typed(name, _BYTEA, -1), "binary", "neither", change=_as_hex)
    return Field(Typed(name, _TEXT, -1), "text", "neither")


def texts_of(fields: Sequence[Field], columns: Sequence[Sequence[bytes | None]]) -> list[Array]:
    """Values as the server sends them, as PostgreSQL's text."""
    arrays = [pa.array(values, pa.binary()) for values in columns]
    return [array if field.change is None else field.change(array) for field, array in zip(fields, arrays, strict=True)]


def places_of(fields: Sequence[Field], columns: Sequence[Sequence[bytes | None]]) -> list[Array]:
    """Values of positions, as ``Field.literal`` takes them."""
    arrays = [pa.array(values, pa.binary()) for values in columns]
    return [_as_hex(array) if field.typed.oid == _BYTEA else array for field, array in zip(fields, arrays, strict=True)]


def _packed(precision: int, scale: int) -> int:
    """As PostgreSQL has it."""
    return (precision << 16 | scale) + 4


def _in_utc(values: Array) -> Array:
    zone, nothing = pa.scalar(b"+00", pa.binary()), pa.scalar(b"", pa.binary())
    joined: Array = pc.binary_join_element_wise(values, zone, nothing)  # type: ignore[call-overload]
    return joined


def _as_bit(values: Array) -> Array:
    return pa.array([None if one is None else b"1" if any(one) else b"0" for one in values.to_pylist()], pa.binary())


def _as_hex(values: Array) -> Array:
    return pa.array([None if one is None else b"\\x" + one.hex().encode() for one in values.to_pylist()], pa.binary())
