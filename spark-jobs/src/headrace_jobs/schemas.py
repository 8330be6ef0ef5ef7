"""
The schema of a topic's values, from what a user has: Spark's DDL, Spark's JSON, or a JSON Schema. No Spark session.

Called by each job's ``job``; DDL is the one form that a session has to read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace_common.core.errors import InvalidConfig

_SIMPLE: Final[Mapping[str, DataType]] = {
    "boolean": BooleanType(),
    "integer": LongType(),
    "number": DoubleType(),
    "string": StringType(),
}
_FORMATS: Final[Mapping[str, DataType]] = {"date-time": TimestampType(), "date": DateType()}


def schema_of_json(text: str) -> StructType | None:
    """
    A schema from the text of a file; None if it is not JSON, and so DDL.

    Raises:
        InvalidConfig: it is JSON of another kind.
    """
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict):
        raise InvalidConfig("the schema file holds JSON that is no schema; give DDL, Spark's JSON or a JSON Schema")
    if "fields" in found:
        return _of_spark(found)
    kind = _of_json_schema(found, "the schema")
    if not isinstance(kind, StructType):
        raise InvalidConfig("the JSON Schema describes no object with properties; only objects have columns")
    return kind


def _of_spark(found: dict[str, Any]) -> StructType:
    try:
        return StructType.fromJson(found)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidConfig(f"the schema file is not what StructType.json() writes: {error}") from None


def _of_json_schema(found: Any, where: str) -> DataType:
    if not isinstance(found, dict):
        raise InvalidConfig(f"{where} is no JSON Schema: an object with 'type' is needed")
    kinds = found.get("type", "object" if "properties" in found else None)
    named = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
    if len(named) != 1 or not isinstance(named[0], str):
        raise InvalidConfig(f"{where} must have one 'type' beside null; write such a schema as DDL instead")
    kind = named[0]
    if kind == "array":
        return ArrayType(_of_json_schema(found.get("items"), f"items of {where}"))
    if kind == "object":
        return _of_object(found, where)
    if kind not in _SIMPLE:
        raise InvalidConfig(f"{where} is of type {kind[:50]!r}, which JSON Schema does not have")
    return _FORMATS.get(str(found.get("format")), _SIMPLE[kind]) if kind == "string" else _SIMPLE[kind]


def _of_object(found: dict[str, Any], where: str) -> DataType:
    properties = found.get("properties")
    if not isinstance(properties, dict):
        values = found.get("additionalProperties")
        if isinstance(values, dict):
            return MapType(StringType(), _of_json_schema(values, f"values of {where}"))
        raise InvalidConfig(f"{where} is an object without properties; name them, or 'additionalProperties'")
    required = found.get("required") or []
    return StructType(
        [
            StructField(name, _of_json_schema(each, f"property {name!r}"), name not in required)
            for name, each in properties.items()
        ]
    )
