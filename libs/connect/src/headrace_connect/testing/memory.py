"""Ports of tasks in memory: logs with transactions, owners, and prepared transactions, as a cluster has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
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
    RecordTooLarge,
    Then,
    TransactionAbortable,
)
from headrace_connect.plugin import Chunk, Position, Rows
from headrace_connect.runtime.pipeline import ConvertedChunk, ConvertedTable
from headrace_connect.runtime.ports import Ints, Outgoing

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
    record_bytes_max: float = inf
    """Of key and value together; what is larger is refused before it is sent."""
    record_bytes_max_of: dict[str, float] = field(default_factory=dict)
    """The same of a topic that has a limit of its own."""


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
        largest = max((len(row.get("key") or b"") + len(row["value"] or b"") for row in rows), default=0)
        if largest > self._log.record_bytes_max_of.get(records.topic, self._log.record_bytes_max):
            raise RecordTooLarge(f"the record has {largest} bytes")
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
    """By token."""
    owners: dict[bytes, int] = field(default_factory=dict)
    """Whose task's each token is."""
    verdicts: dict[bytes, bool] = field(default_factory=dict)


class MemoryDeadLetters:
    """Satisfies ``DeadLetters``: of one task."""

    def __init__(self, dead: MemoryDead, task: int = 0) -> None:
        self._dead = dead
        self._task = task

    async def undecided(self) -> bytes | None:
        """See ``DeadLetters``."""
        return next((token for token in self._dead.prepared if self._dead.owners[token] == self._task), None)

    async def prepare(self, records: Outgoing) -> bytes:
        """See ``DeadLetters``."""
        assert await self.undecided() is None, "one at a time"
        token = b"token-%d" % len(self._dead.owners)
        self._dead.owners[token] = self._task
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
