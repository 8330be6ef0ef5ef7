"""What one client reads of several partitions, while they are taken and sought: no broker is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from libs.connect.tests.connectors.kafka_import.settings import made

from headrace.records import TopicPartition
from headrace_common.runtime.clock import limit_s
from headrace_connect.connectors.copying.port import Fetched
from headrace_connect.connectors.kafka_import.cluster import KafkaCluster
from headrace_connect.connectors.kafka_import.reading import Piece

ONE, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


@dataclass(frozen=True)
class Message:
    """One of confluent-kafka."""

    at: int

    def offset(self) -> int:
        return self.at

    def key(self) -> None: ...

    def value(self) -> bytes:
        return b"%d" % self.at

    def timestamp(self) -> tuple[int, int]:
        return 0, -1

    def headers(self) -> None: ...

    def __len__(self) -> int:
        return 1


@dataclass
class Reads:
    """Satisfies ``Reading``: each call waits for what it gives."""

    begun: SimpleQueue[Mapping[TopicPartition, int | None]] = field(default_factory=SimpleQueue)
    given: SimpleQueue[list[Piece]] = field(default_factory=SimpleQueue)

    def read(self, starts: Mapping[TopicPartition, int | None]) -> list[Piece]:
        self.begun.put(starts)
        return self.given.get(timeout=30)


def cluster_of(reads: Any) -> KafkaCluster:
    cluster = KafkaCluster(made("nowhere:9092"))
    cluster._reading = reads
    return cluster


def told(fetched: Fetched) -> tuple[list[int], int, bool]:
    return fetched.offsets.tolist(), fetched.next_offset, fetched.drained


def test_what_was_read_of_a_partition_that_is_elsewhere_by_now_is_dropped() -> None:
    async def go() -> None:
        reads = Reads()
        cluster = cluster_of(reads)
        cluster.seek(ONE, 0)
        cluster.seek(OTHER, 5)
        taking = asyncio.ensure_future(cluster.take(OTHER))
        async with limit_s(30):
            assert await asyncio.to_thread(reads.begun.get, timeout=30) == {ONE: 0, OTHER: 5}
            cluster.seek(ONE, 100)
            reads.given.put([Piece(ONE, (Message(0), Message(1))), Piece(OTHER, (Message(5),))])
            assert told(await taking) == ([5], 6, False)
            reads.given.put([Piece(ONE, (Message(100),))])
            assert told(await cluster.take(ONE)) == ([100], 101, False)
            assert reads.begun.get_nowait() == {ONE: 100}

    asyncio.run(go())


def test_an_end_is_none_any_more_where_records_came_behind_it() -> None:
    async def go() -> None:
        reads = Reads()
        cluster = cluster_of(reads)
        cluster.seek(ONE, 0)
        cluster.seek(OTHER, 5)
        reads.given.put([Piece(ONE, (Message(0),), end=1)])
        reads.given.put([Piece(ONE, (Message(1),)), Piece(OTHER, (Message(5),))])
        async with limit_s(30):
            assert told(await cluster.take(OTHER)) == ([5], 6, False)
            assert told(await cluster.take(ONE)) == ([0, 1], 2, False)
            reads.given.put([Piece(ONE, end=4)])
            assert told(await cluster.take(ONE)) == ([], 4, True)

    asyncio.run(go())
