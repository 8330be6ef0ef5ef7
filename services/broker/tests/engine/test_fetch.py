"""Fetching: what is answered, when, and from where; against a plain list of what was produced."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from services.broker.tests.kit.batches import batch_of
from services.broker.tests.kit.cluster import image_of, topic_id_of
from services.broker.tests.kit.dialogue import Engine, running_engine

from headrace_broker.engine.broker import EngineSettings
from headrace_broker.engine.fetch import (
    IN_FLIGHT_BYTES,
    RESPONSE_BYTES_MAX,
    FetchAsk,
    Fetched,
    FetchEntry,
    FetchSession,
)
from headrace_broker.engine.shares import SHARES
from headrace_broker.engine.storage_queue import Flush
from headrace_common.core.access.control import EVERYTHING
from headrace_common.core.batch import decode_batch, read_header
from headrace_common.core.errors import ErrorCode
from headrace_common.core.ids import Offset, PartitionId

BIG = batch_of([b"x" * 900_000])


def entry(offset: int, partition: int = 0, bytes_max: int = 1 << 20, epoch: int | None = None) -> FetchEntry:
    return FetchEntry(PartitionId(topic_id_of("t"), partition), Offset(offset), bytes_max, epoch)


def values(result: Fetched) -> list[bytes | None]:
    return [value for batch in result.batches for value in decode_batch(batch).values()]


async def code(engine: Engine, ask: FetchEntry) -> ErrorCode | None:
    [result] = await engine.broker.fetches.fetch(FetchAsk([ask], 1, 100, 0))
    return None if result.error is None else result.error.code


async def test_a_fetch_waits_for_records_and_is_woken_by_them() -> None:
    async with running_engine() as engine:
        waiting = asyncio.ensure_future(engine.fetch(bytes_min=1))
        await engine.settle()
        assert not waiting.done()
        await engine.produce(batch_of([b"a"]))
        assert values(await asyncio.wait_for(waiting, 5)) == [b"a"]


async def test_a_fetch_waits_for_as_many_bytes_as_it_asked_for() -> None:
    async with running_engine() as engine:
        one = batch_of([b"a" * 100])
        waiting = asyncio.ensure_future(engine.fetch(bytes_min=2 * len(one)))
        await engine.settle()
        await engine.produce(one)
        await engine.settle()
        assert not waiting.done()
        await engine.produce({1: one})
        await engine.settle()
        assert not waiting.done(), "another partition does not count"
        await engine.produce(one)
        assert len((await asyncio.wait_for(waiting, 5)).batches) == 2


async def test_a_fetch_waits_for_records_also_when_slow_readers_hold_all_the_room() -> None:
    async with running_engine() as engine:
        engine.broker.fetches.answers.all.size = 1 << 40
        waiting = asyncio.ensure_future(engine.fetch(bytes_min=1))
        await engine.settle()
        assert not waiting.done(), "or every idle consumer asks again and again"
        await engine.produce(batch_of([b"a"]))
        assert values(await asyncio.wait_for(waiting, 5)) == [b"a"]


async def test_a_fetch_ends_when_its_time_is_over() -> None:
    async with running_engine() as engine:
        [result] = await engine.broker.fetches.fetch(FetchAsk([entry(0)], 1, 100, 1))
        assert (result.batches, result.error, result.high_watermark) == ([], None, 0)


async def test_who_waits_hears_that_the_leader_moved_and_that_the_broker_stops() -> None:
    async with running_engine() as engine:
        waiting = asyncio.ensure_future(engine.fetch(bytes_min=1))
        await engine.settle()
        engine.cluster.show(image_of({}))
        moved = await asyncio.wait_for(waiting, 5)
        assert moved.error is not None
    async with running_engine() as engine:
        waiting = asyncio.ensure_future(engine.fetch(bytes_min=1))
        await engine.settle()
        engine.broker.drain()
        assert (await asyncio.wait_for(waiting, 5)).error is None


async def test_nobody_is_left_in_the_partition_after_a_wait() -> None:
    async with running_engine() as engine:
        waiting = asyncio.ensure_future(engine.fetch(bytes_min=1))
        await engine.settle()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert all(not replica.waiters for replica in engine.broker.replicas.all())


async def test_offsets_and_epochs_are_checked() -> None:
    async with running_engine() as engine:
        await engine.produce(batch_of(3))
        assert await code(engine, entry(4)) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert await code(engine, entry(-1)) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert await code(engine, entry(2**62)) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert await code(engine, entry(3)) is None
        assert await code(engine, entry(0, epoch=-1)) is ErrorCode.FENCED_LEADER_EPOCH
        assert await code(engine, entry(0, epoch=1)) is ErrorCode.UNKNOWN_LEADER_EPOCH
        assert await code(engine, entry(0, partition=9)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await code(engine, entry(0, partition=-1)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_first_batch_comes_whatever_its_size_and_an_answer_is_bounded_whatever_is_asked() -> None:
    async with running_engine() as engine:
        for _ in range(12):
            await engine.produce(BIG)
        assert len((await engine.fetch(bytes_max=1)).batches) == 1
        ask = FetchAsk([entry(0, bytes_max=2**31 - 1)], 1, 2**31 - 1, 0)
        [result] = await engine.broker.fetches.fetch(ask)
        assert sum(map(len, result.batches)) <= RESPONSE_BYTES_MAX
        assert len(result.batches) == 9


async def test_each_partition_gets_its_first_batch_and_its_own_bound() -> None:
    async with running_engine() as engine:
        for _ in range(3):
            await engine.produce({0: BIG, 1: BIG})
        ask = FetchAsk([entry(0, 0, 10), entry(0, 1, 2_000_000)], 1, 8 << 20, 0)
        results = await engine.broker.fetches.fetch(ask)
        assert [len(result.batches) for result in results] == [1, 2]


async def test_slow_readers_make_answers_smaller() -> None:
    async with running_engine() as engine:
        for _ in range(3):
            await engine.produce(BIG)
        engine.broker.fetches.answers.all.size = 1 << 40
        assert len((await engine.fetch(bytes_max=8 << 20)).batches) == 1


async def test_slow_readers_of_one_caller_make_its_answers_smaller_and_nobody_elses() -> None:
    async with running_engine() as engine:
        for _ in range(3):
            await engine.produce(BIG)
        fetches = engine.broker.fetches
        slow, beside, other, nodes = (fetches.session(EVERYTHING, whose=one) for one in ("a", "a", "b", None))
        assert beside.answers is slow.answers
        ask = FetchAsk([entry(0, 0, 8 << 20)], 1, 8 << 20, 0)

        async def batches(session: FetchSession) -> int:
            [result] = await fetches.fetch(ask, session.logs, session.answers)
            return len(result.batches)

        assert [await batches(one) for one in (slow, other, nodes)] == [3, 3, 3]
        with fetches.answers.sending(slow.answers, IN_FLIGHT_BYTES // SHARES):
            assert [await batches(one) for one in (slow, beside, other, nodes)] == [1, 1, 3, 3]
        assert await batches(beside) == 3
        assert fetches.answers.all.size == 0


async def test_an_answer_repeats_nothing() -> None:
    async with running_engine() as engine:
        session = engine.broker.fetches.session(EVERYTHING)
    partition = PartitionId(topic_id_of("t"), 0)
    first = Fetched(partition, 5, 0)
    assert session.news([first]) == [first]
    assert session.news([Fetched(partition, 5, 0)]) == []
    assert session.news([Fetched(partition, 5, 1)]) != []
    assert session.news([Fetched(partition, 5, 1, [b"batch"])]) != []


sizes = st.lists(st.integers(1, 4), min_size=1, max_size=25)


@settings(max_examples=40)
@given(sizes, st.sampled_from([0, 300, 1_000, 1 << 20]), st.integers(1, 900), st.integers(0, 30), st.integers(0, 10))
async def test_a_reader_sees_the_list_of_what_was_produced(
    batches: list[int], cached: int, bytes_max: int, start: int, trim: int
) -> None:
    """Whatever the tail cache holds and however small the answers: each record once, in order, from any offset."""
    settings_ = EngineSettings(flush=Flush.OS, tail_cache_bytes=cached)
    async with running_engine(settings=settings_) as engine:
        expected: list[bytes] = []
        for number, count in enumerate(batches):
            sent = [b"%d-%d" % (number, index) for index in range(count)]
            expected += sent
            await engine.produce(batch_of(sent))
        log_start = min(trim, len(expected))
        await engine.broker.trim([(PartitionId(topic_id_of("t"), 0), log_start)])
        position = max(min(start, len(expected)), log_start)
        seen: list[bytes | None] = []
        offset = position
        while offset < len(expected):
            result = await engine.fetch(offset, bytes_max=bytes_max)
            assert result.error is None
            assert result.batches, "there are records, so there is a batch"
            for batch in result.batches:
                decoded = decode_batch(batch)
                pairs = zip(decoded.offsets(), decoded.values(), strict=True)
                seen += [value for at, value in pairs if at >= offset]
                offset = max(offset, read_header(batch).next_offset)
        assert seen == expected[position:]


async def test_a_client_that_says_what_is_not_so_is_not_believed() -> None:
    async with running_engine() as engine:
        await engine.produce(batch_of(3))
        ask = FetchAsk([replace(entry(0), unreadable=True)], 1, 1 << 20, 0, doubted=0)
        [result] = await engine.broker.fetches.fetch(ask)
        assert result.batches
        [replica] = [one for one in engine.broker.replicas.all() if one.id == entry(0).partition]
        assert engine.broker.fetches.unreadable.text(replica) is None
