"""
Schemas of Avro: parsed by fastavro, as the columns that they are here, and made of columns.

``avro_read`` and ``avro_write`` go by what ``parse`` gives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import fastavro
import orjson
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from headrace.errors import InvalidConfig
from headrace_streams.core.formats.ddl import TIMESTAMP
from headrace_streams.core.formats.json_rows import EXACT

arrow: Any = pa  # its stubs are narrower than it is
Kind = Any
"""A type as fastavro has it: a name, a list of the branches of a union, or a dict."""
Record = dict[str, Any]
"""A record as fastavro has it, with the types that it names in their places."""
Path = tuple[str, ...]
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VALUE: Final = "headrace.value"
"""Marks the record that ``parse`` makes of another type."""
_PRECISION_MAX: Final = 38
_SIZE_MAX: Final = 1 << 20
_PLAIN: Final[dict[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_LOGICAL: Final[dict[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}


class BadSchema(Exception):
    """This is no schema, or one that has no columns here; says where."""


def parse(given: str | bytes | Mapping[str, Any] | Sequence[Any], references: Sequence[str] = ()) -> Record:
    """
    A schema as JSON text, or as what that stands for. The name of a primitive type is taken without quotes too.

    A type that is no record becomes one with the one field ``value``, whose bytes are the same.

    Args:
        references: schemas whose names it uses, each behind those that it needs itself.

    Raises:
        BadSchema: says where.
    """
    known: dict[str, Any] = {}
    try:
        for text in references:
            fastavro.parse_schema(_loaded(text), known, expand=True)
        kind = _loaded(given)
        if base_of(kind) != "record":
            kind = {"type": "record", "name": "Value", _VALUE: True, "fields": [{"name": "value", "type": kind}]}
        made: Any = fastavro.parse_schema(kind, known, expand=True)
        _check(made, (), set())
    except UnknownType as unknown:
        raise BadSchema(f"{unknown.args[0]!r:.60} is neither a type of Avro nor declared before") from None
    except KeyError as missing:
        raise BadSchema(f"a type has no {missing.args[0]!r:.60}") from None
    except (SchemaParseException, TypeError, ValueError, AttributeError, OverflowError) as wrong:
        raise BadSchema(f"it is no schema of Avro: {wrong}") from None
    except RecursionError:
        raise BadSchema("its types are nested too deeply") from None
    record: Record = made
    return record


def _loaded(given: Any) -> Any:
    if isinstance(given, str) and given in _PLAIN:
        return given
    try:
        return orjson.loads(given if isinstance(given, str | bytes) else orjson.dumps(given))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError) as wrong:
        raise BadSchema(f"it is not JSON: {wrong}; of a file give its Path") from None


def is_value(record: Record) -> bool:
    """Whether it stands for a type that is no record."""
    return _VALUE in record


def has_maps(kind: Kind) -> bool:
    """Whether values of the type have a map somewhere."""
    base = base_of(kind)
    parts = kind if base == "union" else [field["type"] for field in kind["fields"]] if base == "record" else []
    return base == "map" or any(map(has_maps, [kind["items"]] if base == "array" else parts))


def base_of(kind: Kind) -> str:
    """Which of Avro's types it is: ``union``, ``record``, ``int``…"""
    if isinstance(kind, list):
        return "union"
    base = kind.get("type") if isinstance(kind, dict) else kind
    return "record" if base == "error" else str(base)


def items_of(kind: Kind) -> Kind:
    """The type of the items of an array, or of the values of a map."""
    return kind["items" if base_of(kind) == "array" else "values"]


def _check(kind: Kind, path: Path, seen: set[int]) -> None:
    """
    Refuse what fastavro lets pass and could not read; make defaults the values that a reader gives.

    A logical type that does not fit its type is dropped, as the specification wants it; ``uuid`` too, for it is text.
    """
    if id(kind) in seen:
        return
    seen.add(id(kind))
    base = base_of(kind)
    if base == "union":
        _check_union(kind, path, seen)
    elif base == "record":
        _check_fields(kind, path, seen)
    elif base in ("array", "map"):
        _check(items_of(kind), (*path, "[]"), seen)
        if base == "array" and not _has_bytes(kind["items"]):
            raise _bad(path, "items without bytes: a few bytes could say that there are any number of them")
    elif base not in _PLAIN:
        raise _bad(path, f"record {base!r} holds itself, which no column can; leave the field out")
    elif base == "fixed" and (type(kind["size"]) is not int or not 0 <= kind["size"] <= _SIZE_MAX):
        raise _bad(path, f"the size of fixed {kind['name']!r} is {kind['size']!r:.60}; say a number of bytes")
    elif base == "enum" and (not isinstance(kind["symbols"], list) or not kind["symbols"]):
        raise _bad(path, f"enum {kind['name']!r} has no symbols")
    if isinstance(kind, dict) and not logical_of(kind):
        kind.pop("logicalType", None)


