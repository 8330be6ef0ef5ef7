"""Kafka Connect's JSON as Arrow's columns: the field that a schema is, and what takes its values."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from headrace_connect.converters.schema_names import DECIMAL, LOGICAL, PLAIN, PRECISION, PRECISION_MAX, Node
from headrace_connect.core.batch import NAME, VERSION
from headrace_connect.core.halving import Unfit

arrow: Any = pa  # its stubs are narrower than it is


def field_of(node: Any, name: str = "") -> Any:
    """
    The field that holds values of a schema.

    Raises:
        Unfit: it is no schema, or no column can hold its values.
    """
    kind = node.get("type") if isinstance(node, dict) else None
    if not isinstance(kind, str):
        raise Unfit(f'the schema{_of(name)} has no "type"')
    metadata: dict[bytes, bytes] = {}
    if isinstance(node.get("name"), str) and not pa.types.is_temporal(_logical(node)) and node["name"] != DECIMAL:
        metadata[NAME] = node["name"].encode()
        if type(node.get("version")) is int:
            metadata[VERSION] = str(node["version"]).encode()
    elif kind == "struct" and type(node.get("version")) is int:
        metadata[VERSION] = str(node["version"]).encode()
    return pa.field(name, _type_of(node, kind, name), node.get("optional") is True, metadata)


def _of(name: str) -> str:
    return f" of {name!r}" if name else ""


def _logical(node: Node) -> Any:
    return LOGICAL.get((node["type"], node.get("name") or ""), pa.null())


def _type_of(node: Node, kind: str, name: str) -> Any:
    if kind == "struct":
        fields = node.get("fields")
        if not isinstance(fields, list) or not all(
            isinstance(one, dict) and isinstance(one.get("field"), str) for one in fields
        ):
            raise Unfit(f'the schema{_of(name)} is a struct without "fields" that have names')
        made = [field_of(one, one["field"]) for one in fields]
        if len({one.name for one in made}) < len(made):
            raise Unfit(f"the schema{_of(name)} has a field twice")
        return pa.struct(made)
    if kind == "array":
        return arrow.list_(field_of(node.get("items"), "item"))
    if kind == "map":
        keys = field_of(node.get("keys"), "key")
        if keys.type != pa.string():
            raise Unfit(f"the schema{_of(name)} is a map whose keys are {keys.type}; only texts can be")
        return arrow.map_(pa.string(), field_of(node.get("values"), "value"))
    if kind == "bytes" and node.get("name") == DECIMAL:
        parameters = node.get("parameters") or {}
        try:
            scale = int(parameters["scale"])
            precision = int(parameters.get(PRECISION, PRECISION_MAX))
            return pa.decimal128(min(precision, PRECISION_MAX), scale)
        except (KeyError, TypeError, ValueError, AttributeError) as wrong:
            raise Unfit(f"the schema{_of(name)} is a decimal without a scale that fits: {wrong}") from None
    if kind not in PLAIN:
        raise Unfit(f"the schema{_of(name)} has the type {kind[:40]!r}, which is none")
    logical = _logical(node)
    return PLAIN[kind] if logical == pa.null() else logical


Reader = Callable[[Any], Any]


def reader_of(node: Node, *, replace_nulls: bool, name: str = "") -> Reader:
    """
    What takes a value as JSON has it (None for null) to what Arrow takes; it raises ``Unfit``.

    Args:
        node: a schema that ``field_of`` took.
        replace_nulls: put the default of the schema in the place of null.
    """
    inner = _reader(node, replace_nulls, name)
    default = node.get("default")
    optional = node.get("optional") is True

    def read(value: Any) -> Any:
        if value is None:
            if default is not None and replace_nulls:
                return inner(default)
            if not optional:
                raise Unfit(f"{name or 'the value'} is null or missing, and may not be")
            return None
        return inner(value)

    return read


def _reader(node: Node, replace_nulls: bool, name: str) -> Reader:
    kind = node["type"]
    if kind == "struct":
        inner = f"{name}." if name else ""
        fields = [
            (one["field"], reader_of(one, replace_nulls=replace_nulls, name=inner + one["field"]))
            for one in node["fields"]
        ]
        return lambda value: {field: read(_typed(value, dict, name).get(field)) for field, read in fields}
    if kind == "array":
        item = reader_of(node["items"], replace_nulls=replace_nulls, name=f"{name}[]")
        return lambda value: [item(one) for one in _typed(value, list, name)]
    if kind == "map":
        item = reader_of(node["values"], replace_nulls=replace_nulls, name=f"{name}[]")
        return lambda value: [(key, item(one)) for key, one in _typed(value, dict, name).items()]
    if kind == "bytes" and node.get("name") == DECIMAL:
        scale = int(node["parameters"]["scale"])
        return lambda value: _decimal(value, scale, name)
    if kind == "bytes":
        return lambda value: _bytes(value, name)
    if kind in ("float", "double"):
        return lambda value: _double(value, name)
    wanted = {"boolean": bool, "string": str}.get(kind, int)
    return lambda value: _typed(value, wanted, name)


_JSON_NAMES: Final[dict[type, str]] = {
    dict: "an object",
    list: "a list",
    bool: "true or false",
    str: "a text",
    int: "a whole number",
}


def _typed(value: Any, kind: type, name: str) -> Any:
    if type(value) is not kind:
        raise Unfit(f"{name or 'the value'}: {value!r:.60} is not {_JSON_NAMES[kind]}")
    return value


def _double(value: Any, name: str) -> float:
    if type(value) is float or (type(value) in (int, Decimal) and (type(value) is Decimal or float(value) == value)):
        return float(value)
    raise Unfit(f"{name or 'the value'}: {value!r:.60} is not a number that a double can hold")


def _bytes(value: Any, name: str) -> bytes:
    try:
        return b64decode(_typed(value, str, name), validate=True)
    except NotBase64 as wrong:
        raise Unfit(f"{name or 'the value'} is not base64: {wrong}") from None


def _decimal(value: Any, scale: int, name: str) -> Decimal:
    if type(value) in (int, float, Decimal):
        return Decimal(str(value))
    sign, digits, _ = Decimal(int.from_bytes(_bytes(value, name), "big", signed=True)).as_tuple()
    return Decimal((sign, digits, -scale))


def array_of(values: list[Any], kind: Any) -> Any:
    """
    Of what readers gave.

    Raises:
        Unfit: a value is outside its type.
    """
    try:
        return pa.array(values, _numbers(kind)).cast(kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as wrong:
        raise Unfit(f"a value is outside its type: {wrong}") from None


def _numbers(kind: Any) -> Any:
    """The type with whole numbers for times, as JSON has them."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(_numbers(field.type)) for field in kind])
    if types.is_list(kind):
        return arrow.list_(kind.value_field.with_type(_numbers(kind.value_type)))
    if types.is_map(kind):
        return arrow.map_(kind.key_type, kind.item_field.with_type(_numbers(kind.item_type)))
    if types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return kind
