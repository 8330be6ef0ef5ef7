"""Debezium's envelope taken apart: rows, deletes, and truncations, which stand between rows in the order of offsets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace_connect.plugin import Rows

Array: TypeAlias = "pa.Array[Any]"
_ROW_OPS: Final = ("c", "r", "u")
_DELETE: Final = "d"
_TRUNCATE: Final = "t"


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Records that follow each other: rows and deletes, or truncations."""

    start: int
    """Index of the first in what was given."""
    rows: Rows
    """Their values are rows; null: a delete."""
    wrong: dict[int, str]
    """By the index in ``rows``."""
    truncates: bool = False


def parts_of(rows: Rows, form: str) -> Iterator[Part]:
    """
    Parts in the order of their offsets.

    Args:
        form: ``flat``: the values are rows. ``debezium``: they are envelopes.
    """
    if form == "flat":
        yield Part(0, rows, {})
        return
    ops = _ops(rows.values)
    unwrapped = replace(rows, values=_afters(rows.values))
    wrong = _wrong(rows.values, unwrapped.values, ops)
    for truncates, run in groupby(range(len(rows)), key=lambda row: ops[row] == _TRUNCATE and row not in wrong):
        places = list(run)
        start, count = places[0], len(places)
        own = {row - start: wrong[row] for row in places if row in wrong}
        yield Part(start, unwrapped.slice(start, count), own, truncates)


def _ops(values: Array) -> list[str | None]:
    found = _field(values, "op")
    if found is None or not pa.types.is_string(found.type):
        return [None] * len(values)
    ops: list[str | None] = found.to_pylist()
    return ops


def _afters(values: Array) -> Array:
    found = _field(values, "after")
    return pa.nulls(len(values)) if found is None else found


def _field(values: Any, name: str) -> Array | None:
    """Nulls where the value is null."""
    if not isinstance(values, pa.StructArray) or values.type.get_field_index(name) < 0:
        return None
    found: Array = pc.struct_field(values, name)
    return found


def _wrong(values: Array, afters: Array, ops: list[str | None]) -> dict[int, str]:
    wrong: dict[int, str] = {}
    has_value, has_after = values.is_valid().to_pylist(), afters.is_valid().to_pylist()
    for row, op in enumerate(ops):
        if not has_value[row] or op in (_DELETE, _TRUNCATE):
            continue
        if op not in _ROW_OPS:
            wrong[row] = (
                f"the value is no envelope of a row: its op is {op!r}. Set value.form=flat for values that are rows"
            )
        elif not has_after[row]:
            wrong[row] = f"the envelope has the op {op!r}, and no row in after"
    return wrong
