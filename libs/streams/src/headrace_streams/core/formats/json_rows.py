"""
JSON read value by value with orjson: what each type takes. It decides; ``json_format`` may only be quicker.

A missing field is null, fields that were not declared are ignored, of a field that is there twice the last counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final

import orjson
import pyarrow as pa

from headrace.errors import InvalidConfig
from headrace_streams.core.formats.ddl import SCALARS, TIMESTAMP, type_text
from headrace_streams.core.formats.json_text import MS_MAX, MS_MIN

Reader = Callable[[Any], Any]
"""From what orjson gives (not None) to what Arrow takes; raises Misfit."""
FLOAT_END: Final = 3.4028235677973366e38
"""From here on a number is rounded to an infinite ``float``."""
MESSAGE_CHARACTERS_MAX: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DECIMAL: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d{1,3})?", re.ASCII)
EXACT: Final = Context(prec=400)
_INTEGERS: Final[dict[pa.DataType, int]] = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class Misfit(Exception):
    """A value is not what its column declares; ``path`` is where, below the column that raised."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"[:MESSAGE_CHARACTERS_MAX] if self.path else self.message

    def within(self, name: str) -> Misfit:
        """The same, seen from the value that holds ``name``."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        return Misfit(self.message, f"{name}{dot}{self.path}")


def row_reader(schema: pa.Schema) -> Callable[[bytes], dict[str, Any]]:
    """
    What reads one value: bytes to a row that ``Table.from_pylist`` takes.

    Raises:
        InvalidConfig: a column has a type that JSON is not read into; Misfit: (the reader) the value is no such row.
    """
    read = _struct(list(schema), "")

    def read_row(value: bytes) -> dict[str, Any]:
        try:
            row = orjson.loads(value)
        except orjson.JSONDecodeError as wrong:
            what = f"is not JSON: {wrong}" if value else "is empty"
            raise Misfit(f"the value {what}"[:MESSAGE_CHARACTERS_MAX]) from None
        if type(row) is not dict:
            raise Misfit(f"the value is {_shown(row)}, not an object")
        return read(row)  # type: ignore[no-any-return]

    return read_row


def reader(kind: pa.DataType, place: str) -> Reader:
    """
    What reads values of one type.

    Raises:
        InvalidConfig: JSON is not read into this type; names ``place``.
    """
    if kind in _INTEGERS:
        return _integer(kind)
    if kind in _READERS:
        return _READERS[kind]
    if pa.types.is_decimal128(kind):
        return _decimal(kind)
    if pa.types.is_struct(kind):
        return _struct(list(kind), f"{place}.")
    if pa.types.is_list(kind):
        return _list(kind, place)
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return _map(kind, place)
    if kind == pa.binary():
        raise InvalidConfig(f"column {place!r} is binary, which JSON cannot hold; declare string, with base64 in it")
    known = ", ".join(name for name in SCALARS if name != "binary")
    raise InvalidConfig(
        f"column {place!r}: JSON is not read into {kind}; take {known}, decimal, array, map or struct"
        " (in Arrow: timestamp[ms, tz=UTC], date32, decimal128)"
    )


def _shown(value: Any) -> str:
    """The value as it stood in the JSON, cut."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


def _misfit(value: Any, kind: pa.DataType, hint: str = "") -> Misfit:
    return Misfit(f"{_shown(value)} is no {type_text(kind)}{hint}")


def _integer(kind: pa.DataType) -> Reader:
    end = 1 << (_INTEGERS[kind] - 1)

    def read(value: Any) -> int:
        if type(value) is int and -end <= value < end:
            return value
        raise _misfit(value, kind)

    return read


def _boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise _misfit(value, pa.bool_())


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    raise _misfit(value, pa.string())


def _double(value: Any) -> float:
    if type(value) is float or type(value) is int:
        return float(value)
    raise _misfit(value, pa.float64())


def _float(value: Any) -> float:
    if (type(value) is float or type(value) is int) and -FLOAT_END < value < FLOAT_END:
        return float(value)
    raise _misfit(value, pa.float32())


def _timestamp(value: Any) -> int:
    """Milliseconds since 1970, finer digits are cut; text without a zone is UTC."""
    ms = value
    if type(value) is str and value[10:11] in ("T", " ", ""):
        try:
            instant = datetime.fromisoformat(value)
            ms = ((instant if instant.tzinfo else instant.replace(tzinfo=UTC)) - _EPOCH) // _MS
        except (ValueError, OverflowError):
            pass
    if type(ms) is int and MS_MIN <= ms <= MS_MAX:
        return ms
    raise _misfit(value, TIMESTAMP, ": text in ISO 8601 or milliseconds since 1970, in the years 1 to 9999")


def _date(value: Any) -> date:
    if type(value) is str and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise _misfit(value, pa.date32(), ": text like 2026-01-31")


def _decimal(kind: Any) -> Reader:
    """
    From text and whole numbers; from numbers with a point only if a double holds them exactly (15 digits).
    """
    unit = Decimal(1).scaleb(-kind.scale)
    end = Decimal(10) ** (kind.precision - kind.scale)

    def read(value: Any) -> Decimal:
        text = value if type(value) is str else repr(value) if type(value) in (int, float) else ""
        if _DECIMAL.fullmatch(text) and (type(value) is not float or len(Decimal(text).as_tuple().digits) <= 15):
            exact = Decimal(text)
            if -end < exact < end:
                try:
                    scaled = exact.quantize(unit, context=EXACT)
                except InvalidOperation:
                    raise _misfit(value, kind) from None
                if scaled == exact:
                    return scaled
        raise _misfit(value, kind, "; write it as text, with no more digits than declared")

    return read


def _struct(fields: list[Any], place: str) -> Reader:
    kind = pa.struct(fields)
    members = [(field.name, reader(field.type, place + field.name), field.nullable) for field in fields]

    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _misfit(value, kind)
        row: dict[str, Any] = {}
        for name, read_member, nullable in members:
            member = value.get(name)
            if member is not None:
                try:
                    member = read_member(member)
                except Misfit as misfit:
                    raise misfit.within(name) from None
            elif not nullable:
                raise Misfit("is missing or null, and may not be", name)
            row[name] = member
        return row

    return read


def _list(kind: Any, place: str) -> Reader:
    read_item = reader(kind.value_type, f"{place}[]")

    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _misfit(value, kind)
        items: list[Any] = []
        for item in value:
            try:
                items.append(None if item is None else read_item(item))
            except Misfit as misfit:
                raise misfit.within(f"[{len(items)}]") from None
        return items

    return read


def _map(kind: Any, place: str) -> Reader:
    read_item = reader(kind.item_type, f"{place}[]")

    def read(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise _misfit(value, kind)
        members: list[tuple[str, Any]] = []
        for name, item in value.items():
            try:
                members.append((name, None if item is None else read_item(item)))
            except Misfit as misfit:
                raise misfit.within(f"[{_shown(name)}]") from None
        return members

    return read


_READERS: Final[dict[pa.DataType, Reader]] = {
    pa.bool_(): _boolean,
    pa.float32(): _float,
    pa.float64(): _double,
    pa.string(): _string,
    pa.date32(): _date,
    TIMESTAMP: _timestamp,
}
