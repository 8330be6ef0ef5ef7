"""
Dates and times as text, by the patterns of Java's ``SimpleDateFormat``: in UTC and in English.

Java reads leniently; here a text must match as a whole, and be a date that there is.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace_connect.core.halving import Unfit
from headrace_connect.core.options import BadOption
from headrace_streams.core.formats.json_text import MS_MAX, MS_MIN

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_NUMBERS: Final = "yMLdHkKhmsSDu"
_SUPPORTED: Final = f"{_NUMBERS}EazZX"
_FINEST_MS: Final = (("S", 1), ("s", 1_000), ("m", 60_000), ("HkKha", 3_600_000))
_DAY_MS: Final = 86_400_000
_TOKEN: Final = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>([A-Za-z])\3*)|(?P<other>[^A-Za-z'])")


class DatePattern:
    """A pattern that was read."""

    def __init__(self, option: str, text: str) -> None:
        """
        Raises:
            BadOption: of ``option``; it is none, or has a letter that is not known here.
        """
        self.text = text
        self._tokens: list[tuple[str, int, str]] = []
        """A letter, how often it is there, and nothing; or nothing, and a text as it is."""
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise BadOption(option, f"{text[:80]!r}: the quote at character {at + 1} is not closed")
            letters = match["letters"]
            if letters is not None:
                self._tokens.append((self._letter(option, letters), len(letters), ""))
            else:
                quoted = match["quoted"]
                literal = match["other"] if quoted is None else quoted.replace("''", "'") or "'"
                self._tokens.append(("", 0, literal))
            at = match.end()
        used = {letter for letter, _, _ in self._tokens}
        self._finest_ms = next((ms for letters, ms in _FINEST_MS if used & set(letters)), _DAY_MS)
        self._reading: re.Pattern[str] | str | None = None

    def _letter(self, option: str, letters: str) -> str:
        if letters[0] not in _SUPPORTED:
            raise BadOption(
                option, f"{self.text[:80]!r}: {letters[0]} is not known; there are: {', '.join(_SUPPORTED)}"
            )
        if letters[0] == "S" and len(letters) != 3:
            raise BadOption(option, f"{self.text[:80]!r}: S is milliseconds, three digits; write SSS")
        return letters[0]

    def format_ms(self, ms: Any) -> Any:
        """
        Milliseconds since the epoch as text.

        Raises:
            Unfit: one is outside the years 1 to 9999.
        """
        beyond = (ms < MS_MIN) | (ms > MS_MAX)
        if beyond.any():
            raise Unfit("the time is outside the years 1 to 9999; is it in the right unit?", beyond)
        distinct, places = np.unique(np.floor_divide(ms, self._finest_ms), return_inverse=True)
        made = [self._format(_EPOCH + int(one) * self._finest_ms * _MS) for one in distinct.tolist()]
        texts: Any = pa.array(made, pa.string())
        return texts.take(pa.array(places))

    def _format(self, at: datetime) -> str:
        return "".join(_written(letter, count, at) if letter else literal for letter, count, literal in self._tokens)

    def parse_ms(self, texts: Any) -> Any:
        """
        Texts as milliseconds since the epoch; null stays null.

        Raises:
            Unfit: one is no such text.
        """
        return pa.array([None if text is None else self._parse(text) for text in texts.to_pylist()], pa.int64())

    def _parse(self, text: str) -> int:
        if self._reading is None:
            self._reading = self._reader()
        if isinstance(self._reading, str):
            raise Unfit(self._reading)
        match = self._reading.fullmatch(text)
        if match is None:
            raise Unfit(f"{text[:60]!r} does not match {self.text!r}")
        parts = {name: value for name, value in match.groupdict().items() if value is not None}
        try:
            return (_instant(parts) - _EPOCH) // _MS
        except (ValueError, OverflowError) as wrong:
            raise Unfit(f"{text[:60]!r} is no time: {wrong}") from None

    def _reader(self) -> re.Pattern[str] | str:
        """What reads texts, or why nothing does."""
        made = ""
        seen: set[str] = set()
        for at, (letter, count, literal) in enumerate(self._tokens):
            if not letter:
                made += re.escape(literal)
                continue
            name = "M" if letter == "L" else letter
            if name in seen:
                return f"{self.text!r} has {letter} in two places, so it cannot be read"
            if letter in "Du" or (letter == "y" and count == 2):
                return f"{self.text!r} cannot be read: {letter * count} does not say which day it is; write yyyy-MM-dd"
            seen.add(name)
            after = self._tokens[at + 1 : at + 2]
            fixed = bool(after) and after[0][0] != "" and after[0][0] in _NUMBERS
            made += f"(?P<{name}>{_shape(name, count, fixed=fixed)})"
        return re.compile(made, re.ASCII | re.IGNORECASE)


def _written(letter: str, count: int, at: datetime) -> str:
    match letter:
        case "y" if count == 2:
            return f"{at.year % 100:02}"
        case "M" | "L" if count >= 3:
            return _MONTHS[at.month - 1] if count >= 4 else _MONTHS[at.month - 1][:3]
        case "E":
            return _DAYS[at.weekday()] if count >= 4 else _DAYS[at.weekday()][:3]
        case "a":
            return "AM" if at.hour < 12 else "PM"
        case "z":
            return "UTC" if count < 4 else "Coordinated Universal Time"
        case "Z":
            return "+0000"
        case "X":
            return "Z"
    numbers = {
        "y": at.year,
        "M": at.month,
        "L": at.month,
        "d": at.day,
        "H": at.hour,
        "k": at.hour or 24,
        "K": at.hour % 12,
        "h": at.hour % 12 or 12,
        "m": at.minute,
        "s": at.second,
        "S": at.microsecond // 1_000,
        "D": at.timetuple().tm_yday,
        "u": at.isoweekday(),
    }
    return f"{numbers[letter]:0{count}}"


def _shape(letter: str, count: int, *, fixed: bool) -> str:
    match letter:
        case "M" if count >= 3:
            return "|".join([*_MONTHS, *(name[:3] for name in _MONTHS)])
        case "E":
            return "|".join([*_DAYS, *(name[:3] for name in _DAYS)])
        case "a":
            return "AM|PM"
        case "z":
            return "UTC|GMT|Z|Coordinated Universal Time"
        case "Z":
            return r"[+-]\d{4}"
        case "X":
            return r"Z|[+-]\d\d(?::?\d\d)?"
        case "S":
            return r"\d{3}"
    if fixed:
        return rf"\d{{{count}}}"
    return r"\d{4}" if letter == "y" else rf"\d{{{min(count, 2)},2}}"


def _instant(parts: dict[str, str]) -> datetime:
    """
    Raises:
        ValueError, OverflowError: there is no such time.
    """
    month = parts.get("M", "1")
    number = int(month) if month.isdecimal() else [name[:3].lower() for name in _MONTHS].index(month[:3].lower()) + 1
    at = datetime(
        int(parts.get("y", "1970")),
        number,
        int(parts.get("d", "1")),
        _hour(parts),
        int(parts.get("m", "0")),
        int(parts.get("s", "0")),
        int(parts.get("S", "0")) * 1_000,
        _zone(parts.get("Z") or parts.get("X") or "Z"),
    )
    return at.astimezone(UTC)


def _hour(parts: dict[str, str]) -> int:
    if "H" in parts:
        return int(parts["H"])
    if "k" in parts:
        return _within(int(parts["k"]), 1, 24) % 24
    hour = _within(int(parts["h"]), 1, 12) % 12 if "h" in parts else _within(int(parts.get("K", "0")), 0, 11)
    return hour + (12 if parts.get("a", "").upper() == "PM" else 0)


def _within(number: int, low: int, high: int) -> int:
    if not low <= number <= high:
        raise ValueError(f"hour must be in {low}..{high}")
    return number


def _zone(text: str) -> timezone:
    if text.upper() == "Z":
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    ahead = timedelta(hours=int(digits[:2]), minutes=_within(int(digits[2:]), 0, 59))
    return timezone(-ahead if text[0] == "-" else ahead)
