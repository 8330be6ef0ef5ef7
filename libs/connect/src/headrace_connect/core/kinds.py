"""Arrow types of rows that were read apart, brought into one."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

Kind = Any
"""An Arrow type; its stubs are narrower than it is."""
arrow: Any = pa
WIDE: Final = b"connect.wide"
"""Metadata of a field of whole numbers of which some cannot be a double without being rounded."""
EXACT_MAX: Final = 1 << 53


class Apart(Exception):
    """No one type holds both; says where and why."""


def merged(one: pa.Field[Any], other: pa.Field[Any], *, widen: bool, around: str = "") -> pa.Field[Any]:
    """
    The field that holds the values of both: a field that only one struct has is null in the other's rows.

    Args:
        widen: whole numbers may become wider ones, or doubles if that rounds none.
        around: names of the structs that it is in, each with a point, for messages.

    Raises:
        Apart: there is none.
    """
    metadata = {**(one.metadata or {}), **(other.metadata or {})}
    left, right = one.type, other.type
    types = pa.types
    if types.is_struct(left) and types.is_struct(right):
        inner = f"{around}{one.name}." if one.name else around
        kind = _merged_struct(list(left), list(right), widen, inner)
    elif types.is_list(left) and types.is_list(right):
        items = merged(left.value_field, right.value_field, widen=widen, around=f"{around}{one.name}.")
        kind = arrow.list_(items)
    elif types.is_null(right) or left == right:
        kind = left
    elif types.is_null(left):
        kind = right
    else:
        wider = _wider(left, right, may_be_double=WIDE not in metadata) if widen else None
        if wider is None:
            raise Apart(f"{around}{one.name}: it is {right} here, and was {left} before".removeprefix(": "))
        kind = wider
    return pa.field(one.name, kind, one.nullable or other.nullable, metadata)


def _merged_struct(one: list[pa.Field[Any]], other: list[pa.Field[Any]], widen: bool, around: str) -> Kind:
    """Fields in the order in which they came up."""
    fields = {field.name: field for field in one}
    new = {field.name for field in other}
    for field in other:
        known = fields.get(field.name)
        fields[field.name] = (
            field.with_nullable(True) if known is None else merged(known, field, widen=widen, around=around)
        )
    return pa.struct([field if field.name in new else field.with_nullable(True) for field in fields.values()])


def _wider(left: Kind, right: Kind, *, may_be_double: bool) -> Kind | None:
    types = pa.types
    if types.is_signed_integer(left) and types.is_signed_integer(right):
        return max(left, right, key=lambda kind: kind.bit_width)
    if types.is_floating(left) and types.is_floating(right):
        return max(left, right, key=lambda kind: kind.bit_width)
    numbers = (types.is_signed_integer(left) and right == pa.float64()) or (
        left == pa.float64() and types.is_signed_integer(right)
    )
    return pa.float64() if numbers and may_be_double else None


def fitted(array: Any, kind: Kind) -> Any:
    """An array as a type that ``merged`` made of its own and another one."""
    types = pa.types
    if array.type.equals(kind, check_metadata=True):
        return array
    if types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if types.is_struct(kind):
        given = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
        columns = [
            fitted(given[field.name], field.type) if field.name in given else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return struct_of(list(kind), columns, nulls_of(array))
    if types.is_list(kind):
        items = fitted(array.flatten(), kind.value_type)
        return arrow.ListArray.from_arrays(_ends(array), items, type=kind, mask=_mask(array))
    return array.cast(kind)


def _ends(array: Any) -> Any:
    """Where each list begins in what ``flatten`` gives, which leaves out the items of nulls."""
    lengths = pa.compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def _mask(array: Any) -> Any:
    return pa.array(nulls_of(array)) if array.null_count else None


def nulls_of(array: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """True where there is a null."""
    found: np.ndarray[Any, np.dtype[np.bool_]] = array.is_null().to_numpy(zero_copy_only=False)
    return found


def struct_of(fields: list[pa.Field[Any]], columns: list[Any], nulls: Any) -> Any:
    """
    Structs of columns.

    Args:
        nulls: true where the struct is null.
    """
    if not fields:
        return pa.array([{}] * len(nulls), pa.struct([]), mask=np.asarray(nulls, bool))
    mask = pa.array(nulls, pa.bool_()) if np.any(nulls) else None
    return arrow.StructArray.from_arrays(columns, fields=fields, mask=mask)
