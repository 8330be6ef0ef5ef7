"""
How keys and values become bytes, and back.

A producer's ``key_serializer`` and ``value_serializer`` are functions of one argument that return bytes (or None), or
one of the names here; a consumer's ``key_deserializer`` and ``value_deserializer`` likewise. Without a serializer a
producer takes bytes, text (which is written as UTF-8) and None::

    >>> from headrace.serializers import serializer, deserializer
    >>> serializer("json")({"carrier": "UA", "delay": 2})
    b'{"carrier":"UA","delay":2}'
    >>> deserializer("json")(b'{"carrier":"UA","delay":2}')["delay"]
    2
    >>> serializer("int64")(-2).hex(), deserializer("int64")(bytes.fromhex("fffffffffffffffe"))
    ('fffffffffffffffe', -2)

Numbers are big-endian, as Kafka's own serializers write them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeVar
from uuid import UUID

from headrace.errors import InvalidConfig, SerializationFailed

Serializer = Callable[[Any], bytes | bytearray | memoryview | str | None]
"""What a producer takes as one; text is written as UTF-8."""
Deserializer = Callable[[bytes | None], Any]
F = TypeVar("F", bound=Callable[..., Any])


def _packing(form: str) -> tuple[Serializer, Deserializer]:
    packed = struct.Struct(form)
    return (
        lambda value: None if value is None else packed.pack(value),
        lambda data: None if data is None else packed.unpack(data)[0],
    )


@cache
def _json() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """How to write and read JSON: orjson, which is ten times as quick, where it is installed."""
    try:
        import orjson
    except ImportError:
        write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
        return lambda value: write(value).encode(), json.loads
    return orjson.dumps, orjson.loads


def _json_bytes(value: Any) -> bytes:
    return _json()[0](value)


def _from_json(data: bytes | None) -> Any:
    return None if data is None else _json()[1](data)


def _text_bytes(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def _bytes(value: bytes | None) -> bytes | None:
    return value


_KNOWN: Final[Mapping[str, tuple[Serializer, Deserializer]]] = {
    "bytes": (_bytes, _bytes),
    "string": (_text_bytes, _text),
    "json": (_json_bytes, _from_json),
    "int16": _packing(">h"),
    "int32": _packing(">i"),
    "int64": _packing(">q"),
    "float32": _packing(">f"),
    "float64": _packing(">d"),
    "uuid": (
        lambda value: None if value is None else str(value).encode(),
        lambda data: None if data is None else UUID(data.decode()),
    ),
}


def serializer(given: str | Serializer) -> Serializer:
    """
    The function of a name; a function is returned as it is.

    Raises:
        InvalidConfig: no such name, with those there are.
    """
    return given if callable(given) else _pair(given)[0]


def deserializer(given: str | Deserializer) -> Deserializer:
    """
    The function of a name; a function is returned as it is.

    Raises:
        InvalidConfig: no such name, with those there are.
    """
    return given if callable(given) else _pair(given)[1]


def _pair(name: str) -> tuple[Serializer, Deserializer]:
    pair = _KNOWN.get(name)
    if pair is None:
        raise InvalidConfig(f"{name!r} is not a serializer; take {', '.join(_KNOWN)}, or a function of one argument")
    return pair


def as_bytes(value: Any, what: str) -> bytes | None:
    """
    ``value`` as bytes: bytes-like as it is, text as UTF-8.

    Args:
        what: "key" or "value", for the error.

    Raises:
        SerializationFailed: it is neither.
    """
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    kind = type(value).__name__
    raise SerializationFailed(
        f"a {what} is bytes, str or None, not {kind}; give the producer a {what}_serializer, for example 'json'"
    )


def bulk_partitioner(function: F) -> F:
    """
    Mark a partitioner that is called once per batch: ``f(topic, keys, partitions) -> a partition for each key``.

    ``keys`` is a list of bytes or None, or an Arrow array; a negative answer means the sticky partition::

        >>> from headrace import bulk_partitioner
        >>> @bulk_partitioner
        ... def by_length(topic, keys, partitions):
        ...     return [len(key or b"") % partitions for key in keys]
    """
    function.takes_many = True  # type: ignore[attr-defined]  # a mark that ``takes_many`` looks for
    return function


def takes_many(function: Any) -> bool:
    """Whether it was marked with ``bulk_partitioner``."""
    return bool(getattr(function, "takes_many", False))
