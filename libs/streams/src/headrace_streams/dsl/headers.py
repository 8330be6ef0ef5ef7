"""Headers as programs name them: ``to("out", headers={"trace": "trace_id"})``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import narwhals.stable.v2 as nw
import pyarrow as pa

from headrace_streams.core import expressions
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.formats.ddl import type_text
from headrace_streams.core.operators.headers import HEADERS, HeaderColumns, Part
from headrace_streams.core.rows import RECORD, empty
from headrace_streams.dsl.record_calls import hint

Column = nw.Expr | str
Headers = Column | Mapping[str, Column] | Sequence[Column | Mapping[str, Column]]
_EXAMPLE: Final = "write for example headers={'trace': 'trace_id'}, or headers='headers' for a column of all"


def headers_of(given: Headers, schema: pa.Schema, what: str) -> tuple[HeaderColumns, list[str], list[Any]]:
    """
    What makes the headers of a record; the columns of which they are made as they are, so that they are no part of its
    value; and what is asked, as JSON can say it.

    Raises:
        NotAllowed: these are no headers.
    """
    if RECORD in schema.names:
        raise NotAllowed(f"{what}: headers are made of columns, and {hint(schema)}")
    listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not listed or any(isinstance(part, Mapping) and not part for part in listed):
        raise NotAllowed(f"{what}: headers={given!r:.60} names no header; {_EXAMPLE}")
    parts: list[Part] = []
    named: list[str] = []
    asked: list[Any] = []
    for part in listed:
        if isinstance(part, Mapping):
            parts.append({_name(name, what): _of_one(name, column, schema, what) for name, column in part.items()})
            named += [column for column in part.values() if isinstance(column, str)]
            asked.append({name: str(column) for name, column in part.items()})
        else:
            parts.append(_of_all(part, schema, what))
            named += [part] if isinstance(part, str) else []
            asked.append(str(part))
    return HeaderColumns(parts), named, asked


def _name(name: object, what: str) -> str:
    if not isinstance(name, str):
        raise NotAllowed(f"{what}: {name!r:.60} cannot be the name of a header; use text")
    return name


def _of_one(name: str, column: object, schema: pa.Schema, what: str) -> nw.Expr:
    expression, type_ = _evaluated(column, schema, f"{what}: the header {name!r}")
    kind = type_.value_type if pa.types.is_dictionary(type_) else type_
    if not _is_text(kind):
        raise NotAllowed(
            f"{what}: the header {name!r} is {type_text(type_)}; headers are text or bytes: cast it, as col(…)"
            ".cast(nw.String) of narwhals does"
        )
    return expression


def _of_all(column: object, schema: pa.Schema, what: str) -> nw.Expr:
    expression, type_ = _evaluated(column, schema, f"{what}: headers")
    pair: Any = type_.value_type if pa.types.is_list(type_) else None
    fields = {field.name: field.type for field in pair} if pair is not None and pa.types.is_struct(pair) else {}
    if list(fields) != ["key", "value"] or not all(map(_is_text, fields.values())):
        raise NotAllowed(
            f"{what}: headers={column!r:.60} is {type_text(type_)}; a column of all headers of a record is "
            f"{type_text(HEADERS)}, and one of a single header has a name: {_EXAMPLE}"
        )
    return expression


def _is_text(type_: pa.DataType) -> bool:
    types = pa.types
    return any(
        is_kind(type_) for is_kind in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    )


def _evaluated(column: object, schema: pa.Schema, what: str) -> tuple[nw.Expr, pa.DataType]:
    """The expression, and the type of what it gives."""
    if not isinstance(column, nw.Expr | str):
        raise NotAllowed(f"{what} is {column!r:.60}, which is no column; {_EXAMPLE}")
    expression = expressions.expression_of(column)
    expressions.check(expression, what)
    try:
        return expression, expressions.evaluated(empty(schema), expression).type
    except Exception as error:
        said = str(error).split("\n", 1)[0]
        raise NotAllowed(f"{what} cannot be computed: {said}; {hint(schema)}") from error
