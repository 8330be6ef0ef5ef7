"""What the catalogue of MariaDB says of tables, and what columns are made. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace_connect.connectors.sql.mariadb import NAMED
from headrace_connect.connectors.sql_sink.kinds import Column, Kind, Name

COLUMNS: Final = f"""
select column_name, data_type, column_type, character_maximum_length, numeric_precision, numeric_scale,
    datetime_precision, column_key
from information_schema.columns where {NAMED} order by ordinal_position
"""
ENGINE: Final = f"select engine from information_schema.tables where {NAMED}"
DEFINITION: Final = f"""
select is_nullable, column_default, extra, column_comment, character_set_name, collation_name
from information_schema.columns where {NAMED} and column_name = ?
"""
UNIQUE: Final = f"""
select index_name, column_name, sub_part from information_schema.statistics
where {NAMED} and non_unique = 0 order by index_name, seq_in_index
"""
COLLATIONS: Final = f"""
select column_name, if(data_type in ('decimal', 'float', 'double'), data_type, collation_name)
from information_schema.columns where {NAMED}
"""
_INTEGERS: Final[dict[str, Name]] = {
    "tinyint": "int8",
    "smallint": "int16",
    "mediumint": "int32",
    "int": "int32",
    "bigint": "int64",
    "tinyint unsigned": "uint8",
    "smallint unsigned": "uint16",
    "mediumint unsigned": "uint32",
    "int unsigned": "uint32",
    "bigint unsigned": "uint64",
}
_KINDS: Final[dict[str, Name]] = {
    "float": "float32",
    "double": "float64",
    "char": "text",
    "varchar": "text",
    "tinytext": "text",
    "text": "text",
    "mediumtext": "text",
    "longtext": "text",
    "binary": "bytes",
    "varbinary": "bytes",
    "tinyblob": "bytes",
    "blob": "bytes",
    "mediumblob": "bytes",
    "longblob": "bytes",
    "date": "date",
    "uuid": "other",
    "inet4": "other",
    "inet6": "other",
}
_TEXT: Final = "character set utf8mb4 collate utf8mb4_nopad_bin"
"""Equal is what has the same characters, as elsewhere; also in case, and in spaces at the end."""
_TYPES: Final = {
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "bytes": "longblob",
    "date": "date",
    "timestamp": "datetime(6)",
    "timestamptz": "datetime(6)",
    "json": "json",
}
_DIGITS_MAX, _SCALE_MAX = 65, 30
_MEMBER: Final = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True, slots=True)
class Keys:
    """Of a table."""

    unique: tuple[frozenset[str], ...]
    """Columns of each unique key. One that has a part of a column only is empty, and is nobody's."""
    inexact: frozenset[str]
    """Columns whose values may be equal and not the same: in case, in spaces at the end, as 1.5 and 1.50."""

    @classmethod
    def of(cls, unique: Sequence[tuple[Any, ...]], collations: Sequence[tuple[Any, ...]]) -> Keys:
        """From what ``UNIQUE`` and ``COLLATIONS`` find."""
        columns: dict[str, set[str]] = {}
        for index, column, _ in unique:
            columns.setdefault(index, set()).add(column)
        for index, _, part in unique:
            if part is not None:
                columns[index] = set()
        inexact = {column for column, collation in collations if collation and not collation.endswith("nopad_bin")}
        return cls(tuple(map(frozenset, columns.values())), frozenset(inexact))


def column_of(row: Sequence[Any]) -> Column:
    """From a row of ``COLUMNS``."""
    name, type_, full, characters, digits, scale, fraction, key = row
    return Column(name, _kind(type_, full, *map(_number, (characters, digits, scale, fraction))), bool(key))


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _kind(
    type_: str, full: str, characters: int | None, digits: int | None, scale: int | None, fraction: int | None
) -> Kind:
    if type_ in _INTEGERS:
        return Kind(_INTEGERS[f"{type_} unsigned" if "unsigned" in full else type_])
    match type_:
        case "decimal":
            return Kind("numeric", digits, scale)
        case "float" | "double" if scale is not None:
            return Kind("unsupported")  # it rounds to so many digits
        case "char" | "varchar":
            return Kind("text", characters)
        case "enum":
            return Kind("text", members=tuple(one.replace("''", "'") for one in _MEMBER.findall(full)))
        case "binary":
            return Kind("bytes", characters)
        case "datetime" | "timestamp":
            return Kind("timestamp", fraction)
        case "time":
            return Kind("other", fraction)
        case "bit" if digits == 1:
            return Kind("boolean")
    return Kind(_KINDS.get(type_, "unsupported"))


def widest(kind: Kind) -> Kind:
    """A number without a bound has one here."""
    return Kind("numeric", _DIGITS_MAX, _SCALE_MAX) if kind.name == "numeric" and kind.digits is None else kind


def type_name(kind: Kind, key: bool) -> str:
    """What a column of a kind is called; a key cannot be of any length."""
    if kind.name == "numeric":
        bounded = widest(kind)
        digits, scale = min(bounded.digits or 0, _DIGITS_MAX), min(bounded.scale or 0, _SCALE_MAX)
        return f"decimal({digits},{scale})"
    if key and kind.name == "bytes":
        return "varbinary(255)"
    return _TYPES.get(kind.name, f"varchar(255) {_TEXT}" if key else f"longtext {_TEXT}")
