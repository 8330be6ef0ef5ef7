"""Headers of the records that a program writes, made of columns of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import narwhals.stable.v2 as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace_streams.core.expressions import Expressions
from headrace_streams.core.formats.port import NotEncodable
from headrace_streams.core.rows import Numbers, take, whole

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""All headers of a record, in their order; a header may have no value."""
_OF_ONE: Final = 16
"""Bytes that a header takes at most beside its name and its value."""

Part = nw.Expr | Mapping[str, nw.Expr]


class _Pairs(NamedTuple):
    """Some headers, of rows in their order."""

    rows: Numbers
    """The places of the rows that they are of."""
    names: Any
    values: Any


class HeaderColumns:
    """Which headers the record of a row has."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """
        Args:
            parts: a column of ``HEADERS``, whose headers all count; or columns of bytes by the names of headers, which
                are left out where they are null. Headers are in the order of these.
        """
        self._parts = tuple(parts)
        self._expressions = [Expressions(*(one.values() if isinstance(one, Mapping) else [one])) for one in parts]

    def of(self, rows: pa.Table) -> pa.Array[Any]:
        """
        ``HEADERS`` of each row.

        Raises:
            NotEncodable: a header has no name.
            Exception: an expression cannot be computed.
        """
        found = [
            pairs
            for part, expressions in zip(self._parts, self._expressions, strict=True)
            for pairs in _pairs(part, expressions.of(rows))
        ]
        parents = np.concatenate([pairs.rows for pairs in found])
        order = np.argsort(parents, kind="stable")
        names = take(pa.concat_arrays([pairs.names for pairs in found]), order)
        values = take(pa.concat_arrays([pairs.values for pairs in found]), order)
        if names.null_count:
            nameless = int(np.argmin(names.is_valid().to_numpy(zero_copy_only=False)))
            raise NotEncodable(int(parents[order][nameless]), "one of its headers has no name")
        ends = np.concatenate([[0], np.cumsum(np.bincount(parents, minlength=rows.num_rows))])
        pairs = pa.StructArray.from_arrays([names, values], ["key", "value"])
        made: pa.Array[Any] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs)
        return made


def _pairs(part: Part, columns: Sequence[Any]) -> list[_Pairs]:
    if isinstance(part, Mapping):
        return [_named(name, whole(column)) for name, column in zip(part, columns, strict=True)]
    lists: Any = whole(columns[0].cast(HEADERS))
    pairs = pc.list_flatten(lists)
    parents: Numbers = pc.list_parent_indices(lists).to_numpy()
    return [_Pairs(parents, pc.struct_field(pairs, "key"), pc.struct_field(pairs, "value"))]


def _named(name: str, column: Any) -> _Pairs:
    values = column.cast(pa.string()).cast(pa.binary()) if pa.types.is_dictionary(column.type) else column
    of = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    return _Pairs(of, pa.repeat(pa.scalar(name), len(of)), values.drop_null().cast(pa.binary()))


def header_bytes(headers: pa.ChunkedArray[Any]) -> Numbers:
    """About how many bytes the headers of each record take."""
    lists: Any = whole(headers)
    pairs = pc.list_flatten(lists)
    sizes = np.full(len(pairs), _OF_ONE, np.int64)
    for field in ("key", "value"):
        sizes += np.asarray(pc.fill_null(pc.binary_length(pc.struct_field(pairs, field)), 0), np.int64)
    of: Numbers = pc.list_parent_indices(lists).to_numpy()
    return np.bincount(of, sizes, len(lists)).astype(np.int64)
