"""Ports of tasks in memory: logs with transactions, owners, groups and prepared transactions, as a cluster has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from headrace.errors import WaitTimedOut
from headrace.records import PartitionTable, TopicPartition
from headrace_common.core.errors import (
    FencedOwner,
    InvalidProducerIdMapping,
    ProducerFenced,
    StaleMemberEpoch,
    Then,
    TransactionAbortable,
)
from headrace_common.runtime.clock import pause_ms
from headrace_connect.plugin import Chunk, Position, Rows
from headrace_connect.runtime.pipeline import HEADERS_TYPE, ConvertedChunk, ConvertedTable
from headrace_connect.runtime.ports import GroupListener, Ints, Outgoing

TOPIC: Final = "records"
DEAD: Final = "dead"


class NoSteps:
    """Satisfies ``Steps``; stops nobody."""

    async def reach(self, step: str) -> None:
        """See ``Steps``."""


@dataclass(slots=True)
class MemoryLog:
    """Topics, and the positions of one source's splits."""

    records: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    """By topic: what is committed, in order; each with its ``partition`` and ``offset``."""
    ends: dict[TopicPartition, int] = field(default_factory=lambda: defaultdict(int))
    """The offset behind the last record or marker of each partition, whatever becomes of it."""
    positions: dict[str, Position] = field(default_factory=dict)
    generation: int = -1
    holder: int = 0
    """The number of the last claim."""
    unknown: set[int] = field(default_factory=set)
    """Commits by number that take place, and of which nobody can tell it at first."""
    undelivered: set[int] = field(default_factory=set)
    """Commits by number that do not take place."""
    forgotten: set[int] = field(default_factory=set)
    """Commits by number before which the coordinator forgets the id."""
    commits: int = 0


@dataclass(frozen=True, slots=True)
class MemorySent:
    """Satisfies ``Sent``."""

    rows: Sequence[Mapping[str, Any]]

    async def places(self) -> tuple[Ints, Ints]:
        """See ``Sent``."""
        of = [np.array([row[name] for row in self.rows], np.int64) for name in ("partition", "offset")]
        return of[0], of[1]


class MemorySourceLog:
    """Satisfies ``SourceLog``."""

    def __init__(self, log: MemoryLog, generation: int = 0) -> None:
        self._log = log
        self._generation = generation

    async def claim(self) -> MemoryWriter:
        """See ``SourceLog``."""
        log = self._log
        if self._generation < log.generation:
            raise FencedOwner("a newer generation is there")
        log.generation = self._generation
        log.holder += 1
        return MemoryWriter(log, log.holder)

    async def locate(self, splits: Collection[str]) -> Mapping[str, Position]:
        """See ``SourceLog``."""
        return {split: at for split, at in self._log.positions.items() if split in splits}

    async def close(self) -> None:
        """See ``SourceLog``."""


class MemoryWriter:
    """Satisfies ``SourceWriter``."""

    def __init__(self, log: MemoryLog, holder: int) -> None:
        self._log = log
        self._holder = holder
        self._records: list[tuple[str, list[dict[str, Any]]]] = []
        self._positions: dict[str, Position] = {}
        self._done: int | None = None
        """The number of a commit that took place, and was not answered."""
        self._open = False

    async def begin(self) -> None:
        """See ``SourceWriter``."""
        assert not self._open, "one transaction at a time"
        self._check()
        self._open = True

    async def send(self, records: Outgoing) -> MemorySent:
        """See ``SourceWriter``."""
        assert self._open, "records are sent in transactions"
        self._check()
        rows = records.table.to_pylist()
        for row in rows:
            row["partition"] = row.get("partition") or 0
            at = TopicPartition(records.topic, row["partition"])
            row["offset"] = self._log.ends[at]
            self._log.ends[at] += 1
        self._records.append((records.topic, rows))
        return MemorySent(rows)

    async def send_positions(self, positions: Mapping[str, Position]) -> None:
        """See ``SourceWriter``."""
        self._check()
        self._positions |= {split: orjson.loads(orjson.dumps(dict(at))) for split, at in positions.items()}

    async def commit(self) -> None:
        """See ``SourceWriter``."""
        self._check()
        assert self._open, "there is a transaction"
        log = self._log
        if self._done is None:
            log.commits += 1
            if log.commits in log.forgotten:
                log.holder += 1  # nobody has the id
                raise InvalidProducerIdMapping("it was silent for an hour")
            if log.commits in log.undelivered:
                raise TransactionAbortable("a record was not delivered")
            for topic, rows in self._records:
                log.records[topic] += rows
            self._end()
            log.positions |= self._positions
            self._done = log.commits
            if log.commits in log.unknown:
                error = WaitTimedOut("nobody answered")
                error.then = Then.RETRY
                raise error
        self._clear()

    async def abort(self) -> None:
        """See ``SourceWriter``."""
        self._check()
        self._end()
        self._clear()

    async def close(self) -> None:
        """See ``SourceWriter``."""

    def _end(self) -> None:
        """A marker in each partition."""
        for at in {TopicPartition(topic, row["partition"]) for topic, rows in self._records for row in rows}:
            self._log.ends[at] += 1

    def _check(self) -> None:
        if self._log.holder != self._holder:
            raise ProducerFenced("a newer producer is there")

    def _clear(self) -> None:
        self._records, self._positions, self._done, self._open = [], {}, None, False


