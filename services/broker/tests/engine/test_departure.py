"""How a broker leaves: it waits for the rolling rule, within its limit, and all who asked hear the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from libs.common.tests.kit.clock import FakeClock

from headrace_broker.engine.departure import ALONE_MS, Departure
from headrace_common.core.ids import NodeId, PartitionId, TopicId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, Partition, Topic
from headrace_common.runtime.tasks import TaskRunner

ME = NodeId(0)
TOPIC = TopicId(b"a" * 16)


def image(*isrs: Sequence[int]) -> ClusterImage:
    partitions = {}
    for number, isr in enumerate(isrs):
        id, members = PartitionId(TOPIC, number), tuple(map(NodeId, isr))
        replicas = (ME, NodeId(1), NodeId(2))
        partitions[id] = Partition(id, replicas, members, members[0], leader_epoch=1, partition_epoch=1)
    return replace(EMPTY_IMAGE, topics={TOPIC: Topic("t", TOPIC, len(isrs))}, partitions=partitions)


class Member:
    """A tie to the cluster that a test holds."""

    def __init__(
        self, now: ClusterImage, *, registered: bool = True, lets_go: bool = True, clock: FakeClock | None = None
    ) -> None:
        self.registered = object() if registered else None
        self.silent_since: float | None = None
        """Controllers answer all the time until this."""
        self._clock = clock or FakeClock()
        self.left_within: list[float] = []
        self._lets_go = lets_go
        self._images: asyncio.Queue[ClusterImage] = asyncio.Queue()
        self._images.put_nowait(now)

    @property
    def contact_ms(self) -> float | None:
        return self._clock.monotonic_ms() if self.silent_since is None else self.silent_since

    async def images(self) -> AsyncIterator[ClusterImage]:
        while True:
            yield await self._images.get()
            self._images.task_done()

    async def show(self, now: ClusterImage) -> None:
        self._images.put_nowait(now)

    async def seen(self) -> None:
        await self._images.join()

    async def leave(self, timeout_ms: float) -> bool:
        self.left_within.append(timeout_ms)
        return self._lets_go and self.registered is not None


def departure(clock: FakeClock, *, wait_ms_max: float = 90_000) -> Departure:
    return Departure(ME, clock, wait_ms_max=wait_ms_max, leave_ms_max=7)


@asynccontextmanager
async def waits(one: Departure, member: Member, clock: FakeClock) -> AsyncIterator[asyncio.Task[None]]:
    """It waits for its turn."""
    async with TaskRunner() as tasks:
        waiting = tasks.start(one.wait_allowed(member, asyncio.Event()), name="w")
        await clock.until_asleep()
        yield waiting


async def test_it_does_not_wait_where_enough_are_in_sync() -> None:
    one = departure(FakeClock())
    await asyncio.wait_for(one.wait_allowed(Member(image([0, 1, 2], [1, 2])), asyncio.Event()), 10)


async def test_without_a_limit_it_does_not_wait_at_all() -> None:
    one = departure(FakeClock(), wait_ms_max=0)
    await asyncio.wait_for(one.wait_allowed(Member(image([0, 1])), asyncio.Event()), 10)


async def test_it_waits_for_the_image_that_allows_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    member, one = Member(image(*[[0, 1]] * 30)), departure(FakeClock())
    async with TaskRunner() as tasks:
        waiting = tasks.start(one.wait_allowed(member, asyncio.Event()), name="w")
        await member.show(image([0, 1], [0, 1, 2]))
        while not caplog.records:
            await asyncio.sleep(0)
        assert not waiting.done()
        await member.show(image([0, 1, 2], [0, 1, 2]))
        await asyncio.wait_for(waiting, 10)
    first, last = caplog.records
    assert first.__dict__["count"] == 30
    assert len(first.__dict__["partitions"]) == 20
    assert "may restart now" in last.message


async def test_its_time_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    member, one = Member(image([0, 1]), clock=clock), departure(clock)
    async with waits(one, member, clock) as waiting:
        await clock.advance(89_999)
        assert not waiting.done()
        await clock.advance(1)
        await asyncio.wait_for(waiting, 10)
    assert "leaves though others have not caught up" in caplog.records[-1].message
    assert caplog.records[-1].__dict__["partitions"] == [str(PartitionId(TOPIC, 0))]


async def test_where_no_controller_answers_nothing_will_change(caplog: pytest.LogCaptureFixture) -> None:
    """All of the cluster leaves: those in whose favour it would wait are gone, and so is who would say so."""
    clock = FakeClock()
    member, one = Member(image([0, 1]), clock=clock), departure(clock)
    async with waits(one, member, clock) as waiting:
        await clock.advance(30_000)
        member.silent_since = 30_000
        await clock.advance(ALONE_MS - 1)
        member.silent_since = 30_000 + ALONE_MS - 1  # a short outage of the controllers is none
        await clock.advance(ALONE_MS - 1)
        assert not waiting.done()
        await clock.advance(1)
        await asyncio.wait_for(waiting, 10)
    assert "no controller has answered" in caplog.records[0].message
    assert "leaves though others have not caught up" in caplog.records[-1].message


async def test_a_registration_without_an_answer_yet_counts_from_the_question() -> None:
    clock = FakeClock()
    member, one = Member(image([0, 1]), clock=clock), departure(clock)
    await clock.advance(1_000)
    member.silent_since = -1e9
    async with waits(one, member, clock) as waiting:
        await clock.advance(ALONE_MS - 1)
        assert not waiting.done()
        await clock.advance(1)
        await asyncio.wait_for(waiting, 10)


async def test_a_hurry_ends_the_waiting() -> None:
    one, hurry = departure(FakeClock()), asyncio.Event()
    async with TaskRunner() as tasks:
        waiting = tasks.start(one.wait_allowed(Member(image([0, 1])), hurry), name="w")
        await asyncio.sleep(0)
        assert not waiting.done()
        hurry.set()
        await asyncio.wait_for(waiting, 10)


async def test_partitions_that_cannot_be_spared_are_told(caplog: pytest.LogCaptureFixture) -> None:
    single = image([0])
    id = PartitionId(TOPIC, 0)
    alone = replace(single, partitions={id: replace(single.partitions[id], replicas=(ME,))})
    await asyncio.wait_for(departure(FakeClock()).wait_allowed(Member(alone), asyncio.Event()), 10)
    assert "too few replicas" in caplog.records[-1].message


@pytest.mark.parametrize("lets_go", [True, False])
async def test_all_who_ask_hear_the_same_end(lets_go: bool) -> None:
    one = departure(FakeClock())
    member = Member(image(), lets_go=lets_go)
    async with TaskRunner() as tasks:
        asked = [tasks.start(one.ask(), name="a") for _ in range(2)]
        await asyncio.wait_for(one.wait_asked(), 10)
        assert await one.leave(member) is lets_go
        assert await asyncio.gather(*asked) == [lets_go] * 2
        assert await one.ask() is lets_go, "and whoever asks when it is over"
    assert member.left_within == [7]


async def test_a_broker_that_never_joined_has_left() -> None:
    one = departure(FakeClock())
    assert await one.leave(Member(EMPTY_IMAGE, registered=False))
    assert await one.ask()
