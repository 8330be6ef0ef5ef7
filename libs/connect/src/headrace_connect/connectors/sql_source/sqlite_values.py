"""
Values of SQLite as columns. A column's declared type says what its values should be; SQLite lets them be anything, and
those that are otherwise are named with their row. Where the declared type says nothing, the first value does.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any, Final, TypeAlias

import pyarrow as pa

from headrace_connect.core.kinds import EXACT_MAX

Array: TypeAlias = "pa.Array[Any]"
_SHOWN_CHARS_MAX: Final = 60


class Damaged(bytes):
    """Text that is no UTF-8."""


def read_text(raw: bytes) -> str | Damaged:
    """For ``text_factory``."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Damaged(raw)


_BY_WORD: Final[tuple[tuple[tuple[str, ...], pa.DataType], ...]] = (
    (("BOOL",), pa.bool_()),
    (("INT",), pa.int64()),
    (("CHAR", "CLOB", "TEXT"), pa.string()),
    (("BLOB",), pa.binary()),
    (("REAL", "FLOA", "DOUB", "DEC", "NUM", "MONEY"), pa.float64()),
)
"""The first one that has a word of the declared type. Dates and times may be text or numbers."""
_TAKEN: Final[dict[pa.DataType, tuple[type, ...]]] = {
    pa.bool_(): (int,),
    pa.int64(): (int,),
    pa.string(): (str,),
    pa.binary(): (bytes,),
    pa.float64(): (int, float),
}
_BY_VALUE: Final[dict[type, pa.DataType]] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
}


def to_column(declared: str, values: Sequence[Any]) -> tuple[Array, dict[int, str]]:
    """The column, with nulls where a value is of no such type, and for each of these rows the reason."""
    type_ = _type(declared, values)
    if type_ is None:
        return pa.nulls(len(values)), {
            row: _reason(value, "text") for row, value in enumerate(values) if value is not None
        }
    if _is_plain(values, type_):
        return pa.array(values, type_), {}
    wrong = {row: _reason(value, str(type_)) for row, value in enumerate(values) if not _fits(value, type_)}
    fitting = [None if row in wrong else _converted(value, type_) for row, value in enumerate(values)]
    return pa.array(fitting, type_), wrong


def _type(declared: str, values: Sequence[Any]) -> pa.DataType | None:
    upper = declared.upper()
    said = next((type_ for words, type_ in _BY_WORD if any(word in upper for word in words)), None)
    if said is not None:
        return said
    kinds = [type(value) for value in values if value is not None]
    if float in kinds and set(kinds) <= {int, float}:
        return pa.float64()
    return next((_BY_VALUE[kind] for kind in kinds if kind in _BY_VALUE), None if kinds else pa.null())


def _is_plain(values: Sequence[Any], type_: pa.DataType) -> bool:
    """Whether all values are as Arrow takes them, without a look at each."""
    kinds = set(map(type, values)) - {NoneType}
    return not kinds or (len(kinds) == 1 and _BY_VALUE.get(next(iter(kinds))) == type_)


def _fits(value: Any, type_: pa.DataType) -> bool:
    if value is None:
        return True
    if type(value) not in _TAKEN.get(type_, ()):
        return False
    if pa.types.is_boolean(type_):
        return value in (0, 1)
    return type(value) is not int or not pa.types.is_floating(type_) or -EXACT_MAX <= value <= EXACT_MAX


def _converted(value: Any, type_: pa.DataType) -> Any:
    return None if value is None else bool(value) if pa.types.is_boolean(type_) else value


def _reason(value: Any, wanted: str) -> str:
    if isinstance(value, Damaged):
        return "is text that is no UTF-8"
    return f"is {repr(value)[:_SHOWN_CHARS_MAX]}, and the column is {wanted}"