class RawPipeline:
    """Satisfies ``SourcePipeline``: texts and bytes as they are, all else as JSON."""

    def apply(self, chunk: Chunk) -> ConvertedChunk:
        """See ``SourcePipeline``."""
        outgoing = []
        rows, size = 0, 0
        for part in (chunk, *chunk.further):
            values = _plain(part.rows)
            keys = _plain(part.keys) if part.keys is not None else [None] * len(values)
            bad = [one.raw for one in part.bad]
            for topic, given, of in ((part.topic or TOPIC, values, keys), (DEAD, bad, [None] * len(bad))):
                if given:
                    table = pa.table({"value": pa.array(given, pa.binary()), "key": pa.array(of, pa.binary())})
                    if given is values and part.partition is not None:
                        partitions: Any = pa.array([part.partition] * len(given), pa.int32())
                        table = table.append_column("partition", partitions)
                    told = given is values and part is chunk
                    outgoing.append(Outgoing(topic, table, np.arange(len(given)) if told else None))
            rows, size = rows + len(values), size + sum(len(value or b"") for value in values)
        return ConvertedChunk(outgoing, (), rows, size)


def _plain(values: Any) -> list[bytes | None]:
    listed = values.to_pylist() if hasattr(values, "to_pylist") else list(values)
    return [_bytes(value) for value in listed]


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else orjson.dumps(value, default=repr)


# --- sinks ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MemoryTopic:
    """One partition of a topic, and the group that reads it. Each third offset is a marker."""

    values: Mapping[int, Any]
    """Offset -> value."""
    end: int
    committed: int | None = None
    epoch: int = 0
    """Of the group; grows with each member that joins."""
    member: MemoryGroup | None = None
    """Who has the partition."""

    @classmethod
    def of(cls, values: Sequence[Any]) -> MemoryTopic:
        """A topic with these values."""
        offsets = [offset for offset in range(len(values) * 3) if offset % 3 != 2][: len(values)]
        return cls(dict(zip(offsets, values, strict=True)), offsets[-1] + 1 if offsets else 0)


