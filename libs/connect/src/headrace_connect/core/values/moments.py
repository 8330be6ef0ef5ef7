"""Dates and times as PostgreSQL writes them with DateStyle ISO, beyond what Arrow reads: BC, years above 9999."""

from __future__ import annotations

import re
from datetime import date
from typing import Final

_DATE: Final = r"(\d{4,7})-(\d\d)-(\d\d)"
_TIME: Final = r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?"
_ZONE: Final = r"([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?"
_ONLY_DATE: Final = re.compile(rf"{_DATE}( BC)?", re.ASCII)
_ONLY_TIME: Final = re.compile(_TIME, re.ASCII)
_TIMESTAMP: Final = re.compile(rf"{_DATE} {_TIME}(?:{_ZONE})?( BC)?", re.ASCII)
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""After which the calendar repeats."""
_UNIX_ORDINAL: Final = date(1970, 1, 1).toordinal()
_DAY_US: Final = 86_400_000_000


def days_of(text: str) -> int:
    """
    Days since 1970-01-01 of a date.

    Raises:
        ValueError: infinity, or no date.
    """
    found = _match(_ONLY_DATE, text, "date")
    return _days(found[1], found[2], found[3], found[4])


def time_us_of(text: str) -> int:
    """
    Microseconds since midnight.

    Raises:
        ValueError: 24:00:00, which no clock shows, or no time.
    """
    found = _match(_ONLY_TIME, text, "time")
    time = _time_us(*found.groups())
    if time >= _DAY_US:
        raise ValueError(f"{text} is not within a day")
    return time


def timestamp_us_of(text: str) -> int:
    """
    Microseconds since 1970, in UTC if there is an offset.

    Raises:
        ValueError: infinity, or no timestamp.
    """
    found = _match(_TIMESTAMP, text, "timestamp")
    year, month, day, *time = found.groups()[:7]
    sign, hours, minutes, seconds, bc = found.groups()[7:]
    offset = sum(int(part or 0) * size for part, size in ((hours, 3_600), (minutes, 60), (seconds, 1))) * 1_000_000
    local = _days(year, month, day, bc) * _DAY_US + _time_us(*time)
    return local + offset if sign == "-" else local - offset


def _match(form: re.Pattern[str], text: str, what: str) -> re.Match[str]:
    found = form.fullmatch(text)
    if found is None:
        cause = "infinity is none" if text.endswith("infinity") else "DateStyle must be ISO"
        raise ValueError(f"{text!r} is no {what}: {cause}")
    return found


def _days(year: str, month: str, day: str, bc: str | None) -> int:
    astronomical = 1 - int(year) if bc else int(year)
    cycles, within = divmod(astronomical, _CYCLE_YEARS)
    ordinal = date(within + _CYCLE_YEARS, int(month), int(day)).toordinal()
    return ordinal + (cycles - 1) * _CYCLE_DAYS - _UNIX_ORDINAL


def _time_us(hours: str, minutes: str, seconds: str, fraction: str | None) -> int:
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 1_000_000 + int((fraction or "").ljust(6, "0"))
