"""What a connector tells beside its records: that a table has changed, say. Workers keep it, for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

DRIFT: Final = "drift"
"""Fields and the columns of a table are not the same any more, and what follows from that."""
SNAPSHOT: Final = "snapshot"
"""Rows of a table are read, or all of them were."""
TEXT_CHARS_MAX: Final = 1_000
EVENTS_MAX: Final = 1_000
"""Of a task between two starts; further ones are not told."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened."""

    kind: str
    """``DRIFT``, ``SNAPSHOT``, or a word of the connector's own."""
    text: str
    """For people: what, where, and what becomes of it."""
    detail: Mapping[str, str] = field(default_factory=dict, hash=False)
    """For programs: table, column, type."""


Notify: TypeAlias = Callable[[Event], None]
