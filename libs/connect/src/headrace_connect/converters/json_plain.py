"""
JSON without a schema: types are found in the values, and kept for good, field by field.

Values of the types that are kept are parsed by Arrow, all at once; any others, one by one, which decides.

A field has the type of its first value. Later values may widen it: a null to anything, whole numbers to doubles unless
one would be rounded. A value of another type fails alone. So what a value becomes does not depend on where batches are
cut.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from pyarrow import compute

from headrace_common.core.batch.byte_columns import as_binary
from headrace_connect.converters.port import Part, Read
from headrace_connect.core.batch import OPEN
from headrace_connect.core.halving import Unfit, apart
from headrace_connect.core.kinds import EXACT_MAX, WIDE, Apart, fitted, merged
from headrace_streams.core.formats.json_format import is_parsed, parse_objects

pc: Any = compute  # its stubs are narrower than it is
arrow: Any = pa
FIELDS_MAX: Final = 1_000
"""A topic whose values have more fields, at all depths together, has names where it should have values."""
DEPTH_MAX: Final = 100
_QUICK_ROWS_MIN: Final = 64
"""Fewer are as quickly read one by one."""
_LONG: Final = re.compile(rb"\d{19}")


class Inference:
    """Reads JSON of one topic; keeps the types of its fields."""

    def __init__(self) -> None:
        self._kept: Any = pa.field("", pa.null())

    def read(self, values: Any) -> Read:
        """
        Args:
            values: a binary array; the text ``null`` is a null too.
        """
        results, failed = apart(as_binary(values), self._take)
        if not results:
            return Read([], failed)
        rows = np.concatenate([indices for indices, _ in results])
        kind = self._kept.type
        parts = [fitted(array, kind) for _, array in results]
        order = np.argsort(rows, kind="stable")
        whole = parts[0] if len(parts) == 1 else pa.concat_arrays(parts).take(pa.array(order))
        return Read([Part(rows[order], whole, {OPEN: b"1"})], failed)

    def _take(self, values: Any) -> Any:
        whole, kept = _known(values, self._kept.type), self._kept
        if whole is None:
            whole, kept = self._inferred(values)
        kept = kept.with_type(_marked(whole, kept.type)).with_metadata(_wide(whole, kept))
        if _count(kept.type) > FIELDS_MAX:
            raise Unfit(
                f"with it, the topic's values would have more than {FIELDS_MAX} fields; are there names that should be "
                "values?"
            )
        self._kept = kept
        return whole

    def _inferred(self, values: Any) -> tuple[Any, Any]:
        """The values one by one, and the field that holds them and what came before."""
        given = [None if value is None else _parsed(value) for value in values.to_pylist()]
        inferred = pa.array(given)
        check_doubles(given, inferred.type, "")
        try:
            kept = merged(self._kept, pa.field("", inferred.type), widen=True)
        except Apart as why:
            raise Unfit(str(why)) from None
        return inferred if inferred.type == kept.type else pa.array(given, kept.type), kept


def _known(values: Any, kind: Any) -> Any:
    """Values of the type that is kept, by Arrow, all at once; None where they may be something else."""
    if len(values) < _QUICK_ROWS_MIN or values.null_count or not pa.types.is_struct(kind) or not kind.num_fields:
        return None
    if not is_parsed(kind):
        return None
    table = parse_objects(values, pa.schema(list(kind)), others="error")
    if table is None:
        return None
    columns = [pa.concat_arrays(column.chunks) for column in table.columns]
    whole = arrow.StructArray.from_arrays(columns, fields=list(kind))
    return None if _may_be_rounded(whole) else whole


def _may_be_rounded(array: Any) -> bool:
    """Whether a double may have been a whole number that none can hold."""
    if array.type == pa.float64():
        ends = pc.min_max(array).as_py()
        return ends["min"] is not None and (ends["min"] <= -EXACT_MAX or ends["max"] >= EXACT_MAX)
    if pa.types.is_struct(array.type):
        return any(map(_may_be_rounded, array.flatten()))
    return bool(pa.types.is_list(array.type) and _may_be_rounded(array.flatten()))


def _parsed(value: bytes) -> Any:
    """
    Raises:
        Unfit: it is not JSON, or has what no column can hold.
    """
    if value.count(b"{") + value.count(b"[") > DEPTH_MAX and _depth(value) > DEPTH_MAX:
        raise Unfit(f"the value is nested more than {DEPTH_MAX} deep")
    try:
        parsed = orjson.loads(value)
    except orjson.JSONDecodeError as wrong:
        raise Unfit(f"the value is not JSON: {wrong}" if value else "the value is empty, which is not JSON") from None
    if _LONG.search(value) is not None:  # orjson makes doubles of whole numbers beyond 64 bits
        _check_whole(json.loads(value))
    return parsed


def _check_whole(value: Any) -> None:
    if type(value) is dict:
        value = list(value.values())
    if type(value) is list:
        for one in value:
            _check_whole(one)
    elif type(value) is int and not -(1 << 63) <= value < 1 << 63:
        raise Unfit(f"{value!s:.60} is beyond the whole numbers of 64 bits")


def check_doubles(values: list[Any], kind: Any, name: str) -> None:
    """
    Arrow takes true for the double 1.0, and nothing else for what it is not.

    Raises:
        Unfit: there is true or false among doubles.
    """
    if kind == pa.float64():
        if bool in set(map(type, values)):
            raise Unfit(f"{name}: it is bool here, and was double before".removeprefix(": "))
    elif pa.types.is_struct(kind):
        there = [value for value in values if value is not None]
        for field in kind:
            if pa.types.is_nested(field.type) or field.type == pa.float64():
                inner = f"{name}.{field.name}" if name else field.name
                check_doubles([value.get(field.name) for value in there], field.type, inner)
    elif pa.types.is_list(kind):
        check_doubles([one for value in values if value is not None for one in value], kind.value_type, f"{name}.item")


def _depth(value: bytes) -> int:
    """At least how deep it is nested; brackets in texts count too."""
    data = np.frombuffer(value, np.uint8)
    steps = np.isin(data, [ord("{"), ord("[")]).astype(np.int64) - np.isin(data, [ord("}"), ord("]")])
    return int(np.cumsum(steps).max())


def _wide(array: Any, field: Any) -> dict[bytes | str, bytes | str]:
    """Metadata of a field with these values."""
    known: dict[bytes | str, bytes | str] = dict(field.metadata or {})
    if array.type == pa.int64():
        ends = pc.min_max(array).as_py()
        if ends["min"] is not None and (ends["min"] < -EXACT_MAX or ends["max"] > EXACT_MAX):
            known[WIDE] = b"1"
    return known


def _marked(array: Any, kind: Any) -> Any:
    """The type with ``WIDE`` at the fields of which it is true."""
    if pa.types.is_struct(kind):
        columns = array.flatten()
        return pa.struct(
            [
                field.with_type(_marked(column, field.type)).with_metadata(_wide(column, field))
                for field, column in zip(kind, columns, strict=True)
            ]
        )
    if pa.types.is_list(kind):
        items, field = array.flatten(), kind.value_field
        return arrow.list_(field.with_type(_marked(items, field.type)).with_metadata(_wide(items, field)))
    return kind


def _count(kind: Any) -> int:
    if pa.types.is_struct(kind):
        return len(kind) + sum(_count(field.type) for field in kind)
    return _count(kind.value_type) if pa.types.is_list(kind) else 0
