"""The suite for connectors: sound ones pass, and each mutant of them is found."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from headrace_connect import Chunk, Guarantee, PartitionTaken, Position, RetriableError, Rows, RowsRefused, Sink, Split
from headrace_connect.plugin import NoSettings, Source, TopicPartition
from headrace_connect.testing import SinkCase, SourceCase, check_sink, check_source

pytestmark = pytest.mark.timeout(600)

# --- sources --------------------------------------------------------------------------------------------------------


class Numbers(Source[NoSettings]):
    """Two splits of numbers; sync, so its splits share a thread."""

    away = False

    def splits(self) -> Sequence[Split]:
        return [Split("even", {"first": 0}), Split("odd", {"first": 1})]

    def read(self, split: Split, after: Position | None) -> Iterator[Chunk]:
        at = self.begin(split, after)
        while at < 30:
            self.reach()
            rows = [{"n": n} for n in range(at, min(at + 8, 30), 2)]
            at += 8
            yield self.chunk(rows, at)
        while True:
            yield Chunk([], {"at": at}, drained=True)

    def reach(self) -> None:
        if self.away:
            raise RetriableError("the numbers are away")

    def begin(self, split: Split, after: Position | None) -> int:
        return int(after["at"] if after else split.detail["first"])

    def chunk(self, rows: list[Any], at: int) -> Chunk:
        return Chunk(rows, {"at": at})


class AsyncNumbers(Numbers):
    """The same for asyncio; it ends."""

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:  # type: ignore[override]
        at = self.begin(split, after)
        while at < 30:
            rows = [{"n": n} for n in range(at, min(at + 8, 30), 2)]
            at += 8
            yield self.chunk(rows, at)


class Forgetful(Numbers):
    """Mutant: it begins again where a chunk of the same split began."""

    def chunk(self, rows: list[Any], at: int) -> Chunk:
        return Chunk(rows, {"at": at - 8})


class Hasty(Numbers):
    """Mutant: its position is a chunk ahead of its rows."""

    def chunk(self, rows: list[Any], at: int) -> Chunk:
        return Chunk(rows, {"at": at + 8})


class Keeping(Numbers):
    """Mutant: where it is, it keeps itself, and not in the position."""

    kept: ClassVar[dict[str, int]] = {}

    def begin(self, split: Split, after: Position | None) -> int:
        return self.kept.get(split.id, split.detail["first"])

    def chunk(self, rows: list[Any], at: int) -> Chunk:
        self.kept["even" if rows[0]["n"] % 2 == 0 else "odd"] = at
        return super().chunk(rows, at)


class Wandering(Numbers):
    """Mutant: each instance has its own order."""

    made: ClassVar[list[Any]] = []

    def chunk(self, rows: list[Any], at: int) -> Chunk:
        if self not in self.made:
            self.made.append(self)
        return super().chunk(rows[:: -1 if self.made.index(self) % 2 else 1], at)


class Resuming(Numbers):
    """Mutant: after a failure it goes on where it was about to read, and not where it is told."""

    def __init__(self, settings: NoSettings) -> None:
        super().__init__(settings)
        self.at: dict[str, int] = {}

    def read(self, split: Split, after: Position | None) -> Iterator[Chunk]:
        at = self.at.get(split.id, self.begin(split, after))
        while at < 30:
            rows = [{"n": n} for n in range(at, min(at + 8, 30), 2)]
            at = self.at[split.id] = at + 8
            self.reach()
            yield self.chunk(rows, at)
        while True:
            yield Chunk([], {"at": at}, drained=True)


class Rewinding(Numbers):
    """Sound as an at-least-once source: it goes on one chunk early."""

    exactly_once = False

    def begin(self, split: Split, after: Position | None) -> int:
        return max(split.detail["first"], super().begin(split, after) - 8)


@dataclass
class NumbersCase(SourceCase):
    kind: type[Numbers]
    made: list[Numbers] = field(default_factory=list)

    def make(self) -> Source[Any]:
        self.made.append(self.kind(NoSettings()))
        return self.made[-1]

    def go_away(self) -> bool:
        for one in self.made:
            one.away = True
        return True

    def come_back(self) -> None:
        for one in self.made:
            one.away = False

    def identify(self, key: bytes | None, value: bytes | None) -> Hashable:
        return json.loads(value or b"{}")["n"]


@pytest.mark.parametrize("kind", [Numbers, AsyncNumbers, Rewinding])
def test_sound_sources_pass(kind: Any) -> None:
    check_source(lambda: NumbersCase(kind))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Forgetful, "more than once"),
        (Hasty, "rows are in the topic"),
        (Keeping, "rows are in the"),
        (Wandering, "behind a later row"),
        (Resuming, "rows are in the topic"),
    ],
)
def test_mutants_of_sources_are_found(kind: Any, said: str) -> None:
    Keeping.kept.clear()
    Wandering.made.clear()
    with pytest.raises(AssertionError, match=said):
        check_source(lambda: NumbersCase(kind))


# --- sinks ----------------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """A database of one table: rows, positions with epochs, and tokens; changed in one step or not at all."""

    rows: list[tuple[TopicPartition, int, int]] = field(default_factory=list)
    """Partition, offset and number."""
    positions: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Position and epoch."""
    tokens: dict[bytes, bool] = field(default_factory=dict)
    asked: set[bytes] = field(default_factory=set)
    away: bool = False

    def reach(self) -> None:
        if self.away:
            raise RetriableError("the database does not answer")


