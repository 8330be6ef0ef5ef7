"""
Which filters of a batch query make it read less: those on topic, partition and offset, and lower bounds of timestamps.

Exact: what is left out fails a filter for certain, and a filter counts as done only if every row that is read passes
it; the others Spark applies itself. Of timestamps only a lower bound says something about offsets: what lies before the
first record at or after a time is older; behind it times may go back. Called by the batch reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from headrace_common.core.ids import TopicPartition
from headrace_spark.core.columns import Column
from headrace_spark.core.offsets import OffsetRange

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MICROS_OF_MS: Final = 1_000
_OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Filter:
    """One of Spark's filters as plain data."""

    kind: str
    """The name of its class, such as ``EqualTo``."""
    column: str
    value: Any = None
    negated: bool = False
    """It stands in a ``Not``."""


Test: TypeAlias = Callable[[Any], bool]


@dataclass(slots=True)
class Narrowing:
    """What filters leave to be read."""

    topics: list[Test] = field(default_factory=list)
    """Of its name: all have to hold."""
    partitions: list[Test] = field(default_factory=list)
    """Of its number."""
    first: int = 0
    end: int = _OFFSET_MAX
    """Offsets are ``first <= offset < end``."""
    oldest_ms: int | None = None
    """Older records are not wanted; ms since the epoch."""
    nothing: bool = False

    def ranges(self, ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
        """What is left of them by topic, partition and offset."""
        if self.nothing:
            return ()
        cut = [_cut(each, self.first, self.end) for each in ranges if self._wants(each.partition)]
        return tuple(each for each in cut if len(each))

    def times(self, ranges: Iterable[OffsetRange]) -> dict[TopicPartition, int]:
        """Which times to look up for ``younger``."""
        return {} if self.oldest_ms is None else {each.partition: self.oldest_ms for each in ranges}

    def _wants(self, partition: TopicPartition) -> bool:
        return all(test(partition.topic) for test in self.topics) and all(
            test(partition.partition) for test in self.partitions
        )


def younger(ranges: Iterable[OffsetRange], found: Mapping[TopicPartition, int | None]) -> tuple[OffsetRange, ...]:
    """
    What is left of ``ranges`` from the first record at or after a time on.

    Args:
        found: by partition that record's offset; None: there is none. Partitions that are missing stay whole.
    """
    cut = [_cut(each, _or_end(found.get(each.partition, each.start)), _OFFSET_MAX) for each in ranges]
    return tuple(each for each in cut if len(each))


def _or_end(offset: int | None) -> int:
    return _OFFSET_MAX if offset is None else offset


def _cut(each: OffsetRange, first: int, end: int) -> OffsetRange:
    start = min(max(each.start, first), each.end)
    return OffsetRange(each.partition, start, max(start, min(each.end, end)))


def narrow(filters: Sequence[Filter], columns: Sequence[Column]) -> tuple[Narrowing, list[bool]]:
    """
    What ``filters``, all of which have to hold, leave to be read.

    Returns:
        That, and for each filter whether it is done: False says that Spark must look at each row.
    """
    sources = {column.name.lower(): column.source for column in columns}
    narrowing = Narrowing()
    done = [_apply(narrowing, each, sources.get(each.column.lower(), "")) for each in filters]
    return narrowing, done


def _apply(narrowing: Narrowing, each: Filter, source: str) -> bool:
    if each.kind in ("IsNull", "IsNotNull") and source in ("topic", "partition", "offset", "timestamp"):
        narrowing.nothing |= (each.kind == "IsNull") is not each.negated  # none of these is ever null
        return True
    match source:
        case "topic":
            test = _test(each, str)
            narrowing.topics += [test] if test else []
            return test is not None
        case "partition":
            test = _test(each, int)
            narrowing.partitions += [test] if test else []
            return test is not None
        case "offset":
            return not each.negated and _offsets(narrowing, each)
        case "timestamp" if not each.negated:
            _times(narrowing, each)
            return False
        case _:
            return False


_TESTS: Final[Mapping[str, Callable[[Any], Test]]] = {
    "EqualTo": lambda wanted: lambda value: bool(value == wanted),
    "EqualNullSafe": lambda wanted: lambda value: bool(value == wanted),
    "GreaterThan": lambda bound: lambda value: bool(value > bound),
    "GreaterThanOrEqual": lambda bound: lambda value: bool(value >= bound),
    "LessThan": lambda bound: lambda value: bool(value < bound),
    "LessThanOrEqual": lambda bound: lambda value: bool(value <= bound),
    "In": lambda wanted: lambda value: value in wanted,
    "StringStartsWith": lambda part: lambda value: bool(value.startswith(part)),
    "StringEndsWith": lambda part: lambda value: bool(value.endswith(part)),
    "StringContains": lambda part: lambda value: part in value,
}


def _test(each: Filter, kind: type) -> Test | None:
    """The filter as a test of one value; None: it has another meaning than Python's, or is not known."""
    values = each.value if each.kind == "In" else (each.value,)
    if not isinstance(values, tuple | list) or any(type(value) is not kind for value in values):
        return None  # also nulls: what is compared with them is neither true nor false
    if each.kind not in _TESTS or (kind is int and each.kind.startswith("String")):
        return None
    test = _TESTS[each.kind](each.value)
    return (lambda value: not test(value)) if each.negated else test


def _offsets(narrowing: Narrowing, each: Filter) -> bool:
    values = each.value if each.kind == "In" else (each.value,)
    if not isinstance(values, tuple | list) or any(type(value) is not int for value in values):
        return False
    bounds = _bounds(each.kind, sorted(set(values)))
    if bounds is None:
        return False
    narrowing.first, narrowing.end = max(narrowing.first, bounds[0]), min(narrowing.end, bounds[1])
    return each.kind != "In" or bounds[1] - bounds[0] == len(set(values))


def _bounds(kind: str, values: Sequence[int]) -> tuple[int, int] | None:
    """The smallest range of whole numbers, without its end, that has all for which it holds."""
    if not values:
        return 0, 0
    match kind:
        case "EqualTo" | "EqualNullSafe" | "In":
            return values[0], values[-1] + 1
        case "GreaterThan":
            return values[0] + 1, _OFFSET_MAX
        case "GreaterThanOrEqual":
            return values[0], _OFFSET_MAX
        case "LessThan":
            return 0, values[0]
        case "LessThanOrEqual":
            return 0, values[0] + 1
        case _:
            return None


def _times(narrowing: Narrowing, each: Filter) -> None:
    values = each.value if each.kind == "In" else (each.value,)
    if not isinstance(values, tuple | list) or not values:
        return
    if any(not isinstance(value, datetime) or value.tzinfo is None for value in values):
        return
    oldest = (min(values) - _EPOCH) // _MICROSECOND
    match each.kind:
        case "EqualTo" | "EqualNullSafe" | "GreaterThanOrEqual" | "In":
            oldest_ms = -(-oldest // _MICROS_OF_MS)
        case "GreaterThan":
            oldest_ms = oldest // _MICROS_OF_MS + 1
        case _:
            return
    if oldest_ms > 0:
        narrowing.oldest_ms = max(narrowing.oldest_ms or 0, oldest_ms)
