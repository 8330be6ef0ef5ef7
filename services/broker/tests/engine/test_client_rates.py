"""Quotas of bytes: what has arrived is done, its client is told to wait, and its stream is not read meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from libs.common.tests.kit.access import ALICE, BOB
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.dialogue import Engine, running_engine

from headrace_broker.engine.produce import ProduceSession
from headrace_common.core.access.control import Control, Rights
from headrace_common.core.access.principal import Principal
from headrace_common.core.access.rows import View
from headrace_common.core.access.state import Caller
from headrace_common.core.quotas.entities import Clients, Entity
from headrace_common.core.quotas.kinds import Rate
from headrace_common.core.quotas.state import Quotas, alter

BATCH = batch_of([b"x" * 10_000])
SIZE = len(BATCH)
ALICES = Clients(str(ALICE))


class World:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.control = Control()

    def limit(self, rate: Rate, value: float | None, entity: Entity = ALICES) -> None:
        quotas = alter(self.control.view.quotas or Quotas(), [(entity, {rate: value})])
        self.control.renew(View(quotas=quotas))

    def rights(self, who: Principal = ALICE) -> Rights:
        return Rights(self.control, Caller(who))

    def stream(self, who: Principal = ALICE, client_id: str = "app") -> ProduceSession:
        return self.engine.broker.produce_session(rights=self.rights(who), client_id=client_id)

    async def write(self, session: ProduceSession, batches: int = 1) -> int:
        """How long the client is told to wait; the batches were appended."""
        for _ in range(batches):
            self.engine.send(BATCH, session=session)
        for _ in range(batches):
            while not session.answers:
                session.changed.clear()
                await session.changed.wait()
            call = session.answers.popleft()
            assert [result is not None and result.error for result in call.results] == [None]
        return call.throttle_ms


async def is_held(session: ProduceSession) -> bool:
    room = asyncio.ensure_future(session.room())
    await asyncio.wait([room], timeout=0.02)
    held = not room.done()
    room.cancel()
    return held


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running_engine() as engine:
        yield World(engine)


async def test_who_is_above_its_quota_waits_and_nobody_else(world: World) -> None:
    """A bucket of eleven batches."""
    world.limit(Rate.PRODUCER_BYTE_RATE, SIZE)
    first, second, bobs = world.stream(), world.stream(client_id="other"), world.stream(BOB)
    assert await world.write(first, 11) == 0
    assert not await is_held(first)
    assert await world.write(first, 2) == 2_000
    assert await is_held(first)
    assert await world.write(second) == 3_000, "streams of one user share"
    assert await world.write(bobs, 30) == 0
    assert not await is_held(bobs)
    assert world.engine.broker.measures.throttled_seconds == 1 + 2 + 3
    first.end()
    assert await world.write(first) == 4_000
    assert not await is_held(first), "a stream that ends waits for nothing"


async def test_a_stream_is_read_again_when_the_debt_is_paid(world: World) -> None:
    world.limit(Rate.PRODUCER_BYTE_RATE, SIZE * 100)
    session = world.stream()
    assert await world.write(session, 1_101) == 10
    async with asyncio.timeout(5):
        await session.room()
    assert await world.write(session) == 20
    world.limit(Rate.PRODUCER_BYTE_RATE, SIZE // 100)
    assert await world.write(session) > 10_000
    assert await is_held(session), "the later wait counts"


async def test_a_client_id_has_its_own_quota_and_a_change_counts_from_the_next_request(world: World) -> None:
    slow = Clients(None, "slow")
    world.limit(Rate.PRODUCER_BYTE_RATE, SIZE, slow)
    session, quick = world.stream(client_id="slow"), world.stream(client_id="quick")
    assert await world.write(session, 12) == 1_000
    assert await world.write(quick, 12) == 0
    world.limit(Rate.PRODUCER_BYTE_RATE, SIZE * 2, slow)
    assert await world.write(session) == 1_000
    world.limit(Rate.PRODUCER_BYTE_RATE, None, slow)
    assert await world.write(session, 30) == 0


async def test_of_internal_streams_and_in_a_cluster_without_quotas_nothing_is_counted(world: World) -> None:
    session = world.engine.broker.produce_session()
    assert await world.write(session, 30) == 0
    assert len(world.engine.broker.rates._writes.counts) == 0


async def test_readers_have_a_rate_and_a_largest_answer(world: World) -> None:
    rates = world.engine.broker.rates
    assert rates.reads(world.rights()).most_at_once() is None
    world.limit(Rate.CONSUMER_BYTE_RATE, 100)
    rate = rates.reads(world.rights())
    assert (rate.holds, rate.most_at_once()) == (True, 1_100)
    assert rate.record(1_100) == 0
    assert rate.record(100) == 1_000
    world.limit(Rate.CONSUMER_BYTE_RATE, 1e9)
    assert rates.writes(world.rights()).holds is False
