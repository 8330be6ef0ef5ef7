"""
How records look as lines of text, both ways: what ``produce`` reads and ``consume`` prints. Pure.

JSON lines are ``{"topic", "partition", "offset", "timestamp_ms", "key", "value", "headers"}``; bytes that are no
UTF-8 appear as ``{"base64": "..."}``, which ``produce --json`` takes too, so that one's output is the other's input.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.terminal import visible_bytes

if TYPE_CHECKING:
    from headrace import Record

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKENS: Final = re.compile(r"%[a-zA-Z%]|\\.|[^%\\]+|.", re.DOTALL)


class Outgoing(NamedTuple):
    """A record to send."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None = None
    timestamp_ms: int | None = None


Renderer = Callable[[Any], bytes]

JSON_KEYS: Final = frozenset({"topic", "partition", "offset", "timestamp_ms", "key", "value", "headers"})
"""What a line of JSON may have. Topic and offset say where a record was read; they are not looked at."""


def render_json(record: Record) -> bytes:
    """One line of JSON."""
    return orjson.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )


def renderer(template: str, *, as_base64: bool, at_terminal: bool = False) -> Renderer:
    """
    A function that writes a record in the form of ``template``: ``json``, or text with %t topic, %p partition,
    %o offset, %T timestamp in ms, %k key, %s value, %h headers, %% a percent sign, and \\n, \\t, \\0.

    At a terminal what records have in them is shown, never obeyed: escape sequences appear as text.

    Raises:
        CommandFailed: the template has another letter after ``%``.
    """
    if template == "json":
        line: Renderer = (lambda r: render_json(_with_base64(r))) if as_base64 else render_json
        return (lambda r: _visible_json(line(r))) if at_terminal else line
    show = _base64 if as_base64 else _visible if at_terminal else _raw
    parts = [_part(token, show) for token in _TOKENS.findall(template)]
    return lambda record: b"".join([part if isinstance(part, bytes) else part(record) for part in parts])


def _part(token: str, show: Callable[[bytes | None], bytes]) -> bytes | Renderer:
    if token.startswith("\\") and len(token) == 2:
        return _ESCAPES.get(token[1], token.encode())
    if not token.startswith("%") or len(token) == 1:
        return token.encode()
    fields: dict[str, bytes | Renderer] = {
        "%": b"%",
        "t": lambda r: r.topic.encode(),
        "p": lambda r: b"%d" % r.partition,
        "o": lambda r: b"%d" % r.offset,
        "T": lambda r: b"%d" % r.timestamp_ms,
        "k": lambda r: show(r.key),
        "s": lambda r: show(r.value),
        "h": lambda r: b",".join(_name(name, show) + b"=" + show(value) for name, value in r.headers),
    }
    field = fields.get(token[1])
    if field is None:
        raise CommandFailed(f"{token} is not known in a format; there are %t %p %o %T %k %s %h %%", ExitCode.USAGE)
    return field


def _name(name: str, show: Callable[[bytes | None], bytes]) -> bytes:
    return _visible(name.encode()) if show is _visible else name.encode()


def _raw(data: bytes | None) -> bytes:
    return b"" if data is None else data


def _visible(data: bytes | None) -> bytes:
    return b"" if data is None else visible_bytes(data)


def _visible_json(line: bytes) -> bytes:
    """JSON escapes C0 controls by itself; what else a terminal obeys are characters of more than one byte."""
    if line.isascii():
        return line
    return "".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in line.decode()).encode()


def _json_escape(char: str) -> str:
    return json.dumps(char)[1:-1]


def _base64(data: bytes | None) -> bytes:
    return b"" if data is None else base64.b64encode(data)


def _text(data: bytes | dict[str, str] | None) -> str | dict[str, str] | None:
    if data is None or isinstance(data, dict):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _with_base64(record: Any) -> Any:
    def wrap(data: bytes | None) -> dict[str, str] | None:
        return None if data is None else {"base64": base64.b64encode(data).decode()}

    return record._replace(
        key=wrap(record.key), value=wrap(record.value), headers=[(n, wrap(v)) for n, v in record.headers]
    )


def parse_json(line: bytes, where: str) -> Outgoing:
    """
    One line of JSON as a record. ``value`` and ``key`` are texts, null, ``{"base64": ...}``, or any other JSON,
    which is sent as JSON; ``headers`` are an object or a list of pairs.

    Raises:
        CommandFailed: it is no such line; the text names it by ``where``.
    """
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise CommandFailed(f"{where} is no JSON: {error}", ExitCode.USAGE) from None
    if not isinstance(data, dict) or "value" not in data:
        raise CommandFailed(f'{where} is not of the form {{"key": ..., "value": ...}}', ExitCode.USAGE)
    unknown = sorted(data.keys() - JSON_KEYS)
    if unknown:
        said = f"{where} has {unknown[0][:80]!r}, which a record does not; it may have {', '.join(sorted(JSON_KEYS))}"
        raise CommandFailed(said, ExitCode.USAGE)
    headers = data.get("headers") or []
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        raise CommandFailed(f"{where}: headers are an object, or a list of [name, value]", ExitCode.USAGE)
    partition, timestamp = data.get("partition"), data.get("timestamp_ms")
    for name, number in (("partition", partition), ("timestamp_ms", timestamp)):
        if number is not None and not isinstance(number, int):
            raise CommandFailed(f"{where}: {name} is a whole number, not {number!r}", ExitCode.USAGE)
    return Outgoing(
        _bytes(data.get("key"), where),
        _bytes(data["value"], where),
        [(name, _bytes(value, where)) for name, value in pairs],
        partition,
        timestamp,
    )


def _bytes(data: Any, where: str) -> bytes | None:
    match data:
        case None:
            return None
        case str():
            return data.encode()
        case {"base64": str() as text} if len(data) == 1:
            try:
                return base64.b64decode(text, validate=True)
            except ValueError:
                raise CommandFailed(f"{where}: {text[:60]!r} is no base64", ExitCode.USAGE) from None
    return orjson.dumps(data)
