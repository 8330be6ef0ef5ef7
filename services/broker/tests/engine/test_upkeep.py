"""Retention, producer ids, trims and positions, through the engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.cluster import FakeCluster, image_of, topic_id_of
from services.broker.tests.kit.dialogue import Engine, running_engine

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.engine.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAsk, OffsetFound
from headrace_broker.engine.producer_ids import EPOCH_MAX, ProducerIds
from headrace_broker.engine.upkeep import KEPT_EVERY_MS
from headrace_common.core.batch import read_header
from headrace_common.core.errors import ErrorCode, HeadraceError, MetadataUnavailable, Rejected
from headrace_common.core.ids import PartitionId
from headrace_common.runtime.tasks import TaskRunner

T0 = PartitionId(topic_id_of("t"), 0)
INTERVAL_MS = 300_000
HOUR = 3_600_000


async def start_of(engine: Engine) -> int:
    [found] = await engine.broker.offsets.find([OffsetAsk(T0, EARLIEST, None, None)], 0)
    return found.offset


async def test_retention_by_time_follows_the_clock_and_a_jump_deletes_nothing() -> None:
    configs = {"t": {"retention.ms": str(HOUR), "segment.bytes": "1024"}}
    async with running_engine(configs=configs) as engine:
        now = engine.clock.now_ms()
        for _ in range(4):
            await engine.produce(batch_of([b"x" * 800], timestamp_ms=now))
        engine.clock.jump_wall(10 * HOUR)
        await engine.clock.advance(INTERVAL_MS)
        assert await start_of(engine) == 0, "the clock jumped, no time has passed"
        engine.clock.jump_wall(-10 * HOUR)
        await engine.clock.advance(INTERVAL_MS)
        assert await start_of(engine) == 0
        await engine.clock.advance(HOUR)
        assert await start_of(engine) == 4
        assert (await engine.fetch(0)).error is not None
        [result] = await engine.produce(batch_of(1, timestamp_ms=engine.clock.now_ms()))
        assert (result.base_offset, result.log_start) == (4, 4)


@dataclass
class Memory:
    """A ``TimeMemory`` that a test looks at."""

    kept: int | None = None

    def last_ms(self) -> int | None:
        return self.kept

    async def keep(self, time_ms: int) -> None:
        self.kept = time_ms


async def test_a_broker_that_starts_with_a_clock_a_day_ahead_deletes_nothing_early() -> None:
    configs = {"t": {"retention.ms": str(HOUR)}}
    store, memory = MemoryLogs(), Memory()
    async with running_engine(configs=configs, store=store) as engine:
        engine.broker.upkeep.remember(memory)
        await engine.produce(batch_of(1, timestamp_ms=engine.clock.now_ms()))
        await engine.clock.advance(INTERVAL_MS)
        assert memory.kept is not None
        assert engine.clock.now_ms() - KEPT_EVERY_MS <= memory.kept <= engine.clock.now_ms()
        began = engine.clock.now_ms()
    async with running_engine(configs=configs, store=store.reopen()) as engine:
        engine.clock.jump_wall(began - engine.clock.now_ms() + 24 * HOUR)
        engine.broker.upkeep.remember(memory)
        await engine.clock.advance(2 * INTERVAL_MS)
        assert await start_of(engine) == 0
        assert memory.kept < engine.clock.now_ms() - 23 * HOUR, "and the next start knows no later time"
        await engine.clock.advance(HOUR)
        assert await start_of(engine) == 1, "it stood for an hour"


async def test_what_is_stamped_while_the_clock_is_a_day_behind_is_not_a_day_older_afterwards() -> None:
    configs = {"t": {"retention.ms": str(2 * HOUR), "message.timestamp.type": "LogAppendTime"}}
    async with running_engine(configs=configs) as engine:
        engine.clock.jump_wall(-24 * HOUR)
        [stamped] = await engine.produce(batch_of(1, timestamp_ms=engine.clock.now_ms()))
        assert stamped.log_append_time_ms == engine.clock.now_ms() + 24 * HOUR
        await engine.clock.advance(INTERVAL_MS)
        engine.clock.jump_wall(24 * HOUR)
        await engine.clock.advance(HOUR + 2 * INTERVAL_MS)
        assert await start_of(engine) == 0
        await engine.clock.advance(HOUR)
        assert await start_of(engine) == 1


async def test_retention_by_size_keeps_at_least_what_is_asked_for() -> None:
    batch = batch_of([b"x" * 800])
    configs = {"t": {"retention.bytes": str(2 * len(batch)), "segment.bytes": "1024", "retention.ms": "-1"}}
    async with running_engine(configs=configs) as engine:
        for _ in range(6):
            await engine.produce(batch)
        await engine.clock.advance(INTERVAL_MS)
        assert await start_of(engine) == 4
        assert engine.broker.measures.retention_dropped_bytes == 4 * len(batch)


async def test_the_interval_of_retention_can_be_changed_at_any_time() -> None:
    configs = {"t": {"retention.ms": "1", "segment.bytes": "1024"}}
    async with running_engine(configs=configs) as engine:
        await engine.produce(batch_of(1, timestamp_ms=engine.clock.now_ms()))
        image = replace(engine.cluster.image, cluster_configs={"log.retention.check.interval.ms": "2000"})
        engine.cluster.show(image)
        await engine.settle()
        await engine.clock.advance(3_000)
        assert await start_of(engine) == 1


async def test_a_full_disk_lets_retention_run_at_once() -> None:
    store = MemoryLogs()
    async with running_engine(store=store, configs={"t": {"retention.ms": "1"}}) as engine:
        await engine.produce(batch_of(1, timestamp_ms=engine.clock.now_ms()))
        store.free = (1, 1 << 40)
        await engine.clock.advance(5_000)
        assert await start_of(engine) == 1


async def test_others_are_to_lead_below_the_reserve_until_there_is_a_good_part_more() -> None:
    store, said = MemoryLogs(), []
    async with running_engine(store=store) as engine:
        engine.broker.upkeep.on_disk_low = said.append
        reserve = engine.broker.disk()[2]
        for free in (reserve - 1, reserve - 1, reserve, reserve + reserve // 4 - 1, reserve + reserve // 4, reserve):
            store.free = (free, store.free[1])
            await engine.clock.advance(3_000)
            assert (engine.broker.loop.disk_full is None) is (free >= reserve), "appends resume at the reserve"
        assert said == [True, False]


async def test_the_controller_is_told_of_a_full_disk() -> None:
    store = MemoryLogs()
    async with running_engine(store=store) as engine:
        assert not engine.cluster.disk_low
        store.free = (1, 1 << 40)
        await engine.clock.advance(3_000)
        assert engine.cluster.disk_low


async def test_space_of_trims_is_given_back_at_once_while_the_disk_is_full_and_with_retention_else() -> None:
    store = MemoryLogs()
    reclaims = 0

    async def reclaim() -> None:
        nonlocal reclaims
        reclaims += 1

    store.reclaim = reclaim  # a spy
    async with running_engine(store=store) as engine:
        await engine.produce(batch_of(3))
        await engine.broker.trim([(T0, -1)])
        await engine.clock.advance(INTERVAL_MS)
        assert reclaims == 1
        store.free = (1, 1 << 40)
        await engine.clock.advance(5_000)
        assert reclaims > 2


async def test_trims_are_checked_and_one_bad_partition_spoils_no_other() -> None:
    async with running_engine() as engine:
        await engine.produce({0: batch_of(3), 1: batch_of(3)})
        t1 = T0._replace(partition=1)
        results = await engine.broker.trim([(T0, 4), (t1, 2), (T0._replace(partition=7), 0), (T0, -2)])
        codes = [one.error.code if one.error else one.log_start for one in results]
        out_of_range, unknown = ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [out_of_range, 2, unknown, out_of_range]
        assert [(await engine.broker.trim([(T0, -1)]))[0].log_start, await start_of(engine)] == [3, 3]


async def test_a_trimmed_log_is_found_again_as_it_was() -> None:
    store = MemoryLogs()
    async with running_engine(store=store) as engine:
        for _ in range(3):
            await engine.produce(batch_of(3))
        await engine.broker.trim([(T0, 4)])
    async with running_engine(store=store.reopen()) as engine:
        assert await start_of(engine) == 4
        result = await engine.fetch(4)
        assert read_header(result.batches[0]).base_offset == 3
        assert (await engine.produce(batch_of(1)))[0].base_offset == 9
        await engine.broker.trim([(T0, 10)])
    async with running_engine(store=store.reopen()) as engine:
        assert await start_of(engine) == 4, "the second broker ran on a copy"


async def test_a_producer_is_known_after_a_trim_into_its_only_batch_a_restart_retention_and_a_restart() -> None:
    configs, store = {"t": {"retention.ms": "1000"}}, MemoryLogs()
    batch = batch_of(3, timestamp_ms=0, producer_id=3, epoch=0, sequence=0)
    for step in ("trim", "retain", "repeat"):
        async with running_engine(configs=configs, store=store) as engine:
            if step == "trim":
                await engine.produce(batch)
                await engine.broker.trim([(T0, 1)])
            elif step == "retain":
                await engine.clock.advance(INTERVAL_MS)
                assert await start_of(engine) == 3
            else:
                [known] = await engine.produce(batch)
                assert (known.base_offset, engine.broker.measures.duplicate_batches) == (0, 1)
            store = engine.store.reopen()


async def test_a_restart_after_a_clean_end_replays_nothing() -> None:
    store = MemoryLogs()
    async with running_engine(store=store) as engine:
        for number in range(5):
            await engine.produce(batch_of(1, producer_id=3, epoch=0, sequence=number))
        await engine.broker.checkpoint()
    again = store.reopen()
    assert [log.producers_at for log in again.list_recovered() if log.state.partition == T0] == [5]
    async with running_engine(store=again) as engine:
        [known] = await engine.produce(batch_of(1, producer_id=3, epoch=0, sequence=4))
        assert known.base_offset == 4
        assert (engine.broker.measures.duplicate_batches, engine.broker.measures.batches_in) == (1, 0)


async def test_a_long_poll_ends_when_there_is_more() -> None:
    async with running_engine() as engine:
        await engine.produce(batch_of(2))
        at_once = await engine.broker.offsets.find([OffsetAsk(T0, LATEST, 1, None)], 60_000)
        assert at_once[0].offset == 2
        waiting = asyncio.ensure_future(engine.broker.offsets.find([OffsetAsk(T0, LATEST, 2, None)], 60_000))
        await engine.settle()
        assert not waiting.done()
        await engine.produce(batch_of(1))
        assert (await asyncio.wait_for(waiting, 5))[0].offset == 3
        assert all(not replica.waiters for replica in engine.broker.replicas.all())


@pytest.mark.parametrize("ask", [OffsetAsk(T0, EARLIEST, 5, None), OffsetAsk(T0, LATEST, 5, None)])
async def test_bad_waits_are_refused(ask: OffsetAsk) -> None:
    async with running_engine() as engine:
        with pytest.raises(Rejected):
            await engine.broker.offsets.find([ask], -1)


stamps = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=12)


@settings(max_examples=40)
@given(stamps, st.integers(0, 33), st.integers(0, 12))
async def test_times_are_found_as_in_a_list(batches: list[list[int]], wanted: int, trim: int) -> None:
    async with running_engine(configs={"t": {"segment.bytes": "1024"}}) as engine:
        records: list[int] = []
        for batch in batches:
            records += batch
            await engine.produce(batch_of([b"x" * 120] * len(batch), timestamp_ms=batch))
        start = min(trim, len(records))
        await engine.broker.trim([(T0, start)])
        asks = [OffsetAsk(T0, wanted, None, None), OffsetAsk(T0, MAX_TIMESTAMP, None, None)]
        by_time, newest = await engine.broker.offsets.find(asks, 0)
        left = list(enumerate(records))[start:]
        expected = next(((at, stamp) for at, stamp in left if stamp >= wanted), (-1, -1))
        assert (by_time.offset, by_time.timestamp_ms) == expected
        if left:
            largest = max(stamp for _, stamp in left)
            if newest.timestamp_ms != largest:
                # the largest stamp of a segment may be that of a record before the log start
                assert start > 0
        else:
            assert newest == OffsetFound()


async def test_producer_ids_come_from_blocks_that_are_refilled_at_half() -> None:
    source = FakeCluster()
    async with TaskRunner() as tasks:
        ids = ProducerIds(source, tasks)
        got = [await ids.init(None, None) for _ in range(500)]
        assert [one for one, _ in got] == list(range(500))
        await asyncio.sleep(0)
        assert source.next_producer_id == 2_000, "half is used, the next block is here"
        more = [(await ids.init(None, None))[0] for _ in range(1_000)]
        assert more == list(range(500, 1_500))


async def test_an_epoch_is_bumped_until_it_is_used_up() -> None:
    async with TaskRunner() as tasks:
        ids = ProducerIds(FakeCluster(next_producer_id=7), tasks)
        assert await ids.init(3, 0) == (3, 1)
        assert await ids.init(3, EPOCH_MAX) == (7, 0)
        for producer_id, epoch in ((3, None), (None, 0), (-1, 0), (3, -1), (3, EPOCH_MAX + 1)):
            with pytest.raises(Rejected):
                await ids.init(producer_id, epoch)


async def test_without_a_controller_ids_in_hand_are_given_and_then_none() -> None:
    source = FakeCluster()

    async def away() -> range:
        raise MetadataUnavailable("no controller")

    async with TaskRunner() as tasks:
        ids = ProducerIds(source, tasks)
        await ids.init(None, None)
        source.allocate_producer_ids = away  # the controller goes away
        for _ in range(999):
            await ids.init(None, None)
        with pytest.raises(HeadraceError):
            await ids.init(None, None)


async def test_images_of_many_topics_are_taken_in_at_once() -> None:
    async with running_engine({"t": 2}) as engine:
        engine.cluster.show(image_of({"t": 2, **{f"topic-{n}": 20 for n in range(100)}}))
        engine.broker.follower.changed.clear()
        await asyncio.wait_for(engine.broker.follower.changed.wait(), 20)
        assert sum(one.core.leader_epoch is not None for one in engine.broker.replicas.all()) == 2_002


async def test_a_made_up_producer_id_is_not_claimed_and_one_given_out_is() -> None:
    async with running_engine() as engine:
        [result] = await engine.produce(batch_of(1, producer_id=2**61 + 1, epoch=0, sequence=0))
        assert result.error is None
        assert engine.broker.highest[1] == -1
        [result] = await engine.produce(batch_of(1, producer_id=12, epoch=0, sequence=0))
        assert result.error is None
        assert engine.broker.highest[1] == 12
        given_out, _ = await engine.broker.producer_ids.init(None, None)
        assert engine.broker.highest[1] >= given_out
        assert engine.broker.highest[1] > 12
