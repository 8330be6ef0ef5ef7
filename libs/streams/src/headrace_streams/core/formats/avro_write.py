"""
Columns to Avro's binary values, whole columns at a time.

``writing`` makes of a column's type and a schema what writes it, once, and says what does not fit. Source: "Binary
encoding" of the specification of Apache Avro 1.12.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute

from headrace.errors import InvalidConfig
from headrace_streams.core.formats.avro_cursor import packed
from headrace_streams.core.formats.avro_schema import AvroType, branch_of, column_type, may_be_null
from headrace_streams.core.formats.json_rows import EXACT
from headrace_streams.core.formats.json_text import Unwritable, find_unwritable

arrow: Any = pa  # their stubs are narrower than they are
pc: Any = compute
Write = Callable[[Any], Any]
"""An Arrow array to one binary value each, without nulls; raises Unwritable."""
_BITS: Final = 7
"""Of a number in each byte."""


class AvroWriter:
    """Writes columns as values of a schema."""

    def __init__(self, columns: pa.Schema, kind: AvroType) -> None:
        """
        Raises:
            InvalidConfig: these columns are no such values; says which is not.
        """
        if kind.kind == "record":
            known = [one.name for one in kind.fields]
            for name in columns.names:
                if name not in known:
                    raise InvalidConfig(
                        f"avro: column {name!r} is none of {kind.name}'s fields ({', '.join(known)}); "
                        "select() what is to be written, or rename() it"
                    )
            self._write = _record(list(columns), kind, "")
        elif len(columns) == 1:
            self._write = writing(columns.field(0), kind, columns.names[0])
        else:
            raise InvalidConfig(f"avro: {kind} is one column, not {len(columns)} ({', '.join(columns.names)})")
        self._is_record = kind.kind == "record"

    def encode(self, table: pa.Table) -> Any:
        """
        One binary value for each row.

        Raises:
            NotEncodable: a row cannot be written.
        """
        columns: list[Any] = [column.combine_chunks() for column in table.columns]
        if self._is_record:
            whole: Any = pa.StructArray.from_arrays(columns, names=table.column_names)
        else:
            whole = columns[0]
        try:
            return self._write(whole)
        except Unwritable:
            raise find_unwritable(lambda at, count: self._write(whole.slice(at, count)), len(whole)) from None


def writing(column: Any, kind: AvroType, place: str) -> Write:
    """
    What writes a column, or items of one.

    Raises:
        InvalidConfig: its values are not of this type.
    """
    if pa.types.is_dictionary(column.type):
        plain = writing(pa.field(column.name, column.type.value_type, column.nullable), kind, place)
        return lambda array: plain(array.dictionary_decode())
    if kind.kind == "union":
        return _union(column, kind, place)
    if kind.kind == "null":
        return _only_nulls(column, b"", place)
    write = _filled(column, kind, place)

    def write_sound(array: Any) -> Any:
        if array.null_count:
            raise Unwritable(f"{place} is null, and may not be")
        return write(array)

    return write_sound


def _constant(value: bytes, array: Any) -> Any:
    return pa.array([value] * len(array), pa.binary())


def _only_nulls(column: Any, written: bytes, place: str) -> Write:
    if column.type != pa.null():
        raise InvalidConfig(f"avro: column {place!r} is {column.type}, and the schema says null; leave it out")
    return partial(_constant, written)


def _union(column: Any, kind: AvroType, place: str) -> Write:
    branch = branch_of(kind)
    if branch is None:
        raise InvalidConfig(f"avro: {place}: {kind} is no column; a union is null and one other type")
    if branch.kind == "null" or (column.type == pa.null() and may_be_null(kind)):
        return _only_nulls(column, _null_of(kind), place)
    number = _zigzag_bytes(kind.parts.index(branch))
    null = _null_of(kind) if may_be_null(kind) else None
    write = writing(column, branch, place)

    def write_branch(array: Any) -> Any:
        values = array.drop_null()
        written = pc.binary_join_element_wise(pa.scalar(number, pa.binary()), write(values), b"")
        if len(values) == len(array):
            return written
        if null is None:
            raise Unwritable(f"{place} is null, and may not be")
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        places = np.cumsum(valid) - 1
        return pc.fill_null(written.take(pa.array(places, mask=~valid)), pa.scalar(null, pa.binary()))

    return write_branch


def _zigzag_bytes(number: int) -> bytes:
    (written,) = _varints(np.array([number])).to_pylist()
    return bytes(written)


def _filled(column: Any, kind: AvroType, place: str) -> Write:
    """What writes a column without nulls, of a type that is no union."""
    given = column.type
    if kind.kind == "record" and pa.types.is_struct(given):
        return _record(list(given), kind, f"{place}.")
    if kind.kind == "array" and (pa.types.is_list(given) or pa.types.is_large_list(given)):
        return _array(given, kind, place)
    if kind.kind == "map" and pa.types.is_map(given):
        return _map(given, kind, place)
    if kind.kind in ("record", "array", "map"):
        raise _unfit(given, kind, place)
    wanted = column_type(kind)
    if not casts(given, wanted):
        raise _unfit(given, kind, place)
    write = _scalar(kind, place)

    def write_cast(array: Any) -> Any:
        try:
            return write(array.cast(wanted))
        except pa.ArrowInvalid as wrong:
            raise Unwritable(f"{place}: {wrong}") from None

    return write_cast


def _unfit(given: Any, kind: AvroType, place: str) -> InvalidConfig:
    return InvalidConfig(f"avro: column {place!r} is {given}, and the schema says {kind}; cast it, or mend the schema")


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


def _scalar(kind: AvroType, place: str) -> Write:
    if kind.logical == "decimal":
        return lambda array: _decimals(array, kind, place)
    if kind.logical == "uuid" and kind.kind == "fixed":
        return lambda array: pa.array([_uuid_bytes(text, place) for text in array.to_pylist()], pa.binary())
    if kind.kind == "enum":
        return lambda array: _enums(array, kind, place)
    if kind.kind == "fixed":
        return lambda array: _of_size(array, kind, place)
    return _PLAIN[kind.kind]


def _integers(array: Any) -> Any:
    narrow = array.type.bit_width == 32
    numbers = array.view(pa.int32() if narrow else pa.int64()).to_numpy(zero_copy_only=False)
    return _varints(numbers.astype(np.int64))


def _varints(numbers: Any) -> Any:
    raw = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    most = max(1, -(-int(raw.max(initial=0)).bit_length() // _BITS))
    groups = raw[:, None] >> (np.arange(most, dtype=np.uint64) * np.uint64(_BITS))
    size = np.maximum((groups > 0).sum(axis=1), 1)
    column = np.arange(most)
    more = np.where(column < size[:, None] - 1, 0x80, 0).astype(np.uint8)
    return packed(((groups & np.uint64(0x7F)).astype(np.uint8) | more)[column < size[:, None]], size)


def _fixed_width(array: Any) -> Any:
    numbers = array.to_numpy(zero_copy_only=False)
    return packed(numbers.view(np.uint8), np.full(len(array), numbers.itemsize))


def _booleans(array: Any) -> Any:
    return packed(array.to_numpy(zero_copy_only=False).astype(np.uint8), np.ones(len(array), np.int64))


def _texts(array: Any) -> Any:
    lengths = pc.binary_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    return pc.binary_join_element_wise(_varints(lengths), array.cast(pa.binary()), b"")


def _enums(array: Any, kind: AvroType, place: str) -> Any:
    numbers = pc.index_in(array, pa.array(kind.symbols, pa.string()))
    if numbers.null_count:
        raise Unwritable(f"{place} is none of {', '.join(kind.symbols)}")
    return _varints(numbers.to_numpy(zero_copy_only=False).astype(np.int64))


def _of_size(array: Any, kind: AvroType, place: str) -> Any:
    if pc.any(pc.not_equal(pc.binary_length(array), kind.size)).as_py():
        raise Unwritable(f"{place} has not {kind.size} bytes, as {kind} has")
    return array


def _uuid_bytes(text: str, place: str) -> bytes:
    try:
        raw = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise Unwritable(f"{place}: {text!r:.60} is no UUID")
    return raw


def _decimals(array: Any, kind: AvroType, place: str) -> Any:
    numbers = [int(value.scaleb(kind.scale, EXACT)) for value in array.to_pylist()]
    if kind.kind == "bytes":
        written = pa.array([n.to_bytes(n.bit_length() // 8 + 1, "big", signed=True) for n in numbers], pa.binary())
        return _texts(written)
    try:
        return pa.array([n.to_bytes(kind.size, "big", signed=True) for n in numbers], pa.binary())
    except OverflowError:
        raise Unwritable(f"{place}: a number does not fit into the {kind.size} bytes of {kind}") from None


def _record(columns: list[Any], kind: AvroType, place: str) -> Write:
    by_name = {column.name: (number, column) for number, column in enumerate(columns)}
    steps: list[tuple[int, Write]] = []
    for one in kind.fields:
        here = f"{place}{one.name}"
        if one.name in by_name:
            number, column = by_name[one.name]
            steps.append((number, writing(column, one.type, here)))
        elif may_be_null(one.type):
            steps.append((-1, partial(_constant, _null_of(one.type))))
        else:
            raise InvalidConfig(f"avro: there is no column {here!r}, and the schema says {one.type} there")

    def write(array: Any) -> Any:
        parts = [step(pa.nulls(len(array)) if number < 0 else pc.struct_field(array, number)) for number, step in steps]
        if not parts:
            return _constant(b"", array)
        return pc.binary_join_element_wise(*parts, b"") if len(parts) > 1 else parts[0]

    return write


def _null_of(kind: AvroType) -> bytes:
    """How null is written; the type allows it."""
    return b"" if kind.kind == "null" else _zigzag_bytes([part.kind for part in kind.parts].index("null"))


def _array(given: Any, kind: AvroType, place: str) -> Write:
    write = writing(given.value_field, kind.parts[0], f"{place}[]")

    def write_items(array: Any) -> Any:
        lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
        return _as_blocks(write(array.flatten()), lengths)

    return write_items


def _map(given: Any, kind: AvroType, place: str) -> Write:
    if given.key_type != pa.string():
        raise _unfit(given, kind, place)
    write = writing(given.item_field, kind.parts[0], f"{place}[]")

    def write_pairs(array: Any) -> Any:
        pairs = array.cast(pa.list_(pa.struct([("key", given.key_type), ("value", given.item_type)])))
        names, items = pairs.flatten().flatten()
        lengths = pc.list_value_length(pairs).to_numpy(zero_copy_only=False).astype(np.int64)
        return _as_blocks(pc.binary_join_element_wise(_texts(names), write(items), b""), lengths)

    return write_pairs


def _as_blocks(items: Any, lengths: Any) -> Any:
    """Of each array one block with all its items, if there are any, and the end."""
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    joined = pc.binary_join(arrow.ListArray.from_arrays(arrow.array(ends), items), b"")
    blocks = pc.binary_join_element_wise(_varints(lengths), joined, pa.scalar(b"\0", pa.binary()), b"")
    return pc.if_else(pa.array(lengths > 0), blocks, pa.scalar(b"\0", pa.binary()))


_PLAIN: Final[dict[str, Write]] = {
    "boolean": _booleans,
    "int": _integers,
    "long": _integers,
    "float": _fixed_width,
    "double": _fixed_width,
    "bytes": _texts,
    "string": _texts,
}