def _check_union(union: list[Kind], path: Path, seen: set[int]) -> None:
    names = [name_of(part) for part in union]
    if not names or "union" in names or len(set(names)) < len(names):
        raise _bad(path, f"a union has different types and no unions in it, not {', '.join(names) or 'nothing'}")
    for part in union:
        _check(part, path, seen)


def _check_fields(record: Record, path: Path, seen: set[int]) -> None:
    names = [field["name"] for field in record["fields"]]
    for name in names:
        if not isinstance(name, str) or not _is_name(name) or names.count(name) > 1:
            raise _bad(path, f"record {record['name']!r} has a field whose name is {name!r:.60}, or has it twice")
    for field in record["fields"]:
        here = (*path, field["name"])
        _check(field["type"], here, seen)
        if "default" in field:
            try:
                field["default"] = _default_of(field["type"], field["default"])
            except (KeyError, TypeError, ValueError, AttributeError):
                raise _bad(here, f"the default {field['default']!r:.60} is not {text_of(field['type'])}") from None


def _default_of(kind: Kind, given: Any) -> Any:
    """A default, as JSON gives it, as a reader gives values."""
    base = base_of(kind)
    if base == "union":
        branch = branch_of(kind)
        return given if given is None or branch is None else _default_of(branch, given)
    if base == "record":
        return {
            one["name"]: _default_of(one["type"], given[one["name"]]) if one["name"] in given else one["default"]
            for one in kind["fields"]
        }
    if base == "array":
        return [_default_of(kind["items"], item) for item in given]
    if base == "map":
        return {name: _default_of(kind["values"], item) for name, item in given.items()}
    if base not in ("bytes", "fixed"):
        return given
    raw = given.encode("latin-1")
    if logical_of(kind) == "decimal":
        return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-kind.get("scale", 0), EXACT)
    return raw


def _has_bytes(kind: Kind) -> bool:
    """Whether each value of the type takes a byte or more."""
    base = base_of(kind)
    if base == "record":
        return any(_has_bytes(field["type"]) for field in kind["fields"])
    return base != "null" and (base != "fixed" or kind["size"] > 0)


def logical_of(kind: Kind) -> str:
    """The logical type that values have here; empty: none."""
    if not isinstance(kind, dict):
        return ""
    base, logical = base_of(kind), kind.get("logicalType")
    if logical == "decimal" and base in ("bytes", "fixed"):
        precision, scale = kind.get("precision"), kind.get("scale", 0)
        return "decimal" if type(precision) is int and type(scale) is int and 0 <= scale <= precision else ""
    return str(logical) if (base, logical) in _LOGICAL else ""


def name_of(kind: Kind) -> str:
    """By which a type is known in a union."""
    return str(kind["name"]) if isinstance(kind, dict) and "name" in kind else base_of(kind)


def text_of(kind: Kind) -> str:
    """A type, for messages."""
    base, logical = base_of(kind), logical_of(kind)
    if base == "union":
        return f"[{', '.join(map(text_of, kind))}]"
    if base in ("array", "map"):
        return f"{base} of {text_of(items_of(kind))}"
    if logical == "decimal":
        logical = f"decimal({kind['precision']},{kind.get('scale', 0)})"
    name = name_of(kind)
    return " ".join(filter(None, [base, name if name != base else "", logical and f"({logical})"]))


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _bad(path: Path, message: str) -> BadSchema:
    return BadSchema(f"{joined(path)}: {message}" if path else message)


def joined(path: Path) -> str:
    """Where in a value: ``address.lines[]``."""
    return ".".join(path).replace(".[]", "[]")


def check_fits(writer: Kind, wanted: Kind, path: Path = ()) -> None:
    """
    Refuse another type than was written, where that can be said of all values: branches of unions are seen in each.

    Another logical type is refused too, for the numbers would be read as something else.

    Raises:
        BadSchema: says where.
    """
    base = base_of(writer)
    if "union" in (base, base_of(wanted)):
        for one in writer if base == "union" else [writer]:
            for other in wanted if base_of(wanted) == "union" else [wanted]:
                if name_of(one) == name_of(other):
                    check_fits(one, other, path)
    elif base != base_of(wanted):
        if base_of(wanted) not in _PROMOTED.get(base, ()):
            raise _bad(path, f"is {text_of(writer)} where {text_of(wanted)} is wanted")
    elif base == "record":
        fields = {alias: field for field in wanted["fields"] for alias in field.get("aliases", [])}
        fields |= {field["name"]: field for field in wanted["fields"]}
        for field in writer["fields"]:
            if field["name"] in fields:
                check_fits(field["type"], fields[field["name"]]["type"], (*path, field["name"]))
    elif base in ("array", "map"):
        check_fits(items_of(writer), items_of(wanted), (*path, "[]"))
    elif _meaning(writer) != _meaning(wanted):
        raise _bad(
            path,
            f"is {text_of(writer)} where {text_of(wanted)} is wanted; declare what is written, and cast the column",
        )


