"""What a broker finds of its logs when it opens its data directory."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_broker.core.rows import AbortedRow, EpochRow, IndexRow, LogId, ProducerRow, SegmentRow, StateRow
from headrace_common.core.ids import Offset, PartitionId


@dataclass(frozen=True, slots=True)
class Damage:
    """A log recovered with less than it is known to have had."""

    partition: PartitionId
    recovered_end: Offset
    evident_end: Offset
    """What was certainly on disk once."""
    reason: str


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """One log as it was found at opening, already cut to its sound prefix."""

    log: LogId
    state: StateRow
    log_end: Offset
    last_row: IndexRow | None
    """None: the log is empty."""
    segments: tuple[SegmentRow, ...]
    """Ascending; the last one is open unless its ``sealed_at_ms`` says otherwise."""
    epochs: tuple[EpochRow, ...]
    """Ascending."""
    producers_at: Offset
    """The offset of the newest usable producer snapshot; the log start where there is none."""
    producers: tuple[ProducerRow, ...]
    """That snapshot; to be brought up to date with ``LogStore.index`` from ``producers_at`` on."""
    aborted: tuple[AbortedRow, ...] = ()
    """Aborted transactions, ascending by marker."""
    damage: Damage | None = None


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening the data directory found, for status and logs."""

    clean: bool
    """The last shutdown was clean."""
    seconds: float
    logs: int
    bytes_checked: int
    cuts: tuple[str, ...]
    """One sentence for each thing that was cut off, with file or partition and range."""
    damaged: tuple[Damage, ...]
