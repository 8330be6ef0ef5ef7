"""Whose share of the write queue a produce stream takes, and whose share of the memory of answers a fetch stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from libs.common.tests.kit.access import allow
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.guarded import ALICE, NOTHING, ROOT, Guarded, Shows, guarded_broker, node
from services.broker.tests.rpc.test_access import ask, fetch, produce

from headrace_common.core.access.resources import EVERY_NAME, Operation, ResourceType
from headrace_common.core.access.rows import Mode
from headrace_common.core.image import Role

FULL = 1 << 30


@pytest.fixture
async def world() -> AsyncIterator[Guarded]:
    async with guarded_broker(orders=1) as one:
        await one.allow(*(allow(ResourceType.TOPIC, EVERY_NAME, what) for what in (Operation.READ, Operation.WRITE)))
        yield one


async def is_read(world: Guarded, shows: Shows) -> bool:
    """Whether a second request of a new stream is taken, in the time of a whole exchange of somebody else."""
    call = (await world.stub(shows)).Produce()
    for _ in range(2):
        await call.write(produce(batch_of(1)))
    answers = [asyncio.ensure_future(_two(call))]
    await ask((await world.stub(ROOT)).Fetch(), fetch())
    done, _ = await asyncio.wait(answers, timeout=1)
    for answer in answers:
        answer.cancel()
    call.cancel()
    return bool(done)


async def _two(call: object) -> None:
    for _ in range(2):
        await call.read()


async def test_a_principal_has_one_share_wherever_it_comes_from_and_others_have_theirs(world: Guarded) -> None:
    share = world.broker.shares.of("User:alice")
    share.take(FULL)
    assert not await is_read(world, ALICE)
    assert await is_read(world, ROOT), "from the same address"
    assert await is_read(world, node(Role.ADMIN, on_behalf="alice")), "what nodes pass on has bounds of theirs"
    share.give_back(FULL)
    assert await is_read(world, ALICE)


async def test_who_has_shown_no_credential_has_the_share_of_its_address(world: Guarded) -> None:
    await world.turn(Mode.OPEN)
    share = world.broker.shares.of("127.0.0.1")
    share.take(FULL)
    assert not await is_read(world, NOTHING)
    assert await is_read(world, ALICE)
    share.give_back(FULL)
    assert await is_read(world, NOTHING)


async def test_answers_to_one_principal_shrink_while_its_readers_are_slow(world: Guarded) -> None:
    writes = (await world.stub(ROOT)).Produce()
    for _ in range(3):
        await ask(writes, produce(batch_of(1)))
    answers = world.broker.fetches.answers
    with answers.sending(answers.of("User:alice"), FULL):
        answers.all.size -= FULL  # of hers alone
        mine = await ask((await world.stub(ALICE)).Fetch(), fetch())
        other = await ask((await world.stub(ROOT)).Fetch(), fetch())
        answers.all.size += FULL
    assert [len(one.partitions[0].batches) for one in (mine, other)] == [1, 3]
