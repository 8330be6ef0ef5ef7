"""``python:module:function``: a function of the user's over tables of values, or over records."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace_common.core.batch.arrow_schema import headers_type
from headrace_common.runtime.modules import load_file
from headrace_connect.core.batch import HEADERS, KEY, OFFSET, PARTITION, TIMESTAMP, TOPIC, VALUE, Batch
from headrace_connect.core.halving import CAUGHT, Unfit
from headrace_connect.core.kinds import Apart, merged, nulls_of, struct_of
from headrace_connect.core.options import BadOption
from headrace_connect.transforms.port import Fields, Transform, with_nulls

arrow: Any = pa  # its stubs are narrower than it is
PREFIX: Final = "python:"
TABLE: Final = "table"
RECORD: Final = "record"
SETTINGS: Final = "settings"
_CHANGED: Final = (TOPIC, PARTITION, TIMESTAMP, KEY, VALUE, HEADERS)
"""Of a record: what a function may change."""
Function = Callable[..., Any]


def make_python(given: str, settings: Mapping[str, str]) -> Transform:
    """
    The transform of ``python:package.module:function`` or ``python:file.py:function``. By its parameters the function
    takes ``table`` or ``record``, and ``settings``: the other keys of the transform.

    Raises:
        BadOption: there is no such function, or it takes something else.
    """
    where, _, name = given.removeprefix(PREFIX).rpartition(":")
    if not where or not name:
        raise BadOption("type", f"{given[:80]!r} is written python:package.module:function or python:file.py:function")
    function = getattr(_load(where), name, None)
    if not callable(function) or inspect.isclass(function) or inspect.iscoroutinefunction(function):
        raise BadOption("type", f"{where} has no plain function {name[:80]!r}")
    takes = list(inspect.signature(function).parameters)
    if set(takes) - {TABLE, RECORD, SETTINGS} or len({TABLE, RECORD} & set(takes)) != 1:
        raise BadOption(
            "type",
            f"{name[:80]} takes {', '.join(takes)[:80] or 'nothing'}; it takes table or record, and settings if "
            "it wants them",
        )
    if settings and SETTINGS not in takes:
        raise BadOption(sorted(settings)[0], f"is no setting: {name[:80]} takes no settings")
    more = {SETTINGS: dict(settings)} if SETTINGS in takes else {}
    return OverTables(function, more) if TABLE in takes else OverRecords(function, more)


def _load(where: str) -> ModuleType:
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        if Path(where).is_file():
            return load_file(Path(where))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a module does when it is imported
        raise BadOption("type", f"{where[:80]} cannot be imported: {error!r}") from None
    raise BadOption("type", f"there is no file {where[:80]}")


class OverTables:
    """
    A function that gets the fields of the values as a ``pa.Table``, and gives a table of as many rows in their order.
    Values without fields are the column ``value``. Null values stay as they are.
    """

    def __init__(self, function: Function, more: Mapping[str, Any]) -> None:
        self._function = function
        self._more = more

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        nulls = nulls_of(batch.column(VALUE))
        present = batch.filter(~nulls) if nulls.any() else batch
        if not len(present):
            return batch
        array = present.column(VALUE)
        has_fields = pa.types.is_struct(array.type)
        if has_fields:
            fields = Fields.of(array, VALUE)
            table = pa.Table.from_arrays(fields.columns, schema=pa.schema(fields.fields))
        else:
            table = pa.table({VALUE: array})
        made = self._call(table)
        columns = [column.combine_chunks() for column in made.columns]
        if not has_fields and made.column_names == [VALUE]:
            changed = columns[0]
        else:
            changed = struct_of(list(made.schema), columns, np.zeros(len(present), bool))
        return with_nulls(batch, nulls, present.replace(VALUE, changed), VALUE)

    def _call(self, table: pa.Table) -> pa.Table:
        try:
            made = self._function(table=table, **self._more)
        except CAUGHT:
            raise
        except Exception as error:
            raise Unfit(_said(error)) from error
        if isinstance(made, pa.RecordBatch):
            made = pa.Table.from_batches([made])
        all_rows = np.ones(len(table), bool)
        if not isinstance(made, pa.Table):
            raise Unfit(f"the function gave {type(made).__name__}, not a pyarrow.Table", all_rows)
        if len(made) != len(table):
            raise Unfit(
                f"the function gave {len(made)} rows for {len(table)}; a function of a record may drop", all_rows
            )
        if len(set(made.column_names)) < made.num_columns:
            raise Unfit("the function gave two columns of one name", all_rows)
        return made


class OverRecords:
    """
    A function that gets each record as a dict of ``topic``, ``partition``, ``offset``, ``timestamp_ms``, ``key``,
    ``value`` and ``headers`` (pairs of text and bytes), and gives it back changed; None: it is left out.
    """

    def __init__(self, function: Function, more: Mapping[str, Any]) -> None:
        self._function = function
        self._more = more

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        names = (*_CHANGED, OFFSET)
        columns = {name: batch.column(name).to_pylist() for name in names}
        columns[HEADERS] = [[(one["key"], one["value"]) for one in pairs or ()] for pairs in columns[HEADERS]]
        given = [dict(zip(names, row, strict=True)) for row in zip(*(columns[name] for name in names), strict=True)]
        stays = np.ones(len(given), bool)
        made: list[dict[str, Any]] = []
        failed: dict[int, str] = {}
        for row, record in enumerate(given):
            try:
                done = self._call(record)
            except Exception as error:  # noqa: BLE001 - whatever a function does with a record
                failed[row] = _said(error)
                continue
            if done is None:
                stays[row] = False
            else:
                made.append(done)
        if failed:
            first = next(iter(failed.values()))
            raise Unfit(first, [failed.get(row) == first for row in range(len(given))])
        return _changed(batch.filter(stays), made)

    def _call(self, record: dict[str, Any]) -> dict[str, Any] | None:
        done = self._function(record=record, **self._more)
        if done is None:
            return None
        if not isinstance(done, dict) or done.keys() - {*_CHANGED, OFFSET}:
            raise Unfit(f"the function gave {str(done)[:80]}, which is no record")
        if not isinstance(done.get(TOPIC), str) or not done[TOPIC]:
            raise Unfit("the function gave a record without a topic")
        return done


def _changed(batch: Batch, made: Sequence[Mapping[str, Any]]) -> Batch:
    """
    Raises:
        Unfit, Arrow's errors: no one type holds them.
    """
    for name, kind in ((TOPIC, pa.string()), (PARTITION, pa.int32()), (TIMESTAMP, pa.int64())):
        batch = batch.replace(name, arrow.array([one.get(name) for one in made], kind))
    pairs = [[{"key": key, "value": value} for key, value in one.get(HEADERS) or ()] for one in made]
    batch = batch.replace(HEADERS, pa.array(pairs, headers_type()))
    for name in (KEY, VALUE):
        batch = batch.replace(name, _array([one.get(name) for one in made], batch.column(name).type))
    return batch


def _array(values: Sequence[Any], before: Any) -> Any:
    """Python's values; what has the type that was there before keeps it."""
    known = {field.name: field.type for field in before} if pa.types.is_struct(before) else {}
    if not values or any(not isinstance(value, dict) for value in values if value is not None):
        return _column(values, before)
    names = list(dict.fromkeys(name for value in values if value is not None for name in value))
    columns = [_column([(value or {}).get(name) for value in values], known.get(name)) for name in names]
    fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    nulls = np.array([value is None for value in values], bool)
    if nulls.all():
        return pa.nulls(len(values), before)
    return struct_of(fields, columns, nulls)


