"""
What ``consume`` prints of what it reads, and how it counts. Called by ``commands.consume``; asks no cluster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.terminal import hint

if TYPE_CHECKING:
    from headrace import Record


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records are wanted; without either all are."""

    key: bytes | None = None
    pattern: re.Pattern[bytes] | None = None

    def matches(self, record: Record) -> bool:
        """Whether this one is."""
        if self.key is not None and record.key != self.key:
            return False
        return self.pattern is None or (record.value is not None and self.pattern.search(record.value) is not None)


def selection(key: str | None, grep: str | None) -> Selection:
    """
    As the options say.

    Raises:
        CommandFailed: the pattern is no regular expression.
    """
    try:
        pattern = None if grep is None else re.compile(os.fsencode(grep))
    except re.error as error:
        raise CommandFailed(f"--grep {grep!r} is no regular expression: {error}", ExitCode.USAGE) from None
    return Selection(None if key is None else os.fsencode(key), pattern)


class Printer:
    """Writes the records that are wanted, up to a number of them."""

    def __init__(self, render: Callable[[Record], bytes], wanted: Selection, count: int | None, out: IO[bytes]) -> None:
        self._render = render
        self._wanted = wanted
        self._count = count
        self._out = out
        self.printed = 0

    @property
    def full(self) -> bool:
        """Whether no more are wanted."""
        return self._count is not None and self.printed >= self._count

    def room(self, most: int) -> int:
        """How many to read next: no more than will be printed, where that is known."""
        if self._count is None or self._wanted != Selection():
            return most
        return min(self._count - self.printed, most)

    def take(self, records: Sequence[Record]) -> Sequence[Record]:
        """Print what is wanted of ``records``; those that are done with, which are all unless it is full now."""
        lines: list[bytes] = []
        passed: Sequence[Record] = records
        for number, record in enumerate(records, 1):
            if self._wanted.matches(record):
                lines.append(self._render(record))
                self.printed += 1
                if self.full:
                    passed = records[:number]
                    break
        if lines:
            self._out.write(b"".join(lines))
            self._out.flush()
        return passed


class Waiting:
    """Says once, to who sits at a terminal, that nothing is wrong and records are waited for."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._told = False

    def tell(self, which: str = "") -> None:
        """Say it, unless it was said."""
        if not self._told:
            self._told = True
            hint(f"waiting for records of {self._topic}{f' {which}' if which else ''}; Ctrl+C ends")
