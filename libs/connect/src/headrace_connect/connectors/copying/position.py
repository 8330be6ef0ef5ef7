"""Where copying of a partition is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headrace_connect.plugin import Position


@dataclass(frozen=True, slots=True)
class Place:
    """Of one partition of the source."""

    topic_id: str
    base: int
    """All copies of this topic id are at or behind this offset of the target."""
    offset: int = 0
    """Of the next record to copy."""
    number: int = 0
    """Of the chunk before; grows by one with each, also over topics that are made again."""

    def move(self, offset: int) -> Place:
        """Behind a chunk."""
        return replace(self, offset=offset, number=self.number + 1)

    def to_json(self) -> Position:
        """What is committed."""
        return {"offset": self.offset, "topic_id": self.topic_id, "base": self.base, "n": self.number}

    @classmethod
    def from_json(cls, position: Position) -> Place:
        """
        Raises:
            ValueError: it is no position of a partition.
        """
        numbers: list[Any] = [position.get(name) for name in ("offset", "base", "n")]
        topic_id = position.get("topic_id")
        if not isinstance(topic_id, str) or not all(type(one) is int and one >= 0 for one in numbers):
            raise ValueError(
                f"{dict(position)} is no position of a partition: it has offset, base and n, whole numbers, and the "
                "topic_id"
            )
        offset, base, number = numbers
        return cls(topic_id, base, offset, number)
