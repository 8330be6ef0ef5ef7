"""What every cluster that is copied has to do, whoever's it is. Its tests run where a subclass gives a ``site``."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from headrace.records import TopicPartition
from headrace_common.runtime.clock import limit_s
from headrace_connect.connectors.copying.port import Fetched, Moved, Recreated, SourceCluster, TopicGone

Read = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]
"""Key, value, headers, time."""
SOME: list[Read] = [
    (b"k", b"v", [("h", b"1"), ("h", None)], 1_700_000_000_000),
    (None, b"\xff\x00", [], 1_700_000_000_001),
    (b"gone", None, [("", b"")], 1_700_000_000_002),
]


class Site(ABC):
    """A cluster with topics."""

    @abstractmethod
    def connect(self) -> SourceCluster:
        """A client of it."""

    @abstractmethod
    def create(self, partitions: int = 1, **configs: str) -> str:
        """A topic that no other test has."""

    @abstractmethod
    def write(self, topic: str, records: Sequence[Read], partition: int = 0, *, commits: bool | None = None) -> None:
        """In a transaction that is committed or aborted; None: in none."""

    @abstractmethod
    def delete_below(self, topic: str, offset: int) -> None:
        """Delete records of partition 0."""

    @abstractmethod
    def delete(self, topic: str) -> None: ...

    @abstractmethod
    def make_again(self, topic: str, partitions: int = 1) -> None:
        """Delete it, and create one of the same name."""

    @abstractmethod
    def commit(self, group: str, positions: dict[TopicPartition, int]) -> None:
        """What the group has read; it has no members after that."""


def rows(fetched: Fetched) -> list[tuple[int, Read]]:
    columns: list[Any] = [fetched.keys, fetched.values, fetched.headers, fetched.timestamps_ms]
    keys, values, headers, times = (column.to_pylist() for column in columns)
    pairs = [[(one["key"], one["value"]) for one in own] for own in headers]
    return list(zip(fetched.offsets.tolist(), zip(keys, values, pairs, times, strict=True), strict=True))


async def drain(cluster: SourceCluster, at: TopicPartition) -> tuple[list[tuple[int, Read]], int]:
    """What comes until there is no more for now, and the position behind it."""
    found: list[tuple[int, Read]] = []
    while True:
        fetched = await cluster.take(at)
        found += rows(fetched)
        if fetched.drained:
            return found, fetched.next_offset


async def take_nothing(cluster: SourceCluster, at: TopicPartition) -> None:
    """That it was sought may be news; for ever, unless it raises."""
    while True:
        fetched = await cluster.take(at)
        assert (rows(fetched), fetched.drained) == ([], False)


def numbered(*numbers: int) -> list[Read]:
    return [(None, b"%d" % number, [], 1_700_000_000_000 + number) for number in numbers]


def values(found: Sequence[tuple[int, Read]]) -> list[tuple[int, bytes | None]]:
    return [(offset, record[1]) for offset, record in found]


class ClusterContract:
    """Inherit it, with a fixture ``site``."""

    def run(self, site: Site, work: Callable[[SourceCluster], Awaitable[Any]]) -> Any:
        async def go() -> Any:
            cluster = site.connect()
            await cluster.open()
            try:
                async with limit_s(60):
                    return await work(cluster)
            finally:
                await cluster.close()
                await cluster.close()

        return asyncio.run(go())

    def test_records_are_as_they_were_written(self, site: Site) -> None:
        topic = site.create()
        at = TopicPartition(topic, 0)
        site.write(topic, SOME)

        async def work(cluster: SourceCluster) -> None:
            cluster.seek(at, None)
            assert await drain(cluster, at) == (list(enumerate(SOME)), 3)
            assert (await cluster.end_offsets([at]))[at] == 3
            cluster.seek(at, 1)
            assert values((await drain(cluster, at))[0]) == [(1, b"\xff\x00"), (2, None)]
            cluster.seek(at, 3)
            assert await drain(cluster, at) == ([], 3)

        self.run(site, work)

    def test_what_is_not_committed_is_passed_over(self, site: Site) -> None:
        topic = site.create()
        at = TopicPartition(topic, 0)
        site.write(topic, numbered(1, 2), commits=True)
        site.write(topic, numbered(3, 4), commits=False)
        site.write(topic, numbered(5), commits=True)

        async def work(cluster: SourceCluster) -> None:
            cluster.seek(at, None)
            found, position = await drain(cluster, at)
            assert values(found) == [(0, b"1"), (1, b"2"), (6, b"5")]
            while position < 8:  # the last marker is news of its own
                _, position = await drain(cluster, at)

        self.run(site, work)

    def test_many_partitions_and_what_comes_later(self, site: Site) -> None:
        topic = site.create(3)
        all_of = [TopicPartition(topic, number) for number in range(3)]
        for at in all_of[:2]:
            site.write(topic, numbered(*range(50)), at.partition)

        async def work(cluster: SourceCluster) -> None:
            for at in all_of:
                cluster.seek(at, None)
            found = await asyncio.gather(*(drain(cluster, at) for at in all_of))
            assert [(len(own), position) for own, position in found] == [(50, 50), (50, 50), (0, 0)]
            waiting = [asyncio.ensure_future(cluster.take(at)) for at in all_of]
            await asyncio.to_thread(site.write, topic, numbered(7), 2)
            assert values(rows(await waiting[2])) == [(0, b"7")]
            for one in waiting[:2]:
                one.cancel()
            await asyncio.wait(waiting[:2])
            await asyncio.to_thread(site.write, topic, numbered(8), 0)
            assert values(rows(await cluster.take(all_of[0]))) == [(50, b"8")]

        self.run(site, work)

    def test_what_was_deleted_is_told_once(self, site: Site) -> None:
        topic = site.create()
        at = TopicPartition(topic, 0)
        site.write(topic, numbered(*range(10)))
        site.delete_below(topic, 6)

        async def work(cluster: SourceCluster) -> None:
            for position, where in ((2, 6), (99, 10)):
                cluster.seek(at, position)
                with pytest.raises(Moved, match=f"{topic}-0: offset {position} does not exist") as raised:
                    await take_nothing(cluster, at)
                assert raised.value.offset == where
                assert values((await drain(cluster, at))[0]) == [(n, b"%d" % n) for n in range(where, 10)]
            cluster.seek(at, None)
            assert len((await drain(cluster, at))[0]) == 4

        self.run(site, work)

    def test_topics_that_go_and_come_again(self, site: Site) -> None:
        topic, other = site.create(), site.create()
        at, beside = TopicPartition(topic, 0), TopicPartition(other, 0)
        site.write(topic, numbered(1, 2, 3))
        site.write(other, numbered(1))

        async def work(cluster: SourceCluster) -> None:
            before = await cluster.topic_id(topic)
            assert (await cluster.topics())[topic].id == before
            for one in (at, beside):
                cluster.seek(one, None)
                await drain(cluster, one)
            await asyncio.to_thread(site.make_again, topic)
            await asyncio.to_thread(site.write, topic, numbered(*range(10, 20)))
            with pytest.raises(Recreated):
                await cluster.take(at)
            assert await cluster.topic_id(topic) != before
            assert values((await drain(cluster, at))[0]) == [(n, b"%d" % (n + 10)) for n in range(10)]
            await asyncio.to_thread(site.delete, topic)
            with pytest.raises(TopicGone):
                await cluster.take(at)
            with pytest.raises(TopicGone):
                await cluster.topic_id(topic)
            assert topic not in await cluster.topics()
            await asyncio.to_thread(site.write, other, numbered(2))
            assert values(rows(await cluster.take(beside))) == [(1, b"2")]

        self.run(site, work)

    def test_topics_and_their_settings(self, site: Site) -> None:
        topic = site.create(2, **{"retention.ms": "86400000"})

        async def work(cluster: SourceCluster) -> None:
            found = (await cluster.topics())[topic]
            assert (found.partitions, dict(found.configs)) == (2, {"retention.ms": "86400000"})
            assert await cluster.cluster_id() == await cluster.cluster_id() != ""

        self.run(site, work)

    def test_groups(self, site: Site) -> None:
        topic = site.create(2)
        site.write(topic, numbered(1, 2, 3))
        site.commit(f"of-{topic}", {TopicPartition(topic, 0): 2})

        async def work(cluster: SourceCluster) -> None:
            assert await cluster.group_positions(f"of-{topic}") == {TopicPartition(topic, 0): 2}
            assert await cluster.group_members(f"of-{topic}") == 0
            assert await cluster.group_positions("nobody") == {}
            assert await cluster.group_members("nobody") == 0

        self.run(site, work)
