"""
What a query cannot read any more, told exactly: which records of which partition, and why they are gone.

With ``failOnDataLoss`` (the default) a query ends with ``RecordsLost``; without it the same text is a warning, and
reading goes on with what is there. Called by ``resolving`` and ``stream``, and by the adapter when a task finds that
retention was faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from headrace_common.core.errors import DataLost, ErrorCode
from headrace_common.core.ids import TopicPartition

SHOWN_MAX = 10


class Cause(Enum):
    """Why records are gone."""

    TRIMMED = "were removed by retention before they were read"
    TRUNCATED = "are not in the log any more: its end fell back"
    DELETED = "are gone with their topic or partition"
    UNSELECTED = "are not read any more: the options name other topics or partitions than when the query began"
    RECREATED = "are gone: the topic was deleted and created again"
    JOINED_LATE = "of a partition found only now were removed by retention before they were read"

    @property
    def doubtful(self) -> bool:
        """Whether it may pass: a new leader, or what a broker knows of topics, can be behind for a moment."""
        return self in (Cause.TRUNCATED, Cause.DELETED, Cause.RECREATED)


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of one partition that were to be read and cannot be."""

    partition: TopicPartition
    cause: Cause
    first: int
    """The first record that is gone."""
    end: int | None = None
    """Behind the last one; None: how many there were is not known."""

    def __str__(self) -> str:
        if self.end is None:
            return f"{self.partition}: records from offset {self.first} on, if there were any, {self.cause.value}"
        return f"{self.partition}: offsets {self.first} to {self.end - 1} {self.cause.value}"


class RecordsLost(DataLost):
    """Records that the query was to read cannot be read; nothing of this batch was."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE
    losses: tuple[Loss, ...] = ()

    @classmethod
    def of(cls, losses: Sequence[Loss]) -> RecordsLost:
        """All of them in one text."""
        error = cls(
            f"{describe_losses(losses)}. To go on without them set 'failOnDataLoss' to false; "
            "to read from elsewhere start the query with a new checkpoint"
        )
        error.losses = tuple(losses)
        return error


def describe_losses(losses: Sequence[Loss]) -> str:
    """What is lost, for people: the first few partitions, and how many more."""
    more = f"; and in {len(losses) - SHOWN_MAX} more partitions" if len(losses) > SHOWN_MAX else ""
    return "; ".join(map(str, losses[:SHOWN_MAX])) + more


def warning(losses: Sequence[Loss]) -> str:
    """What is logged where a query goes on."""
    return f"{describe_losses(losses)}. The query goes on without them; set 'failOnDataLoss' to true to end it instead"
