"""
Decides which commit is under way, and what becomes of the others. The shell (``aio._committing``) carries it out.

One request at a time, in the order of the calls, so that none is overtaken by an older one; commits that wait and are
not to be repeated go together, the newest offset of a partition counts. A commit with a deadline is repeated while that
can help; one without is tried once, and once more when the member had only moved on to another generation or epoch
while the commit travelled. What the coordinator says does not exist is not repeated for long: it was deleted.

What a member has given up, or lost, it commits no more: commits of before that still wait, or would be repeated, fail.
Others read these partitions by then, and a position of the past would send them back, even if it were sent by a member
that has them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace._core.remedies import UNKNOWN_TOPIC_GRACE_MS
from headrace.records import Committed
from headrace_common.core.errors import ErrorCode, HeadraceError, Rejected
from headrace_common.core.ids import TopicPartition

Offsets = Mapping[TopicPartition, Committed]

_OLD_EPOCH = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH})
_MOVES_MAX = 5


@dataclass(frozen=True, slots=True)
class SendCommit:
    """Send this; then ``answered`` or ``failed``."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Settled:
    """What ``add`` was called for is over."""

    ref: Hashable
    offsets: Offsets
    error: HeadraceError | None


CommitEffect = SendCommit | Settled


@dataclass(slots=True)
class _Entry:
    ref: Hashable
    offsets: Offsets
    deadline_ms: float | None
    refused: dict[TopicPartition, HeadraceError] = field(default_factory=dict)
    """What is not sent, or not again: it was given up meanwhile."""


@dataclass(slots=True)
class _Flight:
    entries: list[_Entry]
    left: dict[TopicPartition, Committed]
    """What is not committed yet."""
    deadline_ms: float | None
    error: HeadraceError | None = None
    attempts: int = 0
    unknown_since_ms: float | None = None
    """Since when the coordinator knows none of the partitions that are left."""
    moves: int = 0
    failed: dict[TopicPartition, HeadraceError] = field(default_factory=dict)
    given_up: dict[TopicPartition, HeadraceError] = field(default_factory=dict)


