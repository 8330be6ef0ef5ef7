"""
The newest batches of all logs in memory, from which live readers are served without touching the store.

The storage loop puts in what it has written, readers take; both on the event loop, so there are no locks. The batches
are the same objects that were written. One bound for the whole broker: when it is passed, the oldest batch of any log
goes first. What is cached of a log is always its contiguous end. Compaction makes it forget what it rewrote.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from headrace_broker.core.rows import LogId
from headrace_common.core.ids import Offset

ENTRY_BYTES: Final = 100
"""What one cached batch costs beside its bytes."""

_COMPACT_AT: Final = 64
"""Dead entries at the front of a log's list before it is moved together."""

_STALE_MIN: Final = 1024
"""Entries of the order whose batches were forgotten before they are taken out."""


@dataclass(slots=True)
class _Tail:
    bases: list[int] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    head: int = 0
    end: int = 0
    """One past the last cached offset."""
    stale: int = 0
    """So many of the log's entries in the order, the oldest, are of batches that were forgotten."""

    def cut_front(self) -> None:
        """Move the lists together when much of them is dead."""
        if self.head >= _COMPACT_AT and self.head * 2 >= len(self.bases):
            del self.bases[: self.head]
            del self.batches[: self.head]
            self.head = 0


class TailCache:
    """Cached batches by log; ``bytes_max`` 0 caches nothing."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size = 0
        """Bytes held, with what holding them costs."""
        self.on_forget: Callable[[LogId], None] = lambda _log: None
        """Called with each log of which compaction made this forget: others may hold more of it."""
        self._tails: dict[LogId, _Tail] = {}
        self._order: deque[LogId] = deque()
        self._stale = 0

    def put(self, log: LogId, base: Offset, end: Offset, batch: bytes) -> None:
        """The batch was appended at ``base``; the next one begins at ``end``."""
        tail = self._tails.get(log)
        if tail is None:
            tail = self._tails[log] = _Tail()
        elif tail.head < len(tail.bases):
            assert tail.end == base, f"log {log}: {base} does not follow {tail.end}"
        tail.bases.append(base)
        tail.batches.append(batch)
        tail.end = end
        self._order.append(log)
        self.size += len(batch) + ENTRY_BYTES
        while self.size > self.bytes_max:
            self._evict()

    def take(self, log: LogId, offset: Offset, end: Offset, bytes_max: int, *, first: bool) -> list[bytes] | None:
        """
        Batches from the one that holds ``offset``, below ``end``, of at most ``bytes_max`` bytes.

        With ``first`` the first batch comes whatever its size. None: ``offset`` is not cached.
        """
        tail = self._tails.get(log)
        if tail is None or tail.head >= len(tail.bases) or offset < tail.bases[tail.head] or offset >= tail.end:
            return None
        at = bisect_right(tail.bases, offset, lo=tail.head) - 1
        found: list[bytes] = []
        room = bytes_max
        last = len(tail.bases)
        while at < last:
            following = tail.bases[at + 1] if at + 1 < last else tail.end
            if following > end:
                break
            batch = tail.batches[at]
            room -= len(batch)
            if room < 0 and (found or not first):
                break
            found.append(batch)
            at += 1
        return found

    def bytes_between(self, log: LogId, start: Offset, end: Offset) -> int:
        """Bytes of the cached batches with ``start <= base < end``."""
        tail = self._tails.get(log)
        if tail is None:
            return 0
        at = bisect_right(tail.bases, start - 1, lo=tail.head)
        total = 0
        for index in range(at, len(tail.bases)):
            if tail.bases[index] >= end:
                break
            total += len(tail.batches[index])
        return total

    def drop(self, logs: Collection[LogId]) -> None:
        """Forget these logs, when they are deleted or truncated; one pass over the cache for all of them."""
        dropped = [tail for log in logs if (tail := self._tails.pop(log, None)) is not None]
        if dropped:
            gone = frozenset(logs)
            self.size -= sum(len(batch) + ENTRY_BYTES for tail in dropped for batch in tail.batches[tail.head :])
            self._stale -= sum(tail.stale for tail in dropped)
            self._order = deque(log for log in self._order if log not in gone)

    def forget(self, log: LogId, bases: Iterable[Offset]) -> None:
        """
        Forget the batches at ``bases``, which compaction rewrote or dropped, and what is older of the log.

        What stays is the end of the log again; readers of the rest ask the store.
        """
        self.on_forget(log)
        tail = self._tails.get(log)
        newest = max(bases, default=None)
        if tail is None or newest is None:
            return
        up_to = bisect_right(tail.bases, newest, lo=tail.head)
        for at in range(tail.head, up_to):
            self.size -= len(tail.batches[at]) + ENTRY_BYTES
            tail.batches[at] = b""
        tail.stale += up_to - tail.head
        self._stale += up_to - tail.head
        tail.head = up_to
        tail.cut_front()
        if self._stale >= _STALE_MIN and self._stale * 2 >= len(self._order):
            self._drop_stale()

    def _drop_stale(self) -> None:
        kept: deque[LogId] = deque()
        for log in self._order:
            tail = self._tails[log]
            if tail.stale:
                tail.stale -= 1
            else:
                kept.append(log)
        self._order, self._stale = kept, 0
        self._tails = {log: tail for log, tail in self._tails.items() if tail.head < len(tail.bases)}

    def _evict(self) -> None:
        log = self._order.popleft()
        tail = self._tails[log]
        if tail.stale:
            tail.stale -= 1
            self._stale -= 1
        else:
            self.size -= len(tail.batches[tail.head]) + ENTRY_BYTES
            tail.batches[tail.head] = b""
            tail.head += 1
        if tail.head == len(tail.bases) and not tail.stale:
            del self._tails[log]
        else:
            tail.cut_front()
