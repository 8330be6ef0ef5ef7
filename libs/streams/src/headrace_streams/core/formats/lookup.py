"""Keys that somebody asks for: columns as Python's values or as texts, checked against what a store is kept by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import orjson
import pyarrow as pa

from headrace_common.core.errors import InvalidConfig, Rejected
from headrace_streams.core.formats.keys import encode_keys
from headrace_streams.core.formats.port import NotEncodable

Keys: TypeAlias = "Sequence[pa.Field[Any]]"


def key_of(store: str, keys: Keys, values: Sequence[object]) -> bytes:
    """
    The key of these columns; bytes alone are the key as it is.

    Args:
        keys: the columns that the store is kept by; empty: not known.

    Raises:
        Rejected: they are not the columns of the store's keys; names those.
    """
    if len(values) == 1 and isinstance(values[0], bytes):
        return values[0]
    _check_count(store, keys, values)
    types = [field.type for field in keys] or [None] * len(values)
    return _encoded(
        store, keys, [_array(store, keys, value, type_) for value, type_ in zip(values, types, strict=True)]
    )


def key_of_texts(store: str, keys: Keys, texts: Sequence[str]) -> bytes:
    """
    The key of columns that are given as texts.

    Args:
        keys: as for ``key_of``.

    Raises:
        Rejected: as ``key_of`` does.
    """
    _check_count(store, keys, texts)
    if not keys:
        return texts[0].encode() if len(texts) == 1 else key_of(store, keys, [_guessed(text) for text in texts])
    columns = []
    for field, text in zip(keys, texts, strict=True):
        try:
            columns.append(pa.array([text], pa.string()).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _misfit(store, keys, f"{text!r:.100} is no {field.type}") from error
    return _encoded(store, keys, columns)


def _check_count(store: str, keys: Keys, given: Sequence[object]) -> None:
    if not given:
        raise Rejected(f"say which key of {store!r}: {_listed(keys) or 'one value, or several'}")
    if keys and len(keys) != len(given):
        raise _misfit(store, keys, f"{len(given)} {'value was' if len(given) == 1 else 'values were'} given")


def _array(store: str, keys: Keys, value: object, type_: pa.DataType | None) -> pa.Array[Any]:
    try:
        column: pa.Array[Any] = pa.array([value], type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, OverflowError) as error:
        raise _misfit(store, keys, f"{value!r:.100} is {type(value).__name__}") from error
    return column


def _encoded(store: str, keys: Keys, columns: Sequence[pa.Array[Any]]) -> bytes:
    try:
        key = encode_keys(columns)[0].as_py()
    except (InvalidConfig, NotEncodable) as error:
        raise _misfit(store, keys, str(error)) from error
    if key is None:
        raise Rejected(f"there is no state of the null key in {store!r}")
    return bytes(key)


def _misfit(store: str, keys: Keys, why: str) -> Rejected:
    wanted = f"the keys of {store!r} are: {_listed(keys)}" if keys else f"no record has such a key in {store!r}"
    return Rejected(f"{wanted}; {why}")


def _listed(keys: Keys) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in keys)


def _guessed(text: str) -> object:
    """A number, true or false as JSON says them, else text."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value if isinstance(value, (int, float, bool)) else text
