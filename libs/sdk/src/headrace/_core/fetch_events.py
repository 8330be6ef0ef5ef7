"""
What a consumer should be told about its positions without being stopped: the shell logs these, and those about records
that were not or will not be read go to the application's ``on_position_reset``.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_common.core.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class PositionReset:
    """A position that the log does not hold (any more) was moved by ``auto_offset_reset``."""

    partition: TopicPartition
    lost: int
    """Where the application was: the next record that it would have got."""
    position: int
    """Where it goes on."""
    log_start: int
    """The first offset that the log holds; -1: not known."""

    @property
    def gone(self) -> range:
        """Offsets that were deleted before they were read; none where the position was above the end."""
        return range(self.lost, max(self.lost, self.log_start))

    @property
    def skipped(self) -> range:
        """Offsets that the log still holds and the reset passes over, as ``latest`` does."""
        first = max(self.lost, self.log_start)
        return range(first, max(first, self.position))

    def __str__(self) -> str:
        if self.position <= self.lost:
            what = f"the log ended before {self.lost}: records may be read again"
        else:
            what = f"records {self.lost} to {self.position - 1} were not read"
            if self.gone and self.skipped:
                what += f" (the log still holds those from {self.log_start} on)"
        return f"{self.partition}: offset {self.lost} does not exist; {what}; going on at {self.position}"


@dataclass(frozen=True, slots=True)
class TopicRecreated:
    """The topic was deleted and created again under its name: the old position means nothing in the new one."""

    partition: TopicPartition
    lost: int

    def __str__(self) -> str:
        return f"{self.partition}: the topic was deleted and created again; offset {self.lost} was the old one's"


@dataclass(frozen=True, slots=True)
class LogDiverged:
    """Records that the application got are not in the log any more: a leader was elected that did not hold them."""

    partition: TopicPartition
    lost: int
    """Where the application was."""
    position: int
    """Where it goes on: up to here the log is as it was read."""

    def __str__(self) -> str:
        return (
            f"{self.partition}: records {self.position} to {self.lost - 1} were read and are lost, other records may "
            f"have their offsets; going on at {self.position}"
        )


Reset = PositionReset | TopicRecreated | LogDiverged
FetchEvent = PositionReset | TopicRecreated | LogDiverged