@dataclass
class TableSink(Sink[Any]):
    """Keeps positions in the target."""

    table: Table
    bad: frozenset[int] = frozenset()
    names_bad: bool = True
    guarantee = Guarantee.POSITIONS
    buffer: list[tuple[TopicPartition, int, int]] = field(default_factory=list)
    mine: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    def open(self, partitions: Sequence[TopicPartition], epoch: int) -> Mapping[TopicPartition, int]:
        self.table.reach()
        self.drop(partitions)
        for partition in partitions:
            position, holder = self.table.positions.get(partition, (-1, -1))
            if holder > epoch:
                raise PartitionTaken([partition])
            self.table.positions[partition] = self.mine[partition] = (position, epoch)
        return {partition: self.mine[partition][0] for partition in partitions if self.mine[partition][0] >= 0}

    def write(self, rows: Rows) -> None:
        self.table.reach()
        numbers = rows.table.column("n").to_pylist()
        wrong = {index: f"{n} is too large" for index, n in enumerate(numbers) if n in self.bad}
        if wrong and self.names_bad:
            raise RowsRefused(wrong)
        if wrong:
            raise ValueError("a number is too large")
        at = TopicPartition(rows.topic, rows.partition)
        self.buffer += [(at, offset, n) for offset, n in zip(rows.offsets.to_pylist(), numbers, strict=True)]

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        self.table.reach()
        self.check_holder(positions)
        if token is not None:
            if token in self.table.tokens:
                raise PartitionTaken(positions)
            self.table.tokens[token] = True
        self.table.rows += self.buffer
        for partition, position in positions.items():
            self.table.positions[partition] = self.mine[partition] = (position, self.mine[partition][1])
        self.buffer.clear()

    def check_holder(self, positions: Mapping[TopicPartition, int]) -> None:
        taken = [partition for partition in positions if self.table.positions[partition] != self.mine[partition]]
        if taken:
            raise PartitionTaken(taken)

    def settle(self, token: bytes) -> bool:
        self.table.reach()
        return self.table.tokens.setdefault(token, False)

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        self.drop(partitions)

    def drop(self, partitions: Sequence[TopicPartition]) -> None:
        self.buffer = [row for row in self.buffer if row[0] not in partitions]


class WithoutEpochs(TableSink):
    """Mutant: whoever comes may write."""

    def check_holder(self, positions: Mapping[TopicPartition, int]) -> None:
        pass


class NotReset(TableSink):
    """Mutant: opening again keeps what was written and not committed."""

    def open(self, partitions: Sequence[TopicPartition], epoch: int) -> Mapping[TopicPartition, int]:
        kept = list(self.buffer)
        found = super().open(partitions, epoch)
        self.buffer = kept
        return found


class NotTogether(TableSink):
    """Mutant: rows are there before their positions."""

    def write(self, rows: Rows) -> None:
        super().write(rows)
        self.table.rows += self.buffer
        self.buffer.clear()


