"""What an answer of an HTTP server means for who has sent something, and how long the server wants to be left alone."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

_REASON_CHARS_MAX: Final = 300
_NOT_OF_RECORDS: Final = frozenset({401, 403, 404, 405, 407, 408, 410, 425, 429})
"""Of 4xx: about the time, the address or the rights, so the same records may be taken later."""
_ADVICE: Final = {
    401: "check authorization",
    403: "check authorization, and the rights of who it is",
    404: "check url",
    405: "check method",
    407: "check the proxy's credentials",
    410: "check url",
}


class Verdict(Enum):
    """Of one request."""

    TAKEN = "taken"
    LATER = "later"
    """Nothing is wrong with the records: the same request may succeed later."""
    REFUSED = "refused"
    """The records, or one of them, will never be taken as they are."""


def judge(status: int) -> Verdict:
    """What a status says of what was sent."""
    if 200 <= status < 300:
        return Verdict.TAKEN
    return Verdict.REFUSED if 400 <= status < 500 and status not in _NOT_OF_RECORDS else Verdict.LATER


def reason_of(status: int, body: bytes) -> str:
    """For people: the status, what to do if that is known, and how the body begins."""
    text = " ".join(body.decode(errors="replace").split())[:_REASON_CHARS_MAX]
    advice = "it redirects: set url to where it goes" if 300 <= status < 400 else _ADVICE.get(status, "")
    return f"status {status}" + (f"; {advice}" if advice else "") + (f": {text}" if text else "")


def retry_after_ms(value: str | None, now_ms: int) -> float:
    """
    ``Retry-After`` as milliseconds from now: seconds, or a date. 0 where it says nothing that can be understood.

    Args:
        now_ms: wall clock, milliseconds since the epoch.
    """
    if value is None:
        return 0
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9]) * 1_000
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return 0
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.fromtimestamp(now_ms / 1_000, UTC)).total_seconds() * 1_000)
