"""What can go wrong with a request to the cluster in memory. Made by tests, looked at by its streams and calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum

from headrace.errors import ErrorCode


class Does(Enum):
    """What a fault does to a request."""

    DROP = "the connection breaks"
    ERROR = "every partition is answered with `code`"
    SILENCE = "no answer comes"
    HOLD = "wait for `until`, then go on"


@dataclass(slots=True)
class Fault:
    """One failure of one request."""

    does: Does
    after: bool = False
    """True: the request was carried out first."""
    code: ErrorCode = ErrorCode.NONE
    partition: int | None = None
    """Only this partition is answered with ``code``; the others are carried out."""
    until: asyncio.Event | None = None
