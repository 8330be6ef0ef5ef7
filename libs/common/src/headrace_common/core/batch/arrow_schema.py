"""The Arrow schema of decoded batches, which both formats give."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa


@cache
def pair_fields() -> list[pa.Field[Any]]:
    """The key and the value of one header."""
    return [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]


@cache
def headers_type() -> pa.DataType:
    """list<struct<key: string, value: binary>>."""
    return pa.list_(pa.struct(pair_fields()))


@cache
def batch_schema() -> pa.Schema:
    """offset, timestamp_ms, key, value, headers."""
    fields: list[pa.Field[Any]] = [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", headers_type(), nullable=False),
    ]
    return pa.schema(fields)


def no_headers(count: int) -> pa.Array[Any]:
    """``count`` empty lists of headers."""
    kind = headers_type()
    lists = pa.py_buffer(bytes(4 * (count + 1)))
    return pa.Array.from_buffers(kind, count, [None, lists], children=[pa.array([], pa.struct(pair_fields()))])
