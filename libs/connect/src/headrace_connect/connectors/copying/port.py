"""What copying needs of the cluster that is copied, and what that says when records are gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.records import TopicPartition
from headrace_connect.plugin import RetriableError, RowsRefused

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic of the cluster that is copied."""

    id: str
    """Another one when it was deleted and made again."""
    partitions: int
    configs: Mapping[str, str]
    """Only what was set for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """Committed records of a partition, in their order. All columns have an element for each."""

    offsets: Ints
    keys: pa.Array[Any]
    values: pa.Array[Any]
    timestamps_ms: pa.Array[Any]
    """int64."""
    headers: pa.Array[Any]
    """Lists of ``{"key": text, "value": bytes}``."""
    next_offset: int
    """Behind them, and behind the markers and gaps that follow."""
    drained: bool
    """There is no more for now."""


class SourceGap(RowsRefused):
    """Records of the source are gone before they were copied, or after."""

    def __init__(self, reason: str) -> None:
        super().__init__({}, reason)


class SourceRefuses(RetriableError):
    """The source does not let this client in, or not do this; says what to change."""


class Moved(Exception):
    """The log does not hold the position."""

    def __init__(self, reason: str, offset: int) -> None:
        """
        Args:
            offset: where reading goes on.
        """
        super().__init__(reason)
        self.offset = offset


class Recreated(Exception):
    """The topic was deleted and made again: reading goes on at the beginning of the new one."""


class TopicGone(Exception):
    """The topic does not exist."""


class SourceCluster(Protocol):
    """
    The cluster that is copied. Any call may raise what says by itself whether it may be tried again
    (``HeadraceError``, ``RetriableError``).
    """

    async def open(self) -> None:
        """Connect."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...

    async def cluster_id(self) -> str:
        """Which cluster it is."""
        ...

    async def topics(self) -> Mapping[str, SourceTopic]:
        """All that are not internal."""
        ...

    async def topic_id(self, topic: str) -> str:
        """
        Of the topic that has this name now.

        Raises:
            TopicGone: there is none.
        """
        ...

    async def end_offsets(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Behind the last committed records."""
        ...

    def seek(self, at: TopicPartition, offset: int | None) -> None:
        """``take`` goes on there; None: at the first record that there is."""
        ...

    async def take(self, at: TopicPartition) -> Fetched:
        """
        What comes next of a partition that was sought; waits for news. At the first call the end is news too.

        Raises:
            Moved, Recreated, TopicGone: once; the next call goes on as they say.
        """
        ...

    async def group_members(self, group: str) -> int:
        """How many consumers of the group there are. 0 also where there is no such group."""
        ...

    async def group_positions(self, group: str) -> Mapping[TopicPartition, int]:
        """What the group has committed."""
        ...
