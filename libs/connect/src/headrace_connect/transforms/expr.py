"""``expr``: conditions and computed columns, written as Narwhals' expressions."""

from __future__ import annotations

from typing import Any, ClassVar

import narwhals.stable.v2 as nw
import numpy as np
import pyarrow as pa

from headrace_connect.core.batch import Batch
from headrace_connect.core.halving import CAUGHT, Unfit
from headrace_connect.core.kinds import nulls_of
from headrace_connect.core.options import BadOption, Option
from headrace_connect.transforms.expression_text import parse_columns, parse_expression
from headrace_connect.transforms.port import Fields, OfSide, Settings, with_nulls
from headrace_streams.core import expressions


class Expression(OfSide):
    """
    Records for which a condition is true, and fields that are computed; null counts as false.

    A value without fields is the one column ``value`` (a key: ``key``). Null keys and values stay as they are.
    """

    options: ClassVar[tuple[Option, ...]] = (
        Option("filter", 'Which records stay: col("amount") > 10.'),
        Option("with_columns", 'Fields that are new or others: total=col("price") * col("count").'),
    )

    def __init__(self, settings: Settings, side: str) -> None:
        super().__init__(settings, side)
        condition, columns = settings["filter"], settings["with_columns"]
        if condition is None and columns is None:
            raise BadOption("filter", "is missing; give it, or with_columns")
        self._condition = None if condition is None else parse_expression("filter", condition)
        self._columns = {} if columns is None else parse_columns("with_columns", columns)
        used = [*self._columns.values(), *([] if self._condition is None else [self._condition])]
        self._read = {name for one in used for name in expressions.columns_of(one)}

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``. The condition is asked first, of the fields as they were."""
        array = self.array(batch)
        nulls = nulls_of(array)
        present = batch.filter(~nulls) if nulls.any() else batch
        try:
            table, has_fields = self._table(present)
            stays = np.ones(len(present), bool)
            if self._condition is not None:
                stays = self._stays(table)
            made = self._computed(present.filter(stays), table.filter(pa.array(stays)), has_fields=has_fields)
        except (*CAUGHT, nw.exceptions.NarwhalsError) as why:
            if not len(present):  # nothing but nulls, which stay
                return batch
            every_row = isinstance(why, nw.exceptions.NarwhalsError) or (
                isinstance(why, Unfit) and why.rows is not None
            )
            raise Unfit(str(why), ~nulls if every_row else None) from None
        return with_nulls(batch, nulls, made, self.side)

    def _table(self, batch: Batch) -> tuple[pa.Table, bool]:
        array = self.array(batch)
        if not pa.types.is_struct(array.type):
            return pa.table({self.side: array}), False
        given = Fields.of(array, self.side)
        names = [field.name for field in given.fields]
        missing = sorted(self._read - set(names))
        if missing and not batch.is_open(self.side) and len(batch):
            raise Unfit(f"the {self.side} has no field {missing[0]!r}", np.ones(len(batch), bool))
        columns = [*given.columns, *(pa.nulls(len(batch)) for _ in missing)]
        return pa.Table.from_arrays(columns, names=[*names, *missing]), True

    def _stays(self, table: pa.Table) -> Any:
        assert self._condition is not None
        found: Any = expressions.evaluated(table, self._condition)
        if pa.types.is_null(found.type):
            return np.zeros(table.num_rows, bool)
        if not pa.types.is_boolean(found.type):
            raise Unfit(f"filter is {found.type}, not a condition", np.ones(table.num_rows, bool))
        return found.fill_null(False).to_numpy()

    def _computed(self, batch: Batch, table: pa.Table, *, has_fields: bool) -> Batch:
        if not self._columns:
            return batch
        made = expressions.computed(table, self._columns)
        if not has_fields:
            if set(self._columns) != {self.side}:
                raise Unfit(f"the {self.side} has no fields; with_columns may make {self.side} of it")
            return batch.replace(self.side, _whole(made[self.side]))
        given = Fields.of(self.array(batch), self.side)
        for name in self._columns:
            column = _whole(made[name])
            at = given.index(name)
            if at < 0:
                given.fields.append(pa.field(name, column.type))
                given.columns.append(column)
            else:
                given.fields[at], given.columns[at] = pa.field(name, column.type), column
        return batch.replace(self.side, given.array(self.array(batch)))


def _whole(column: Any) -> Any:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