def _meaning(kind: Kind) -> tuple[str, int]:
    logical = logical_of(kind)
    return logical, kind.get("scale", 0) if logical == "decimal" else 0


def column_type(kind: Kind, path: Path = ()) -> Any:
    """
    What values of this type are in Arrow: a ``pyarrow.DataType``.

    Raises:
        BadSchema: no column can hold them.
    """
    base, logical = base_of(kind), logical_of(kind)
    if base == "union":
        branch = branch_of(kind)
        if branch is None:
            raise _bad(path, f"{text_of(kind)} has no column type; a union is null and one other type")
        return column_type(branch, path)
    if base == "record":
        return pa.struct([_column_of(one["name"], one["type"], (*path, one["name"])) for one in kind["fields"]])
    if base == "array":
        return arrow.list_(_column_of("item", kind["items"], (*path, "[]")))
    if base == "map":
        return arrow.map_(pa.string(), _column_of("value", kind["values"], (*path, "[]")))
    if logical == "decimal":
        if kind["precision"] > _PRECISION_MAX:
            raise _bad(path, f"a decimal of {kind['precision']} digits; columns hold up to {_PRECISION_MAX}")
        return pa.decimal128(kind["precision"], kind.get("scale", 0))
    return _LOGICAL[base, logical] if logical else _PLAIN[base]


def _column_of(name: str, kind: Kind, path: Path) -> pa.Field[Any]:
    """A column; it may be null where the type is null or a union with null."""
    return pa.field(name, column_type(kind, path), nullable=may_be_null(kind))


def may_be_null(kind: Kind) -> bool:
    """Whether null is among the values of this type."""
    return "null" in [base_of(part) for part in (kind if isinstance(kind, list) else [kind])]


def branch_of(union: list[Kind]) -> Kind | None:
    """The type that a column of the union has; None: it has several."""
    values = [part for part in union if base_of(part) != "null"]
    return values[0] if len(values) == 1 else union[0] if not values else None


def columns_of(record: Record) -> pa.Schema:
    """
    The columns of values of this type.

    Raises:
        BadSchema: there is no column for one.
    """
    return pa.schema(list(column_type(record)))


def avro_of(schema: pa.Schema, name: str) -> dict[str, Any]:
    """
    A schema for columns like these: a record. A column that may be null is a union with null, and null by default.

    Raises:
        InvalidConfig: Avro has no such type, or allows no such name.
    """
    return _record_of(list(schema), name, "")


def _record_of(fields: list[pa.Field[Any]], name: str, place: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [_field_of(one, f"{name}_{one.name}", place) for one in fields]}


def _field_of(column: pa.Field[Any], name: str, place: str) -> dict[str, Any]:
    here = f"{place}{column.name}"
    if not _is_name(column.name):
        raise InvalidConfig(
            f"column {here!r}: a name in Avro is letters, digits and _, and does not begin with a digit; rename it"
        )
    made = _avro_type(column.type, name, here)
    if column.type == pa.null():
        return {"name": column.name, "type": made, "default": None}
    if column.nullable:
        return {"name": column.name, "type": ["null", made], "default": None}
    return {"name": column.name, "type": made}


def _avro_type(kind: Any, name: str, place: str) -> Any:
    types = pa.types
    if types.is_dictionary(kind):
        return _avro_type(kind.value_type, name, place)
    if types.is_struct(kind):
        return _record_of(list(kind), name, f"{place}.")
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": "array", "items": _item_of(kind.value_field, name, place)}
    if types.is_map(kind) and kind.key_type == pa.string():
        return {"type": "map", "values": _item_of(kind.item_field, name, place)}
    if types.is_decimal128(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    logical = next((found for found, arrow in _LOGICAL.items() if arrow == kind), None)
    if logical is not None:
        return {"type": logical[0], "logicalType": logical[1]}
    for is_such, plain in _NEAREST:
        if is_such(kind):
            return plain
    raise InvalidConfig(f"column {place!r} is {kind}, which Avro cannot hold; cast it, for example to string")


def _item_of(item: pa.Field[Any], name: str, place: str) -> Any:
    made = _avro_type(item.type, name, f"{place}[]")
    return ["null", made] if item.nullable and item.type != pa.null() else made


_NEAREST: Final[tuple[tuple[Any, str], ...]] = (
    (pa.types.is_null, "null"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_uint32, "long"),
    (pa.types.is_int64, "long"),
    (lambda kind: pa.types.is_integer(kind) and not pa.types.is_uint64(kind), "int"),
    (pa.types.is_float64, "double"),
    (pa.types.is_floating, "float"),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), "string"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), "bytes"),
)