def _column(values: Sequence[Any], before: Any) -> Any:
    if all(value is None for value in values):
        return pa.nulls(len(values), before or pa.null())
    kind = pa.field("", pa.null())
    for value in values:
        try:
            kind = merged(kind, pa.field("", arrow.infer_type([value])), widen=False)
        except Apart as why:
            raise Unfit(str(why)) from None
    if before is not None and _alike(kind.type, before):
        made = _exact(values, before)
        if made is not None:
            return made
        if len(values) > 1:
            raise Unfit("values of two types")  # each half has the type that holds it
    return arrow.array(values, kind.type)


def _alike(kind: Any, before: Any) -> bool:
    """Whether values of a type may be of another one, if they are equal there."""
    types = pa.types
    tests = (
        types.is_integer,
        types.is_floating,
        types.is_decimal,
        types.is_timestamp,
        types.is_time,
        types.is_date,
        types.is_duration,
        lambda one: types.is_string(one) or types.is_large_string(one),
        lambda one: types.is_binary(one) or types.is_large_binary(one) or types.is_fixed_size_binary(one),
    )
    return kind == before or any(test(kind) and test(before) for test in tests)


def _exact(values: Sequence[Any], kind: Any) -> Any:
    """None: a value would be another one."""
    try:
        made = arrow.array(values, kind)
    except CAUGHT:
        return None
    pairs = zip(values, made.to_pylist(), strict=True)
    same = all(one == two or one != one for one, two in pairs)  # noqa: PLR0124 - NaN is not equal to itself
    return made if same else None


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}"