class OnePosition(TableSink):
    """Mutant: all partitions have the position of one of them."""

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        super().commit(positions, token)
        for partition in self.mine:
            end = max(positions.values())
            self.table.positions[partition] = self.mine[partition] = (end, self.mine[partition][1])


class Backwards(TableSink):
    """Mutant: rows of a commit are there in another order."""

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        self.buffer.reverse()
        super().commit(positions, token)


class Hoarding(TableSink):
    """Mutant: what was written of a partition stays when it is given up."""

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        pass


class WithoutTokens(TableSink):
    """Mutant: a token is not remembered."""

    def settle(self, token: bytes) -> bool:
        return False


class Locked(TableSink):
    """Sound: who asks for a token meets the lock of another holder at first, and its task starts again."""

    def settle(self, token: bytes) -> bool:
        if token not in self.table.asked:
            self.table.asked.add(token)
            raise RetriableError("the table is locked")
        return super().settle(token)


class KeyedSink(TableSink):
    """Rows under their offsets; a repeat changes nothing."""

    guarantee = Guarantee.IDEMPOTENT

    def open(self, partitions: Sequence[TopicPartition], epoch: int) -> Mapping[TopicPartition, int]:
        self.table.reach()
        self.drop(partitions)
        return {}

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        self.table.reach()
        self.table.rows += [row for row in dict.fromkeys(self.buffer) if row not in self.table.rows]
        self.buffer.clear()


class KeyedByOffset(KeyedSink):
    """Mutant: two partitions have the same keys."""

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        self.table.reach()
        known = {offset for _, offset, _ in self.table.rows}
        for row in self.buffer:
            if row[1] not in known:
                known.add(row[1])
                self.table.rows.append(row)
        self.buffer.clear()


class Unkeyed(KeyedSink):
    """Mutant: it says that it is idempotent, and writes again what it is given again."""

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        self.table.reach()
        self.table.rows += self.buffer
        self.buffer.clear()


class PlainSink(Unkeyed):
    guarantee = Guarantee.AT_LEAST_ONCE


class Promising(PlainSink):
    """Mutant: it says that rows are there when they are not."""

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        if len(self.buffer) > 9:
            super().commit(positions, token)


@dataclass
class TableCase(SinkCase):
    kind: type[TableSink]
    bad: frozenset[int] = frozenset()
    names_bad: bool = True
    rows: int = 30
    table: Table = field(default_factory=Table)

    def make(self) -> Sink[Any]:
        return self.kind(self.table, self.bad, self.names_bad)

    def stored(self) -> Sequence[int]:
        return [number for _, _, number in self.table.rows]

    def go_away(self) -> bool:
        self.table.away = True
        return True

    def come_back(self) -> None:
        self.table.away = False


@pytest.mark.parametrize("kind", [TableSink, KeyedSink, PlainSink])
@pytest.mark.parametrize("bad", [frozenset(), frozenset({3, 4, 29})])
def test_sound_sinks_pass(kind: Any, bad: frozenset[int]) -> None:
    check_sink(lambda: TableCase(kind, bad))


def test_a_task_that_meets_a_lock_as_it_starts_is_started_again() -> None:
    check_sink(lambda: TableCase(Locked, frozenset({3, 4, 29})))


def test_bad_records_that_nobody_names_are_found_by_halves() -> None:
    """A search takes many steps, each of which is hurt: two thirds of the rows are enough."""
    check_sink(lambda: TableCase(TableSink, frozenset({3, 4, 19}), names_bad=False, rows=20))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (WithoutEpochs, "more than once"),
        (NotReset, "more than once"),
        (NotTogether, "more than once"),
        (WithoutTokens, "no dead letters"),
        (OnePosition, "not in the target"),
        (Backwards, "behind a later record"),
        (Hoarding, "more than once"),
        (KeyedByOffset, "not in the target"),
        (Unkeyed, "more than once"),
        (Promising, "not in the target"),
    ],
)
def test_mutants_of_sinks_are_found(kind: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_sink(lambda: TableCase(kind, frozenset({3, 4, 29})))
