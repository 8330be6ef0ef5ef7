"""
What a tap says, a line each: the messages of the Singer specification.

Its ``BATCH`` messages name files instead of records and are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import orjson

_SHOWN: Final = 80


class NotAMessage(ValueError):
    """A line is none; says why."""


@dataclass(frozen=True, slots=True)
class SchemaMessage:
    """What records of a stream look like from now on."""

    stream: str
    schema: Mapping[str, Any]
    keys: tuple[str, ...]
    """``key_properties``."""
    bookmarks: tuple[str, ...]
    """``bookmark_properties``: by which the tap tells what is new."""


@dataclass(frozen=True, slots=True)
class RecordMessage:
    """A record."""

    stream: str
    record: Mapping[str, Any]
    extracted: str | None
    """``time_extracted``."""


@dataclass(frozen=True, slots=True)
class StateMessage:
    """Where the tap is, when everything before it is safe. Only the tap understands it."""

    value: Any


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """Names files with records."""

    stream: str


@dataclass(frozen=True, slots=True)
class OtherMessage:
    """Says nothing that changes records: ``ACTIVATE_VERSION``, or what later specifications have."""

    type: str


Message: TypeAlias = SchemaMessage | RecordMessage | StateMessage | BatchMessage | OtherMessage


def parse(line: bytes, is_exact: Callable[[str], bool]) -> Message:
    """
    Args:
        is_exact: whether numbers of a stream have to be read with all of their digits.

    Raises:
        NotAMessage: it is none.
    """
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError as wrong:
        raise NotAMessage(f"is not JSON: {wrong}") from None
    kind = said.get("type") if isinstance(said, dict) else None
    if not isinstance(kind, str):
        raise NotAMessage("is not a message: it has no type")
    match kind:
        case "RECORD":
            if is_exact(_stream_of(said)):
                said = _exactly(line)
            return _record(said)
        case "SCHEMA":
            return _schema(_exactly(line))
        case "STATE":
            return StateMessage(_exactly(line).get("value"))
        case "BATCH":
            return BatchMessage(_stream_of(said))
    return OtherMessage(kind[:_SHOWN])


def _exactly(line: bytes) -> Any:
    """With decimals as they are written, and whole numbers of any size."""
    try:
        return json.loads(line.decode(), parse_float=Decimal, parse_constant=_refuse)
    except (ValueError, RecursionError) as wrong:
        raise NotAMessage(f"cannot be read: {wrong}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _record(said: Mapping[str, Any]) -> RecordMessage:
    record, extracted = said.get("record"), said.get("time_extracted")
    if not isinstance(record, dict):
        raise NotAMessage("is a RECORD without a record")
    return RecordMessage(_stream_of(said), record, extracted if isinstance(extracted, str) else None)


def _schema(said: Mapping[str, Any]) -> SchemaMessage:
    schema = said.get("schema")
    if not isinstance(schema, dict):
        raise NotAMessage("is a SCHEMA without a schema")
    keys, bookmarks = _names(said, "key_properties"), _names(said, "bookmark_properties")
    return SchemaMessage(_stream_of(said), schema, keys, bookmarks)


def _names(said: Mapping[str, Any], key: str) -> tuple[str, ...]:
    given = said.get(key) or ()
    names: Sequence[Any] = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise NotAMessage(f"has {key} that are no names")
    return tuple(names)


def _stream_of(said: Mapping[str, Any]) -> str:
    stream = said.get("stream")
    if not isinstance(stream, str) or not stream:
        raise NotAMessage("names no stream")
    return stream
