"""
Arrow's columns as Kafka Connect's JSON: the schema of a field, and its values as what JSON can hold.

Dates are whole numbers of days, times and instants of milliseconds, bytes are base64, decimals are base64 or numbers.
Instants of finer units have Debezium's names, so that nothing is cut; others too where the field says it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from headrace_connect.converters.schema_names import (
    DATE,
    DEBEZIUM,
    DECIMAL,
    PLAIN,
    PRECISION,
    TIME_NAMES,
    UNIT_NAMES,
    Node,
)
from headrace_connect.core.batch import NAME, VERSION
from headrace_connect.core.halving import Unfit
from headrace_connect.core.kinds import nulls_of, struct_of

arrow: Any = pa  # its stubs are narrower than it is

_MEMBERS: Final = ("type", "fields", "items", "keys", "values", "optional", "name", "version", "parameters")
"""In the order in which Kafka Connect writes them: so its keys have the same bytes, and with them their partitions."""


def node_of(field: Any) -> Node:
    """
    The schema of a field, without its name.

    Raises:
        Unfit: the JSON of Kafka Connect has no such type.
    """
    node = _node_of_type(field.type, field.name)
    metadata: Mapping[bytes, bytes] = field.metadata or {}
    node["optional"] = field.nullable
    name = metadata.get(NAME, b"").decode()
    if name and ("name" not in node or DEBEZIUM.get(node["name"]) == name):
        node["name"] = name
    if VERSION in metadata:
        node["version"] = int(metadata[VERSION])
    return {member: node[member] for member in _MEMBERS if member in node}


def _node_of_type(kind: Any, name: str) -> Node:
    types = pa.types
    if types.is_dictionary(kind):
        return _node_of_type(kind.value_type, name)
    if types.is_struct(kind):
        return {"type": "struct", "fields": [{**node_of(one), "field": one.name} for one in kind]}
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": "array", "items": node_of(kind.value_field)}
    if types.is_map(kind) and kind.key_type == pa.string():
        return {"type": "map", "keys": {"type": "string", "optional": False}, "values": node_of(kind.item_field)}
    if types.is_decimal(kind):
        parameters = {"scale": str(kind.scale), PRECISION: str(kind.precision)}
        return {"type": "bytes", "name": DECIMAL, "version": 1, "parameters": parameters}
    if types.is_date32(kind) or types.is_date64(kind):
        return {"type": "int32", "name": DATE, "version": 1}
    if types.is_time(kind):
        return {"type": "int32" if kind.bit_width == 32 else "int64", "name": TIME_NAMES[kind.unit], "version": 1}
    if types.is_timestamp(kind):
        return {"type": "int64", "name": UNIT_NAMES[kind.unit], "version": 1}
    plain = _raw_type(kind)
    found = next((text for text, one in PLAIN.items() if one == plain), None)
    if found is None:
        raise Unfit(f"{name or 'it'} is {kind}, which JSON cannot hold; cast it, for example to string")
    return {"type": found}


_RAW: Final[dict[pa.DataType, pa.DataType]] = {
    pa.null(): pa.string(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def _raw_type(kind: Any) -> Any:
    return pa.binary() if pa.types.is_fixed_size_binary(kind) else _RAW.get(kind, kind)


def raw(array: Any, *, decimal_numbers: bool) -> Any:
    """
    Values as JSON has them: only booleans, numbers, texts, lists, structs, maps; JSON text as large_binary.

    Raises:
        Unfit: a value has no such form, or a field that may not be null is.
    """
    kind = array.type
    types = pa.types
    if types.is_dictionary(kind):
        return raw(array.dictionary_decode(), decimal_numbers=decimal_numbers)
    if types.is_struct(kind):
        nulls = nulls_of(array)
        columns = []
        for field, column in zip(kind, array.flatten(), strict=True):
            missing = ~nulls & nulls_of(column)
            if not field.nullable and missing.any():
                raise Unfit(f"{field.name} is null, and may not be", missing)
            columns.append(raw(column, decimal_numbers=decimal_numbers))
        fields = [pa.field(field.name, column.type) for field, column in zip(kind, columns, strict=True)]
        return struct_of(fields, columns, nulls)
    if types.is_list(kind) or types.is_large_list(kind):
        if types.is_large_list(kind):
            array = array.cast(pa.list_(kind.value_field))  # of lists of nulls, Arrow's cast loses items
        items = raw(array.values, decimal_numbers=decimal_numbers)
        return arrow.ListArray.from_arrays(array.offsets, items, mask=_mask(array))
    if types.is_map(kind):
        items = raw(array.items, decimal_numbers=decimal_numbers)
        return arrow.MapArray.from_arrays(array.offsets, array.keys, items, mask=_mask(array))
    if types.is_decimal(kind):
        return array.cast(pa.string()).cast(pa.large_binary()) if decimal_numbers else _base64(array, _unscaled)
    if types.is_date(kind):
        return array.cast(pa.date32()).cast(pa.int32())
    if types.is_time(kind):
        fine = array.cast(pa.time32("ms")) if kind == pa.time32("s") else array
        return fine.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if types.is_timestamp(kind):
        return (array.cast(pa.timestamp("ms", kind.tz)) if kind.unit == "s" else array).cast(pa.int64())
    plain = _raw_type(kind)
    return _base64(array.cast(plain), bytes) if plain == pa.binary() else array.cast(plain)


def _mask(array: Any) -> Any:
    return pa.array(nulls_of(array)) if array.null_count else None


def _base64(array: Any, as_bytes: Callable[[Any], bytes]) -> Any:
    texts = [None if value is None else b64encode(as_bytes(value)).decode() for value in array.to_pylist()]
    return pa.array(texts, pa.string())


def _unscaled(value: Decimal) -> bytes:
    """The digits as a whole number, as Java's ``BigInteger`` writes it."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)
