"""Producer ids: blocks, epochs, and a start before anybody asks."""

from __future__ import annotations

import asyncio

import pytest

from headrace_broker.engine.producer_ids import EPOCH_MAX, ProducerIds
from headrace_common.core.errors import MetadataUnavailable, Rejected
from headrace_common.runtime.tasks import TaskRunner


class Source:
    """A controller that gives blocks of ten, or none."""

    def __init__(self) -> None:
        self.asked = 0
        self.down = False
        self.answered = asyncio.Event()

    async def allocate_producer_ids(self) -> range:
        self.asked += 1
        self.answered.set()
        if self.down:
            raise MetadataUnavailable("down")
        return range(self.asked * 10, self.asked * 10 + 10)


async def test_a_block_that_came_before_anybody_asked_serves_while_the_controller_is_down() -> None:
    source = Source()
    async with TaskRunner() as tasks:
        ids = ProducerIds(source, tasks)
        ids.prefetch()
        await source.answered.wait()
        await asyncio.sleep(0)
        source.down = True
        assert [await ids.init(None, None) for _ in range(10)] == [(10 + n, 0) for n in range(10)]
        with pytest.raises(MetadataUnavailable):
            await ids.init(None, None)


async def test_no_id_is_given_twice_and_refills_come_at_half() -> None:
    source = Source()
    async with TaskRunner() as tasks:
        ids = ProducerIds(source, tasks)
        given = [(await ids.init(None, None))[0] for _ in range(35)]
        assert len(set(given)) == 35
        assert ids.highest >= max(given)


async def test_epochs_go_up_and_end_in_a_new_id() -> None:
    async with TaskRunner() as tasks:
        ids = ProducerIds(Source(), tasks)
        assert await ids.init(7, 3) == (7, 4)
        producer_id, epoch = await ids.init(7, EPOCH_MAX)
        assert (producer_id != 7, epoch) == (True, 0)
        for wrong in ((7, None), (None, 1), (-1, 0), (7, EPOCH_MAX + 1)):
            with pytest.raises(Rejected):
                await ids.init(*wrong)
