"""A format of the user's: one function that reads a value, one that writes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from headrace.errors import InvalidConfig
from headrace.serializers import as_bytes
from headrace_common.core.batch.byte_columns import as_binary
from headrace_streams.core.errors import cause_of
from headrace_streams.core.formats.ddl import parse_schema, type_text
from headrace_streams.core.formats.json_rows import MESSAGE_CHARACTERS_MAX
from headrace_streams.core.formats.port import Decoded, NotEncodable, Problem

Decode = Callable[[bytes], Mapping[str, Any]]
"""A value to a row: fields that are missing are null, others than declared are ignored."""
Encode = Callable[[dict[str, Any]], bytes | str | None]
"""A row to a value; None deletes the key."""


def custom(
    decode: Decode | None = None,
    encode: Encode | None = None,
    schema: str | pa.Schema | type | None = None,
) -> Custom:
    """
    A format of two functions, called once per value; what they raise is an error of that row alone.

    They must give the same for the same input: after a crash they are called again. Leave one out where topics are
    only read, or only written.

    Raises:
        InvalidConfig: neither function; or ``decode`` without a ``schema``, as json takes it.
    """
    if decode is None and encode is None:
        raise InvalidConfig("custom needs decode=, encode= or both")
    if decode is not None and schema is None:
        raise InvalidConfig("custom with decode= needs schema=, the columns it gives, as in 'user string'")
    return Custom(decode, encode, None if schema is None else parse_schema(schema))


class Custom:
    """See ``custom``."""

    def __init__(self, decode: Decode | None, encode: Encode | None, schema: pa.Schema | None) -> None:
        self.schema = schema
        self._decode = decode
        self._encode = encode

    def decode(self, values: pa.Array[Any]) -> Decoded:
        """See ``Format``."""
        assert self._decode is not None, "custom without decode= only writes"
        assert self.schema is not None
        rows: list[dict[str, Any]] = []
        problems: list[Problem] = []
        for row, value in enumerate(as_binary(values).to_pylist()):
            try:
                rows.append(_checked(self._decode(value), self.schema))
            except Exception as failed:  # noqa: BLE001  a function of the user's may raise anything
                problems.append(Problem(row, _message(failed)))
        return Decoded(pa.Table.from_pylist(rows, self.schema), problems)

    def encode(self, table: pa.Table) -> pa.Array[Any]:
        """
        See ``Format``.

        Raises:
            InvalidConfig: the format has no ``encode``.
        """
        if self._encode is None:
            raise InvalidConfig("this custom format only reads; give it encode= to write with it")
        values: list[bytes | bytearray | memoryview | None] = []
        for row, given in enumerate(table.to_pylist()):
            try:
                values.append(as_bytes(self._encode(given), "value"))
            except Exception as failed:  # a function of the user's may raise anything
                raise NotEncodable(row, _message(failed)) from failed
        return pa.array(values, pa.binary())


def _checked(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """The row, if each of its fields is what the schema says, so that Arrow takes it among others."""
    if not isinstance(row, Mapping):
        raise TypeError(f"decode returned {type(row).__name__}, not a dict")
    checked = {field.name: row.get(field.name) for field in schema}
    for field in schema:
        value = checked[field.name]
        if value is None and not field.nullable:
            raise ValueError(f"{field.name} is missing or null, and may not be")
        if isinstance(value, float) and pa.types.is_integer(field.type):  # Arrow would cut it
            raise TypeError(f"{field.name}: {value!r} is no {type_text(field.type)}")
        try:
            pa.scalar(value, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as wrong:
            raise TypeError(f"{field.name}: {value!r:.60} is no {type_text(field.type)}") from wrong
    return checked


def _message(failed: Exception) -> str:
    return cause_of(failed)[:MESSAGE_CHARACTERS_MAX]