class CommitQueue:
    """See the module's text. Times are monotonic milliseconds."""

    def __init__(self, retry_backoff_ms: float, retry_backoff_max_ms: float) -> None:
        self._backoff_ms = max(1.0, retry_backoff_ms)
        self._backoff_max_ms = max(1.0, retry_backoff_max_ms)
        self._waiting: deque[_Entry] = deque()
        self._flight: _Flight | None = None
        self._sent = False
        self.retry_at_ms: float | None = None
        """When to call ``tick``."""

    @property
    def idle(self) -> bool:
        """Whether nothing is under way or waits."""
        return self._flight is None

    def add(self, ref: Hashable, offsets: Offsets, deadline_ms: float | None) -> list[CommitEffect]:
        """Commit ``offsets``; with a deadline, until then. ``Settled`` with ``ref`` follows, always."""
        self._waiting.append(_Entry(ref, dict(offsets), deadline_ms))
        return self._next()

    def _next(self) -> list[CommitEffect]:
        if self._flight is not None or not self._waiting:
            return []
        entries = [self._waiting.popleft()]
        if entries[0].deadline_ms is None:
            while self._waiting and self._waiting[0].deadline_ms is None:
                entries.append(self._waiting.popleft())
        left: dict[TopicPartition, Committed] = {}
        for entry in entries:
            left.update({tp: at for tp, at in entry.offsets.items() if tp not in entry.refused})
        self._flight = _Flight(entries, left, entries[0].deadline_ms)
        return self._send(self._flight)

    def give_up(self, partitions: Collection[TopicPartition], error: HeadraceError) -> None:
        """These are not the member's any more: what is not under way yet fails with ``error``, when its turn comes."""
        for entry in self._waiting:
            entry.refused.update({tp: error for tp in partitions if tp in entry.offsets})
        if self._flight is not None:
            self._flight.given_up.update(dict.fromkeys(partitions, error))

    def _send(self, flight: _Flight) -> list[CommitEffect]:
        for tp in [tp for tp in flight.left if tp in flight.given_up]:
            del flight.left[tp]
            for entry in flight.entries:
                if tp in entry.offsets:
                    entry.refused.setdefault(tp, flight.given_up[tp])
        if not flight.left:
            return self._over(flight)
        self._sent, self.retry_at_ms = True, None
        flight.attempts += 1
        return [SendCommit(dict(flight.left))]

    def answered(
        self, results: Mapping[TopicPartition, HeadraceError | None], now_ms: float, *, moved_on: bool = False
    ) -> list[CommitEffect]:
        """
        What became of each partition; one that is not named was committed. ``moved_on``: the member has another
        generation or epoch than the one that the request was sent with.
        """
        flight = self._land()
        wrong = {tp: error for tp in flight.left if (error := results.get(tp)) is not None}
        flight.left = {tp: flight.left[tp] for tp in wrong}
        flight.failed = wrong
        if not wrong:
            return self._over(flight)
        if moved_on and flight.moves < _MOVES_MAX and all(e.code in _OLD_EPOCH for e in wrong.values()):
            flight.moves += 1
            return self._send(flight)
        may_help = all(_may_help(e) for e in wrong.values()) and not self._gone(flight, now_ms)
        return self._again(flight, next(iter(wrong.values())), may_help, now_ms)

    def _gone(self, flight: _Flight, now_ms: float) -> bool:
        """Whether what is left has not existed for so long that it was deleted, and is not only new."""
        if any(error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for error in flight.failed.values()):
            flight.unknown_since_ms = None
        elif flight.unknown_since_ms is None:
            flight.unknown_since_ms = now_ms
        return flight.unknown_since_ms is not None and now_ms - flight.unknown_since_ms >= UNKNOWN_TOPIC_GRACE_MS

    def failed(self, error: HeadraceError, now_ms: float) -> list[CommitEffect]:
        """The request as a whole failed, or could not be sent."""
        flight = self._land()
        flight.failed = dict.fromkeys(flight.left, error)
        return self._again(flight, error, _may_help(error), now_ms)

    def _land(self) -> _Flight:
        assert self._flight is not None, "an answer to a commit that nobody sent"
        assert self._sent, "one answer per request"
        self._sent = False
        return self._flight

    def _again(self, flight: _Flight, error: HeadraceError, may_help: bool, now_ms: float) -> list[CommitEffect]:
        flight.error = error
        if not may_help or flight.deadline_ms is None or now_ms >= flight.deadline_ms:
            return self._over(flight)
        pause_ms = min(self._backoff_ms * 2 ** min(flight.attempts - 1, 16), self._backoff_max_ms)
        self.retry_at_ms = min(now_ms + pause_ms, flight.deadline_ms)
        return []

    def tick(self, now_ms: float) -> list[CommitEffect]:
        """Repeat what is due."""
        if self._flight is None or self.retry_at_ms is None or now_ms < self.retry_at_ms:
            return []
        return self._send(self._flight)

    def _over(self, flight: _Flight) -> list[CommitEffect]:
        self._flight = self.retry_at_ms = None
        settled: list[CommitEffect] = []
        for entry in flight.entries:
            errors = [flight.failed[tp] for tp in entry.offsets if tp in flight.failed and tp in flight.left]
            errors += entry.refused.values()
            settled.append(Settled(entry.ref, entry.offsets, errors[0] if errors else None))
        return settled + self._next()

    def close(self, error: HeadraceError) -> list[CommitEffect]:
        """Nothing will be answered any more."""
        flight, self._flight, self.retry_at_ms, self._sent = self._flight, None, None, False
        entries = [*(flight.entries if flight is not None else ()), *self._waiting]
        self._waiting.clear()
        return [Settled(entry.ref, entry.offsets, error) for entry in entries]


def _may_help(error: HeadraceError) -> bool:
    return error.retriable or error.code in _OLD_EPOCH


def check_offsets(
    given: Mapping[Any, Any], positions: Mapping[TopicPartition, Committed], assigned: Collection[TopicPartition]
) -> dict[TopicPartition, Committed]:
    """
    What the application names, with the leader epoch where it is the consumer's own position.

    Raises:
        Rejected: it names partitions that it does not read, or no offsets.
    """
    offsets: dict[TopicPartition, Committed] = {}
    for partition, value in given.items():
        tp = TopicPartition(*partition)
        at = value if isinstance(value, Committed) else Committed(value)
        if not isinstance(at.offset, int) or isinstance(at.offset, bool) or not 0 <= at.offset < 1 << 63:
            raise Rejected(f"{tp}: an offset is a whole number from 0, the next record to read, not {value!r}")
        if tp not in assigned:
            raise Rejected(f"{tp} is not assigned to this consumer, so it cannot commit it")
        if at.leader_epoch < 0 and tp in positions and positions[tp].offset == at.offset:
            at = at._replace(leader_epoch=positions[tp].leader_epoch)
        offsets[tp] = at
    return offsets
