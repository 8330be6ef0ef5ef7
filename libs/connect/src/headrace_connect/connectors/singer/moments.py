"""Dates and times as taps write them: ISO 8601, to the microsecond."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from typing import Any, Final

_FINER: Final = re.compile(r"[.,]\d{6}0*[1-9]")
"""More than microseconds, which Python would cut."""


def read_instant(value: Any) -> datetime:
    """
    A date and time; without a zone it is UTC, without a time midnight.

    Raises:
        ValueError: it is none between the years 1 and 9999, or finer than microseconds.
    """
    moment = _moment(value)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def read_date(value: Any) -> date:
    """
    A date, also written as the midnight with which it begins.

    Raises:
        ValueError: it is none, or has another time.
    """
    moment = _moment(value)
    if moment.time() != time():
        raise ValueError(f"is no date, but a time of one: {value[:40]}")
    return moment.date()


def read_time(value: Any) -> time:
    """
    A time of a day, without a zone or in UTC.

    Raises:
        ValueError: it is none, of another zone, or finer than microseconds.
    """
    found = time.fromisoformat(_text(value))
    if found.utcoffset():
        raise ValueError(f"is of another zone than UTC, which its type does not have: {value[:40]}")
    return found.replace(tzinfo=None)


def _moment(value: Any) -> datetime:
    try:
        return datetime.fromisoformat(_text(value))
    except OverflowError:
        raise ValueError(f"is beyond the year 9999: {value[:40]}") from None


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"is no text with a date or time: {str(value)[:40]}")
    if _FINER.search(value):
        raise ValueError(f"is finer than microseconds: {value[:40]}")
    return value.strip().upper()
