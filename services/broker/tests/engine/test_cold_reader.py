"""Cold reads while compaction rewrites what is read: never taken for a loss; and what is one."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core.measures import Measures
from headrace_broker.core.rows import DropBatch, DropPrefix, IndexRow, LogId, LogWrite, PutState, StateRow
from headrace_broker.engine.cold_reader import READS_MAX, ColdReader
from headrace_broker.engine.replicas import Replica, Standing
from headrace_broker.engine.tail_cache import TailCache
from headrace_broker.ports import BytesLost
from headrace_common.core.batch import read_header
from headrace_common.core.errors import OffsetOutOfRange, StorageFailed
from headrace_common.core.ids import Offset
from headrace_common.runtime.tasks import TaskRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "adapters"))
from storage_batches import Writer, partition, rewrite


class Racing(MemoryLogs):
    """Calls ``step`` between the reading of the rows and that of the batches."""

    step: Callable[[], Sequence[LogWrite]] = staticmethod(lambda: ())
    reads = 0

    async def read(self, log: LogId, rows: Sequence[IndexRow]) -> list[bytes]:
        self.reads += 1
        writes = self.step()
        if writes:
            self.write(writes)
        return await super().read(log, rows)


class World:
    def __init__(self, tasks: TaskRunner, batches: int = 8) -> None:
        self.store = Racing()
        self.measures = Measures()
        self.cold = ColdReader(self.store, tasks, self.measures)
        self.lost: list[BytesLost] = []
        self.cold.on_lost = lambda _replica, error: self.lost.append(error)
        self.writer = Writer(self.store.new_log_id())
        self.store.write([*self.writer.create(), *self.writer.append(batches)])
        self.core = SimpleNamespace(log=self.writer.log, truncations=0, log_start=0)
        self.replica = cast(
            Replica, SimpleNamespace(core=self.core, standing=Standing.ONLINE, topic="t", id=partition(0))
        )

    async def read(self, offset: int, bytes_max: int = 1 << 20, *, committed: bool = True) -> list[tuple[int, int]]:
        end = Offset(self.writer.end)
        found = await self.cold.read(self.replica, Offset(offset), bytes_max, end, first=True, committed=committed)
        headers = [read_header(batch) for batch in found]
        return [(header.base_offset, header.next_offset) for header in headers]

    def steps(self, steps: Sequence[Sequence[LogWrite]]) -> None:
        """One of them before each read, until there are no more."""
        left = list(steps)
        self.store.step = lambda: left.pop(0) if left else ()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with TaskRunner() as tasks:
        yield World(tasks)


def dense(found: list[tuple[int, int]], start: int, end: int) -> bool:
    spans = [*found, (end, end)]
    return found[0][0] <= start < found[0][1] and all(one[1] == two[0] for one, two in pairwise(spans))


def gap(log: LogId, start: int, end: int) -> list[LogWrite]:
    return [rewrite(log, start, end), *(DropBatch(log, Offset(at)) for at in range(start + 10, end, 10))]


async def test_a_batch_that_gets_smaller_while_it_is_read(world: World) -> None:
    world.steps([[rewrite(world.writer.log, 20, 30, 700, 3)]])
    assert dense(await world.read(0), 0, 80)
    assert (world.lost, world.measures.read_failures) == ([], 0)


async def test_batches_that_go_while_they_are_read(world: World) -> None:
    log = world.writer.log
    world.steps([gap(log, 20, 50), [rewrite(log, 20, 60), DropBatch(log, Offset(50))]])
    assert await world.read(25) == [(20, 60), (60, 70), (70, 80)]
    assert world.lost == []


async def test_a_reader_whose_own_batch_goes_gets_the_gap_that_holds_its_offset(world: World) -> None:
    world.steps([gap(world.writer.log, 0, 80)])
    assert await world.read(47) == [(0, 80)]
    assert world.lost == []


async def test_every_read_races_with_a_step_until_few_enough_are_read(world: World) -> None:
    """A pass that rewrites another batch under each read."""
    log = world.writer.log
    world.steps([[rewrite(log, at % 80, at % 80 + 10, 3000 - at, 3)] for at in range(0, 160, 10)])
    found = await world.read(0)
    assert found
    assert dense(found, 0, found[-1][1])
    assert world.lost == []


async def test_what_is_rewritten_for_ever_is_no_loss_and_ends(world: World) -> None:
    log, sizes = world.writer.log, iter(range(9000, 100, -1))
    world.store.step = lambda: [rewrite(log, 0, 10, next(sizes), 3)]
    with pytest.raises(StorageFailed, match="ask again") as raised:
        await world.read(0)
    assert not isinstance(raised.value, BytesLost)
    assert (world.lost, world.store.reads) == ([], READS_MAX)


@pytest.mark.parametrize("harm", ["gone", "other size"])
async def test_a_batch_that_does_not_fit_a_row_that_stays_is_lost(world: World, harm: str) -> None:
    batches = world.store._live[world.writer.log].batches
    if harm == "gone":
        del batches[30]
    else:
        batches[30] = batches[30][:-1]
    with pytest.raises(BytesLost, match="offset 30 "):
        await world.read(0)
    assert len(world.lost) == 1
    assert (world.measures.read_failures, world.store.reads) == (1, 2)


async def test_a_loss_is_told_though_the_log_is_compacted_meanwhile(world: World) -> None:
    log = world.writer.log
    del world.store._live[log].batches[0]
    world.steps([[rewrite(log, at, at + 10, 700, 3)] for at in (40, 50, 60)])
    with pytest.raises(BytesLost, match="offset 0 "):
        await world.read(0)
    assert len(world.lost) == 1


async def test_a_log_that_is_trimmed_while_it_is_read_is_out_of_range(world: World) -> None:
    log = world.writer.log

    def trim() -> Sequence[LogWrite]:
        if world.core.log_start:
            return ()
        world.core.log_start = 30
        return [PutState(log, StateRow(partition(int(log)), Offset(30), Offset(80))), DropPrefix(log, Offset(30))]

    world.store.step = trim
    with pytest.raises(OffsetOutOfRange, match="below the log start 30"):
        await world.read(10)
    assert world.lost == []


async def test_what_was_read_ahead_is_let_go_when_compaction_rewrites_it(world: World) -> None:
    tail = TailCache(0)
    tail.on_forget = world.cold.forget
    await world.read(0, 8192)
    await world.read(20, 8192)  # in sequence: what follows is read ahead
    world.store.write(gap(world.writer.log, 40, 60))
    tail.forget(world.writer.log, [Offset(40), Offset(50)])
    assert world.cold._ahead_bytes == 0
    assert await world.read(40, 8192) == [(40, 60), (60, 70)]
    assert world.measures.read_ahead_hits == 0


async def test_what_was_read_ahead_and_did_not_fit_is_read_again(world: World) -> None:
    await world.read(0, 8192)
    world.steps([(), gap(world.writer.log, 40, 60)])  # the second read is the one ahead
    await world.read(20, 8192)
    assert await world.read(40, 8192) == [(40, 60), (60, 70)]
    assert (world.lost, world.measures.read_ahead_hits) == ([], 1)
