"""Lines: each is a row as it is, or one object of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from math import isfinite
from typing import Any, Final

import pyarrow as pa

from headrace_connect.connectors.files.parsed import Damage, Parsed, why_not_utf8

VALUE: Final = "value"
_BLANK: Final = b" \t\r\n"
_UNUSUAL: Final = re.compile(rb"[\d.]{17}|\d[eE][+-]?\d|NaN|Infinity")
"""Numbers that a double or 64 bits may not hold, and what is no JSON."""
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


class LineFormat:
    """Satisfies ``TextFormat``: one column ``value`` with the line, without its end. Blank lines are rows too."""

    def end_of_records(self, text: bytes) -> int:
        """See ``TextFormat``."""
        return text.rfind(b"\n") + 1

    def parse(self, text: bytes, half: bool = False) -> Parsed:
        """See ``TextFormat``."""
        lines = text.removesuffix(b"\n").split(b"\n") if text else []
        if b"\r" in text:
            lines = [line.removesuffix(b"\r") for line in lines]
        column = pa.array(lines, pa.binary())
        try:
            return Parsed(pa.table({VALUE: column.cast(pa.string())}))
        except pa.ArrowInvalid:
            return self._sort_out(text)

    def _sort_out(self, text: bytes) -> Parsed:
        good, damage = [], []
        for start, line in split_lines(text):
            reason = why_not_utf8(line)
            if reason is None:
                good.append(line.removesuffix(b"\n").removesuffix(b"\r").decode())
            else:
                damage.append(Damage(start, reason, line))
        return Parsed(pa.table({VALUE: pa.array(good, pa.string())}), damage)


class JsonFormat:
    """
    Satisfies ``TextFormat``: each line is an object. Blank lines are no records.

    A number is exact or its line is wrong: an integer beyond 64 bits, and one with more digits than a double keeps.
    """

    def end_of_records(self, text: bytes) -> int:
        """See ``TextFormat``."""
        return text.rfind(b"\n") + 1

    def parse(self, text: bytes, half: bool = False) -> Parsed:
        """See ``TextFormat``."""
        read = _exact if _UNUSUAL.search(text) else json.loads
        rows: list[dict[str, Any]] = []
        damage = []
        for start, line in split_lines(text):
            if line.strip(_BLANK):
                try:
                    rows.append(_read_object(line, read))
                except (ValueError, RecursionError) as wrong:
                    damage.append(Damage(start, _describe(wrong), line))
        return Parsed(rows, damage)


def split_lines(text: bytes) -> list[tuple[int, bytes]]:
    """Each line with its end, and where it begins. Only a line feed ends a line."""
    lines, start = [], 0
    while start < len(text):
        end = text.find(b"\n", start) + 1 or len(text)
        lines.append((start, text[start:end]))
        start = end
    return lines


def _read_object(line: bytes, read: Callable[[str], Any]) -> dict[str, Any]:
    row = read(line.decode())
    if not isinstance(row, dict):
        raise ValueError(f"the line is no object, but {type(row).__name__}")
    return row


def _describe(wrong: Exception) -> str:
    if isinstance(wrong, UnicodeDecodeError):
        return f"byte {wrong.start} of the record is not of its encoding: {wrong.reason}"
    if isinstance(wrong, json.JSONDecodeError):
        return f"the line is no JSON: {wrong.msg} at character {wrong.pos}"
    return str(wrong)


def _exact(text: str) -> Any:
    return json.loads(text, parse_int=_parse_int, parse_float=_parse_float, parse_constant=_parse_constant)


def _parse_int(text: str) -> int:
    number = int(text) if len(text) <= 20 else _INT64_MAX + 1
    if not _INT64_MIN <= number <= _INT64_MAX:
        raise ValueError(f"the integer {text[:40]} is beyond 64 bits")
    return number


def _parse_float(text: str) -> float:
    number = float(text)
    if not isfinite(number) or Decimal(text) != Decimal(repr(number)):
        raise ValueError(f"a double does not hold all digits of the number {text[:40]}")
    return number


def _parse_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")
