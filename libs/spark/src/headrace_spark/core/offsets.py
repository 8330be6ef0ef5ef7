"""
Positions of a query: what its checkpoint holds, as text that compares, and what "earliest" and "latest" stand for.

A position is the offset of the next record to read, so that a range is ``start <= offset < end``. In JSON::

    {"@headrace": {"reader": "5b…", "topics": {"flights": "9f…"}}, "flights": {"0": 23, "1": 7}}

The first entry, which users need not give and no topic can be called, says which incarnation of a topic was read:
one that was deleted and created again has another id. It also names the reader, for its lag to be shown under one
name for as long as there is the checkpoint. Spark compares offsets as text, so names are always sorted.
Called by ``resolving``, ``stream`` and the adapter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import TopicPartition
from headrace_spark.core.option_values import OURS, quote, read_partition_numbers

LATEST: Final = -1
EARLIEST: Final = -2
EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'


@dataclass(frozen=True, slots=True)
class Bound:
    """What one partition holds."""

    first: int
    """The log's start: the first offset that can be read."""
    end: int
    """The offset behind the last record that may be read (high watermark, or last stable offset)."""

    def __post_init__(self) -> None:
        assert 0 <= self.first <= self.end, "a log starts before it ends"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every partition that the query is to read, as the cluster has them now. Must be complete: what is missing is
    taken for deleted."""

    bounds: Mapping[TopicPartition, Bound]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """By topic, where known."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Where a query is, in each of its partitions. Two with the same content have the same text."""

    next: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    reader: str = ""
    """Ends the name of the group as which the query is shown; empty: not known."""

    @staticmethod
    def of(positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, str], reader: str = "") -> Positions:
        """Sorted, and with the ids of no other topics."""
        topics = {tp.topic for tp in positions}
        return Positions(
            dict(sorted(positions.items())),
            {topic: topic_ids[topic] for topic in sorted(topics) if topic in topic_ids},
            reader,
        )

    def to_json(self) -> dict[str, Any]:
        """What Spark is given: its order is the order of its text."""
        found: dict[str, Any] = {}
        ours: dict[str, Any] = {"reader": self.reader} if self.reader else {}
        if self.topic_ids:
            ours["topics"] = dict(sorted(self.topic_ids.items()))
        if ours:
            found[OURS] = ours
        for tp, offset in sorted(self.next.items()):
            found.setdefault(tp.topic, {})[str(tp.partition)] = offset
        return found

    @property
    def text(self) -> str:
        """As in the checkpoint."""
        return json.dumps(self.to_json())

    @staticmethod
    def from_json(given: object) -> Positions:
        """
        Read what a checkpoint holds.

        Raises:
            InvalidConfig: it is not of this connector.
        """
        expected = f"the checkpoint should hold offsets such as {EXAMPLE}, not {quote(str(given))}"
        try:
            if not isinstance(given, dict):
                raise ValueError(expected)
            rest = {name: value for name, value in given.items() if name != OURS}
            positions = read_partition_numbers(rest, expected, 0) if rest else {}
            topic_ids, reader = _ours(given.get(OURS, {}), expected)
            return Positions.of(positions, topic_ids, reader)
        except ValueError as error:
            raise InvalidConfig(
                f"{error}; it was written by another source, or damaged: start the query with a new checkpoint"
            ) from None


def _ours(given: object, expected: str) -> tuple[Mapping[str, str], str]:
    if not isinstance(given, dict):
        raise ValueError(expected)
    topics, reader = given.get("topics", {}), given.get("reader", "")
    if not isinstance(topics, dict) or not isinstance(reader, str):
        raise ValueError(expected)
    if not all(isinstance(each, str) for each in topics.values()):
        raise ValueError(expected)
    return topics, reader


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Records of one partition, ``start <= offset < end``. Fewer may be there: offsets have gaps."""

    partition: TopicPartition
    start: int
    end: int

    def __post_init__(self) -> None:
        assert 0 <= self.start <= self.end, "a range does not end before it starts"

    def __len__(self) -> int:
        return self.end - self.start


def ranges_between(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> tuple[OffsetRange, ...]:
    """
    What lies between two positions, without empty ranges. A start behind its end counts as the end: "latest" asked
    again after a restart is later than what batch 0 was planned to end at. A partition without a start joins at its
    end.
    """
    return tuple(
        OffsetRange(tp, start[tp], offset) for tp, offset in sorted(end.items()) if start.get(tp, offset) < offset
    )


def name_partitions(partitions: Iterable[TopicPartition], most: int = 10) -> str:
    """Names of partitions for people: sorted, the first few."""
    names = sorted(partitions)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
