"""Gaps in what a worker reads, as the client for asyncio tells of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa
import pytest

from headrace import aio
from headrace._core.fetch_events import PositionReset
from headrace.errors import PositionOutOfRange
from headrace.records import PartitionTable, TopicPartition
from headrace.testing import lab
from headrace_streams.adapters import headrace_io
from headrace_streams.adapters.headrace_io import SdkReader

ONE, OTHER = TopicPartition("a", 0), TopicPartition("a", 1)


class SilentConsumer:
    """Has no records; but it may have moved on."""

    def __init__(self) -> None:
        self.sought: list[tuple[TopicPartition, int]] = []
        self.moves: list[PartitionTable] = []
        self.waits: list[float] = []
        self.ends: Mapping[TopicPartition, int] | None = {}

    async def assign(self, partitions: list[TopicPartition]) -> None: ...

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.sought.append((partition, offset))

    def seek_to_beginning(self, partition: TopicPartition) -> None: ...

    def paused(self) -> bool:
        return False

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        if self.ends is None:
            await asyncio.Event().wait()
        return {partition: self.ends[partition] for partition in partitions}

    async def poll_batches(self, timeout_ms: float, max_rows: int) -> list[PartitionTable]:
        self.waits.append(timeout_ms)
        return self.moves


async def after(gaps: list[PositionReset], *positions: Mapping[TopicPartition, int]) -> SdkReader:
    reader = SdkReader(cast("aio.Consumer[Any, Any]", SilentConsumer()), gaps)
    for each in positions:
        await reader.assign(each)
    return reader


@pytest.mark.parametrize("position", [7, -1])
async def test_a_gap_is_refused_as_long_as_it_is_in_what_is_read(position: int) -> None:
    reader = await after([PositionReset(ONE, lost=7, position=9, log_start=9)], {ONE: position})
    for _ in range(2):
        with pytest.raises(PositionOutOfRange, match="records 7 to 8 were not read") as told:
            await reader.poll(0, 1)
        assert told.value.partition == ONE


@pytest.mark.parametrize("now", [{ONE: 8}, {OTHER: 7}, {}])
async def test_a_gap_of_before_is_nothing_to_a_worker_that_reads_elsewhere(now: Mapping[TopicPartition, int]) -> None:
    """It was paused, others read these records and trimmed them, and it has joined anew."""
    reader = await after([PositionReset(ONE, lost=7, position=9, log_start=9)], {ONE: 7}, now)
    assert await reader.poll(0, 1) == []


async def test_what_is_read_on_is_not_fetched_again_but_told_again() -> None:
    """
    A seek drops what was fetched ahead: only what is new, or goes back, is sought. Who merges inputs has to hear that
    one is at its end, else it would wait for it.
    """
    consumer = SilentConsumer()
    reader = SdkReader(cast("aio.Consumer[Any, Any]", consumer), [])
    await reader.assign({ONE: 5})
    consumer.moves = [moved(ONE, 8)]
    assert [one.table.num_rows for one in await reader.poll(500, 1)] == [3]
    consumer.moves = []
    await reader.assign({ONE: 8, OTHER: 3})
    (told,) = await reader.poll(500, 1)
    assert (told.topic, told.next_offset, told.lag, told.table.num_rows) == (ONE.topic, 8, 0, 0)
    assert await reader.poll(500, 1) == [], "once"
    await reader.assign({ONE: 7, OTHER: 3})
    await reader.assign({})
    await reader.assign({ONE: 8})
    assert await reader.poll(500, 1) == []
    assert consumer.sought == [(ONE, 5), (OTHER, 3), (ONE, 7), (OTHER, 3), (ONE, 8)]
    assert consumer.waits == [500, 0, 500, 500], "what is known is told at once"


async def test_which_partitions_are_at_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that was not heard of since the start it is not known, nor of any when a broker does not answer."""
    consumer = SilentConsumer()
    reader = SdkReader(cast("aio.Consumer[Any, Any]", consumer), [])
    await reader.assign({ONE: 5, OTHER: -1})
    consumer.ends = {ONE: 6, OTHER: 0}
    assert list(await reader.at_ends([ONE, OTHER])) == []
    consumer.moves = [moved(ONE, 6), moved(OTHER, 0)]
    await reader.poll(0, 1)
    assert set(await reader.at_ends([ONE, OTHER])) == {ONE, OTHER}
    consumer.ends = None
    monkeypatch.setattr(headrace_io, "_SOON_S", 0.01)
    assert list(await reader.at_ends([ONE])) == []


async def test_ends_are_high_watermarks_and_not_where_an_open_transaction_begins() -> None:
    """A restore that ended there would lack what was decided before its marker came."""
    async with lab(1) as cluster:
        await cluster.create_topic(ONE.topic)
        reader = SdkReader.of_whole_logs(",".join(cluster.bootstrap_servers))
        async with (
            cluster.producer(transactional_id="t") as producer,
            cluster.consumer(isolation_level="read_committed") as decided,
        ):
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send_many(ONE.topic, [b"x", b"y"])
            await producer.flush()
            assert await decided.end_offsets([ONE]) == {ONE: 0}
            assert await reader.ends([ONE]) == {ONE: 2}
            await producer.commit_transaction()
        await reader.close()


def moved(partition: TopicPartition, next_offset: int) -> PartitionTable:
    return PartitionTable(*partition, pa.table({"offset": [5, 6, 7]}), next_offset, -1, next_offset, next_offset)
