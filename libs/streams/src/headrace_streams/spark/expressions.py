"""
Which expressions have the same result on Arrow and on Spark columns: those of ``EQUAL``, within the limits below.

Narwhals gives every expression to both engines, which do not agree on all of them. A test evaluates each of these on
both. What is not listed is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import narwhals.stable.v2 as nw
import pyarrow as pa

from headrace_streams.core import expressions
from headrace_streams.core.rows import empty

EQUAL: Final = frozenset(
    f"{prefix}{name}"
    for prefix, names in {
        "": "col lit cast when_then coalesce concat_str all_horizontal any_horizontal abs sqrt clip fill_null fill_nan "
        "is_null is_nan is_finite is_in is_between",
        "__": "add__ sub__ mul__ truediv__ mod__ neg__ eq__ ne__ lt__ le__ gt__ ge__ and__ or__ invert__",
        "str.": "len_chars slice starts_with ends_with contains replace_all split strip_chars",
        "dt.": "year month day hour minute second ordinal_day date truncate",
        "list.": "len contains",
        "struct.": "field",
    }.items()
    for name in names.split()
)
_SPECIAL: Final = frozenset(r".^$*+?{}[]\|()")
"""In a pattern of one engine or the other."""


def differences(expression: nw.Expr, schema: pa.Schema) -> Iterator[str]:
    """
    What of an expression Spark might compute otherwise.

    Args:
        schema: the user's columns of the rows that it is for.
    """
    for place, node in enumerate(expression._nodes):
        if node.name not in EQUAL:
            yield f"{_shown(node.name)}() may give other values on Spark"
        elif node.name in _LIMITS:
            before = nw.Expr(*expression._nodes[:place])
            said = _LIMITS[node.name](node.kwargs, node.exprs, partial(_type, before, schema))
            if said:
                yield f"{_shown(node.name)}() {said}"
        for part in expressions.parts_of(node):
            yield from differences(part, schema)


def _shown(name: str) -> str:
    return _SIGNS.get(name, name)


_SIGNS: Final = {"__floordiv__": "//", "__pow__": "**"}
_Type = Callable[[], pa.DataType]


def _type(expression: nw.Expr, schema: pa.Schema) -> pa.DataType:
    found: pa.DataType = expressions.evaluated(empty(schema), expression).type
    return found


def _cast(given: Mapping[str, Any], parts: Sequence[Any], type_: _Type) -> str:
    kind, to = type_(), given["dtype"]
    types = pa.types
    wanted = to() if isinstance(to, type) else to
    if types.is_integer(kind) and (wanted.is_numeric() or wanted == nw.String()) and not wanted.is_decimal():
        return ""
    if types.is_floating(kind) and wanted.is_float():
        return ""
    if (types.is_string(kind) and wanted == nw.String()) or (types.is_timestamp(kind) and wanted == nw.Date()):
        return ""
    return f"of {kind} to {wanted} may give other values on Spark"


def _slice(given: Mapping[str, Any], parts: Sequence[Any], type_: _Type) -> str:
    return "" if given["length"] is None or given["length"] >= 0 else "up to an end counted from behind is not possible"


def _plain(pattern: object) -> bool:
    return isinstance(pattern, str) and pattern != "" and not _SPECIAL & set(pattern)


def _contains(given: Mapping[str, Any], parts: Sequence[Any], type_: _Type) -> str:
    return (
        ""
        if given["literal"] or _plain(parts[0])
        else "needs a text without characters that mean something in a pattern"
    )


def _replace(given: Mapping[str, Any], parts: Sequence[Any], type_: _Type) -> str:
    plain = _plain(given["pattern"]) and _plain(parts[0] or "-")
    return _contains({"literal": given["literal"] or plain}, ("",), type_)


def _split(given: Mapping[str, Any], parts: Sequence[Any], type_: _Type) -> str:
    return _contains({"literal": False}, (given["by"],), type_)


def _strip(given: Mapping[str, Any], parts: Sequence[Any], type_: _Type) -> str:
    return "" if given["characters"] else "needs the characters: what counts as white space differs"


def _truncate(given: Mapping[str, Any], parts: Sequence[Any], type_: _Type) -> str:
    return (
        "" if given["every"][0] == "1" and not given["every"][1:2].isdigit() else "is possible to one unit only: '1h'"
    )


_LIMITS: Final[dict[str, Callable[[Mapping[str, Any], Sequence[Any], _Type], str]]] = {
    "cast": _cast,
    "str.slice": _slice,
    "str.contains": _contains,
    "str.replace_all": _replace,
    "str.split": _split,
    "str.strip_chars": _strip,
    "dt.truncate": _truncate,
}
