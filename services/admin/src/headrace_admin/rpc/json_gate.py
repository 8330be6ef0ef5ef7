"""
Decides which HTTP requests get in at all: the size of the body, that it is JSON, and that the JSON has one meaning.

Refused are bodies above the limit (while they arrive, not after), other content types, duplicate keys, NaN and
Infinity, broken UTF-8 and lone surrogates, nesting too deep. Also requests whose Host is not of this machine while the
service listens on loopback only: a web page must not reach it by renaming its own host (DNS rebinding). Browsers
cannot send JSON across origins without asking first, and nobody answers them.
"""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace_admin.rpc.problems import problem

DEPTH_MAX: Final = 32
_LOCAL_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})


class NotJson(ValueError):
    """The body is not JSON with one meaning; the text says why."""


class JsonGate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, body_bytes_max: int, local_only: bool) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._local_only = local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._refused_host(headers, scope["path"])
        if refused is None:
            body = await _read(receive, self._body_bytes_max)
            refused = self._refused_body(body, headers, scope["path"])
            if refused is None:
                assert body is not None, "a body that is too large was refused"
                await self._app(scope, _replay(body, receive), send)
                return
        await refused(scope, receive, send)

    def _refused_host(self, headers: Headers, path: str) -> Response | None:
        host = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
        if headers.get("host", "").endswith("]"):
            host = headers["host"]
        if not self._local_only or host.lower() in _LOCAL_HOSTS:
            return None
        step = "Use 127.0.0.1 or localhost, or let the service listen on another address."
        return problem(421, f"this service answers on loopback only, not as {host[:80]!r}", path, next_step=step)

    def _refused_body(self, body: bytes | None, headers: Headers, path: str) -> Response | None:
        if body is None:
            step = "Send less at once."
            detail = f"the body is larger than {self._body_bytes_max} bytes"
            return problem(413, detail, path, next_step=step, headers={"connection": "close"})
        if not body:
            return None
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            step = "Send JSON with the header Content-Type: application/json."
            return problem(415, f"the content type is {content_type[:80]!r}", path, next_step=step)
        try:
            parse_strict(body)
        except NotJson as error:
            return problem(400, str(error), path, next_step="Correct the JSON of the body.")
        return None


def parse_strict(body: bytes) -> Any:
    """
    The value of a JSON text with exactly one meaning.

    Raises:
        NotJson: it has none, or more than one.
    """
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise NotJson(f"the body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise NotJson(f"the body is nested deeper than {DEPTH_MAX}") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"the body is not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None
    except NotJson:
        raise
    except ValueError:
        raise NotJson("the body has a number with too many digits") from None
    _check(value, 1)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NotJson(f"the key {twice[:80]!r} occurs twice in one object; which one counts?")
    return found


def _constant(name: str) -> Any:
    raise NotJson(f"{name} is not JSON; write null or a string")


def _check(value: Any, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise NotJson(f"the body is nested deeper than {DEPTH_MAX}")
    match value:
        case str():
            _check_text(value)
        case list():
            for item in value:
                _check(item, depth + 1)
        case dict():
            for name, item in value.items():
                _check_text(name)
                _check(item, depth + 1)
        case float() if value in {float("inf"), float("-inf")}:
            raise NotJson("the body has a number that is too large")


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise NotJson("the body has half of a surrogate pair, which is no character") from None


async def _read(receive: Receive, bytes_max: int) -> bytes | None:
    """The whole body; None as soon as it is too large."""
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            break
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > bytes_max:
            return None
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
