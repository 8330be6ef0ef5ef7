"""
What to read and from where to where, as a user said it: which options win, and which contradict each other.

As in Spark's Kafka source a time for all partitions wins over times per partition, and these over offsets. Called by
``options``; ``resolving`` makes offsets of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace_common.core.errors import UnknownTopicOrPartition
from headrace_common.core.ids import TopicPartition
from headrace_spark.core.offsets import EARLIEST, LATEST, name_partitions

INTERNAL: str = "__"
"""Internal topics begin so; a pattern never matches them."""


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions."""

    partitions: tuple[TopicPartition, ...]

    def choose(self, topics: Mapping[str, int]) -> tuple[TopicPartition, ...]:
        return tuple(tp for tp in self.partitions if tp.partition < topics.get(tp.topic, 0))

    def missing(self, topics: Mapping[str, int]) -> tuple[str, ...]:
        """What was asked for and is not there."""
        return tuple(str(tp) for tp in self.partitions if tp.partition >= topics.get(tp.topic, 0))

    def allows(self, partition: TopicPartition) -> bool:
        """Whether it can be one of these."""
        return partition in self.partitions


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics, also those added later."""

    topics: tuple[str, ...]

    def choose(self, topics: Mapping[str, int]) -> tuple[TopicPartition, ...]:
        """Which partitions to read, sorted, of a cluster with these topics and so many partitions of each."""
        return _all_partitions((topic for topic in sorted(self.topics) if topic in topics), topics)

    def missing(self, topics: Mapping[str, int]) -> tuple[str, ...]:
        """What was asked for and is not there."""
        return tuple(topic for topic in sorted(self.topics) if topic not in topics)

    def allows(self, partition: TopicPartition) -> bool:
        """Whether it can be one of these."""
        return partition.topic in self.topics


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All topics whose whole name matches, also those created later; internal ones never."""

    pattern: str

    def choose(self, topics: Mapping[str, int]) -> tuple[TopicPartition, ...]:
        return _all_partitions((topic for topic in sorted(topics) if self._matches(topic)), topics)

    def missing(self, topics: Mapping[str, int]) -> tuple[str, ...]:
        """A pattern asks for nothing that has to be there."""
        return ()

    def allows(self, partition: TopicPartition) -> bool:
        """Whether it can be one of these."""
        return self._matches(partition.topic)

    def _matches(self, topic: str) -> bool:
        return not topic.startswith(INTERNAL) and re.fullmatch(self.pattern, topic) is not None


def _all_partitions(names: Any, topics: Mapping[str, int]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for topic in names for number in range(topics[topic]))


Selection: TypeAlias = Assign | Subscribe | SubscribePattern


def check_there(selection: Selection, topics: Mapping[str, int]) -> None:
    """
    When a query begins, what it names must be there.

    Raises:
        UnknownTopicOrPartition: it is not.
    """
    missing = selection.missing(topics)
    if missing:
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        raise UnknownTopicOrPartition(
            f"not there: {', '.join(missing[:10])}{more}; create it first, or correct the option that names it"
        )


@dataclass(frozen=True, slots=True)
class Earliest:
    """Where each log starts."""

    by_time = False


@dataclass(frozen=True, slots=True)
class Latest:
    """Where each log ends."""

    by_time = False


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """These offsets; -2 and -1 stand for the log's start and end."""

    offsets: Mapping[TopicPartition, int]
    by_time = False


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after this time, in every partition."""

    timestamp_ms: int
    by_time = True


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The first record at or after a time of its own in each partition, in ms since the epoch."""

    timestamps_ms: Mapping[TopicPartition, int]
    by_time = True


Start: TypeAlias = Earliest | Latest | AtOffsets | AtTime | AtTimes
End: TypeAlias = Start
Unused: TypeAlias = list[tuple[str, str]]
"""Options that lost, and to which."""


def start_of(values: Mapping[str, Any], *, streams: bool) -> tuple[Start, Unused]:
    """Where to begin, by the options that were given."""
    names = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
    return _limit(values, names, Latest() if streams else Earliest())


def end_of(values: Mapping[str, Any]) -> tuple[End, Unused]:
    return _limit(values, ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"), Latest())


def _limit(values: Mapping[str, Any], names: tuple[str, str, str], default: Start) -> tuple[Start, Unused]:
    given = [name for name in names if name in values]
    if not given:
        return default, []
    unused = [(name, given[0]) for name in given[1:]]
    found = values[given[0]]
    if given[0] == names[0]:
        return AtTime(found), unused
    if given[0] == names[1]:
        return AtTimes(found), unused
    if isinstance(found, str):
        return (Earliest() if found == "earliest" else Latest()), unused
    return AtOffsets(found), unused


def rules_of_limits(selection: Selection, start: Start, end: End, *, batch: bool) -> list[str]:
    """What is wrong with them, beside each other and beside what is read."""
    wrong = _outside("start", selection, _extract_numbers(start)) + _outside("end", selection, _extract_numbers(end))
    if not batch:
        return wrong
    if isinstance(start, Latest):
        wrong.append("a batch query cannot start at latest; leave 'startingOffsets' out to read all")
    if isinstance(end, Earliest):
        wrong.append("a batch query cannot end at earliest; leave 'endingOffsets' out to read all")
    if isinstance(start, AtOffsets):
        late = [tp for tp, offset in start.offsets.items() if offset == LATEST]
        said = f"a batch query cannot start at latest (-1); 'startingOffsets' says so of {name_partitions(late)}"
        wrong += [said] if late else []
    if isinstance(end, AtOffsets):
        early = [tp for tp, offset in end.offsets.items() if offset == EARLIEST]
        said = f"a batch query cannot end at earliest (-2); 'endingOffsets' says so of {name_partitions(early)}"
        wrong += [said] if early else []
    return wrong + _order(start, end)


def _extract_numbers(limit: Start) -> Mapping[TopicPartition, int]:
    if isinstance(limit, AtOffsets):
        return limit.offsets
    return limit.timestamps_ms if isinstance(limit, AtTimes) else {}


def _outside(which: str, selection: Selection, named: Mapping[TopicPartition, int]) -> list[str]:
    others = [tp for tp in named if not selection.allows(tp)]
    wrong = [f"the {which} names {name_partitions(others)}, which this query does not read"] if others else []
    if named and isinstance(selection, Assign):
        left_out = [tp for tp in selection.partitions if tp not in named]
        wrong += [f"the {which} leaves out {name_partitions(left_out)}; {ALL_NEEDED}"] if left_out else []
    return wrong


ALL_NEEDED = "name every partition that is read, with -1 for latest and -2 for earliest where offsets do not matter"


def _order(start: Start, end: End) -> list[str]:
    wrong: list[str] = []
    if isinstance(start, AtTime) and isinstance(end, AtTime) and start.timestamp_ms > end.timestamp_ms:
        wrong.append(f"the query starts at {start.timestamp_ms} ms, after it ends at {end.timestamp_ms} ms")
    if type(start) is not type(end):
        return wrong
    first, last = _extract_numbers(start), _extract_numbers(end)
    if set(first) != set(last):
        wrong.append(
            f"start and end name different partitions: {name_partitions(set(first) ^ set(last))} are in one of them"
        )
    behind = [tp for tp, low in first.items() if 0 <= last.get(tp, -1) < low]
    if behind:
        wrong.append(f"the query starts after it ends in {name_partitions(behind)}")
    return wrong
