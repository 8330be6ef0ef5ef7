"""
Columns of a topic, as users declare them: text as in Spark's DDL, a dataclass, a pydantic model or an Arrow schema.

Formats call ``parse_schema``; errors and descriptions name types with ``type_text``.
"""

from __future__ import annotations

import re
import types
import typing
from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime
from typing import Annotated, Any, Final, NoReturn

import pyarrow as pa

from headrace.errors import InvalidConfig

_arrow: Any = pa  # its stubs are narrower than it is
TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")
SCALARS: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
}
_TYPES: Final = f"{', '.join(SCALARS)}, decimal(p,s), array<type>, map<string,type> or struct<name: type, ...>"
_OF_PYTHON: Final[dict[Any, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime: TIMESTAMP,
    date: pa.date32(),
}
_TOKEN: Final = re.compile(r"`(?P<quoted>(?:[^`]|``)+)`|(?P<word>\w+)|(?P<mark>[<>(),:])")
_SPACE: Final = re.compile(r"\s*")


def parse_schema(given: str | pa.Schema | type) -> pa.Schema:
    """
    The columns that ``given`` declares.

    An Arrow schema is taken as it is. Of a class, a field without a default whose type does not allow None becomes a
    column that may not be null; ``Annotated[Decimal, "decimal(10,2)"]`` gives a field any type of the DDL.

    Raises:
        InvalidConfig: says where and what would be right.
    """
    if isinstance(given, pa.Schema):
        schema = given
    else:
        try:
            schema = pa.schema(_declared(given))
        except RecursionError:
            raise InvalidConfig(f"{given!r:.100}: its types are nested too deeply; no column can hold itself") from None
    _check_names(schema)
    return schema


def type_text(kind: pa.DataType) -> str:
    """How the DDL writes ``kind``; for a type that it does not have, Arrow's name."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)},{type_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{_name_text(field.name)}: {type_text(field.type)}' for field in kind)}>"
    return next((name for name, scalar in SCALARS.items() if scalar == kind), str(kind))


def _declared(given: str | type) -> list[pa.Field[Any]]:
    if isinstance(given, str):
        return _Parser(given).whole()
    if _is_model(given):
        return _class_fields(given)
    raise InvalidConfig(
        f"{given!r} is not a schema; take text like 'user string, amount double', a dataclass, "
        "a pydantic model or a pyarrow schema"
    )


def without_times(kind: Any) -> Any:
    """
    The type with whole numbers for times, as Avro has them: Python's times do not hold nanoseconds, and end with the
    year 9999.
    """
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(without_times(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return _arrow.list_(without_times(kind.value_type))
    if pa.types.is_map(kind):
        return _arrow.map_(kind.key_type, without_times(kind.item_type))
    if pa.types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return kind


def _check_names(schema: pa.Schema) -> None:
    if not len(schema):
        raise InvalidConfig("the schema has no column; declare at least one, as in 'user string'")
    counts = Counter(schema.names)
    for name, count in counts.items():
        if count > 1:
            raise InvalidConfig(f"column {name!r} is declared twice; rename one")
        if name.startswith("_"):
            raise InvalidConfig(f"column {name!r}: a leading underscore is for system columns like _key; rename it")


def _name_text(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else f"`{name.replace('`', '``')}`"


class _Parser:
    """Reads one text from left to right; ``at`` is the place of the next token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._skip_space()

    def whole(self) -> list[pa.Field[Any]]:
        if self.at == len(self.text):
            return []
        columns = self._separated(self._field)
        if self.at < len(self.text):
            self._fail("a comma or the end is expected")
        return columns

    def _field(self) -> pa.Field[Any]:
        match = self._match()
        if match is None or match["mark"]:
            self._fail("a name is expected; write other characters than letters, digits and _ in `backticks`")
        self._pass(match)
        name = match["word"] or match["quoted"].replace("``", "`")
        self._skip(":")
        return pa.field(name, self._type())

    def _type(self) -> pa.DataType:
        match = self._match()
        word = match["word"].lower() if match and match["word"] else ""
        if word in SCALARS:
            self._pass(match)
            return SCALARS[word]
        parse = {"decimal": self._decimal, "array": self._array, "map": self._map, "struct": self._struct}.get(word)
        if parse is None:
            self._fail(f"a type is expected: {_TYPES}")
        self._pass(match)
        return parse()

    def _decimal(self) -> pa.DataType:
        self._expect("(", "decimal(10,2)")
        start = self.at
        precision = self._number()
        self._expect(",", "decimal(10,2)")
        scale = self._number()
        if not (1 <= precision <= 38 and scale <= precision):
            self.at = start
            self._fail("a decimal has 1 to 38 digits, and no more than these after the point")
        self._expect(")", "decimal(10,2)")
        return pa.decimal128(precision, scale)

    def _array(self) -> pa.DataType:
        self._expect("<", "array<string>")
        items = self._type()
        self._expect(">", "array<string>")
        return pa.list_(items)

    def _map(self) -> pa.DataType:
        self._expect("<", "map<string,int>")
        start = self.at
        if self._type() != pa.string():
            self.at = start
            self._fail("the keys of a map are string")
        self._expect(",", "map<string,int>")
        items = self._type()
        self._expect(">", "map<string,int>")
        return pa.map_(pa.string(), items)

    def _struct(self) -> pa.DataType:
        self._expect("<", "struct<city: string>")
        start = self.at
        columns = self._separated(self._field)
        names = [column.name for column in columns]
        if len(set(names)) < len(names):
            self.at = start
            self._fail("a field of this struct is declared twice; rename one")
        self._expect(">", "struct<city: string>")
        return pa.struct(columns)

    def _separated(self, parse: Callable[[], pa.Field[Any]]) -> list[pa.Field[Any]]:
        parts = [parse()]
        while self._skip(","):
            parts.append(parse())
        return parts

    def _number(self) -> int:
        match = self._match()
        if match is None or not (match["word"] or "").isdecimal():
            self._fail("a whole number is expected, as in decimal(10,2)")
        self._pass(match)
        return int(match["word"])

    def _expect(self, mark: str, example: str) -> None:
        if not self._skip(mark):
            self._fail(f"{mark!r} is expected, as in {example}")

    def _skip(self, mark: str) -> bool:
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        self._skip_space()
        return True

    def _match(self) -> re.Match[str] | None:
        return _TOKEN.match(self.text, self.at)

    def _pass(self, match: re.Match[str] | None) -> None:
        assert match is not None
        self.at = match.end()
        self._skip_space()

    def _skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def _fail(self, message: str) -> NoReturn:
        match = self._match()
        there = repr(match[0] if match else self.text[self.at]) if self.at < len(self.text) else "the end"
        raise InvalidConfig(f"schema {self.text!r}, character {self.at + 1}, at {there}: {message}")


def _is_model(given: Any) -> bool:
    return isinstance(given, type) and (is_dataclass(given) or hasattr(given, "model_fields"))


def _class_fields(model: Any) -> list[pa.Field[Any]]:
    try:
        hints = typing.get_type_hints(model, include_extras=True)
    except NameError as failed:
        raise InvalidConfig(f"{model.__name__}: {failed}; define the types of its fields in its module") from None
    return [_class_field(model, name, hints[name], default) for name, default in _members(model)]


def _members(model: Any) -> list[tuple[str, bool]]:
    """The fields of a class, and whether they have a default."""
    if is_dataclass(model):
        return [(m.name, m.default is not MISSING or m.default_factory is not MISSING) for m in fields(model)]
    return [(name, not member.is_required()) for name, member in model.model_fields.items()]


def _class_field(model: Any, name: str, hint: Any, has_default: bool) -> pa.Field[Any]:
    kind, optional = _of_hint(hint, f"{model.__name__}.{name}")
    return pa.field(name, kind, nullable=optional or has_default)


def _of_hint(hint: Any, place: str) -> tuple[pa.DataType, bool]:
    """The column type of a Python type, and whether it allows None."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        declared = next((extra for extra in inner[1:] if isinstance(extra, str)), None)
        if declared is None:
            return _of_hint(inner[0], place)
        return parse_schema(f"value {declared}").field(0).type, type(None) in typing.get_args(inner[0])
    if origin in (typing.Union, types.UnionType) and type(None) in inner and len(inner) == 2:
        return _of_hint(next(part for part in inner if part is not type(None)), place)[0], True
    if hint in _OF_PYTHON:
        return _OF_PYTHON[hint], False
    if origin is list:
        return pa.list_(_of_hint(inner[0], place)[0]), False
    if origin is dict and inner[0] is str:
        return pa.map_(pa.string(), _of_hint(inner[1], place)[0]), False
    if _is_model(hint):
        return pa.struct(_class_fields(hint)), False
    raise InvalidConfig(
        f"{place}: {getattr(hint, '__name__', hint)} has no column type; take bool, int, float, str, bytes, datetime, "
        'date, list[...], dict[str, ...], another such class, or name it: Annotated[Decimal, "decimal(10,2)"]'
    )
