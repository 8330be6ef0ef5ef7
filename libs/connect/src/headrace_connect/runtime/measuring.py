"""Counts what a task does. What was sent counts when it is committed; both loops say what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

import pyarrow.compute as pc

from headrace.records import PartitionTable
from headrace_common.runtime.clock import Clock
from headrace_connect.core.batch import Batch
from headrace_connect.core.counts import Counts
from headrace_connect.runtime.pipeline import Lost
from headrace_connect.runtime.ports import Outgoing
from headrace_connect.transforms.chain import Transformed

Stage = Literal["read", "convert", "transform", "write"]


class StageTimes:
    """Time that a task spends in its stages. Of one within another one it counts for the inner one alone."""

    def __init__(self, counts: Counts, clock: Clock) -> None:
        self._counts = counts
        self._clock = clock
        self._inner_ms = 0.0
        """Of stages that have ended within the one that is spent now."""

    def add(self, stage: Stage, spent_ms: float) -> None:
        """So long it was in a stage."""
        spent_us = round(spent_ms * 1_000)
        match stage:
            case "read":
                self._counts.read_us += spent_us
            case "convert":
                self._counts.convert_us += spent_us
            case "transform":
                self._counts.transform_us += spent_us
            case "write":
                self._counts.write_us += spent_us

    @contextmanager
    def spend(self, stage: Stage) -> Iterator[None]:
        """The block is in a stage; it does not await."""
        since_ms, around_ms, self._inner_ms = self._clock.monotonic_ms(), self._inner_ms, 0.0
        try:
            yield
        finally:
            spent_ms = self._clock.monotonic_ms() - since_ms
            self.add(stage, spent_ms - self._inner_ms)
            self._inner_ms = around_ms + spent_ms


class Transforms(Protocol):
    """What ``Chain`` is."""

    def apply(self, batch: Batch) -> Transformed:
        """See ``Chain``."""
        ...


class TimedTransforms:
    """Satisfies ``Transforms``: the time of others counts."""

    def __init__(self, transforms: Transforms, times: StageTimes) -> None:
        self._transforms = transforms
        self._times = times

    def apply(self, batch: Batch) -> Transformed:
        """See ``Chain``."""
        with self._times.spend("transform"):
            return self._transforms.apply(batch)


class CommitTime:
    """Of a task's commits."""

    def __init__(self, counts: Counts, clock: Clock) -> None:
        self._counts = counts
        self._clock = clock
        self._since_ms: float | None = None

    def begin(self) -> None:
        """A step of a commit; only the first one begins it."""
        if self._since_ms is None:
            self._since_ms = self._clock.monotonic_ms()

    def drop(self) -> None:
        """The commit has failed."""
        self._since_ms = None

    def end(self) -> None:
        """It is committed."""
        assert self._since_ms is not None, "it was begun"
        self._counts.commits += 1
        self._counts.commit_us += round((self._clock.monotonic_ms() - self._since_ms) * 1_000)
        self._since_ms = None


class SourceMeasure:
    """Of a source's task."""

    def __init__(self, counts: Counts, clock: Clock) -> None:
        self._counts = counts
        self._clock = clock
        self._time = CommitTime(counts, clock)
        self._records = self._bytes = self._dead = 0
        """Since the last commit."""
        self._newest_ms: int | None = None

    def read(self, rows: int, outgoing: Sequence[Outgoing], bad: int) -> None:
        """
        Rows were read.

        Args:
            outgoing: what is sent of them, without dead letters.
            bad: rows that are none.
        """
        self._counts.read_records += rows
        self._dead += bad
        for one in outgoing:
            self._records += one.table.num_rows
            self._bytes += one.table.nbytes
            if "timestamp_ms" in one.table.column_names:
                newest = pc.max(one.table["timestamp_ms"]).as_py()
                if newest is not None:
                    self._newest_ms = newest if self._newest_ms is None else max(newest, self._newest_ms)

    def lose(self, records: Sequence[Lost]) -> None:
        """These are none that are sent after all."""
        self._records -= len(records)
        self._bytes -= sum(len(one.key or b"") + len(one.value or b"") for one in records)
        self._dead += len(records)

    def retry(self) -> None:
        """Something has failed, and is tried again."""
        self._counts.retries += 1

    def begin_commit(self) -> None:
        """What was read is to be committed."""
        self._time.begin()

    def commit(self) -> None:
        """It is."""
        self._time.end()
        counts = self._counts
        counts.written_records += self._records
        counts.written_bytes += self._bytes
        counts.dead_letters += self._dead
        if self._newest_ms is not None:
            counts.delay_ms = max(0, round(self._clock.now_ms()) - self._newest_ms)
        self._forget()

    def drop(self) -> None:
        """What was read since the last commit is read again."""
        self._time.drop()
        self._forget()

    def _forget(self) -> None:
        self._records = self._bytes = self._dead = 0
        self._newest_ms = None


class SinkMeasure:
    """Of a sink's task."""

    def __init__(self, counts: Counts, clock: Clock) -> None:
        self._counts = counts
        self._time = CommitTime(counts, clock)

    def read(self, tables: Iterable[PartitionTable]) -> None:
        """Records were polled."""
        for one in tables:
            self._counts.read_records += one.table.num_rows
            self._counts.read_bytes += one.table.nbytes

    def look(self, lags: Iterable[int | None], uncommitted: int) -> None:
        """
        How far it is.

        Args:
            lags: of partitions, as they were heard of last; None: not known.
            uncommitted: records that were read.
        """
        known = [lag for lag in lags if lag is not None]
        self._counts.lag_records = sum(known) + uncommitted if known else None

    def retry(self) -> None:
        """A step has failed, and is tried again."""
        self._counts.retries += 1

    def begin_commit(self) -> None:
        """A step of a commit; only the first one begins it."""
        self._time.begin()

    def commit(self, records: int, dead: int) -> None:
        """Records are in the target, or are dead letters."""
        self._time.end()
        self._counts.written_records += records
        self._counts.dead_letters += dead

    def drop(self) -> None:
        """The commit has failed."""
        self._time.drop()
