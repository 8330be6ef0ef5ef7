"""
Moments and durations as people write them, in one place: REST and the commands read the same.

A moment is ISO 8601 with its zone (``2026-11-21T10:00:00+01:00``, ``2026-11-21T09:00Z``) or milliseconds since the
epoch. A duration is ISO 8601 (``PT1H30M``, ``P2D``) or short (``1h30m``, ``2d``, ``500ms``). Both are milliseconds
inside. Months and years have no fixed length and are refused.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from headrace_common.core.errors import Rejected

MOMENT_FORM: Final = "ISO 8601 with a zone, such as 2026-11-21T10:00:00Z, or milliseconds since the epoch"
DURATION_FORM: Final = "such as 1h30m, 2d, 500ms, or ISO 8601 such as PT1H30M"
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_NUMBER: Final = r"\d{1,15}(?:\.\d{1,9})?"
_SHORT_PART: Final = re.compile(rf"({_NUMBER})(ms|s|m|h|d|w)", re.ASCII)
_SHORT: Final = re.compile(rf"(?:{_NUMBER}(?:ms|s|m|h|d|w))+", re.ASCII)
_ISO: Final = re.compile(
    rf"P(?:({_NUMBER})W)?(?:({_NUMBER})D)?(?:T(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?", re.ASCII
)


def parse_moment_ms(text: str) -> int:
    """
    Milliseconds since the epoch.

    Raises:
        Rejected: it is neither form, has no zone, or lies before 1970 or after 9999.
    """
    written = text.strip()
    if written.isascii() and written.isdigit():
        return _check_moment(int(written) if len(written) <= 15 else TIMESTAMP_MS_MAX + 1, text)
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        raise Rejected(f"{text!r} is no moment; write {MOMENT_FORM}") from None
    if moment.tzinfo is None:
        raise Rejected(f"{text!r} has no zone, so it is not clear when that is; add Z for UTC, or one such as +01:00")
    return _check_moment((moment - _EPOCH) // timedelta(milliseconds=1), text)


def _check_moment(moment_ms: int, text: str) -> int:
    if not 0 <= moment_ms <= TIMESTAMP_MS_MAX:
        raise Rejected(f"{text!r} is not between 1970 and 9999; write {MOMENT_FORM}")
    return moment_ms


def parse_duration_ms(text: str) -> int:
    """
    A duration in milliseconds, rounded down; 0 or more.

    Raises:
        Rejected: it is neither form, or longer than the time since 1970 can be.
    """
    written = text.strip()
    iso = _ISO.fullmatch(written.upper())
    if iso is not None and any(iso.groups()):
        parts = list(zip(iso.groups(), ("w", "d", "h", "m", "s"), strict=True))
    elif _SHORT.fullmatch(written.lower()):
        parts = _SHORT_PART.findall(written.lower())
    else:
        raise Rejected(f"{text!r} is no duration; write one {DURATION_FORM}")
    if len({unit for number, unit in parts if number}) != sum(bool(number) for number, _ in parts):
        raise Rejected(f"{text!r} names a unit twice; write a duration {DURATION_FORM}")
    duration_ms = int(sum(float(number) * _MS[unit] for number, unit in parts if number))
    if duration_ms > TIMESTAMP_MS_MAX:
        raise Rejected(f"{text!r} is longer than any log; write a duration {DURATION_FORM}")
    return duration_ms


def iso_of(moment_ms: int) -> str:
    """``2026-11-21T10:00:00.000Z``."""
    moment = _EPOCH + timedelta(milliseconds=moment_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
