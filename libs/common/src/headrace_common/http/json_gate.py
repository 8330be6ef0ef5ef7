"""
Decides which HTTP requests get in at all: whom they come from (``foreign_pages``), the size of the body, that it is
JSON, and that the JSON has one meaning.

Refused are bodies above the limit (while they arrive, not after), other content types, duplicate keys, NaN and
Infinity, broken UTF-8 and lone surrogates, nesting too deep. A request whose client leaves before its body has come is
not carried out.

Who sends too much is answered at once, and what still comes is dropped for a while before the connection is closed:
many clients read an answer only when they have sent all, and a connection that is closed on what it has not read is
reset, answer and all.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace_common.http.foreign_pages import Hosts, Refusal, find_not_json, find_refusal
from headrace_common.http.problems import problem_of_refusal
from headrace_common.runtime.clock import limit_s

DRAIN_BYTES_MAX: Final = 64 << 20
"""So much of a body that was refused is read and dropped."""
DRAIN_SECONDS: Final = 10.0
"""For that; the deadline of the whole body goes on beside it."""
DEPTH_MAX: Final = 32
VALUES_MAX: Final = 100_000
"""In one body. All others wait while it is read: so many take some 100 ms; the largest body could have a million."""
KEYS_MAX: Final = 10_000
"""In one object: each that is not known becomes an entry of the list of what is wrong."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[,\[{]', re.DOTALL)
"""A text, or what a value follows. A text without an end goes to the end of all, so that no byte is looked at twice."""


class NotJson(ValueError):
    """The body is not JSON with one meaning; the text says why."""


class JsonGate:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        body_bytes_max: int,
        hosts: Hosts,
        *,
        bodiless: bool = False,
        answer: Callable[[Refusal, str], Response] = problem_of_refusal,
    ) -> None:
        """
        Args:
            bodiless: whether changes without a body need no content type; see ``find_refusal``.
            answer: makes the answer of a refusal for a path.
        """
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._hosts = hosts
        self._bodiless = bodiless
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = find_refusal(scope["method"], headers, self._hosts, bodiless=self._bodiless)
        if refusal is None:
            try:
                body = await _read(receive, self._body_bytes_max)
            except ClientDisconnect:
                return
            refusal = self._refused_body(body, headers)
            if refusal is None:
                assert body is not None, "a body that is too large was refused"
                await self._app(scope, _replay(body, receive), send)
                return
            if body is None:
                response = self._answer(refusal, scope["path"])
                response.headers["connection"] = "close"
                await answer_and_drain(response, scope, receive, send)
                return
        await self._answer(refusal, scope["path"])(scope, receive, send)

    def _refused_body(self, body: bytes | None, headers: Headers) -> Refusal | None:
        if body is None:
            return Refusal(413, f"the body is larger than {self._body_bytes_max} bytes", "Send less at once.")
        if not body:
            return None
        not_json = find_not_json(headers)
        if not_json is not None:
            return not_json
        try:
            parse_strict(body)
        except NotJson as error:
            return Refusal(400, str(error), "Correct the JSON of the body.")
        return None


def parse_strict(body: bytes) -> Any:
    """
    The value of a JSON text with exactly one meaning.

    Raises:
        NotJson: it has none, or more than one.
    """
    _check_count(body)
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


def _check_count(body: bytes) -> None:
    """Before anything is made of it; what stands in strings does not count, and is looked at only where it matters."""
    if sum(body.count(sign) for sign in (b",", b"[", b"{")) <= VALUES_MAX:
        return
    signs = (token for token in _TOKEN.finditer(body) if token[0][:1] != b'"')
    if next(islice(signs, VALUES_MAX, None), None) is not None:
        raise NotJson(f"the body has more than {VALUES_MAX} values; send less at once")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """One look at each key: a stranger chooses how many there are."""
    if len(pairs) > KEYS_MAX:
        raise NotJson(f"an object of the body has {len(pairs)} keys; {KEYS_MAX} is the most")
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise NotJson(f"the key {name[:80]!r} occurs twice in one object; which one counts?")
        members[name] = value
    return members


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
    """
    The whole body; None as soon as it is too large.

    Raises:
        ClientDisconnect: the rest of it will not come.
    """
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > bytes_max:
            return None
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)


async def answer_and_drain(refusal: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """The whole answer goes out at once; its end, which closes the connection, once the client has sent all."""

    async def without_end(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

    await refusal(scope, receive, without_end)
    with contextlib.suppress(TimeoutError):
        async with limit_s(DRAIN_SECONDS):
            await _drop(receive, DRAIN_BYTES_MAX)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drop(receive: Receive, bytes_max: int) -> None:
    dropped = 0
    while dropped <= bytes_max:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
        dropped += len(message.get("body", b""))


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
