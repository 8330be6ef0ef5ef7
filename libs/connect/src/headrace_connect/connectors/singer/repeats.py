"""
Tells records that a tap sends again.

A tap that reads by a bookmark, say ``updated_at``, usually begins a run *at* the value where the last one ended, not
behind it: the specification asks for that, so that no record with an equal value is missed. So the last records come
again in each run. They are told by what they are: one with the same content, the same bookmark and a key is the
same record.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final

MARKS_MAX: Final = 64
"""Records of one stream with an equal bookmark; of more, none is told."""
_MARK_BYTES: Final = 9


@dataclass(frozen=True, slots=True)
class Edge:
    """The records of a stream that have its largest bookmark."""

    bookmark: Any
    """A text or a number."""
    marks: frozenset[str]
    """Hashes of the records. None: there were too many."""

    @classmethod
    def of_json(cls, said: Any) -> Edge:
        """
        Raises:
            ValueError: it is none.
        """
        if isinstance(said, list) and len(said) == 2 and isinstance(said[1], str):
            size = _MARK_BYTES * 4 // 3
            return cls(said[0], frozenset(said[1][at : at + size] for at in range(0, len(said[1]), size)))
        raise ValueError("it is no position of a tap: last is a bookmark and marks")

    def to_json(self) -> list[Any]:
        """Bookmark, and the marks in a row."""
        return [self.bookmark, "".join(sorted(self.marks))]


class Repeats:
    """Of one stream in one run."""

    def __init__(self, before: Edge | None) -> None:
        self._before = before
        self._now: Edge | None = before
        self._full = False

    def is_repeat(self, bookmark: Any, record: Mapping[str, Any]) -> bool:
        """Whether the run before has sent it; it is remembered for the next one."""
        if isinstance(bookmark, Decimal):
            bookmark = float(bookmark)
        if not isinstance(bookmark, str | int | float) or isinstance(bookmark, bool):
            return False
        order = 1 if self._now is None else _compare(bookmark, self._now.bookmark)
        if order < 0 or (self._full and order == 0):
            return False
        mark = _mark(record)
        before = self._before
        if before is not None and before.bookmark == bookmark and mark in before.marks:
            return True
        marks = frozenset([mark]) if order > 0 or self._now is None else self._now.marks | {mark}
        self._full = len(marks) > MARKS_MAX
        self._now = Edge(bookmark, frozenset() if self._full else marks)
        return False

    @property
    def is_full(self) -> bool:
        """Whether there are more records with the last bookmark than are told."""
        return self._full

    @property
    def edge(self) -> Edge | None:
        """For the next run; None: there were no records with a bookmark."""
        return self._now


def _compare(one: Any, other: Any) -> int:
    """Above 0 where ``one`` is larger, or of another type."""
    if isinstance(one, str) != isinstance(other, str):
        return 1
    return int(one > other) - int(one < other)


def _mark(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return base64.b64encode(blake2b(text.encode(errors="surrogatepass"), digest_size=_MARK_BYTES).digest()).decode()
