"""The storage loop: flush policies, stalls, failures, back-pressure, the disk's reserve."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.cluster import topic_id_of
from services.broker.tests.kit.dialogue import running_engine

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core.compaction.steps import Step
from headrace_broker.core.partition_events import Compacted
from headrace_broker.core.rows import DropBatch, LogWrite, PutBatch
from headrace_broker.engine.broker import EngineSettings
from headrace_broker.engine.rebuilding import prepare_trim
from headrace_broker.engine.storage_loop import STALL_WAIT_MS
from headrace_broker.engine.storage_queue import Flush, QueueLimits
from headrace_broker.engine.upkeep import DISK_CHECK_MS, LATE_CHECK_MS
from headrace_common.core.batch import build_gap_batch, decode_batch
from headrace_common.core.errors import ErrorCode, StorageFailed
from headrace_common.core.ids import Offset, PartitionId

GROUP = EngineSettings(flush=Flush.GROUP)
ALWAYS = EngineSettings(flush=Flush.ALWAYS)


async def test_os_answers_without_a_sync() -> None:
    async with running_engine() as engine:
        before = engine.store.syncs
        [result] = await engine.produce(batch_of(3))
        assert (result.base_offset, result.error) == (0, None)
        assert engine.store.syncs == before


async def test_group_answers_and_shows_records_only_after_the_sync() -> None:
    async with running_engine(settings=GROUP) as engine:
        engine.store.sync_gate.clear()
        engine.send(batch_of(3))
        await engine.settle()
        assert not engine.session.answers
        assert (await engine.fetch()).batches == []
        engine.store.sync_gate.set()
        await engine.answer()
        assert len((await engine.fetch()).batches) == 1


async def test_one_sync_confirms_all_that_was_written_before_it_began() -> None:
    async with running_engine(settings=GROUP) as engine:
        engine.store.sync_gate.clear()
        engine.send(batch_of(1))
        await engine.settle()
        for _ in range(10):
            engine.send(batch_of(1))
            await engine.settle()
        before = engine.store.syncs
        engine.store.sync_gate.set()
        assert [(await engine.answer())[0] for _ in range(11)] == list(range(1, 12))
        assert engine.store.syncs - before == 2


async def test_always_syncs_each_request_by_itself() -> None:
    async with running_engine(settings=ALWAYS) as engine:
        before = engine.store.syncs
        for _ in range(5):
            engine.send({0: batch_of(1), 1: batch_of(1)})
        for _ in range(5):
            await engine.answer()
        assert engine.store.syncs - before == 5


async def test_acks_none_is_not_answered_and_is_written() -> None:
    async with running_engine() as engine:
        engine.send(batch_of(1), acks=0)
        [result] = await engine.produce(batch_of(1))
        assert result.base_offset == 1
        assert not engine.session.answers


async def test_a_stalled_group_is_written_again_with_the_same_offsets() -> None:
    async with running_engine() as engine:
        engine.store.stalls = 3
        engine.send(batch_of([b"a"]))
        await engine.settle()
        engine.send(batch_of([b"b"]))
        for _ in range(3):
            await engine.clock.advance(STALL_WAIT_MS)
        first, second = await engine.answer(), await engine.answer()
        assert [first[1][0].base_offset, second[1][0].base_offset] == [0, 1]
        values = [decode_batch(batch).values() for batch in (await engine.fetch()).batches]
        assert values == [[b"a"], [b"b"]]


async def test_a_sync_that_begins_while_a_write_stalls_is_not_for_what_stalls() -> None:
    async with running_engine(settings=GROUP) as engine:
        engine.store.sync_gate.clear()
        for value in (b"a", b"b"):  # the first is being synced, the second waits for the next sync
            engine.send(batch_of([value]))
            await engine.settle()
        engine.store.stalls = 3
        engine.send(batch_of([b"c"]))
        await engine.settle()
        engine.store.sync_gate.set()
        await engine.settle()
        for _ in range(3):
            await engine.clock.advance(STALL_WAIT_MS)
        answers = [await engine.answer() for _ in range(3)]
        assert [result.base_offset for _, [result] in answers] == [0, 1, 2]


async def test_a_store_that_stalls_for_too_long_has_failed() -> None:
    limits = QueueLimits(stall_ms_max=1_000)
    async with running_engine(settings=EngineSettings(flush=Flush.OS, limits=limits), fails=True) as engine:
        engine.store.stalls = 10_000
        engine.send(batch_of(1))
        await engine.settle()
        for _ in range(100):
            await engine.clock.advance(STALL_WAIT_MS)
        _, [result] = await engine.answer()
        assert result.error is not None
        assert result.error.code is ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.wait_for(engine.tasks.failed.wait(), 5)
        assert isinstance(engine.tasks.failure, StorageFailed)


async def test_a_failed_write_tells_all_who_wait_and_ends_the_process() -> None:
    async with running_engine(fails=True) as engine:
        engine.store.fail_write = "disk on fire"
        engine.send({0: batch_of(1), 1: batch_of(1)})
        engine.send(batch_of(1))
        for _ in range(2):
            _, results = await engine.answer()
            assert {result.error.code for result in results if result.error} == {ErrorCode.KAFKA_STORAGE_ERROR}
        await asyncio.wait_for(engine.tasks.failed.wait(), 5)
        engine.send(batch_of(1))
        _, [late] = await engine.answer()
        assert late.error is not None, "it leads nothing any more"
        assert late.error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_failed_sync_acknowledges_nothing() -> None:
    async with running_engine(settings=GROUP, fails=True) as engine:
        engine.store.sync_gate.clear()
        engine.send(batch_of(1))
        await engine.settle()
        engine.send(batch_of(1), acks=1)
        await engine.settle()
        engine.store.fail_sync = "EIO"
        engine.store.sync_gate.set()
        for _ in range(2):
            _, [result] = await engine.answer()
            assert result.error is not None
            assert result.error.code is ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.wait_for(engine.tasks.failed.wait(), 5)
        assert isinstance(engine.tasks.failure, StorageFailed)


async def test_a_full_queue_stops_readers_and_lets_them_go_on() -> None:
    batch = batch_of([b"x" * 1_000])
    limits = QueueLimits(bytes_max=5_000, refuse_bytes=20_000)
    async with running_engine(settings=EngineSettings(flush=Flush.GROUP, limits=limits)) as engine:
        engine.store.sync_gate.clear()
        for _ in range(6):
            engine.send(batch)
        room = asyncio.ensure_future(engine.session.room())
        await engine.settle()
        assert not room.done()
        engine.store.sync_gate.set()
        for _ in range(6):
            await engine.answer()
        await asyncio.wait_for(room, 5)


@pytest.mark.parametrize("flush", [Flush.OS, Flush.GROUP, Flush.ALWAYS])
async def test_a_flood_from_one_address_stops_the_streams_of_that_address_alone(flush: Flush) -> None:
    batch = batch_of([b"x" * 1_000])
    settings = EngineSettings(flush=flush, limits=QueueLimits(bytes_max=20_000))
    async with running_engine(settings=settings) as engine:
        shares = engine.broker.shares
        flood, beside, other = (engine.broker.produce_session(whose=one) for one in ("1.1.1.1", "1.1.1.1", "2.2.2.2"))
        for _ in range(6):
            engine.send(batch, session=flood)
        held = [asyncio.ensure_future(one.room()) for one in (flood, beside)]
        assert not shares.of("1.1.1.1").has_room
        assert shares.of("2.2.2.2").has_room
        await asyncio.wait_for(other.room(), 5)
        for _ in range(6):
            _, [result] = await engine.answer(flood)
            assert result.error is None, "what was read is not refused"
        await asyncio.wait_for(asyncio.gather(*held), 5)


async def test_what_waits_for_a_sync_is_of_its_address_still() -> None:
    settings = EngineSettings(flush=Flush.GROUP, limits=QueueLimits(bytes_max=20_000))
    async with running_engine(settings=settings) as engine:
        session = engine.broker.produce_session(whose="1.1.1.1")
        engine.store.sync_gate.clear()
        for _ in range(6):
            engine.send(batch_of([b"x" * 1_000]), session=session)
        await engine.settle()
        assert not engine.broker.shares.of("1.1.1.1").has_room
        engine.store.sync_gate.set()
        await asyncio.wait_for(session.room(), 5)


async def test_a_duplicate_takes_nothing_of_a_share_for_long() -> None:
    async with running_engine(settings=EngineSettings(limits=QueueLimits(bytes_max=2_000))) as engine:
        session = engine.broker.produce_session(whose="1.1.1.1")
        for _ in range(5):
            engine.send(batch_of([b"x" * 1_000], producer_id=1, epoch=0, sequence=0), session=session)
            assert not engine.broker.shares.of("1.1.1.1").has_room
            await engine.answer(session)
            await asyncio.wait_for(session.room(), 5)


async def test_an_address_that_left_is_forgotten() -> None:
    async with running_engine() as engine:
        first = engine.broker.shares.of("1.1.1.1")
        assert engine.broker.shares.of("1.1.1.1") is first
        seen = weakref.ref(first)
        del first
        assert seen() is None


async def test_the_last_resort_of_a_full_queue_is_overloaded() -> None:
    batch = batch_of([b"x" * 1_000])
    limits = QueueLimits(bytes_max=2_000, refuse_bytes=4_000)
    async with running_engine(settings=EngineSettings(flush=Flush.GROUP, limits=limits)) as engine:
        engine.store.sync_gate.clear()
        for _ in range(6):
            engine.send(batch)
        codes = set()
        while engine.session.answers:
            _, [result] = await engine.answer()
            codes.add(result.error.code if result.error else None)
        assert codes == {ErrorCode.OVERLOADED}
        engine.store.sync_gate.set()
        _, [good] = await engine.answer()
        assert good.error is None


async def test_below_the_disks_reserve_appends_are_refused_until_there_is_space() -> None:
    store = MemoryLogs(free=(100, 1_000))
    settings = EngineSettings(flush=Flush.OS, disk_reserve_bytes=50)
    async with running_engine(store=store, settings=settings) as engine:
        assert (await engine.produce(batch_of(1)))[0].error is None
        store.free = (49, 1_000)
        await engine.clock.advance(DISK_CHECK_MS)
        [refused] = await engine.produce(batch_of(1))
        assert refused.error is not None
        assert refused.error.code is ErrorCode.DISK_FULL
        assert refused.error.retriable
        assert len((await engine.fetch()).batches) == 1, "readers go on"
        store.free = (51, 1_000)
        await engine.clock.advance(DISK_CHECK_MS)
        assert (await engine.produce(batch_of(1)))[0].base_offset == 1


async def test_a_fast_producer_does_not_fill_the_disk_between_two_looks() -> None:
    store = MemoryLogs(free=(8 << 20, 8 << 20))
    settings = EngineSettings(flush=Flush.OS, disk_reserve_bytes=1 << 20)
    async with running_engine(store=store, settings=settings) as engine:
        write = store.write

        def fill(writes: Sequence[LogWrite]) -> None:
            write(writes)
            store.free = (store.free[0] - sum(one.row.size for one in writes if isinstance(one, PutBatch)), 8 << 20)

        store.write = fill  # a disk that gets smaller
        results = [(await engine.produce(batch_of([bytes(900_000)])))[0] for _ in range(20)]
    codes = [None if one.error is None else one.error.code for one in results]
    assert codes[0] is None
    assert codes[-1] is ErrorCode.DISK_FULL
    assert store.free[0] >= 0


@pytest.mark.parametrize(("total", "reserve"), [(1 << 30, (1 << 30) // 20), (1 << 44, 5 << 30)])
def test_the_reserve_is_five_percent_and_at_most_five_gib(total: int, reserve: int) -> None:
    assert EngineSettings().reserve(total) == reserve


async def test_a_request_that_takes_too_long_is_answered_as_unknown_and_once() -> None:
    async with running_engine(settings=GROUP) as engine:
        engine.store.sync_gate.clear()
        engine.send(batch_of(1), timeout_ms=500)
        await engine.settle()
        await engine.clock.advance(LATE_CHECK_MS)
        _, [late] = await engine.answer()
        assert late.error is not None
        assert late.error.code is ErrorCode.REQUEST_TIMED_OUT
        engine.store.sync_gate.set()
        await engine.settle()
        assert not engine.session.answers
        assert len((await engine.fetch()).batches) == 1


async def test_a_trim_sees_what_a_compaction_has_rewritten_just_before() -> None:
    """Or it would begin the log at a batch that is part of a gap by now, and leave a hole where that gap began."""
    async with running_engine() as engine:
        for _ in range(3):
            await engine.produce(batch_of(2))
        [replica] = [one for one in engine.broker.replicas.all() if one.core.log_end]
        log = replica.core.log
        first = next(engine.store.index(log, Offset(0), Offset(1)))
        gap = build_gap_batch(0, 4, first.leader_epoch, base_timestamp=0, max_timestamp=0)
        row = replace(first, last_offset_delta=3, size=len(gap), record_count=0)
        step = Step(Offset(0), Offset(4), [PutBatch(log, row, gap), DropBatch(log, Offset(2))])
        trim = partial(prepare_trim, engine.store, replica.core, Offset(3), engine.clock.now_ms())
        post = engine.broker.loop.post
        await asyncio.gather(post(replica, Compacted(step, replica.core.truncations)), post(replica, trim))
        assert replica.core.log_start == 3
        assert [one.base_offset for one in engine.store.index(log, Offset(0), Offset(9))] == [0, 4]


async def test_evidence_follows_syncs_only() -> None:
    async with running_engine(settings=GROUP) as engine:
        await engine.produce(batch_of(3))
        replica = engine.broker.replicas.get(PartitionId(topic_id_of("t"), 0))
        assert replica is not None
        assert engine.store.evident_end(replica.core.log) == 3


async def test_what_was_acknowledged_survives_the_loss_of_power() -> None:
    store = MemoryLogs()
    async with running_engine(store=store, settings=GROUP) as engine:
        await engine.produce(batch_of(3, producer_id=5, epoch=0, sequence=0))
        store.sync_gate.clear()
        engine.send(batch_of(3, producer_id=5, epoch=0, sequence=3))
        await engine.settle()
    store.sync_gate.set()
    async with running_engine(store=store.reopen(keep_unsynced=0), settings=GROUP) as again:
        [known] = await again.produce(batch_of(3, producer_id=5, epoch=0, sequence=0))
        assert known.base_offset == 0, "it was acknowledged, and is still known"
        [lost] = await again.produce(batch_of(3, producer_id=5, epoch=0, sequence=3))
        assert lost.base_offset == 3, "it was not, and is appended now"
