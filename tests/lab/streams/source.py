"""Who writes the records that a program reads: in transactions, some of which are aborted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import orjson
from tests.lab.streams.programs import LINES, Line

from headrace import aio
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from tests.lab.streams.world import World

AGAIN_S: Final = 0.3
LINES_MAX: Final = 6
"""Of a transaction."""
WRITES: Final[dict[str, Any]] = {
    "transactional_id": "source",
    "transaction_timeout_ms": 4_000,
    "request_timeout_ms": 1_500,
    "delivery_timeout_ms": 5_000,
    "max_block_ms": 8_000,
    "linger_ms": 0,
}


class Source:
    """Of one world; a producer after the other, where one failed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.quiet = False
        """It ends, with the last record of each partition."""

    async def run(self) -> None:
        """Until it is quiet, and nothing of it is open."""
        while True:
            try:
                async with aio.Producer(self._world.cluster.address, **WRITES) as producer:
                    await producer.init_transactions()
                    while not self.quiet:
                        await self._write(producer)
                        await asyncio.sleep(self._world.random.random() * self._world.profile.think_s)
                    await self._end(producer)
                    return
            except HeadraceError as error:
                self._world.counts[f"sources ended by {type(error).__name__}"] += 1
                await asyncio.sleep(AGAIN_S)

    async def _write(self, producer: aio.Producer) -> None:
        world, random = self._world, self._world.random
        await producer.begin_transaction()
        for _ in range(random.randint(1, LINES_MAX)):
            partition = random.randrange(world.profile.partitions)
            await self._send(producer, world.program.line(random, partition), partition)
            await asyncio.sleep(random.choice((0.0, 0.0, 0.01)))
        if random.random() < 0.8:
            await producer.commit_transaction()
            world.counts["transactions of the source"] += 1
        else:
            await producer.abort_transaction()

    async def _end(self, producer: aio.Producer) -> None:
        last = self._world.program.last()
        if last is not None:
            await producer.begin_transaction()
            for partition in range(self._world.profile.partitions):
                await self._send(producer, last, partition)
            await producer.commit_transaction()

    async def _send(self, producer: aio.Producer, line: Line, partition: int) -> None:
        key, row = line
        await producer.send(LINES, orjson.dumps(row), key, partition=partition)
