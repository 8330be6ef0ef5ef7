"""Parts of what was read for a sink, by row numbers: what is written and committed together, and how it is halved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace_common.core.ids import TopicPartition

Row = tuple[int, int]
"""A record: the number of its ``Records``, and its index in it."""


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of one partition, as they were polled and converted."""

    number: int
    partition: TopicPartition
    offsets: Sequence[int]
    """Ascending; of records that could not be converted too."""
    next_offset: int
    """The position behind them: markers and gaps that follow the last record are passed as well."""
    bytes: int = 0
    bad: Mapping[int, str] = field(default_factory=dict)
    """Index of each record that could not be converted -> why."""


@dataclass(frozen=True, slots=True)
class Piece:
    """``count`` of some records from the index ``start`` on; none, where only the position moves."""

    records: Records
    start: int
    count: int

    @staticmethod
    def whole(records: Records) -> Piece:
        """All of it."""
        return Piece(records, 0, len(records.offsets))

    @property
    def partition(self) -> TopicPartition:
        """Whose records these are."""
        return self.records.partition

    @property
    def end(self) -> int:
        """The position behind it."""
        stop = self.start + self.count
        return self.records.offsets[stop] if stop < len(self.records.offsets) else self.records.next_offset

    @property
    def rows(self) -> list[Row]:
        """Its records."""
        return [(self.records.number, index) for index in range(self.start, self.start + self.count)]

    def behind(self, position: int) -> Piece | None:
        """What of it is at ``position`` or later."""
        if self.end <= position:
            return None
        passed = sum(offset < position for offset in self.records.offsets[self.start : self.start + self.count])
        return replace(self, start=self.start + passed, count=self.count - passed)


Group = list[Piece]
"""What is written and committed together; pieces of a partition in their order."""


def good_rows(group: Iterable[Piece], bad: Mapping[Row, str]) -> list[Row]:
    """The records that are to be written."""
    return [row for piece in group for row in piece.rows if row not in bad]


def bad_rows(group: Iterable[Piece], bad: Mapping[Row, str]) -> dict[Row, str]:
    """The records that become dead letters, and why."""
    return {row: bad[row] for piece in group for row in piece.rows if row in bad} if bad else {}


def has_good(group: Iterable[Piece], bad: Mapping[Row, str]) -> bool:
    """Whether any record is to be written."""
    return any(piece.count and not (bad and all(row in bad for row in piece.rows)) for piece in group)


def ends(group: Iterable[Piece]) -> dict[TopicPartition, int]:
    """The position of each partition behind the group."""
    return {piece.partition: piece.end for piece in group}


def halves(group: Group, bad: Mapping[Row, str]) -> tuple[Group, Group]:
    """Two groups, each with half of the good records; there are at least two."""
    good = good_rows(group, bad)
    assert len(good) > 1, "one record has no halves"
    first_of_second = good[len(good) // 2]
    first: Group = []
    second: Group = []
    for piece in group:
        if second:
            second.append(piece)
        elif first_of_second in piece.rows:
            cut = first_of_second[1] - piece.start
            if cut:
                first.append(replace(piece, count=cut))
            second.append(replace(piece, start=piece.start + cut, count=piece.count - cut))
        else:
            first.append(piece)
    return first, second
