"""Columns as MariaDB's statements have them: exact, in the mode of ``MariadbSession``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Array: TypeAlias = "pa.Array[Any]"


def tuples_of(columns: Sequence[Array]) -> Iterator[bytes]:
    """Each row in brackets."""
    joined: Any = pc.binary_join_element_wise(
        *map(_written, columns), pa.scalar(",", pa.large_string()), null_handling="replace", null_replacement="null"
    )
    for row in joined.cast(pa.large_binary()):
        yield b"(" + row.as_buffer().to_pybytes() + b")"


def _written(column: Array) -> Any:
    """As literals; nulls stay null."""
    type_ = column.type
    if pa.types.is_null(type_):
        return column.cast(pa.large_string())
    if pa.types.is_boolean(type_):
        return column.cast(pa.int8()).cast(pa.large_string())
    if pa.types.is_integer(type_):
        return column.cast(pa.large_string())
    if pa.types.is_floating(type_):
        return _quoted(column.cast(pa.float64()).cast(pa.large_string()))
    if pa.types.is_binary(type_):
        texts = [None if one is None else f"x'{one.hex()}'" for one in column.to_pylist()]
        return pa.array(texts, pa.large_string())
    assert pa.types.is_string(type_), f"{type_} is none of what fields are fitted to"
    return _quoted(pc.replace_substring(column.cast(pa.large_string()), "'", "''"))


def _quoted(texts: Any) -> Any:
    quote = pa.scalar("'", pa.large_string())
    nothing = pa.scalar("", pa.large_string())
    return pc.binary_join_element_wise(quote, texts, quote, nothing)
