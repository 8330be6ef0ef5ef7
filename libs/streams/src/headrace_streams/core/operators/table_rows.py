"""
Rows of a table in slots: a column of numbers is two fields, the numbers and which of them there are; any other column
is one field of Python objects.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.operators.aggregates import from_numbers, is_number, values_of
from headrace_streams.core.rows import TIME, Numbers, numbers
from headrace_streams.core.state.slots import Columns, Field, Layout, object_array

_TIME_FIELD: Final = Field(np.dtype(np.int64), 0)
_VALID_FIELD: Final = Field(np.dtype(np.bool_), False)


class TableRows:
    """How rows of a table enter slots, and come out again."""

    def __init__(self, schema: pa.Schema, what: str = "table") -> None:
        """
        Args:
            what: the node, for messages.

        Raises:
            NotAllowed: a column is of a type that state cannot keep.
        """
        for field in schema:
            if _is_odd(field.type):
                raise NotAllowed(
                    f"{what}: a table cannot keep {field.name!r}, which is {field.type}: decimals and maps inside "
                    "of others, and times of day; use double or string there, or select() the column away"
                )
        self.schema = pa.schema([field.with_nullable(True) for field in schema])
        self._stored = [_stored(field.type) for field in schema]
        fields: list[Field] = []
        for type_ in self._stored:
            fields += [_number_field(type_), _VALID_FIELD] if is_number(type_) else [Field(np.dtype(object), _none)]
        self.layout = Layout([*fields, _TIME_FIELD])

    def put(self, slots: Columns, places: Numbers, rows: pa.Table) -> None:
        """Keep a row in each of these slots, which are different."""
        columns = iter(slots.columns)
        for field, type_ in zip(self.schema, self._stored, strict=True):
            column = rows[field.name].cast(type_)
            if is_number(type_):
                values = values_of(column, rows.num_rows, objects=False)
                next(columns)[places] = values.numbers
                next(columns)[places] = values.valid
            else:
                next(columns)[places] = _objects(column)
        next(columns)[places] = numbers(rows[TIME])
        slots.dirty[places] = True

    def take(self, slots: Columns, places: Numbers) -> pa.Table:
        """The rows of these slots; null where a place is below 0."""
        missing = places < 0
        columns = iter(slots.columns)
        arrays = []
        for field, type_ in zip(self.schema, self._stored, strict=True):
            found = next(columns)[places]
            if is_number(type_):
                array = from_numbers(found, missing | ~next(columns)[places], type_)
            else:
                found[missing] = None
                array = pa.array(found if type_ in _PLAIN else _listed(found, type_), type_)
            arrays.append(array.cast(field.type))
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def times(self, slots: Columns, places: Numbers) -> Numbers:
        """Event times of the rows of these slots, ms."""
        found: Numbers = slots.columns[-1][places]
        return found


_ODD: Final = re.compile(r"decimal\d+\(|map<|duration|time\d\d\[|interval|union")
_PLAIN: Final = (pa.string(), pa.binary())


def _is_odd(type_: pa.DataType) -> bool:
    """Whether it holds what does not come back from MessagePack as it was."""
    if pa.types.is_decimal(type_):
        return False
    return _ODD.search(str(type_).removeprefix("map<")) is not None


def _stored(type_: pa.DataType) -> pa.DataType:
    """What a column is kept as: MessagePack has no times and no decimals, so those inside of others are cast."""
    types = pa.types
    if is_number(type_):
        return type_
    return _inside(type_) if types.is_nested(type_) else _plain(type_)


def _inside(type_: Any) -> pa.DataType:
    types = pa.types
    if types.is_map(type_):
        return pa.map_(_inside(type_.key_type), _inside(type_.item_type))
    if types.is_list(type_) or types.is_large_list(type_):
        return pa.list_(_inside(type_.value_type))
    if types.is_struct(type_):
        return pa.struct([pa.field(field.name, _inside(field.type)) for field in type_])
    if types.is_timestamp(type_):
        return pa.int64()
    return pa.int32() if types.is_date32(type_) else _plain(type_)


def _plain(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(type_) or pa.types.is_large_string(type_) or pa.types.is_dictionary(type_):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(type_) else type_


def _number_field(type_: pa.DataType) -> Field:
    floats = pa.types.is_floating(type_)
    return Field(np.dtype(np.float64 if floats else np.int64), 0)


def _none() -> Any:
    return None


def _objects(column: Any) -> Numbers:
    if column.type in _PLAIN:
        found: Numbers = column.to_numpy()
        return found
    return object_array(column.to_pylist())


def _listed(objects: Numbers, type_: pa.DataType) -> list[Any]:
    found: list[Any] = objects.tolist()
    if pa.types.is_map(type_):  # MessagePack makes lists of its pairs
        return [one and [tuple(pair) for pair in one] for one in found]
    return found
