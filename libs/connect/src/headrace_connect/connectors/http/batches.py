"""Records as bodies of requests, and the keys by which a target knows what it has had."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from headrace_connect.connectors.http.sink_settings import SinkSettings
from headrace_connect.core.json_text import dump
from headrace_connect.plugin import Rows

_KEY_CHARS_MAX: Final = 255
_JSON, _NDJSON, _TEXT, _BYTES = (
    "application/json",
    "application/x-ndjson",
    "text/plain; charset=utf-8",
    "application/octet-stream",
)


@dataclass(frozen=True, slots=True)
class Item:
    """One record that is to be sent."""

    index: int
    """In the rows that were given."""
    offset: int
    body: bytes
    content_type: str = _JSON


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows as items, and those that cannot be sent."""

    items: Sequence[Item]
    refused: dict[int, str]


def encode(rows: Rows, settings: SinkSettings) -> Encoded:
    """The records as they are sent. Those without a value are bad or left out, as the settings say."""
    items: list[Item] = []
    refused: dict[int, str] = {}
    offsets: list[Any] = rows.offsets.to_pylist()
    sent = _envelopes(rows, settings) if settings.record == "envelope" else _to_python(rows.values)
    nulls: list[Any] = rows.values.is_null().to_pylist()
    for index, (value, is_null) in enumerate(zip(sent, nulls, strict=True)):
        if is_null and settings.null_values != "send":
            if settings.null_values == "refuse":
                refused[index] = "the record has no value; null.values says what becomes of it"
            continue
        try:
            items.append(Item(index, offsets[index], *_body_of(value, settings)))
        except ValueError as error:
            refused[index] = f"it cannot be sent as JSON: {error}"
    return Encoded(items, refused)


def cut(items: Sequence[Item], settings: SinkSettings) -> Iterator[Sequence[Item]]:
    """The items of each request, in order. The same items are always cut in the same places."""
    records_max = 1 if settings.format == "single" else settings.batch_records
    start, size = 0, 0
    for at, item in enumerate(items):
        more = len(item.body) + 1  # a comma or a line's end
        if at > start and (at - start >= records_max or size + more + 1 > settings.batch_bytes):
            yield items[start:at]
            start, size = at, 0
        size += more
    if start < len(items):
        yield items[start:]


def body_of(items: Sequence[Item], format_: str) -> tuple[bytes, str]:
    """The body of a request, and its content type."""
    if format_ == "single":
        return items[0].body, items[0].content_type
    if format_ == "ndjson":
        return b"".join(item.body + b"\n" for item in items), _NDJSON
    return b"[" + b",".join(item.body for item in items) + b"]", _JSON


def key_of(rows: Rows, items: Sequence[Item], prefix: str) -> str:
    """What these records are called, and no others: topic, partition, offsets of the first and the last one."""
    first, last = items[0].offset, items[-1].offset
    offsets = f"{first}" if len(items) == 1 else f"{first}-{last}"
    return _bounded(f"{prefix}{rows.source.topic}.{rows.partition}.{offsets}")


def _envelopes(rows: Rows, settings: SinkSettings) -> Iterator[dict[str, Any]]:
    topic, prefix = rows.source.topic, settings.idempotency_prefix
    columns = (rows.offsets, rows.timestamps_ms, rows.keys, rows.values, rows.headers)
    for offset, timestamp, key, value, headers in zip(*map(_to_python, columns), strict=True):
        yield {
            "id": _bounded(f"{prefix}{topic}.{rows.partition}.{offset}"),
            "topic": rows.topic,
            "partition": rows.partition,
            "offset": offset,
            "timestamp": timestamp,
            "key": key,
            "value": value,
            "headers": [{"key": one["key"], "value": _text(one["value"])} for one in headers or ()],
        }


def _body_of(value: Any, settings: SinkSettings) -> tuple[bytes, str]:
    if settings.format == "single" and isinstance(value, bytes):
        return value, _BYTES
    if settings.format == "single" and isinstance(value, str):
        return value.encode(), _TEXT
    return dump(value).encode(), _JSON


def _to_python(array: Any) -> list[Any]:
    values: list[Any] = array.to_pylist(maps_as_pydicts="strict")
    return values


def _text(value: bytes | None) -> str | None:
    """As text where it is UTF-8, else base64, as bytes in values are."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _bounded(name: str) -> str:
    """The name, or a hash of it where it is longer than keys may be."""
    return name if len(name) <= _KEY_CHARS_MAX else blake2b(name.encode(), digest_size=32).hexdigest()
