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
        self._bookmark: Any = None if before is None else before.bookmark
        """The largest one so far."""
        self._marks: frozenset[str] = frozenset() if before is None else before.marks
        self._unmarked: list[Mapping[str, Any]] = []
        """Records that have it as well: hashes are made when they are asked for."""

    def is_repeat(self, bookmark: Any, record: Mapping[str, Any]) -> bool:
        """Whether the run before has sent it; it is remembered for the next one."""
        if isinstance(bookmark, Decimal):
            bookmark = float(bookmark)
        if not isinstance(bookmark, str | int | float) or isinstance(bookmark, bool):
            return False
        order = 1 if self._bookmark is None else _compare(bookmark, self._bookmark)
        before = self._before
        if before is not None and before.bookmark == bookmark and _mark(record) in before.marks:
            return True
        if order > 0:
            self._bookmark, self._marks, self._unmarked = bookmark, frozenset(), [record]
        elif order == 0 and not self.is_full:
            self._unmarked.append(record)
        return False

    @property
    def is_full(self) -> bool:
        """Whether there are more records with the last bookmark than are told."""
        return len(self._marks) + len(self._unmarked) > MARKS_MAX

    def edge(self) -> Edge | None:
        """For the next run; None: there were no records with a bookmark."""
        if self._bookmark is None:
            return None
        if self.is_full:
            return Edge(self._bookmark, frozenset())
        self._marks |= {_mark(record) for record in self._unmarked}
        self._unmarked = []
        return Edge(self._bookmark, self._marks)


def _compare(one: Any, other: Any) -> int:
    """Above 0 where ``one`` is larger, or of another type."""
    if isinstance(one, str) != isinstance(other, str):
        return 1
    return int(one > other) - int(one < other)


def _mark(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return base64.b64encode(blake2b(text.encode(errors="surrogatepass"), digest_size=_MARK_BYTES).digest()).decode()
