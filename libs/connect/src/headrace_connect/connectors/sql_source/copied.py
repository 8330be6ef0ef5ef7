"""Rows as text of PostgreSQL's types, as COPY sends them, made into columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import csv

from headrace_connect.connectors.sql_source.database import Page
from headrace_connect.connectors.sql_source.statements import Selection
from headrace_connect.core.json_text import dump
from headrace_connect.core.pgoutput.messages import Column as TypedColumn
from headrace_connect.core.pgoutput.messages import Relation
from headrace_connect.core.values import Columns, ValueModes
from headrace_connect.plugin import BadItem

Array: TypeAlias = "pa.Array[Any]"


@dataclass(frozen=True, slots=True)
class Typed:
    """A column, as a result has it."""

    name: str
    oid: int
    modifier: int


def make_page(selection: Selection, typed: Sequence[Typed], rows: Sequence[bytes], *, cut: bool) -> Page:
    """
    Args:
        rows: lines of CSV, in which all but nulls is quoted: the columns, and behind them those of the order.
    """
    return page_of(selection, typed, _parse(rows, len(typed) + len(selection.order.columns)), cut=cut)


def page_of(selection: Selection, typed: Sequence[Typed], texts: Sequence[Array], *, cut: bool) -> Page:
    """
    Args:
        texts: the columns (binary), and behind them those of the order.
    """
    count = len(texts[0])
    columns, of_order = texts[: len(typed)], texts[len(typed) :]
    name = selection.subject.name
    described = tuple(TypedColumn(one.name, one.oid, one.modifier, is_key=False) for one in typed)
    struct, problems = Columns(Relation(0, "", name, "n", described), ValueModes()).convert_texts(columns)
    bad: list[BadItem] = []
    if problems:
        for row, cause in sorted(problems.items()):
            place = ", ".join(
                f"{one}={_shown(array, row)}" for one, array in zip(selection.order.names, of_order, strict=True)
            )
            raw = {one.name: _shown(array, row) for one, array in zip(typed, columns, strict=True)}
            bad.append(BadItem(dump(raw).encode(), cause.removeprefix(".") + (f", where {place}" if place else "")))
        good: Any = pa.array([row for row in range(count) if row not in problems], pa.int64())
        struct = struct.take(good)
    last = tuple(_shown(array, count - 1) or "" for array in of_order) if count else ()
    return Page(struct, bad, count, last, cut)


def _shown(array: Array, row: int) -> str | None:
    value: Any = array[row].as_py()
    return None if value is None else value.decode(errors="replace")


def _parse(rows: Sequence[bytes], count: int) -> list[Array]:
    """Columns of lines of CSV, in which all but nulls is quoted."""
    if not rows:
        return [pa.array([], pa.binary())] * count
    data = b"".join(rows)
    names = [str(place) for place in range(count)]
    table = csv.read_csv(
        BytesIO(data),
        read_options=csv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [table.column(name).combine_chunks() for name in names]
