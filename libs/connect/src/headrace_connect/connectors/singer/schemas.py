"""
A stream's JSON Schema as a type of Arrow, and how values become those of it.

What has no type of its own, as an object whose properties nobody says, is text with JSON in it. Nothing is rounded or
cut: a value that does not fit is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from headrace_connect.connectors.singer.moments import read_date, read_instant, read_time

arrow: Any = pa
"""Its stubs are narrower than it is."""
DEPTH_MAX: Final = 16
"""Objects and lists in one another; what is deeper is text."""
_DIGITS: Final = (38, 76)
_EXACT_MAX: Final = 1 << 53
_NULL: Final = "null"


class UnfitSchema(ValueError):
    """A schema that describes no records; says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What values of one place are."""

    arrow: Any
    """The type."""
    read: Callable[[Any], Any] | None = None
    """
    From a value as JSON has it, not null, to one that Arrow takes; None: Arrow looks by itself. Raises ValueError.
    """
    exact: bool = False
    """Whether numbers must be read with all of their digits."""
    nullable: bool = True


def kind_of(schema: Mapping[str, Any], *, drop_extra: bool) -> Kind:
    """
    Of records.

    Args:
        drop_extra: properties that the schema does not have are left out; else such a record is refused.

    Raises:
        UnfitSchema: it is no schema of objects with properties.
    """
    found = _Compiler(schema, drop_extra).compile(schema, 0)
    if not pa.types.is_struct(found.arrow):
        raise UnfitSchema("it has no properties")
    return found


@dataclass(frozen=True, slots=True)
class _Compiler:
    root: Mapping[str, Any]
    drop_extra: bool
    within: frozenset[str] = frozenset()
    """References that are being followed: one that leads to itself is text."""

    def compile(self, schema: Any, depth: int) -> Kind:
        """Of values at one place."""
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if isinstance(reference, str):
            within = self.within | {reference}
            target = {} if reference in self.within else self._resolve(reference)
            return _Compiler(self.root, self.drop_extra, within).compile(target, depth + 1)
        kinds: list[Kind] = []
        nullable = False
        for type_, of in self._alternatives(schema, depth):
            nullable = nullable or type_ == _NULL
            if type_ == "$ref":
                kinds.append(self.compile(of, depth + 1))
                nullable = nullable or kinds[-1].nullable
            elif type_ != _NULL:
                kinds.append(self._single(type_, of, depth))
        found = _common(kinds)
        return Kind(found.arrow, found.read, found.exact, nullable)

    def _alternatives(self, schema: Any, depth: int) -> list[tuple[str, Mapping[str, Any]]]:
        """Types that a value may have; ``any``: nobody says it."""
        if not isinstance(schema, dict) or depth > DEPTH_MAX:
            return [("any", {}), (_NULL, {})]
        if isinstance(schema.get("$ref"), str):
            return [("$ref", schema)]
        for word in ("anyOf", "oneOf"):
            choices = schema.get(word)
            if isinstance(choices, list) and choices:
                around = {key: value for key, value in schema.items() if key != word}
                parts = [{**around, **one} if isinstance(one, dict) else one for one in choices]
                return [found for part in parts for found in self._alternatives(part, depth + 1)]
        given = schema.get("type")
        types = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        if not types:
            guess = "object" if "properties" in schema else "array" if "items" in schema else "any"
            return [(guess, schema), (_NULL, schema)]
        return [(str(one), schema) for one in types]

    def _resolve(self, reference: str) -> Any:
        at: Any = self.root
        for part in reference.removeprefix("#").strip("/").split("/"):
            at = at.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(at, dict) else None
        return at

    def _single(self, type_: str, schema: Mapping[str, Any], depth: int) -> Kind:
        match type_:
            case "boolean":
                return Kind(pa.bool_())
            case "integer":
                return _WHOLE
            case "number":
                return _number(schema.get("multipleOf"))
            case "string":
                return _FORMATS.get(str(schema.get("format")), _STRING)
            case "object" if schema.get("properties"):
                return self._object(schema, depth)
            case "array" if isinstance(schema.get("items"), dict) and schema["items"]:
                return _list(self.compile(schema["items"], depth + 1))
        return _TEXT

    def _object(self, schema: Mapping[str, Any], depth: int) -> Kind:
        properties, required = schema["properties"], schema.get("required")
        if not isinstance(properties, dict):
            return _TEXT
        needed = set(required) if isinstance(required, list) else set()
        kinds = {str(name): self.compile(of, depth + 1) for name, of in properties.items()}
        fields = [pa.field(name, one.arrow, nullable=one.nullable or name not in needed) for name, one in kinds.items()]
        exact = any(one.exact for one in kinds.values())
        return Kind(pa.struct(fields), _object_reader(kinds, drop_extra=self.drop_extra), exact)


def _object_reader(kinds: Mapping[str, Kind], *, drop_extra: bool) -> Callable[[Any], Any]:
    reads = [(name, kind.read) for name, kind in kinds.items() if kind.read is not None]
    names = kinds.keys()

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise ValueError(f"is no object: {_shown(value)}")
        if not drop_extra and not value.keys() <= names:
            extra = next(name for name in value if name not in names)
            raise ValueError(f"has {extra[:80]!r}, which its schema does not have; extra.properties=drop leaves it out")
        if not reads:
            return value
        made = dict(value)
        for name, read_one in reads:
            given = value.get(name)
            if given is not None:
                made[name] = _named(name, read_one, given)
        return made

    return read


def _named(name: str, read: Callable[[Any], Any], given: Any) -> Any:
    try:
        return read(given)
    except (ValueError, ArithmeticError) as wrong:
        raise ValueError(f"{name}: {wrong}") from None


def _list(item: Kind) -> Kind:
    read_one = item.read
    kind = arrow.list_(pa.field("item", item.arrow, nullable=True))
    if read_one is None:
        return Kind(kind, _is_list, item.exact)

    def read(value: Any) -> Any:
        return [None if one is None else read_one(one) for one in _is_list(value)]

    return Kind(kind, read, item.exact)


def _is_list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"is no list: {_shown(value)}")
    return value


def _common(kinds: Sequence[Kind]) -> Kind:
    """One that takes what each of them does."""
    different: list[Kind] = []
    for kind in kinds:
        if not any(kind.arrow == one.arrow and kind.read is one.read for one in different):
            different.append(kind)
    if len(different) == 1:
        return different[0]
    if different and all(one is _STRING or one in _FORMATS.values() for one in different):
        return _STRING
    if different and all(one is _WHOLE or one is _DOUBLE or one.read is _decimal for one in different):
        return _DOUBLE if _DOUBLE in different else max(different, key=lambda one: getattr(one.arrow, "scale", -1))
    return _TEXT


def _number(multiple: Any) -> Kind:
    """``multipleOf`` 0.01 is a decimal with two digits behind the point."""
    try:
        step = Decimal(str(multiple)).normalize() if multiple is not None else None
    except InvalidOperation:
        return _DOUBLE
    if step is None or not step.is_finite():
        return _DOUBLE
    sign, digits, exponent = step.as_tuple()
    assert isinstance(exponent, int), "a finite number has one"
    if sign or digits != (1,) or not -_DIGITS[0] <= exponent <= 0:
        return _DOUBLE
    scale = -exponent
    kind = pa.decimal128(_DIGITS[0], scale) if scale <= _DIGITS[0] // 2 else pa.decimal256(_DIGITS[1], scale)
    return Kind(kind, _decimal, exact=True)


def _decimal(value: Any) -> Decimal:
    if type(value) is int or type(value) is Decimal:
        return Decimal(value)
    raise ValueError(f"is no number: {_shown(value)}")


def _whole(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        if -(1 << 63) <= value < 1 << 63:
            return value
        raise ValueError(f"is beyond 64 bits: {_shown(value)}")
    if isinstance(value, float | Decimal) and -_EXACT_MAX <= value <= _EXACT_MAX and value == int(value):
        return int(value)
    raise ValueError(f"is no whole number of 64 bits: {_shown(value)}")


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is Decimal:
        return float(value)
    if type(value) is int:
        if value == float(value):
            return float(value)
        raise ValueError(f"is a whole number that a double would round: {_shown(value)}")
    raise ValueError(f"is no number: {_shown(value)}")


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    raise ValueError(f"is no text: {_shown(value)}")


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> float:
    if isinstance(value, Decimal):
        return float(value)
    raise ValueError(f"{type(value).__name__} has no form in JSON")


def _shown(value: Any) -> str:
    return repr(value)[:80]


_WHOLE: Final = Kind(pa.int64(), _whole)
_DOUBLE: Final = Kind(pa.float64(), _double)
_STRING: Final = Kind(pa.string(), _string)
_TEXT: Final = Kind(pa.string(), _text, exact=True)
_FORMATS: Final[Mapping[str, Kind]] = {
    "date-time": Kind(pa.timestamp("us", "UTC"), read_instant),
    "date": Kind(pa.date32(), read_date),
    "time": Kind(pa.time64("us"), read_time),
}
