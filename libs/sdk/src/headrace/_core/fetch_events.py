"""
What a consumer should be told about its positions without being stopped: the shell logs these.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_common.core.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class PositionReset:
    """``auto_offset_reset`` was applied to a position that does not exist (any more)."""

    tp: TopicPartition
    lost: int
    """Where the application was."""
    position: int
    """Where it goes on."""
    log_start_offset: int
    """-1: not known."""

    def __str__(self) -> str:
        if self.position > self.lost:
            what = f"records {self.lost} to {self.position - 1} were not read"
        else:
            what = f"the log ended before {self.lost}: records may be read again"
        return f"{self.tp}: offset {self.lost} does not exist; {what}; going on at {self.position}"


@dataclass(frozen=True, slots=True)
class TopicRecreated:
    """The topic was deleted and created again under its name: the old position means nothing in the new one."""

    tp: TopicPartition
    lost: int

    def __str__(self) -> str:
        return f"{self.tp}: the topic was deleted and created again; offset {self.lost} was the old one's"


@dataclass(frozen=True, slots=True)
class LogDiverged:
    """Records that the application got are not in the log any more: a leader was elected that did not hold them."""

    tp: TopicPartition
    lost: int
    """Where the application was."""
    position: int
    """Where it goes on: up to here the log is as it was read."""

    def __str__(self) -> str:
        return (
            f"{self.tp}: records {self.position} to {self.lost - 1} were read and are lost, other records may have "
            f"their offsets; going on at {self.position}"
        )


FetchEvent = PositionReset | TopicRecreated | LogDiverged
