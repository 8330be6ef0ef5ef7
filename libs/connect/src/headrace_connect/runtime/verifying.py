"""Whether the target of a sink has what its topics say, range by range of offsets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_connect.core.progress import Progress
from headrace_connect.plugin import Checked, Rows, Sink, Verifier
from headrace_connect.runtime.adapters.topic_reader import TopicReader, find_partitions
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.config import SinkConfig
from headrace_connect.runtime.configuring import Configured
from headrace_connect.runtime.converting import TablePipeline
from headrace_connect.runtime.seating import Process

RANGE: Final = 10_000
"""Offsets of a range."""
EXAMPLES: Final = 10
"""Offsets that are named of a range."""
PARTITIONS_MAX: Final = 1_000
RANGES_MAX: Final = 10_000
"""Of all partitions: so many are one answer of a worker."""


@dataclass(slots=True)
class _Sum:
    ranges: list[Mapping[str, Any]] = field(default_factory=list)
    wrong: int = 0
    repaired: int = 0

    def add(self, partition: TopicPartition, first: int, end: int, refused: int, checked: Checked) -> None:
        missing, different = list(checked.missing), list(checked.different)
        self.ranges.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "first": first,
                "end": end,
                "records": checked.records,
                "refused": checked.refused + refused,
                "missing": len(missing),
                "different": len(different),
                "unexpected": checked.unexpected,
                "repaired": checked.repaired,
                "examples": sorted([*missing, *different])[:EXAMPLES],
            }
        )
        self.wrong += len(missing) + len(different) + checked.unexpected
        self.repaired += checked.repaired


async def verify(
    configured: Configured,
    process: Process,
    topics: Sequence[str],
    *,
    records_max: int,
    repair: bool,
    tell: Callable[[Progress], None] = lambda _: None,
) -> Mapping[str, Any]:
    """
    Compare the newest records that the target has, at most ``records_max`` offsets of each partition, with its rows.

    Args:
        topics: of those that the sink reads; none: all.
        tell: called with how far it is, about once for each ``RANGE`` offsets.

    Raises:
        InvalidConfig: it is no sink, or none that can tell which row a record became.
        HeadraceError: the cluster does not answer.
    """
    config = configured.config
    if not isinstance(config, SinkConfig):
        raise InvalidConfig(f"{config.name} is a source: verify compares the target of a sink with its topics")
    partitions = await find_partitions(process.topics, config)
    unknown = sorted(set(topics) - {one.topic for one in partitions})
    if unknown:
        raise InvalidConfig(f"topics: {config.name} reads no topic {unknown[0]!r}")
    partitions = [one for one in partitions if not topics or one.topic in topics]
    if len(partitions) > PARTITIONS_MAX:
        raise InvalidConfig(f"topics: they have {len(partitions)} partitions; {PARTITIONS_MAX} at once are the most")
    calls = Calls(configured.make())
    sink = calls.connector
    assert isinstance(sink, Sink), "its configuration is a sink's"
    try:
        verifier = await calls.call(sink.verifier)
        try:
            async with TopicReader(process.config) as reader:
                compared = _Compared(calls, verifier, reader, TablePipeline(configured.converting()), tell)
                found = await compared.run(partitions, records_max, repair=repair)
            await calls.call(verifier.finish)
        finally:
            await calls.call(verifier.close)
    finally:
        await calls.stop()
    return {
        "name": config.name,
        "agrees": found.wrong == found.repaired,
        "wrong": found.wrong,
        "repaired": found.repaired,
        "ranges": found.ranges,
    }


class _Compared:
    def __init__(
        self,
        calls: Calls,
        verifier: Verifier,
        reader: TopicReader,
        pipeline: TablePipeline,
        tell: Callable[[Progress], None],
    ) -> None:
        self._calls = calls
        self._verifier = verifier
        self._reader = reader
        self._pipeline = pipeline
        self._tell = tell
        self._progress = Progress()

    async def run(self, partitions: Sequence[TopicPartition], records_max: int, *, repair: bool) -> _Sum:
        positions = await self._calls.call(lambda: self._verifier.begin(partitions, repair=repair))
        logs, ends = await self._reader.starts(partitions), await self._reader.ends(partitions)
        for one, position in sorted(positions.items()):
            if position > ends[one]:
                raise InvalidConfig(
                    f"the target has position {position} of {one.topic}-{one.partition}, which ends at {ends[one]}: "
                    "it is not the topic that was written from"
                )
        spans = {
            one: (max(logs[one], position - records_max), position)
            for one, position in sorted(positions.items())
            if position > logs[one]
        }
        count = sum(-(-(end - start) // RANGE) for start, end in spans.values())
        if count > RANGES_MAX:
            raise InvalidConfig(
                f"records: they are {count:,} ranges of {RANGE:,} offsets; {RANGES_MAX:,} at once are the most: verify "
                "fewer records, or one topic"
            )
        self._advance(offsets=sum(end - start for start, end in spans.values()))
        if self._verifier.learns:
            for partition, (start, end) in spans.items():
                await self._scan(partition, start, end)
        found = _Sum()
        for partition, (start, end) in spans.items():
            for first in range(start, end, RANGE):
                behind = min(first + RANGE, end)
                begin, parts, refused = await self._retained(partition, first, behind)
                if begin < behind:
                    checked = await self._calls.call(self._verifier.check, partition, parts, begin, behind)
                    found.add(partition, begin, behind, refused, checked)
                self._advance(compared=behind - first)
        return found

    def _advance(self, *, offsets: int = 0, scanned: int = 0, compared: int = 0) -> None:
        before = self._progress
        self._progress = Progress(before.offsets + offsets, before.scanned + scanned, before.compared + compared)
        self._tell(self._progress)

    async def _scan(self, partition: TopicPartition, start: int, end: int) -> None:
        """Have the verifier learn a partition."""
        told = start
        async for parts, _ in self._read(partition, start, end):
            for rows in parts:
                await self._calls.call(self._verifier.learn, rows)
            behind = max((rows.next_offset for rows in parts if len(rows)), default=told)
            if behind - told >= RANGE:
                self._advance(scanned=behind - told)
                told = behind
        self._advance(scanned=end - told)

    async def _retained(self, partition: TopicPartition, first: int, end: int) -> tuple[int, list[Rows], int]:
        """
        What the topic still has of a range: from where on, its records, and how many were refused. Retention may remove
        records meanwhile: their rows are not compared, as a repair would delete them.
        """
        while first < end:
            parts: list[Rows] = []
            refused = 0
            async for rows, bad in self._read(partition, first, end):
                parts += rows
                refused += bad
            start = (await self._reader.starts([partition]))[partition]
            if start <= first:
                return first, parts, refused
            first = start
        return end, [], 0

    async def _read(self, partition: TopicPartition, start: int, end: int) -> AsyncIterator[tuple[list[Rows], int]]:
        async for table in self._reader.read(partition, start, end):
            converted = self._pipeline.apply(table)
            yield [rows for rows, _ in converted.parts], len(converted.refused)
