"""Bytes of keys, values and headers as JSON says them: text, json or base64."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Literal, TypeAlias

from headrace_admin.ports import NewMessage, StoredMessage
from headrace_admin.rpc import models
from headrace_common.core.errors import Rejected
from headrace_common.http.json_gate import NotJson, parse_strict

Form: TypeAlias = Literal["auto", "text", "json", "base64"]


def bytes_of(content: models.Content) -> bytes | None:
    """
    The bytes that a request means.

    Raises:
        Rejected: not base64.
    """
    match content:
        case None:
            return None
        case str():
            return content.encode("utf-8")
        case models.AsText(text=text):
            return text.encode("utf-8")
        case models.AsJson():
            return json.dumps(content.json_, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")
        case models.AsBase64(base64=encoded):
            try:
                return base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError) as error:
                raise Rejected(f"{encoded[:40]!r} is not base64: {error}") from None


def message_of(record: models.RecordIn) -> NewMessage:
    """The record to write."""
    return NewMessage(
        value=bytes_of(record.value),
        key=bytes_of(record.key),
        headers=tuple((h.name, bytes_of(h.value)) for h in record.headers),
        partition=record.partition,
        timestamp_ms=record.timestamp_ms,
    )


def content_of(data: bytes | None, form: Form) -> dict[str, Any] | None:
    """
    The bytes in the form asked, or in base64 where they do not fit it. ``auto`` is text where they are UTF-8.

    JSON that has numbers or nesting which other readers may not take is given as text.
    """
    if data is None:
        return None
    if form != "base64":
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data).decode("ascii")}
        return _json_or_text(text) if form == "json" else {"text": text}
    return {"base64": base64.b64encode(data).decode("ascii")}


def _json_or_text(text: str) -> dict[str, Any]:

    try:
        return {"json": parse_strict(text.encode("utf-8"))}
    except NotJson:
        return {"text": text}


def record_out(message: StoredMessage, form: Form) -> models.RecordOut:
    return models.RecordOut(
        offset=message.offset,
        timestamp_ms=message.timestamp_ms,
        key=content_of(message.key, form),
        value=content_of(message.value, form),
        headers=[models.HeaderOut(name=name, value=content_of(value, form)) for name, value in message.headers],
    )
