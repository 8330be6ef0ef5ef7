"""
Columns to Avro's binary values: Arrow makes rows of them, fastavro writes each.

What does not fit the schema is said when the writer is made; Arrow checks the values by casting whole columns.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

import fastavro
import pyarrow as pa
from pyarrow import compute

from headrace.errors import InvalidConfig
from headrace_streams.core.formats.avro_schema import (
    Kind,
    Record,
    base_of,
    branch_of,
    column_type,
    has_maps,
    is_value,
    may_be_null,
    text_of,
)
from headrace_streams.core.formats.ddl import without_times
from headrace_streams.core.formats.json_text import Unwritable, find_unwritable
from headrace_streams.core.formats.port import NotEncodable

pc: Any = compute  # their stubs are narrower than they are
arrow: Any = pa
_MESSAGE_CHARACTERS_MAX: Final = 200


class AvroWriter:
    """Writes columns as values of a schema."""

    def __init__(self, columns: pa.Schema, record: Record) -> None:
        """
        Raises:
            InvalidConfig: these columns are no such values; says which is not.
        """
        known = [field["name"] for field in record["fields"]]
        self._names = known if is_value(record) else columns.names
        if len(self._names) != len(columns):
            kind = text_of(record["fields"][0]["type"])
            raise InvalidConfig(f"avro: {kind} is one column, not {len(columns)} ({', '.join(columns.names)})")
        for name in self._names:
            if name not in known:
                raise InvalidConfig(
                    f"avro: column {name!r} is none of {record['name']}'s fields ({', '.join(known)}); "
                    "select() what is to be written, or rename() it"
                )
        self._record = record
        self._type = _struct_type(
            [column.with_name(name) for column, name in zip(columns, self._names, strict=True)], record, ""
        )
        self._plain = without_times(self._type)
        self._maps = "strict" if has_maps(record) else None

    def encode(self, table: pa.Table) -> Any:
        """
        One binary value for each row.

        Raises:
            NotEncodable: a row cannot be written.
        """
        whole: Any = table.rename_columns(self._names).to_struct_array().combine_chunks()
        try:
            rows = self._rows(whole)
        except Unwritable:
            raise find_unwritable(lambda at, count: self._rows(whole.slice(at, count)), len(whole)) from None
        values: list[bytes] = []
        for number, row in enumerate(rows):
            data = BytesIO()
            try:
                fastavro.schemaless_writer(data, self._record, row)
            except (ValueError, TypeError, ArithmeticError) as wrong:
                raise NotEncodable(number, f"avro: {wrong}"[:_MESSAGE_CHARACTERS_MAX]) from None
            values.append(data.getvalue())
        return pa.array(values, pa.binary())

    def _rows(self, whole: Any) -> list[Any]:
        try:
            fitting = whole.cast(self._type)
        except pa.ArrowInvalid as wrong:
            raise Unwritable(f"avro: {wrong}"[:_MESSAGE_CHARACTERS_MAX]) from None
        _check_nulls(fitting, self._record, "")
        try:
            rows: list[Any] = fitting.cast(self._plain).to_pylist(maps_as_pydicts=self._maps)
        except (KeyError, ValueError):
            raise Unwritable("avro: a map has a key twice") from None
        return rows


def _struct_type(columns: list[Any], record: Record, place: str) -> pa.DataType:
    """To what the columns are cast."""
    given = {column.name: column for column in columns}
    fields = {field["name"]: field for field in record["fields"]}
    for name, field in fields.items():
        if name not in given and "default" not in field and not may_be_null(field["type"]):
            raise InvalidConfig(
                f"avro: there is no column {place + name!r}, and the schema says {text_of(field['type'])} there"
            )
    return pa.struct(
        [
            column.with_type(_type(column.type, fields[column.name]["type"], f"{place}{column.name}"))
            if column.name in fields
            else column
            for column in columns
        ]
    )


def _type(given: Any, kind: Kind, place: str) -> Any:
    """
    To what a column, or items of one, are cast.

    Raises:
        InvalidConfig: its values are not of this type.
    """
    types = pa.types
    base = base_of(kind)
    if types.is_dictionary(given):
        return _type(given.value_type, kind, place)
    if types.is_null(given) and may_be_null(kind):
        return given
    if base == "union":
        branch = branch_of(kind)
        if branch is None:
            raise InvalidConfig(f"avro: {place}: {text_of(kind)} is no column; a union is null and one other type")
        return _type(given, branch, place)
    if base == "record" and types.is_struct(given):
        return _struct_type(list(given), kind, f"{place}.")
    if base == "array" and (types.is_list(given) or types.is_large_list(given)):
        return arrow.list_(_type(given.value_type, kind["items"], f"{place}[]"))
    if base == "map" and types.is_map(given) and given.key_type == pa.string():
        return arrow.map_(pa.string(), _type(given.item_type, kind["values"], f"{place}[]"))
    if base in ("record", "array", "map") or not casts(given, column_type(kind)):
        raise InvalidConfig(
            f"avro: column {place!r} is {given}, and the schema says {text_of(kind)}; cast it, or mend the schema"
        )
    return column_type(kind)


def casts(given: Any, wanted: Any) -> bool:
    """Whether a column is written as another type without changing what it says."""
    types = pa.types
    if given == wanted:
        return True
    if types.is_floating(wanted):
        return types.is_floating(given) and given.bit_width <= wanted.bit_width
    alike: tuple[Callable[[Any], bool], ...] = (
        types.is_integer,
        types.is_decimal,
        lambda one: types.is_string(one) or types.is_large_string(one),
        lambda one: types.is_binary(one) or types.is_large_binary(one) or types.is_fixed_size_binary(one),
        lambda one: types.is_timestamp(one) and (one.tz is None) == (wanted.tz is None),
    )
    return any(is_such(given) and is_such(wanted) for is_such in alike if is_such(wanted))


def _check_nulls(array: Any, kind: Kind, place: str) -> None:
    """
    Raises:
        Unwritable: there is a null where the schema has none; fastavro writes some as false.
    """
    if array.null_count:
        if not may_be_null(kind):
            raise Unwritable(f"{place} is null, and may not be")
        array = array.drop_null()
    if isinstance(kind, list):
        kind = branch_of(kind)
    base = base_of(kind)
    if pa.types.is_null(array.type):
        return
    if base == "record":
        fields = {field["name"]: field["type"] for field in kind["fields"]}
        for number, column in enumerate(array.type):
            if column.name in fields:
                here = f"{place}.{column.name}" if place else column.name
                _check_nulls(pc.struct_field(array, number), fields[column.name], here)
    elif base == "array":
        _check_nulls(array.flatten(), kind["items"], f"{place}[]")
    elif base == "map":
        pairs = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
        _check_nulls(pc.struct_field(pairs.flatten(), 1), kind["values"], f"{place}[]")
