"""Values as text, as ``Cast`` to ``string``, headers and the string converter have them."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pyarrow as pa
from pyarrow import compute

from headrace_common.core.errors import InvalidConfig
from headrace_connect.core.halving import Unfit
from headrace_streams.core.formats.json_text import Unwritable, check_writable, texts

pc: Any = compute  # its stubs are narrower than it is


def text_of(array: Any) -> Any:
    """
    Text as it is; bytes as base64; numbers, booleans and decimals as in JSON, without quotes; dates as ``2026-01-31``,
    times as ``12:30:00.000``, instants as ``2026-01-31T12:30:00.000Z`` with the digits of their unit; structs, lists
    and maps as JSON. Null stays null.

    Raises:
        Unfit: a value has no text: NaN in a list, a time outside the years 1 to 9999.
    """
    kind = array.type
    types = pa.types
    if types.is_null(kind) or types.is_string(kind) or types.is_large_string(kind):
        return array.cast(pa.string())
    if types.is_dictionary(kind):
        return text_of(array.dictionary_decode())
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.array(
            [None if value is None else b64encode(value).decode() for value in array.to_pylist()], pa.string()
        )
    if types.is_time(kind) or types.is_decimal(kind):
        return array.cast(pa.string())
    if types.is_floating(kind):
        return _floats(array)
    try:
        check_writable("the value", kind)
        written = texts(array)
    except (Unwritable, InvalidConfig) as why:
        raise Unfit(str(why)) from None
    if types.is_temporal(kind):
        written = pc.utf8_trim(written, '"')
    return pc.if_else(array.is_valid(), written, None)


def _floats(array: Any) -> Any:
    finite = pc.is_finite(array)
    numbers = texts(pc.if_else(finite, array, pa.scalar(0, array.type)))
    return pc.if_else(finite, numbers, array.cast(pa.string()))
