"""Of partitions that wait for news one polls for all; what was read before a seek is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.records import TopicPartition
from headrace_connect.connectors.copying.polling import Polled
from headrace_connect.connectors.copying.port import Fetched, Moved, Recreated, TopicGone

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def fetched(position: int) -> Fetched:
    none: Any = pa.array([], pa.binary())
    return Fetched(np.empty(0, np.int64), none, none, none, none, position, True)


class Numbered(Polled):
    """Each poll gives what the test says next."""

    def __init__(self, *polls: dict[TopicPartition, int] | Exception) -> None:
        super().__init__()
        self.polls = list(polls)
        self.ready: dict[TopicPartition, Fetched] = {}
        self.polling = 0

    def drop(self, at: TopicPartition) -> None:
        self.ready.pop(at, None)

    def pop(self, at: TopicPartition) -> Fetched | None:
        return self.ready.pop(at, None)

    async def poll(self) -> None:
        self.polling += 1
        assert self.polling == 1, "one polls at a time"
        await asyncio.sleep(0)
        self.polling -= 1
        given = self.polls.pop(0)
        if isinstance(given, Exception):
            raise given
        self.ready |= {at: fetched(position) for at, position in given.items()}


def test_each_gets_its_own() -> None:
    async def go() -> list[int]:
        cluster = Numbered({B: 2}, {}, {A: 1})
        return [one.next_offset for one in await asyncio.gather(cluster.take(A), cluster.take(B))]

    assert asyncio.run(go()) == [1, 2]


def test_another_one_polls_when_who_polled_fails_or_goes() -> None:
    async def go() -> int:
        cluster = Numbered(RuntimeError("it broke"), {B: 2})
        first, second = (asyncio.ensure_future(cluster.take(at)) for at in (A, B))
        with pytest.raises(RuntimeError):
            await first
        return (await second).next_offset

    assert asyncio.run(go()) == 2


def test_what_was_read_before_a_failure_comes_first_and_a_seek_forgets_both() -> None:
    async def go() -> None:
        cluster = Numbered({A: 9})
        cluster.ready[A], cluster.failed[A] = fetched(1), TopicGone("t")
        assert (await cluster.take(A)).next_offset == 1
        with pytest.raises(TopicGone):
            await cluster.take(A)
        cluster.ready[A], cluster.failed[A] = fetched(1), TopicGone("t")
        cluster.seek(A, 8)
        assert cluster.starts == {A: 8}
        assert (await cluster.take(A)).next_offset == 9

    asyncio.run(go())


@pytest.mark.parametrize(("failure", "where"), [(Moved("gone", 7), 7), (Recreated("t"), None)])
def test_reading_goes_on_behind_a_gap_when_it_was_told_and_not_before(failure: Exception, where: int | None) -> None:
    async def go() -> None:
        cluster = Numbered()
        cluster.ready[A], cluster.failed[A] = fetched(1), failure
        await cluster.take(A)
        assert cluster.starts == {}
        with pytest.raises(type(failure)):
            await cluster.take(A)
        assert cluster.starts == {A: where}

    asyncio.run(go())
