"""
Decides what the verdict says of what brokers store: logs that cannot be compacted or read, and disks that are full.

``engine/stored_logs`` asks the brokers; ``verdict`` calls this. A full disk is felt: its broker refuses records. A log
that is not compacted only grows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from headrace_common.core.ids import NodeId

NAMED_MAX: Final = 3
REASON_MAX: Final = 300
"""Characters of a reason in a verdict; the whole stands in the description of the log."""


@dataclass(frozen=True, slots=True, order=True)
class StuckLog:
    """A replica whose compaction goes no further, or whose readers do not."""

    topic: str
    partition: int
    broker: NodeId
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} on broker {self.broker}"


@dataclass(frozen=True, slots=True)
class Scrub:
    """How far a broker is with the reading of all it stores."""

    running: bool
    logs: int
    logs_done: int
    bytes_read: int
    lost_logs: int
    """With a batch that could not be read, since its start."""
    last_ended_ms: int | None
    """Wall clock; None: no pass has ended since its start."""


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk that a broker's data is on, in bytes."""

    broker: NodeId
    free: int
    total: int
    reserve: int | None
    """Below this free the broker refuses records; None: it does not tell."""
    scrub: Scrub | None = None
    """None: it does not tell."""

    @property
    def full(self) -> bool:
        """Its broker refuses records now."""
        return self.reserve is not None and self.free < self.reserve


@dataclass(frozen=True, slots=True)
class Stored:
    """What brokers told of their logs; those that did not answer in time are missing."""

    stuck: tuple[StuckLog, ...] = ()
    """By topic, partition and broker."""
    disks: tuple[Disk, ...] = ()
    unreadable: tuple[StuckLog, ...] = ()
    """Replicas with a batch at which consumers have stopped; in the same order."""

    def disk(self, broker: NodeId) -> Disk | None:
        """A broker's disk; None: it did not tell."""
        return next((d for d in self.disks if d.broker == broker), None)


NOTHING_TOLD: Final = Stored()


def find_full_leaders(stored: Stored, leading: Collection[NodeId]) -> list[str]:
    """Brokers that lead partitions and take no records for them: writes fail."""
    return [_full(d, "what it leads takes no records") for d in stored.disks if d.full and d.broker in leading]


def short_of_space(stored: Stored, leading: Collection[NodeId]) -> list[str]:
    """Brokers with a full disk whom nobody writes to now."""
    return [_full(d, "it must not lead") for d in stored.disks if d.full and d.broker not in leading]


def not_compacted(stored: Stored) -> list[str]:
    """One part for all logs that cannot be compacted; the first one's reason, and what to do."""
    if not stored.stuck:
        return []
    first, *others = stored.stuck
    more = f"; so is that of {_named(others)}" if others else ""
    return [
        f"compaction of {first} is stuck: {_shortened(first.reason)}{more}; nothing is lost, but old records stay; "
        f"`headrace topic describe {first.topic}` shows it; docs/operations/cluster.md#old-data says what to do"
    ]


def stops_consumers(stored: Stored) -> list[str]:
    """One part for all logs with a batch that cannot be read; the first one's, and what to do."""
    if not stored.unreadable:
        return []
    first, *others = stored.unreadable
    more = f"; so does {_named(others)}" if others else ""
    return [
        f"{first} has a batch that no consumer can read, {_shortened(first.reason)}{more}; consumers stop there until "
        "they skip it, with Consumer.skip_batch() or by a reset of the group's offsets"
    ]


def _full(d: Disk, harm: str) -> str:
    assert d.reserve is not None, "full means below it"
    return (
        f"the disk of broker {d.broker} is full, {_gib(d.free)} free of {_gib(d.total)} with a reserve of "
        f"{_gib(d.reserve)}: {harm}; delete topics, lower retention.ms or retention.bytes, or enlarge it"
    )


def _named(stuck: Sequence[StuckLog]) -> str:
    shown = ", ".join(map(str, stuck[:NAMED_MAX]))
    return shown if len(stuck) <= NAMED_MAX else f"{shown} and {len(stuck) - NAMED_MAX:,} more"


def _shortened(reason: str) -> str:
    text = " ".join(reason.split()).rstrip(".;") or "its broker does not say why"
    return text if len(text) <= REASON_MAX else f"{text[:REASON_MAX]}..."


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.1f} GiB"
