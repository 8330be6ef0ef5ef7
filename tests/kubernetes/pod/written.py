"""
What the parts of the load write down, and how it is packed: see ``load.py``, which describes the lines.

It stands beside ``load.py`` in the pod's ConfigMap, so it imports nothing but Python's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

STEP = 16
FLUSH_S = 0.5
PRODUCER, READER, MEMBERS, FINAL = 1, 11, (12, 13), 15
Run = tuple[str, int, int, int]
"""Key (topic-partition), first offset, first value, count."""


class Writer:
    """One file of one part."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")
        self._flush_at = 0.0
        self.line(f"C {time.monotonic_ns()} {time.time_ns()}")

    def line(self, text: str) -> None:
        """Append it; it is in the file within ``FLUSH_S`` of the next one."""
        self._file.write(text + "\n")
        now = time.monotonic()
        if now >= self._flush_at:
            self._flush_at = now + FLUSH_S
            self._file.flush()

    def sent(self, key: str, value: int, count: int, outcome: str, offset: int, began_ns: int) -> None:
        """Sends have ended."""
        self.line(f"S {PRODUCER} {key} {value} {count} {outcome} {offset} {began_ns} {time.monotonic_ns()}")

    def polled(self, process: int, runs: Iterable[Run]) -> None:
        """Records were handed out."""
        told = " ".join(f"{key}:{offset}:{value}:{count}" for key, offset, value, count in runs)
        self.line(f"P {process} {time.monotonic_ns()} {told}")

    def failed(self, process: int, text: str) -> None:
        """An application saw an error."""
        self.line(f"E {process} {time.monotonic_ns()} " + " ".join(text.split()))
        self._file.flush()

    def close(self) -> None:
        """No more."""
        self._file.close()


def runs(points: Iterable[tuple[str, int, int]]) -> Iterator[Run]:
    """Points (key, offset, value) that follow each other, as one."""
    key, offset, value, count = "", 0, 0, 0
    for at_key, at_offset, at_value in points:
        if count and (at_key, at_offset, at_value) == (key, offset + count, value + count * STEP):
            count += 1
            continue
        if count:
            yield key, offset, value, count
        key, offset, value, count = at_key, at_offset, at_value, 1
    if count:
        yield key, offset, value, count


def outcomes(found: Sequence[tuple[str, int, int]]) -> Iterator[tuple[str, int, int, int]]:
    """Outcome, offset (-1: none) and value of sends in a row, as (outcome, first offset, first value, count)."""
    row: tuple[str, int, int, int] | None = None
    for outcome, offset, value in found:
        if row is not None and row[0] == outcome and offset == (row[1] + row[3] if row[1] >= 0 else -1):
            row = (*row[:3], row[3] + 1)
            continue
        if row is not None:
            yield row
        row = (outcome, offset, value, 1)
    if row is not None:
        yield row
