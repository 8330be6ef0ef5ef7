"""
Where reading starts when there is no position: the places that only a broker can turn into an offset.

``fetch_positions`` asks for them after ``seek_to_*`` and, by ``auto_offset_reset``, when a position was lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headrace_common.core.errors import InvalidConfig

END_TIMESTAMP: Final = -1
START_TIMESTAMP: Final = -2
"""The special timestamps of ``ListOffsets``."""

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE,
)
_DURATION_MS_MAX: Final = 100 * 365 * 86_400_000


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first record that still exists."""

    def __str__(self) -> str:
        return "the beginning"


@dataclass(frozen=True, slots=True)
class End:
    """Behind the last record: only what is written from now on."""

    def __str__(self) -> str:
        return "the end"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a time, in ms since the epoch; the end if there is none."""

    timestamp_ms: int

    def __str__(self) -> str:
        return f"timestamp {self.timestamp_ms}"


@dataclass(frozen=True, slots=True)
class Ago:
    """The first record that is at most this old when the place is looked up; the end if there is none."""

    duration_ms: int

    def __str__(self) -> str:
        return f"{self.duration_ms} ms ago"


@dataclass(frozen=True, slots=True)
class LastCommitted:
    """What the group has committed, which only its coordinator knows; ``fallback`` if that is nothing."""

    fallback: int

    def __str__(self) -> str:
        return "the last committed offset"


Start = Beginning | End | AtTime | Ago | LastCommitted


def timestamp_to_ask(start: Start, wall_ms: int) -> int:
    """What ``ListOffsets`` is asked for; ``wall_ms`` is now, in ms since the epoch."""
    match start:
        case Beginning():
            return START_TIMESTAMP
        case End():
            return END_TIMESTAMP
        case AtTime(timestamp_ms):
            return timestamp_ms
        case Ago(duration_ms):
            return max(0, wall_ms - duration_ms)
        case LastCommitted():
            raise AssertionError("a leader is not asked for what a group has committed")


def parse_reset(text: str) -> Start | None:
    """
    The meaning of ``auto_offset_reset``: ``latest``, ``earliest``, ``by_duration:PT1H``, or ``none`` (None: raise).

    Raises:
        InvalidConfig: it is something else; the text says what is allowed.
    """
    word, colon, duration = text.partition(":")
    match word.lower(), bool(colon):
        case "latest", False:
            return End()
        case "earliest", False:
            return Beginning()
        case "none", False:
            return None
        case "by_duration", True:
            return Ago(parse_duration_ms(duration))
    raise InvalidConfig(
        f"auto_offset_reset={text!r} is not known; use 'latest', 'earliest', 'none' or 'by_duration:PT1H'"
    )


def parse_duration_ms(text: str) -> int:
    """
    Milliseconds of an ISO 8601 duration of days, hours, minutes and seconds, such as ``P1DT12H`` or ``PT0.5S``.

    Raises:
        InvalidConfig: not of that form, zero, or longer than a hundred years.
    """
    found = _DURATION.fullmatch(text.strip())
    parts = {} if found is None else {name: float(value) for name, value in found.groupdict().items() if value}
    ms = round(
        parts.get("days", 0) * 86_400_000
        + parts.get("hours", 0) * 3_600_000
        + parts.get("minutes", 0) * 60_000
        + parts.get("seconds", 0) * 1000
    )
    if not 0 < ms <= _DURATION_MS_MAX:
        raise InvalidConfig(f"{text!r} is not a duration above zero; write for example PT1H, PT30M, P7D or P1DT12H")
    return ms
