"""
Rows brought to the columns of their table, which grow with them: exact, or the row is wrong. Nothing is cut or rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import compute

from headrace_common.core.errors import InvalidConfig
from headrace_connect.core.drift import Drift
from headrace_connect.core.halving import apart
from headrace_connect.core.kinds import EXACT_MAX, WIDE, Apart, Kind, fitted, merged

Array = Any
"""An Arrow array; its stubs are narrower than it is."""
pc: Any = compute
_FAMILIES: Final[tuple[Callable[[Kind], bool], ...]] = (
    lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind),
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind),
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
    pa.types.is_date,
    pa.types.is_time,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """How a table may grow."""

    drift: Drift
    widens: bool
    """Whether a column may get a wider type."""
    find_unstorable: Callable[[Kind], str | None]
    """Why no column can be of a type; None: it can."""
    normal: Callable[[Kind], Kind]
    """The type that a column gets for fields of a type."""
    find_unfit: Callable[[Array], Mapping[int, str]]
    """Of values that have a column's type: those that it has no form of, and why."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Rows as their table takes them."""

    rows: pa.Table
    schema: pa.Schema
    """Of the table, with what the rows add to it."""
    wrong: dict[int, str]
    """The rows that it cannot take, and why."""


def fit(rows: pa.Table, known: pa.Schema | None, rules: Rules) -> Fitted:
    """
    Args:
        known: of the table; None: there is none yet.

    Raises:
        InvalidConfig: ``drift`` is ``fail``, and there is some.
    """
    fields = {} if known is None else {field.name: field for field in known}
    columns: dict[str, Array] = {}
    wrong: dict[int, str] = {}
    for given, column in zip(rows.schema, rows.itercolumns(), strict=True):
        array = _plain(column)
        field = pa.field(given.name, rules.normal(array.type), True, _marks(given, array))
        if pa.types.is_null(field.type):
            continue  # it has no type yet
        target = _target(field, fields.get(given.name), rules, is_new=known is None)
        if isinstance(target, str):
            reasons = dict.fromkeys(_valid(array), target)
        elif target is None:
            continue
        else:
            fields[given.name] = target
            columns[given.name], reasons = _exact(array, target.type)
            if not reasons:
                reasons = dict(rules.find_unfit(columns[given.name]))
        for row, reason in reasons.items():
            wrong.setdefault(row, f"field {given.name!r}: {reason}")
    schema = pa.schema(list(fields.values()))
    filled = [columns[name] if name in columns else pa.nulls(len(rows), field.type) for name, field in fields.items()]
    return Fitted(pa.Table.from_arrays(filled, schema=schema) if not wrong else rows, schema, wrong)


def refit(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """
    Rows of a table that has grown since.

    Raises:
        pa.ArrowException: a value would be rounded.
    """
    if rows.schema.equals(schema):
        return rows
    names = set(rows.column_names)
    columns = [
        fitted(rows.column(field.name).combine_chunks(), field.type)
        if field.name in names
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _target(field: Any, known: Any, rules: Rules, *, is_new: bool) -> Any:
    """The column of a field; None: it is left out; a text: why no column takes it."""
    if known is None:
        reason = rules.find_unstorable(field.type)
        if reason is not None:
            return reason
        if is_new or rules.drift == Drift.ADD:
            return field
        return _drifted(field, rules, "the table has no such column")
    both = None
    try:
        both = merged(known, field, widen=rules.widens)
    except Apart:
        pass
    if both is not None and rules.drift == Drift.ADD and rules.find_unstorable(both.type) is None:
        return both
    other = f"it is {field.type}, and the column is {known.type}"
    if rules.drift != Drift.IGNORE and _has_more(field.type, known.type):
        return _drifted(field, rules, other)
    if not _goes_into(field.type, known.type):
        return other if rules.drift != Drift.FAIL else _drifted(field, rules, other)
    return known


def _drifted(field: Any, rules: Rules, what: str) -> str | None:
    if rules.drift == Drift.IGNORE:
        return None
    if rules.drift == Drift.FAIL:
        raise InvalidConfig(f"field {field.name!r}: {what}; change the table, or set drift to add, strict or ignore")
    return f"{what}, and drift is {rules.drift}"


def _plain(column: Any) -> Array:
    array: Array = column.combine_chunks()
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _marks(field: Any, array: Array) -> Any:
    """Whole numbers that are no doubles: the column can never become one of doubles."""
    metadata = {WIDE: b""} if WIDE in (field.metadata or {}) else {}
    if pa.types.is_integer(array.type) and array.type.bit_width == 64:
        least, most = pc.min_max(array).values()
        if most.is_valid and max(most.as_py(), -least.as_py()) > EXACT_MAX:
            metadata = {WIDE: b""}
    return metadata or None


def _valid(array: Array) -> list[int]:
    return [row for row, valid in enumerate(array.is_valid().to_pylist()) if valid]


def _exact(array: Array, kind: Kind) -> tuple[Array, dict[int, str]]:
    results, failed = apart(array, lambda part: fitted(part, kind))
    if failed:
        return array, failed
    return (results[0][1] if len(results) == 1 else pa.nulls(0, kind)), {}


def _has_more(kind: Kind, known: Kind) -> bool:
    """Whether a struct in it has fields that are not known."""
    types = pa.types
    if types.is_struct(kind) and types.is_struct(known):
        fields = {field.name: field.type for field in known}
        return any(
            (one.name not in fields and not types.is_null(one.type))
            or (one.name in fields and _has_more(one.type, fields[one.name]))
            for one in kind
        )
    if types.is_list(kind) and types.is_list(known):
        return _has_more(kind.value_type, known.value_type)
    return False


def _goes_into(kind: Kind, known: Kind) -> bool:
    """Whether values of the type may be values of the other, and Arrow's cast fails where they are not."""
    types = pa.types
    if kind == known or types.is_null(kind):
        return True
    if types.is_struct(kind) and types.is_struct(known):
        fields = {field.name: field.type for field in known}
        return all(one.name not in fields or _goes_into(one.type, fields[one.name]) for one in kind)
    if types.is_list(kind) and types.is_list(known):
        return _goes_into(kind.value_type, known.value_type)
    if types.is_floating(kind) and types.is_floating(known):
        return bool(kind.bit_width <= known.bit_width)  # a narrower one rounds
    if types.is_floating(kind) or types.is_floating(known):
        return bool(types.is_integer(kind) or types.is_integer(known))
    return any(family(kind) and family(known) for family in _FAMILIES)
