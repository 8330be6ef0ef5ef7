"""Aggregates by Spark: the fields that Streams keeps of a group, computed by Spark's own functions."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f

from headrace_streams.core.operators.aggregate import Aggregated, Groups
from headrace_streams.core.operators.windows import Hopping, Session
from headrace_streams.core.rows import TIME


def window_of(window: Hopping | Session) -> Column:
    """The windows that a row is in."""
    if isinstance(window, Session):
        # Both ends are in. Times are whole ms, so half a ms more makes no difference but to the end.
        return f.session_window(TIME, f"{window.gap_ms * 1_000 + 500} microseconds")
    offset = window.offset_ms % window.advance_ms
    size, advance = f"{window.size_ms} milliseconds", f"{window.advance_ms} milliseconds"
    return f.window(TIME, size, advance, f"{offset} milliseconds")


def fields(groups: Groups) -> list[Column]:
    """Of each group what ``groups`` keeps in a slot: columns ``f0``, ``f1`` and so on."""
    found = [column for one in groups.columns for column in _fields(one)]
    newest = f.max(f.unix_millis(TIME))
    return [column.alias(f"f{place}") for place, column in enumerate([*found, newest])]


def _fields(one: Aggregated) -> list[Column]:
    if one.column is None:
        return [f.count(f.lit(1))]
    given, field = f.col(one.column), one.function.fields[0]
    count = f.count(given)
    match one.kind:
        case "count":
            return [count]
        case "distinct":
            return [f.collect_set(given)]
        case "min" | "max" if field.is_object:
            return [f.min(given) if one.kind == "min" else f.max(given)]
        case "min" | "max":
            number = _number(given, one.function.type)
            found = f.min(number) if one.kind == "min" else f.max(number)
        case "any" | "all":
            number = given.cast("long")
            found = f.max(number) if one.kind == "any" else f.min(number)
        case "sum":
            found = f.sum(given.cast("double" if pa.types.is_floating(one.function.type) else "long"))
        case "mean":
            found = f.sum(given.cast("double"))
        case _:
            assert one.kind == "var", one.kind
            none = f.lit(0.0)
            mean, squares = f.avg(given.cast("double")), f.var_pop(given.cast("double")) * count
            return [f.coalesce(mean, none), none, f.coalesce(squares, none), count]
    return [f.coalesce(found, f.lit(field.initial)), count]


def _number(given: Column, kind: pa.DataType) -> Column:
    """As slots keep such values."""
    if pa.types.is_timestamp(kind):
        return f.unix_millis(given)
    if pa.types.is_date32(kind):
        return f.unix_date(given).cast("long")
    return given.cast("double" if pa.types.is_floating(kind) else "long")


def contributions(groups: Groups) -> list[Column]:
    """What each row is alone in a group: what would be combined before a repartition topic."""
    found = [f.col(key.name) for key in groups.keys]
    for one in groups.columns:
        if one.kind == "count":
            given = f.lit(1) if one.column is None else f.col(one.column).isNotNull().cast("long")
        else:
            assert one.column is not None
            given = f.col(one.column)
        found.append(given.alias(one.name))
    return found
