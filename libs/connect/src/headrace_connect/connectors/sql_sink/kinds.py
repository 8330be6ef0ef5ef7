"""What a column of a database holds, whatever the database calls it; and what columns are made for a field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

Name = Literal[
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float32",
    "float64",
    "numeric",
    "number",
    "text",
    "boolean",
    "bytes",
    "date",
    "timestamp",
    "timestamptz",
    "json",
    "other",
    "unsupported",
]


@dataclass(frozen=True, slots=True)
class Kind:
    """
    What values a column takes.

    ``number`` is any number, and text that is none; ``other`` is what the database parses from text; of what is
    ``unsupported`` it is not known that it is stored exactly.
    """

    name: Name
    digits: int | None = None
    """Of numeric: in all. Of text: the most characters. Of bytes: as many, and no other number. Of times: of a second's
    fraction. None: no bound."""
    scale: int | None = None
    """Of numeric: digits behind the point."""
    members: tuple[str, ...] = ()
    """Of text: values that it may have. Empty: any."""


@dataclass(frozen=True, slots=True)
class Column:
    """One of a table."""

    name: str
    kind: Kind
    key: bool = False
    """Part of the primary key, in a table to be made."""


INT16: Final = Kind("int16")
INT32: Final = Kind("int32")
INT64: Final = Kind("int64")
FLOAT32: Final = Kind("float32")
FLOAT64: Final = Kind("float64")
NUMERIC: Final = Kind("numeric")
NUMBER: Final = Kind("number")
TEXT: Final = Kind("text")
BOOLEAN: Final = Kind("boolean")
BYTES: Final = Kind("bytes")
DATE: Final = Kind("date")
TIMESTAMP: Final = Kind("timestamp", 6)
TIMESTAMPTZ: Final = Kind("timestamptz", 6)
JSON: Final = Kind("json")
OTHER: Final = Kind("other")

_WIDER: Final = {
    "int8": INT16,
    "uint8": INT16,
    "int16": INT32,
    "uint16": INT32,
    "int32": INT64,
    "uint32": INT64,
    "int64": NUMERIC,
    "uint64": NUMERIC,
    "float32": FLOAT64,
    "float64": NUMERIC,
}
_FIXED: Final = {
    pa.int8(): INT16,
    pa.int16(): INT16,
    pa.uint8(): INT16,
    pa.int32(): INT32,
    pa.uint16(): INT32,
    pa.int64(): INT64,
    pa.uint32(): INT64,
    pa.uint64(): Kind("numeric", 20, 0),
    pa.float16(): FLOAT32,
    pa.float32(): FLOAT32,
    pa.float64(): FLOAT64,
    pa.bool_(): BOOLEAN,
    pa.date32(): DATE,
    pa.date64(): DATE,
}


def kind_for(source: pa.DataType) -> Kind:
    """What a column must be that is made for fields of this type; a field of only nulls has none yet."""
    if source in _FIXED:
        return _FIXED[source]
    if pa.types.is_decimal(source):
        scale = max(0, source.scale)
        return Kind("numeric", max(source.precision - min(0, source.scale), scale), scale)
    if pa.types.is_timestamp(source):
        return TIMESTAMP if source.tz is None else TIMESTAMPTZ
    if pa.types.is_nested(source):
        return JSON
    return BYTES if is_bytes(source) else TEXT


def wider(kind: Kind) -> Kind | None:
    """The next kind that holds all of ``kind`` and more."""
    if kind.name == "text" and kind.digits is not None:
        return TEXT
    if kind.name == "numeric" and kind.digits is not None:
        return NUMERIC
    return _WIDER.get(kind.name)


def is_text(source: pa.DataType) -> bool:
    """Whether it is Arrow's text."""
    return bool(pa.types.is_string(source) or pa.types.is_large_string(source) or pa.types.is_string_view(source))


def is_bytes(source: pa.DataType) -> bool:
    """Whether it is Arrow's bytes."""
    return bool(
        pa.types.is_binary(source)
        or pa.types.is_large_binary(source)
        or pa.types.is_fixed_size_binary(source)
        or pa.types.is_binary_view(source)
    )
