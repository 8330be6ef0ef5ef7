"""JSON behind an id of a registry, with a JSON schema made of the columns that are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson
import pyarrow as pa

from headrace_streams.core.formats.framing import Codec, Decode, Encode, SchemaText
from headrace_streams.core.formats.json_format import JsonFormat
from headrace_streams.core.formats.port import Decoded


class JsonCodec(Codec):
    """Values are read as the program declares them, whatever schema they were written with: no registry is needed."""

    kind = "JSON"
    reads_by_id = False

    def __init__(self, schema: str | pa.Schema | type | None) -> None:
        """
        Raises:
            InvalidConfig: no such schema, or a type that JSON cannot hold.
        """
        self._format = JsonFormat(schema)

    @property
    def schema(self) -> pa.Schema | None:
        """See ``Codec``."""
        return self._format.schema

    def reader(self, written: SchemaText | None) -> Decode:
        """See ``Codec``."""
        return self._read

    def _read(self, values: pa.BinaryArray, begin: int) -> Decoded:
        return self._format.decode(
            pa.array([value[begin:] for value in values.to_pylist() if value is not None], pa.binary())
        )

    def writer(self, columns: pa.Schema, subject: str) -> tuple[SchemaText, Encode]:
        """See ``Codec``."""
        self._format.encode(columns.empty_table())
        return SchemaText(self.kind, orjson.dumps(json_schema(columns)).decode()), self._format.encode


def json_schema(columns: pa.Schema) -> dict[str, Any]:
    """The JSON schema (draft 7) of what is written of columns."""
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_object(list(columns))}


def _object(fields: list[pa.Field[Any]]) -> dict[str, Any]:
    return {"type": "object", "properties": {field.name: _of(field) for field in fields}}


def _of(field: pa.Field[Any]) -> dict[str, Any]:
    made = _typed(field.type)
    return {"oneOf": [{"type": "null"}, made]} if field.nullable and made != {"type": "null"} else made


def _typed(kind: Any) -> dict[str, Any]:
    types = pa.types
    if types.is_dictionary(kind):
        return _typed(kind.value_type)
    if types.is_struct(kind):
        return _object(list(kind))
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": "array", "items": _of(kind.value_field)}
    if types.is_map(kind):
        return {"type": "object", "additionalProperties": _of(kind.item_field)}
    return next((made for is_such, made in _SCALARS if is_such(kind)), {"type": "string"})


_SCALARS: Final[tuple[tuple[Callable[[Any], bool], dict[str, Any]], ...]] = (
    (pa.types.is_null, {"type": "null"}),
    (pa.types.is_boolean, {"type": "boolean"}),
    (pa.types.is_integer, {"type": "integer"}),
    (pa.types.is_floating, {"type": "number"}),
    (pa.types.is_timestamp, {"type": "string", "format": "date-time"}),
    (pa.types.is_date, {"type": "string", "format": "date"}),
)
