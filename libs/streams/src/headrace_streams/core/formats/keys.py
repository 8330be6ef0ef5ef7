"""
Keys of one or more columns as bytes, and back. Equal keys have equal bytes, so bytes are what state is kept by.

One column of text is its UTF-8, one of bytes as it is. Anything else is compact JSON as ``json_text`` writes it: ``12``
for one column, ``["AA",12,null]`` for several. Work is done once for each distinct key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InvalidConfig
from headrace_streams.core.formats.json_rows import Misfit, reader
from headrace_streams.core.formats.json_text import Unwritable, check_writable, find_unwritable, texts

_AS_THEY_ARE: Final = (pa.string(), pa.binary())


class NotAKey(Exception):
    """Bytes that are not a key of these columns."""


def encode_keys(columns: Sequence[Any], names: Sequence[str] = ()) -> pa.DictionaryArray[Any, Any]:
    """
    The key of each row, as dictionary<int32, binary> in which each key is there once.

    A null in a single column is a null key. Minus zero is zero.

    Args:
        columns: arrays or chunked arrays of one length.
        names: of the columns, for messages.

    Raises:
        NotEncodable: a value is NaN, infinite, or outside the years 1 to 9999.
        InvalidConfig: a column of this type cannot be part of a key.
    """
    assert columns, "a key has a column"
    called = names or [f"column {place + 1} of the key" for place in range(len(columns))]
    alone = len(columns) == 1
    whole = [_key_column(name, column, alone=alone) for name, column in zip(called, columns, strict=True)]
    try:
        return _encode(whole)
    except Unwritable:
        raise find_unwritable(
            lambda start, count: _encode([column.slice(start, count) for column in whole]), len(whole[0])
        ) from None


def decode_keys(keys: Sequence[bytes | None] | pa.Array[Any], fields: Sequence[pa.Field[Any]]) -> list[pa.Array[Any]]:
    """
    The columns of ``fields`` that gave ``keys``, one value per key; of a null key all are null.

    Raises:
        NotAKey: these bytes were not made of such columns; says which.
    """
    if isinstance(keys, pa.Array):
        keys = keys.to_pylist()
    if len(fields) == 1 and fields[0].type in _AS_THEY_ARE:
        try:
            return [pa.array(keys, pa.binary()).cast(fields[0].type)]
        except pa.ArrowInvalid as wrong:
            raise NotAKey(f"a key of {fields[0].name!r} is not text: {wrong}") from None
    readers = [reader(field.type, field.name) for field in fields]
    rows = [_parts(key, readers) for key in keys]
    return [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(fields)]


def _key_column(name: str, column: Any, alone: bool) -> Any:
    """One array, in which equal values of the column are equal for ``dictionary_encode`` too."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_large_string(column.type):
        column = column.cast(pa.string())
    if pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    if alone and column.type in _AS_THEY_ARE:
        return column
    if pa.types.is_nested(column.type):
        listed = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
        parts = "explode() it before, or take" if listed else "take"
        raise InvalidConfig(f"column {name!r} is {column.type}, of which no key is made; {parts} its parts as columns")
    if pa.types.is_timestamp(column.type) and column.type.unit != "ms":
        raise InvalidConfig(f"column {name!r} is {column.type}; cast it to timestamp[ms]")
    check_writable(name, column.type)
    return pc.add(column, pa.scalar(0, column.type)) if pa.types.is_floating(column.type) else column


def _encode(columns: list[Any]) -> pa.DictionaryArray[Any, Any]:
    if len(columns) == 1:
        encoded = columns[0].dictionary_encode()
        distinct = encoded.dictionary
        written = distinct if distinct.type in _AS_THEY_ARE else texts(distinct)
        return pa.DictionaryArray.from_arrays(encoded.indices, written.cast(pa.binary()))
    codes = _codes(columns)
    rows = pa.array(_first_rows(codes))
    parts: list[Any] = []
    for column in columns:
        parts += ["," if parts else "[", texts(column.take(rows))]
    written = pc.binary_join_element_wise(*parts, "]", "")
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), written.cast(pa.binary()))


def _codes(columns: list[Any]) -> Any:
    """A number for each row, equal where all columns are equal: 0 for the first, 1 for the next that differs..."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        pairs = codes * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy()
        codes = pa.array(pairs).dictionary_encode().indices.to_numpy().astype(np.int64)
    return codes


def _first_rows(codes: Any) -> Any:
    """Of each number the row where it is first."""
    rows = np.empty(codes.max(initial=-1) + 1, np.int64)
    rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return rows


def _parts(key: bytes | None, readers: list[Any]) -> list[Any]:
    if key is None:
        return [None] * len(readers)
    try:
        value = orjson.loads(key)
        parts = [value] if len(readers) == 1 else value
        if type(parts) is list and len(parts) == len(readers):
            return [None if part is None else read(part) for part, read in zip(parts, readers, strict=True)]
    except (orjson.JSONDecodeError, Misfit) as wrong:
        raise NotAKey(f"{key!r:.100} is not a key of these columns: {wrong}") from None
    raise NotAKey(f"{key!r:.100} is not a key of {len(readers)} columns")
