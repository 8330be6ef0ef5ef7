"""Lengths of time as programs write them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from headrace_streams.core.errors import NotAllowed

Duration = str | int | timedelta
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WRITTEN: Final = re.compile(r"\s*([+-]?)(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")


def to_ms(duration: Duration, what: str, *, least: int | None = 0) -> int:
    """
    ``"10s"``, ``"5m"``, ``"1h"``, ``"250ms"``, ``"1d"``, a ``timedelta``, or a whole number of ms.

    Args:
        least: the shortest that is allowed, ms.

    Raises:
        NotAllowed: it is none of these, or too short; ``what`` begins the message.
    """
    ms = _parsed(duration)
    if ms is None:
        raise NotAllowed(f"{what} is {duration!r}; write for example '10s', '5m', '1h', '250ms', or a number of ms")
    if least is not None and ms < least:
        raise NotAllowed(f"{what} is {duration!r}; it must be at least {least} ms")
    return ms


def _parsed(duration: Duration) -> int | None:
    if isinstance(duration, timedelta):
        return round(duration.total_seconds() * 1_000)
    if isinstance(duration, int) and not isinstance(duration, bool):
        return duration
    match = _WRITTEN.fullmatch(duration) if isinstance(duration, str) else None
    if match is None:
        return None
    sign, number, unit = match.groups()
    return round(float(number) * _UNITS[unit]) * (-1 if sign == "-" else 1)
