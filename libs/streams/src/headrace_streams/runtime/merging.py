"""A task whose inputs are merged by time: what it has read and was not fed yet."""

from __future__ import annotations

from headrace_streams.core.feed import Feed, Portion
from headrace_streams.runtime.owned import Owned


class Merging:
    """How long it waits for inputs of which nothing is here, and when it has read enough of one."""

    def __init__(self, owned: Owned, wait_ms: int, rows_max: int) -> None:
        """
        Args:
            rows_max: of an input of which so many wait, no more is read.
        """
        self.owned = owned
        self._wait_ms = wait_ms
        self._rows_max = rows_max
        self._feed = Feed(owned.spec.topics)
        self._waits_since_ms: float | None = None

    def offer(self, portion: Portion, *, at_end: bool) -> None:
        """More was read."""
        self._feed.offer(portion, at_end=at_end)

    def take(self, now_ms: float) -> list[Portion]:
        """What is to be fed now, together."""
        since_ms = self._waits_since_ms if self._waits_since_ms is not None else now_ms
        found = self._feed.take(patient=now_ms - since_ms < self._wait_ms)
        waits = self._feed.rows and not any(one.records.num_rows for one in found)
        self._waits_since_ms = since_ms if waits else None
        return found

    def waiting(self, topic: str) -> int:
        """How many records of an input are here and were not fed."""
        return self._feed.waiting(topic)

    def full(self) -> list[str]:
        """The inputs of which enough was read."""
        return [topic for topic in self.owned.spec.topics if self._feed.waiting(topic) >= self._rows_max]
