"""
Asks OIDC providers, for who logs in there: one request, one answer of JSON. Threads; the event loop is not for it.

No redirect is followed, so nothing that is sent goes elsewhere. Proxies of the environment are asked as by any program
(``HTTPS_PROXY``), and CAs are those of the machine, or of ``SSL_CERT_FILE``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.errors import NetworkFailed
from headrace_common.runtime.clock import SystemClock

if TYPE_CHECKING:
    from urllib.request import Request

ANSWER_BYTES_MAX: Final = 256 << 10
ASK_MS_MAX: Final = 10_000.0
_PIECE_BYTES: Final = 16 << 10


def get_json(url: str) -> dict[str, Any]:
    """
    What is published at ``url``. Blocks for some 10 s at most.

    Raises:
        NetworkFailed: it cannot be had, or is no object of JSON.
    """
    status, said = _ask(url, None)
    if status != 200:
        raise NetworkFailed(f"{url} answers {status}")
    return said


def post_form(url: str, fields: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """
    The status and the answer to a form; also those of a refusal. Blocks for some 10 s at most.

    Raises:
        NetworkFailed: there is no answer, or it is no object of JSON; the form may have been taken.
    """
    from urllib.parse import urlencode

    return _ask(url, urlencode(fields).encode())


def _ask(url: str, form: bytes | None) -> tuple[int, dict[str, Any]]:
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Stay(HTTPRedirectHandler):
        """A redirect is an answer like another."""

        def redirect_request(self, *_: Any) -> Request | None:
            return None

    request = Request(url, form, {"Accept": "application/json", "User-Agent": "headrace"})
    until_ms = SystemClock().monotonic_ms() + ASK_MS_MAX
    try:
        try:
            answer = build_opener(Stay).open(request, timeout=ASK_MS_MAX / 1_000)
        except HTTPError as refusal:
            answer = refusal
        with answer:
            return answer.status, _object(_read(answer, until_ms))
    except (OSError, HTTPException, ValueError) as error:
        raise NetworkFailed(f"{url} gives no answer that can be read: {error or type(error).__name__}") from None


def _read(answer: Any, until_ms: float) -> bytes:
    raw = b""
    while piece := answer.read1(_PIECE_BYTES):
        raw += piece
        if len(raw) > ANSWER_BYTES_MAX:
            raise ValueError(f"it has more than {ANSWER_BYTES_MAX} bytes")
        if SystemClock().monotonic_ms() >= until_ms:
            raise ValueError(f"it is not whole after {ASK_MS_MAX / 1_000:.0f} s")
    return raw


def _object(raw: bytes) -> dict[str, Any]:
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(said, dict):
        raise ValueError("it is no object of JSON")
    return said