class MemoryGroup:
    """Satisfies ``GroupReader``: whoever joins last has the partition; who had it is told when it polls."""

    PARTITION: Final = TopicPartition(TOPIC, 0)

    def __init__(self, topic: MemoryTopic, rows_max: int | None = None) -> None:
        self._topic = topic
        self._rows_max = rows_max
        self._listener: GroupListener | None = None
        self._held: int | None = None
        """The epoch at which it has the partition."""
        self._position = 0
        self._paused = False
        self._told_end = False

    async def join(self, listener: GroupListener) -> None:
        """See ``GroupReader``."""
        self._listener = listener
        self._take()

    def _take(self) -> None:
        self._topic.epoch += 1
        self._topic.member = self

    async def rejoin(self) -> None:
        """See ``GroupReader``."""
        assert self._listener is not None, "it was a member"
        if self._held is not None:
            self._held = None
            await self._listener.on_lost([self.PARTITION])
        self._take()

    async def poll(self, timeout_ms: float, rows_max: int) -> Sequence[PartitionTable]:
        """See ``GroupReader``."""
        await self._rebalance()
        if self._paused or self._held is None or (self._position >= self._topic.end and self._told_end):
            await pause_ms(min(timeout_ms, 5))
            return []
        limit = min(rows_max, self._rows_max or rows_max)
        offsets = [offset for offset in self._topic.values if offset >= self._position][:limit]
        more = [offset for offset in self._topic.values if offsets and offset > offsets[-1]]
        self._position = more[0] if more else self._topic.end
        self._told_end = self._position == self._topic.end
        values = [self._topic.values[offset] for offset in offsets]
        return [self._table(offsets, values)]

    def _table(self, offsets: list[int], values: list[Any]) -> PartitionTable:
        count = len(offsets)
        table = pa.table(
            {
                "offset": pa.array(offsets, pa.int64()),
                "timestamp_ms": pa.array([0] * count, pa.int64()),
                "key": pa.nulls(count, pa.binary()),
                "value": pa.array([orjson.dumps(value) for value in values], pa.binary()),
                "headers": pa.array([[]] * count, HEADERS_TYPE),
            }
        )
        end = self._topic.end
        return PartitionTable(TOPIC, 0, table, self._position, 0, end, end)

    async def _rebalance(self) -> None:
        assert self._listener is not None, "it has joined"
        mine = self._topic.member is self
        if self._held is not None and (not mine or self._held != self._topic.epoch):
            self._held = None
            await self._listener.on_lost([self.PARTITION])
        if mine and self._held is None:
            self._held = self._topic.epoch
            self._position = self._topic.committed or 0
            self._told_end = False
            await self._listener.on_assign([self.PARTITION], self._held)

    async def lags(self) -> Mapping[TopicPartition, int]:
        """See ``GroupReader``."""
        return {} if self._held is None else {self.PARTITION: self._topic.end - self._position}

    def pause(self, paused: bool) -> None:
        """See ``GroupReader``."""
        self._paused = paused

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """See ``GroupReader``."""
        self._position = positions[self.PARTITION]
        self._told_end = False

    async def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """See ``GroupReader``."""
        if self._topic.member is not self or self._held != self._topic.epoch:
            raise StaleMemberEpoch("another member has the partition")
        self._topic.committed = positions[self.PARTITION]

    async def close(self) -> None:
        """See ``GroupReader``."""
        if self._topic.member is self:
            self._topic.member = None


class JsonPipeline:
    """Satisfies ``SinkPipeline``."""

    @staticmethod
    def read(value: bytes | None) -> Any:
        """One value."""
        return None if value is None else orjson.loads(value)

    def apply(self, table: PartitionTable) -> ConvertedTable:
        """See ``SinkPipeline``."""
        records = table.table
        count = records.num_rows
        if not count:
            return ConvertedTable([])
        values = pa.array([self.read(value) for value in records.column("value").to_pylist()])
        keys = pa.nulls(count, pa.binary())
        offsets, times, headers = (
            records.column(name).combine_chunks() for name in ("offset", "timestamp_ms", "headers")
        )
        rows = Rows(table.topic, table.partition, values, keys, offsets, times, headers)
        return ConvertedTable([(rows, pa.array(range(count)).to_numpy())])


@dataclass(slots=True)
class MemoryDead:
    """Dead letters, and what is prepared of them."""

    records: list[dict[str, Any]] = field(default_factory=list)
    prepared: dict[bytes, Outgoing] = field(default_factory=dict)
    verdicts: dict[bytes, bool] = field(default_factory=dict)


class MemoryDeadLetters:
    """Satisfies ``DeadLetters``."""

    def __init__(self, dead: MemoryDead) -> None:
        self._dead = dead

    async def undecided(self) -> bytes | None:
        """See ``DeadLetters``."""
        return next(iter(self._dead.prepared), None)

    async def prepare(self, records: Outgoing) -> bytes:
        """See ``DeadLetters``."""
        assert not self._dead.prepared, "one at a time"
        token = b"token-%d" % len(self._dead.verdicts)
        self._dead.prepared[token] = records
        return token

    async def decide(self, token: bytes, *, commit: bool) -> None:
        """See ``DeadLetters``."""
        assert self._dead.verdicts.setdefault(token, commit) is commit, "the first verdict is final"
        records = self._dead.prepared.pop(token, None)
        if commit and records is not None:
            self._dead.records += records.table.to_pylist()

    async def send(self, records: Outgoing) -> None:
        """See ``DeadLetters``."""
        self._dead.records += records.table.to_pylist()

    async def close(self) -> None:
        """See ``DeadLetters``."""
