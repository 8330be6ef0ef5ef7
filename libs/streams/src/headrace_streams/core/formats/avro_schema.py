"""
Schemas of Avro: parsed, as the columns that they are here, and made of columns.

``avro_read`` and ``avro_write`` go by what ``parse`` gives. Source: the specification of Apache Avro 1.12.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import pyarrow as pa

from headrace.errors import InvalidConfig
from headrace_streams.core.formats.ddl import TIMESTAMP

arrow: Any = pa  # its stubs are narrower than it is
PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRECISION_MAX: Final = 38
_DEPTH_MAX: Final = 64
UUID_BYTES: Final = 16
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
NOTHING: Final = object()
"""The default of a field that has none."""


class BadSchema(Exception):
    """This is no schema, or one that has no columns here; says where."""


@dataclass(eq=False, slots=True)
class AvroType:
    """One type of a schema; which of the fields count goes by ``kind``."""

    kind: str
    logical: str = ""
    """Of the logical types that are known here; else empty."""
    name: str = ""
    """With its namespace."""
    aliases: tuple[str, ...] = ()
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default: str | None = None
    """Of an enum."""
    size: int = 0
    """Of a fixed, bytes."""
    precision: int = 0
    scale: int = 0
    parts: list[AvroType] = field(default_factory=list)
    """Items of an array, values of a map, branches of a union."""

    @property
    def short(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        if self.kind == "union":
            return f"[{', '.join(map(str, self.parts))}]"
        if self.kind in ("array", "map"):
            return f"{self.kind} of {self.parts[0]}"
        return " ".join(filter(None, [self.kind, self.name, self.logical and f"({self.logical})"]))


@dataclass(eq=False, slots=True)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = NOTHING


def parse(given: str | bytes | Mapping[str, Any] | Sequence[Any], references: Sequence[str] = ()) -> AvroType:
    """
    A schema as JSON text, or as what that stands for. The name of a primitive type is taken without quotes too.

    Args:
        references: schemas whose names it uses, each behind those that it needs itself.

    Raises:
        BadSchema: says where.
    """
    parser = _Parser()
    try:
        for text in references:
            parser.type_of(_loaded(text), "", ())
        return parser.type_of(_loaded(given), "", ())
    except RecursionError:
        raise BadSchema("its types are nested too deeply") from None


def _loaded(given: Any) -> Any:
    if not isinstance(given, str | bytes) or given in PRIMITIVES:
        return given
    try:
        return orjson.loads(given)
    except orjson.JSONDecodeError as wrong:
        raise BadSchema(f"it is not JSON: {wrong}") from None


class _Parser:
    """Knows the names that were declared so far."""

    def __init__(self) -> None:
        self.named: dict[str, AvroType] = {}

    def type_of(self, given: Any, space: str, path: tuple[str, ...]) -> AvroType:
        """``space``: the namespace around it."""
        if len(path) > _DEPTH_MAX:
            raise _bad(path[:3], f"types are nested more than {_DEPTH_MAX} deep")
        if isinstance(given, str):
            return AvroType(given) if given in PRIMITIVES else self._known(given, space, path)
        if isinstance(given, Sequence) and not isinstance(given, bytes):
            return self._union(given, space, path)
        if not isinstance(given, Mapping):
            raise _bad(path, f"{given!r:.60} is no type")
        kind = given.get("type")
        if kind in ("record", "error"):
            return self._record(given, space, path)
        if kind == "enum":
            return self._enum(given, space, path)
        if kind == "fixed":
            return self._fixed(given, space, path)
        if kind == "array":
            return AvroType("array", parts=[self.type_of(given.get("items"), space, (*path, "[]"))])
        if kind == "map":
            return AvroType("map", parts=[self.type_of(given.get("values"), space, (*path, "[]"))])
        if isinstance(kind, str) and kind in PRIMITIVES:
            return _with_logical(AvroType(kind), given)
        if kind is None:
            raise _bad(path, f"{dict(given)!r:.60} has no type")
        return self.type_of(kind, space, path)

    def _known(self, name: str, space: str, path: tuple[str, ...]) -> AvroType:
        found = self.named.get(_full(name, space)) or self.named.get(name)
        if found is None:
            raise _bad(path, f"{name!r} is neither a type of Avro nor declared before")
        return found

    def _union(self, given: Sequence[Any], space: str, path: tuple[str, ...]) -> AvroType:
        parts = [self.type_of(one, space, path) for one in given]
        told = [part.name or part.kind for part in parts]
        if not parts or "union" in told or len(set(told)) < len(told):
            raise _bad(path, f"a union has different types and no unions in it, not {', '.join(told) or 'nothing'}")
        return AvroType("union", parts=parts)

    def _named(self, kind: str, given: Mapping[str, Any], space: str, path: tuple[str, ...]) -> AvroType:
        name = given.get("name")
        space = given.get("namespace", space)
        if not isinstance(name, str) or not isinstance(space, str) or not all(map(_is_name, name.split("."))):
            raise _bad(path, f"{kind} with the name {name!r:.60}: a name is letters, digits and _, with dots between")
        whole = _full(name, space)
        if whole in self.named:
            raise _bad(path, f"{whole!r} is declared twice")
        within = whole.rpartition(".")[0]
        aliases = tuple(_full(alias, within) for alias in _texts(given, "aliases", path))
        made = self.named[whole] = AvroType(kind, name=whole, aliases=aliases)
        return made

    def _record(self, given: Mapping[str, Any], space: str, path: tuple[str, ...]) -> AvroType:
        made = self._named("record", given, space, path)
        listed = given.get("fields")
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            raise _bad(path, f"record {made.name!r} has no list of fields")
        within = made.name.rpartition(".")[0]
        for one in listed:
            name = one.get("name") if isinstance(one, Mapping) else None
            if not isinstance(name, str) or not _is_name(name):
                raise _bad(path, f"record {made.name!r} has a field whose name is {name!r:.60}")
            if name in [field.name for field in made.fields]:
                raise _bad(path, f"record {made.name!r} has two fields {name!r}")
            kind = self.type_of(one.get("type"), within, (*path, name))
            aliases = tuple(_texts(one, "aliases", (*path, name)))
            made.fields.append(AvroField(name, kind, aliases, one.get("default", NOTHING)))
        return made

    def _enum(self, given: Mapping[str, Any], space: str, path: tuple[str, ...]) -> AvroType:
        made = self._named("enum", given, space, path)
        made.symbols = tuple(_texts(given, "symbols", path))
        if not made.symbols or len(set(made.symbols)) < len(made.symbols):
            raise _bad(path, f"enum {made.name!r} has no symbols, or one twice")
        made.default = given.get("default")
        if made.default is not None and made.default not in made.symbols:
            raise _bad(path, f"the default {made.default!r:.60} of enum {made.name!r} is none of its symbols")
        return made

    def _fixed(self, given: Mapping[str, Any], space: str, path: tuple[str, ...]) -> AvroType:
        made = self._named("fixed", given, space, path)
        size = given.get("size")
        if type(size) is not int or not 0 <= size <= 1 << 20:
            raise _bad(path, f"the size of fixed {made.name!r} is {size!r:.60}; say a number of bytes")
        made.size = size
        return _with_logical(made, given)


def _with_logical(made: AvroType, given: Mapping[str, Any]) -> AvroType:
    """A logical type that does not fit its type is ignored, as the specification wants it."""
    logical = given.get("logicalType")
    if logical == "decimal" and made.kind in ("bytes", "fixed"):
        precision, scale = given.get("precision"), given.get("scale", 0)
        if type(precision) is int and type(scale) is int and 0 <= scale <= precision and precision > 0:
            made.logical, made.precision, made.scale = "decimal", precision, scale
    elif logical == "uuid" and (made.kind == "string" or (made.kind == "fixed" and made.size == UUID_BYTES)):
        made.logical = "uuid"
    elif (made.kind, logical) in _LOGICAL:
        made.logical = str(logical)
    return made


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _texts(given: Mapping[str, Any], what: str, path: tuple[str, ...]) -> list[str]:
    texts = given.get(what, [])
    if (
        not isinstance(texts, Sequence)
        or isinstance(texts, str)
        or not all(isinstance(text, str) and text for text in texts)
    ):
        raise _bad(path, f"{what} is {texts!r:.60}, not a list of names")
    return list(texts)


def _bad(path: Sequence[str], message: str) -> BadSchema:
    return BadSchema(f"{joined(path)}: {message}" if path else message)


def joined(path: Sequence[str]) -> str:
    """Where in a value: ``address.lines[]``."""
    return ".".join(path).replace(".[]", "[]")


def column_type(kind: AvroType, path: tuple[str, ...] = (), around: tuple[AvroType, ...] = ()) -> Any:
    """
    What values of this type are in Arrow: a ``pyarrow.DataType``.

    Raises:
        BadSchema: no column can hold them.
    """
    if kind in around:
        raise _bad(path, f"record {kind.name!r} holds itself, which no column can; leave the field out")
    if kind.kind == "union":
        return column_type(_only(kind, path), path, around)
    if kind.kind == "record":
        inside = (*around, kind)
        return pa.struct([column_of(one.name, one.type, (*path, one.name), inside) for one in kind.fields])
    if kind.kind == "array":
        return arrow.list_(column_of("item", kind.parts[0], (*path, "[]"), around))
    if kind.kind == "map":
        return arrow.map_(pa.string(), column_of("value", kind.parts[0], (*path, "[]"), around))
    if kind.logical == "decimal":
        if kind.precision > _PRECISION_MAX:
            raise _bad(path, f"a decimal of {kind.precision} digits; columns hold up to {_PRECISION_MAX}")
        return pa.decimal128(kind.precision, kind.scale)
    if kind.logical == "uuid":
        return pa.string()
    return _LOGICAL[kind.kind, kind.logical] if kind.logical else _PLAIN[kind.kind]


def column_of(
    name: str, kind: AvroType, path: tuple[str, ...] = (), around: tuple[AvroType, ...] = ()
) -> pa.Field[Any]:
    """
    A column; it may be null where the type is null or a union with null.

    Raises:
        BadSchema: no column can hold such values.
    """
    return pa.field(name, column_type(kind, path, around), nullable=may_be_null(kind))


def may_be_null(kind: AvroType) -> bool:
    """Whether null is among the values of this type."""
    return kind.kind == "null" or any(part.kind == "null" for part in kind.parts if kind.kind == "union")


def _only(union: AvroType, path: tuple[str, ...]) -> AvroType:
    branch = branch_of(union)
    if branch is None:
        raise _bad(path, f"{union} has no column type; a union is null and one other type")
    return branch


def branch_of(union: AvroType) -> AvroType | None:
    """The type that a column of the union has; None: it has several."""
    values = [part for part in union.parts if part.kind != "null"]
    return values[0] if len(values) == 1 else union.parts[0] if not values else None


def columns_of(kind: AvroType) -> pa.Schema:
    """
    The columns of values of this type: the fields of a record; else the one column ``value``.

    Raises:
        BadSchema: there is no column for one.
    """
    if kind.kind != "record":
        return pa.schema([column_of("value", kind)])
    return pa.schema(list(column_type(kind)))


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
