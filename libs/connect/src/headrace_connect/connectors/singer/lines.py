"""Cuts what a tap writes into lines, none of which may be longer than a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SHOWN_BYTES: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class Line:
    """One, without its end."""

    text: bytes
    number: int
    """From 1, in what this tap has written since its start."""
    bytes: int
    """Of the whole line. More than ``text`` has: it was longer than the limit, and this is its begin."""

    @property
    def cut(self) -> bool:
        """Whether it is its begin alone."""
        return self.bytes > len(self.text)


class LineCutter:
    """Of one run."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rest: list[bytes] = []
        self._size = 0
        self._number = 0

    def feed(self, data: bytes) -> Sequence[Line]:
        """The lines that end in ``data``; empty ones are left out."""
        *ends, rest = data.split(b"\n")
        lines: list[Line] = []
        for end in ends:
            self._add(end)
            lines += self.finish()
        self._add(rest)
        return lines

    def finish(self) -> Sequence[Line]:
        """The line that has begun, as if it ended here."""
        text, size = b"".join(self._rest), self._size
        self._rest, self._size = [], 0
        self._number += 1
        if size > self._bytes_max:
            return [Line(text[:SHOWN_BYTES], self._number, size)]
        text = text.rstrip(b"\r")
        return [Line(text, self._number, len(text))] if text.strip() else []

    def _add(self, part: bytes) -> None:
        if self._size <= self._bytes_max:  # beyond it nothing more is kept
            self._rest.append(part)
        self._size += len(part)
