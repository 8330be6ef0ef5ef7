"""
What stands for a large value that an update did not touch, in each type that PostgreSQL stores apart.

Text, bytes, and lists of text, bytes and whole numbers are as Debezium has them. It has nothing for other numbers and
other lists: here a decimal or double is the number that the bytes of the text make, and a list has an item for each
byte, in the smallest unit of the type, or for each bit.
"""

from __future__ import annotations

from base64 import standard_b64encode, urlsafe_b64encode
from decimal import Decimal, localcontext
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyarrow import compute

Array: TypeAlias = "pa.Array[Any]"
_DOUBLE_BYTES_MAX: Final = 100
"""Of the text, that make a double; more would be infinite."""
_DIGITS_MAX: Final = 400
types: Any = pa.types
pc: Any = compute


def placeholder_for(kind: Any, text: str) -> Array | None:
    """An array of one of this type; None: its values are never stored apart."""
    data = text.encode()
    if is_text(kind):
        return _as(pa.array([text]), kind)
    if is_bytes(kind):
        return _as(pa.array([data], pa.binary()), kind)
    if types.is_decimal(kind):
        return _decimals([int.from_bytes(data)], kind)
    if types.is_float64(kind):
        return _as(pa.array([float(int.from_bytes(data[:_DOUBLE_BYTES_MAX]))]), kind)
    if types.is_list(kind) or types.is_large_list(kind):
        items = _items(kind.value_type, text)
        return None if items is None else _list_of(items, kind)
    return None


def _items(kind: Any, text: str) -> Array | None:
    data = text.encode()
    if is_text(kind) or is_bytes(kind):
        return placeholder_for(kind, text)
    if types.is_boolean(kind):
        return _as(pa.array([bool(byte >> bit & 1) for byte in data for bit in range(7, -1, -1)]), kind)
    if types.is_decimal(kind):
        return _decimals(list(data), kind)
    if types.is_temporal(kind):
        moments: Array = pa.array(list(data), pa.int32() if kind.bit_width == 32 else pa.int64())
        return moments.view(kind)
    if types.is_integer(kind) or types.is_floating(kind):
        return _as(pa.array(list(data), pa.int16()), kind)
    return None


def _as(array: Any, kind: Any) -> Array:
    """What does not fit is cut."""
    cast: Array = array.cast(kind, safe=False)
    return cast


def _decimals(numbers: list[int], kind: Any) -> Array:
    """Their last digits, as many as there is room for, as units of the last place."""
    with localcontext() as context:
        context.prec = _DIGITS_MAX
        values = [Decimal(number % 10**kind.precision).scaleb(-kind.scale) for number in numbers]
        made: Array = pa.array(values, kind)
        return made


def _list_of(items: Array, kind: Any) -> Array:
    ends = pa.array([0, len(items)], pa.int32() if types.is_list(kind) else pa.int64())
    lists: Any = pa.ListArray if types.is_list(kind) else pa.LargeListArray
    made: Array = lists.from_arrays(ends, items, type=kind)
    return made


def find_placeholders(values: Array, text: str) -> Array | None:
    """
    True where a placeholder stands in the place of a value; None: nowhere. Null counts as a value.

    Text is compared with bytes in their text forms too: converters and ``binary.handling.mode`` make it of bytes.
    """
    if types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    expected = placeholder_for(values.type, text)
    if expected is None:
        return None
    if types.is_list(values.type) or types.is_large_list(values.type):
        return _find_lists(values, expected, text)
    found: Array
    if is_text(values.type):
        found = pc.is_in(values.cast(pa.string()), pa.array(_text_forms(text)))
    else:
        found = pc.fill_null(pc.equal(values, expected[0]), False)
    return found if pc.any(found, min_count=0).as_py() else None


def _find_lists(values: Any, expected: Any, text: str) -> Array | None:
    """Few lists have as many items: only those are looked at."""
    size = len(expected[0])
    may_be = pc.fill_null(pc.equal(pc.list_value_length(values), size), False)
    if not pc.any(may_be, min_count=0).as_py():
        return None
    item = values.type.value_type
    wanted = [[one] for one in _text_forms(text)] if is_text(item) else [_items_of(expected[0])]
    mask = [flag and _items_of(values[row]) in wanted for row, flag in enumerate(may_be.to_pylist())]
    return pa.array(mask) if any(mask) else None


def _true(mask: Any) -> Array:
    """False for null."""
    filled: Array = mask.fill_null(False)
    return filled


def _items_of(value: Any) -> list[Any]:
    """As numbers, where they are moments: some have no form in Python."""
    items = value.values
    if types.is_temporal(items.type):
        items = items.view(pa.int32() if items.type.bit_width == 32 else pa.int64())
    found: list[Any] = items.to_pylist()
    return found


def _text_forms(text: str) -> list[str]:
    data = text.encode()
    return [text, standard_b64encode(data).decode(), urlsafe_b64encode(data).decode(), data.hex()]


def is_text(kind: Any) -> bool:
    """Whether it is Arrow's text."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: Any) -> bool:
    """Whether it is Arrow's bytes, of any length."""
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))
