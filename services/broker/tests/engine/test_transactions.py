"""Transactions through the engine: what producers, coordinators and readers get, on a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from services.broker.tests.kit.batches import NOW_MS, batch_of
from services.broker.tests.kit.cluster import image_of, topic_id_of, with_coordinator
from services.broker.tests.kit.dialogue import Engine, running_engine

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.engine import describing
from headrace_broker.engine.broker import EngineSettings
from headrace_broker.engine.describing import KnownProducers
from headrace_broker.engine.fetch import Fetched
from headrace_broker.engine.markers import MarkerAsk
from headrace_broker.engine.offsets import OffsetAsk
from headrace_broker.engine.produce import Appended
from headrace_broker.engine.storage_queue import Flush, QueueLimits
from headrace_common.core.batch import read_header
from headrace_common.core.errors import (
    ConcurrentTransactions,
    ErrorCode,
    HeadraceError,
    InvalidTxnState,
    NetworkFailed,
    NotCoordinator,
    ProducerFenced,
    Rejected,
    StorageFailed,
)
from headrace_common.core.ids import PartitionId

ID = PartitionId(topic_id_of("t"), 0)
OTHER = PartitionId(topic_id_of("t"), 1)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with running_engine(coordinator=True) as one:
        yield one


def records(sequence: int = 0, *, pid: int = 7, epoch: int = 0, count: int = 1) -> bytes:
    return batch_of(count, producer_id=pid, epoch=epoch, sequence=sequence, transactional=True)


def code(result: Appended | Fetched | HeadraceError | None) -> ErrorCode | None:
    error = result.error if isinstance(result, (Appended, Fetched)) else result
    return None if error is None else error.code


async def described(engine: Engine, *partitions: PartitionId, open_only: bool = True) -> list[KnownProducers]:
    return [one async for one in engine.broker.producers(partitions, open_only=open_only)]


async def mark(
    engine: Engine, epoch: int, *, commit: bool = True, pid: int = 7, partitions: Sequence[PartitionId] = (ID,)
) -> list[ErrorCode | None]:
    [results] = await engine.broker.markers.write([MarkerAsk(pid, epoch, commit, partitions)])
    return [code(one) for one in results]


class TestEnrolment:
    async def test_one_call_lists_all_partitions_of_a_transaction(self, engine: Engine) -> None:
        results = await engine.produce({0: records(), 1: records()}, transactional_id="id")
        assert [(code(one), one.base_offset) for one in results] == [(None, 0), (None, 0)]
        [asked] = engine.transactions.asked
        assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("id", 7, 0)
        assert set(asked.partitions) == {ID, OTHER}
        await engine.produce(records(1), transactional_id="id")
        assert len(engine.transactions.asked) == 1, "the transaction is open"
        assert engine.broker.measures.enrolments == 2

    async def test_transactions_that_begin_together_share_a_call(self, engine: Engine) -> None:
        for pid in range(20):
            engine.send(records(pid=pid), transactional_id=f"id-{pid}")
        for _ in range(20):
            _, [result] = await engine.answer()
            assert code(result) is None
        assert sum(count for _, count in engine.transactions.calls) == 20
        assert len(engine.transactions.calls) == 1

    async def test_nothing_is_appended_before_the_coordinator_agrees(self, engine: Engine) -> None:
        engine.transactions.gate.clear()
        engine.send(records(), transactional_id="id")
        await engine.settle()
        core = engine.broker.replicas.all()[0].core
        assert (core.log_end, engine.broker.loop.effects.parked_bytes > 0) == (0, True)
        assert code((await engine.produce({1: batch_of(1)}))[0]) is None, "others go on"
        engine.transactions.gate.set()
        _, [result] = await engine.answer()
        assert (code(result), engine.broker.loop.effects.parked_bytes) == (None, 0)

    @pytest.mark.parametrize("error", [ProducerFenced("newer"), InvalidTxnState("it is prepared")])
    async def test_a_refusal_is_the_producers_answer(self, engine: Engine, error: HeadraceError) -> None:
        engine.transactions.answers["id"] = [error]
        [result] = await engine.produce(records(), transactional_id="id")
        assert code(result) is error.code

    @pytest.mark.parametrize("error", [NotCoordinator("moved"), ConcurrentTransactions("ending")])
    async def test_what_may_pass_is_asked_again(self, engine: Engine, error: HeadraceError) -> None:
        engine.transactions.answers["id"] = [error, error]
        [result] = await engine.produce(records(), transactional_id="id")
        assert code(result) is None
        assert len(engine.transactions.asked) == 3

    async def test_a_coordinator_that_cannot_be_reached_is_given_up_in_time(self, engine: Engine) -> None:
        engine.transactions.broken = NetworkFailed("nobody is there")
        engine.send(records(), transactional_id="id", timeout_ms=80)
        task = asyncio.create_task(engine.answer())
        while not task.done():
            await engine.clock.advance(5)
            await asyncio.sleep(0.001)
        _, [result] = task.result()
        assert code(result) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert engine.broker.replicas.all()[0].core.log_end == 0
        engine.transactions.broken = None
        assert code((await engine.produce(records(), transactional_id="id"))[0]) is None, "and then it goes on"

    async def test_it_waits_for_a_coordinator_to_be_there(self) -> None:
        async with running_engine() as engine:
            engine.send(records(), transactional_id="id")
            await engine.settle()
            assert engine.transactions.calls == []
            engine.cluster.show(with_coordinator(image_of({"t": 2})))
            _, [result] = await engine.answer()
            assert code(result) is None

    async def test_a_marker_while_the_coordinator_is_asked_refuses_the_batch(self, engine: Engine) -> None:
        engine.transactions.gate.clear()
        engine.send(records(), transactional_id="id")
        await engine.settle()
        assert await mark(engine, 1, commit=False) == [None]
        _, [result] = await engine.answer()
        assert code(result) is ErrorCode.INVALID_PRODUCER_EPOCH
        engine.transactions.gate.set()
        await engine.settle()
        assert engine.broker.replicas.all()[0].core.log_end == 1

    async def test_what_waits_is_bounded_and_holds_nobody_else_up(self) -> None:
        limits = QueueLimits(bytes_max=1 << 20, parked_bytes_max=500)
        async with running_engine(settings=EngineSettings(flush=Flush.OS, limits=limits), coordinator=True) as engine:
            await engine.produce({1: records(pid=99)}, transactional_id="open")
            engine.transactions.gate.clear()
            for pid in range(12):
                engine.send(records(pid=pid), transactional_id=f"id-{pid}")
            await engine.settle()
            refused = len(engine.session.answers)
            assert 0 < refused < 12
            for _ in range(refused):
                assert code((await engine.answer())[1][0]) is ErrorCode.OVERLOADED
            assert engine.broker.loop.has_room
            assert code((await engine.produce(batch_of(1)))[0]) is None
            assert code((await engine.produce({1: records(1, pid=99)}, transactional_id="open"))[0]) is None
            engine.transactions.gate.set()
            for _ in range(12 - refused):
                assert code((await engine.answer())[1][0]) is None
            assert engine.broker.loop.effects.parked_bytes == 0

    async def test_nobody_is_asked_any_more_for_what_was_refused_meanwhile(self) -> None:
        async with running_engine() as engine:
            engine.send(records(), transactional_id="id")
            await engine.settle()
            assert await mark(engine, 1) == [None]
            _, [result] = await engine.answer()
            assert code(result) is ErrorCode.INVALID_PRODUCER_EPOCH
            engine.cluster.show(with_coordinator(image_of({"t": 2})))
            async with asyncio.timeout(5):
                while engine.broker.enrolments.unanswered:
                    await asyncio.sleep(0.001)
            assert engine.transactions.calls == []

    async def test_a_store_that_fails_leaves_nobody_waiting(self) -> None:
        async with running_engine(coordinator=True, fails=True) as engine:
            engine.transactions.gate.clear()
            engine.send(records(), transactional_id="id")
            await engine.settle()
            engine.broker.loop.stop(StorageFailed("a test says so"))
            _, [result] = await engine.answer()
            assert code(result) is ErrorCode.KAFKA_STORAGE_ERROR
            engine.transactions.gate.set()
            await engine.settle()

    @pytest.mark.parametrize(
        ("batch", "transactional_id", "expected"),
        [
            (records(), None, ErrorCode.INVALID_TXN_STATE),
            (batch_of(1), "id", ErrorCode.INVALID_REQUEST),
            (records(3), "id", ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (records(), "", ErrorCode.INVALID_REQUEST),
        ],
    )
    async def test_what_is_no_part_of_a_transaction_is_refused(
        self, engine: Engine, batch: bytes, transactional_id: str | None, expected: ErrorCode
    ) -> None:
        [result] = await engine.produce(batch, transactional_id=transactional_id)
        assert code(result) is expected
        assert engine.transactions.asked == []

    async def test_the_systems_topics_take_no_transactions(self) -> None:
        async with running_engine({"__consumer_offsets": 1}, coordinator=True) as engine:
            [result] = await engine.produce(records(), topic="__consumer_offsets", transactional_id="id")
            assert code(result) is ErrorCode.POLICY_VIOLATION
            system = PartitionId(topic_id_of("__consumer_offsets"), 0)
            assert await mark(engine, 1, partitions=[system]) == [ErrorCode.POLICY_VIOLATION]


class TestReaders:
    async def test_committed_records_come_with_their_marker(self, engine: Engine) -> None:
        await engine.produce(records(count=2), transactional_id="id")
        held = await engine.fetch(committed=True)
        assert (held.batches, held.high_watermark, held.last_stable, held.aborted) == ([], 2, 0, [])
        assert len((await engine.fetch()).batches) == 1, "who reads all does not wait"
        assert await mark(engine, 1) == [None]
        got = await engine.fetch(committed=True)
        assert [read_header(batch).base_offset for batch in got.batches] == [0, 2]
        assert (got.last_stable, got.aborted) == (3, [])

    async def test_aborted_records_are_named(self, engine: Engine) -> None:
        await engine.produce(batch_of(1))
        await engine.produce(records(count=2), transactional_id="id")
        await mark(engine, 1, commit=False)
        await engine.produce(batch_of(1))
        got = await engine.fetch(committed=True)
        assert [(row.producer_id, row.first, row.last) for row in got.aborted] == [(7, 1, 3)]
        assert len(got.batches) == 4
        first = await engine.fetch(committed=True, bytes_max=1)
        assert (len(first.batches), first.aborted) == (1, [])
        assert (await engine.fetch(4, committed=True)).aborted == []
        assert (await engine.fetch()).aborted == [], "who reads all is not told"

    async def test_a_wait_ends_with_the_transaction_and_not_with_each_append(self, engine: Engine) -> None:
        await engine.produce(records(), transactional_id="id")
        waiting = asyncio.create_task(engine.fetch(committed=True, bytes_min=1))
        await engine.settle()
        replica = engine.broker.replicas.get(ID)
        assert replica is not None
        [wait] = replica.stable_waiters
        assert not replica.waiters
        await engine.produce(batch_of(1))
        await engine.produce(records(1), transactional_id="id")
        await engine.settle()
        assert list(replica.stable_waiters) == [wait], "it was not woken in between"
        await mark(engine, 1)
        got = await waiting
        assert (len(got.batches), got.last_stable) == (4, 4)

    async def test_old_records_are_read_only_below_the_last_stable_offset(self) -> None:
        settings = EngineSettings(flush=Flush.OS, tail_cache_bytes=0)
        async with running_engine(settings=settings, coordinator=True) as engine:
            for _ in range(5):
                await engine.produce(batch_of(1))
            await engine.produce(records(), transactional_id="id")
            await engine.produce(batch_of(1))
            room = 2 * len(batch_of(1))
            for offset in (0, 2):  # whoever reads all has what follows read ahead for it, the open transaction too
                assert len((await engine.fetch(offset, bytes_max=room)).batches) == 2
            got = await engine.fetch(4, committed=True, bytes_max=room)
            assert [read_header(batch).base_offset for batch in got.batches] == [4]
            again = await engine.fetch(3, committed=True)
            assert [read_header(batch).base_offset for batch in again.batches] == [3, 4]

    async def test_offsets_by_isolation(self, engine: Engine) -> None:
        await engine.produce(batch_of(1, timestamp_ms=NOW_MS))
        await engine.produce(records(count=2), transactional_id="id")
        find = engine.broker.offsets.find
        ask = OffsetAsk(ID, -1, None, None)
        assert [one.offset for one in await find([ask], 0)] == [3]
        assert [one.offset for one in await find([ask], 0, stable=True)] == [1]
        late = OffsetAsk(ID, NOW_MS, None, None)
        assert [one.offset for one in await find([late], 0, stable=True)] == [0]
        polled = OffsetAsk(ID, -1, 1, None)
        poll = asyncio.create_task(find([polled], 5_000, stable=True))
        await engine.produce(records(2), transactional_id="id")
        await engine.settle()
        assert not poll.done()
        await mark(engine, 1, commit=False)
        assert [one.offset for one in await poll] == [5]

    async def test_times_are_looked_for_below_the_last_stable_offset(self, engine: Engine) -> None:
        await engine.produce(batch_of(1, timestamp_ms=NOW_MS))
        later = batch_of(1, timestamp_ms=NOW_MS + 5, producer_id=7, epoch=0, sequence=0, transactional=True)
        await engine.produce(later, transactional_id="id")
        find = engine.broker.offsets.find
        ask = OffsetAsk(ID, NOW_MS + 5, None, None)
        assert [one.offset for one in await find([ask], 0)] == [1]
        assert [one.offset for one in await find([ask], 0, stable=True)] == [-1]


class TestMarkers:
    async def test_each_partition_has_its_answer(self, engine: Engine) -> None:
        unknown = PartitionId(topic_id_of("nobody"), 0)
        missing = PartitionId(topic_id_of("t"), 9)
        await engine.produce(records(), transactional_id="id")
        asks = [MarkerAsk(7, 1, True, [unknown, ID, missing]), MarkerAsk(8, 1, False, [ID, OTHER])]
        found = await engine.broker.markers.write(asks)
        assert [[code(one) for one in results] for results in found] == [
            [ErrorCode.UNKNOWN_TOPIC_ID, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
            [None, None],
        ]
        assert await mark(engine, 1) == [None], "a repeat"
        assert await mark(engine, 1, commit=False) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert engine.broker.measures.markers_written == 4

    async def test_a_full_disk_takes_markers(self, engine: Engine) -> None:
        await engine.produce(records(), transactional_id="id")
        engine.broker.loop.disk_full = "full"
        assert code((await engine.produce(records(1), transactional_id="id"))[0]) is ErrorCode.DISK_FULL
        assert await mark(engine, 1) == [None]

    @pytest.mark.parametrize(
        "asks",
        [
            [],
            [MarkerAsk(7, 1, True, [])],
            [MarkerAsk(-1, 1, True, [ID])],
            [MarkerAsk(7, -1, True, [ID])],
            [MarkerAsk(7, 32_768, True, [ID])],
            [MarkerAsk(7, 1, True, [ID] * 10_001)],
        ],
    )
    async def test_requests_that_are_none(self, engine: Engine, asks: list[MarkerAsk]) -> None:
        with pytest.raises(Rejected):
            await engine.broker.markers.write(asks)

    async def test_markers_are_answered_once_they_are_down(self) -> None:
        store = MemoryLogs()
        settings = EngineSettings(flush=Flush.GROUP)
        async with running_engine(store=store, settings=settings, coordinator=True) as engine:
            store.sync_gate.clear()
            task = asyncio.create_task(mark(engine, 1))
            await engine.settle()
            assert not task.done()
            store.sync_gate.set()
            assert await task == [None]


class TestDescribing:
    async def test_producers_with_what_they_have_open(self, engine: Engine) -> None:
        await engine.produce(batch_of(3, producer_id=1, epoch=0, sequence=0))
        await engine.produce(records(pid=9, count=2), transactional_id="nine")
        await engine.produce(records(pid=7), transactional_id="seven")
        [all_of_them] = await described(engine, ID, open_only=False)
        assert [(row.producer_id, row.transaction_start) for row in all_of_them.producers] == [
            (9, 3),
            (7, 5),
            (1, None),
        ]
        assert (all_of_them.high_watermark, all_of_them.last_stable, all_of_them.more) == (6, 3, False)
        [opened] = await described(engine, ID)
        assert [row.producer_id for row in opened.producers] == [9, 7]
        [missing] = await described(engine, PartitionId(topic_id_of("x"), 0))
        assert code(missing.error) is ErrorCode.UNKNOWN_TOPIC_ID

    @pytest.mark.parametrize(("asked", "says"), [([], "0 partitions"), ([ID, OTHER, ID], "twice")])
    async def test_wrong_questions(self, engine: Engine, asked: list[PartitionId], says: str) -> None:
        with pytest.raises(Rejected, match=says):
            await described(engine, *asked)

    async def test_an_answer_is_bounded_as_a_whole_and_names_the_first_of_each(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(describing, "PRODUCERS_MAX", 3)
        monkeypatch.setattr(describing, "PRODUCERS_IN_ALL_MAX", 4)
        for pid in range(9, 4, -1):
            await engine.produce({0: records(pid=pid), 1: records(pid=pid)}, transactional_id=f"id-{pid}")
        found = await described(engine, OTHER, ID)
        assert [[row.producer_id for row in one.producers] for one in found] == [[9, 8, 7], [9]]
        assert [one.more for one in found] == [True, True]
        found = await described(engine, ID, OTHER, open_only=False)
        assert [len(one.producers) for one in found] == [3, 1]

    async def test_others_have_their_turn_between_two_partitions(self, engine: Engine) -> None:
        await engine.produce({0: records(), 1: records()}, transactional_id="id")
        turns: list[int] = []
        asyncio.get_running_loop().call_soon(turns.append, 1)
        answers = engine.broker.producers([ID, OTHER], open_only=True)
        await anext(answers)
        assert turns == []
        await anext(answers)
        assert turns == [1]

    async def test_gauges_tell_what_is_held_back(self, engine: Engine) -> None:
        gauges = engine.broker.gauges()
        names = ("open_transactions", "last_stable_lag_records", "last_stable_lag_records_max")
        assert [gauges[name]() for name in (*names, "oldest_open_transaction_s")] == [0, 0, 0, 0]
        await engine.produce({0: records(count=2), 1: records(count=3)}, transactional_id="id")
        await engine.clock.advance(1_500)
        assert [gauges[name]() for name in names] == [2, 5, 3]
        assert gauges["oldest_open_transaction_s"]() == pytest.approx(1.5)
        await mark(engine, 1, partitions=[ID, OTHER])
        assert [gauges[name]() for name in (*names, "oldest_open_transaction_s")] == [0, 0, 0, 0]
