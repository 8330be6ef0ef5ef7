"""``read_to_end``: all from the positions to the ends at the call, once, and nothing moves where it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace import TopicPartition
from headrace.errors import Rejected, WaitTimedOut
from headrace.records import Record

PARTITIONS = 3


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs()
    backend.create_topic("t", PARTITIONS)
    return backend


def fill(memory: LabCluster, numbers: Sequence[int]) -> None:
    with memory.producer(linger_ms=0) as producer:
        for number in numbers:
            producer.send("t", b"%d" % number, partition=number % PARTITIONS)
        producer.flush()


def numbers(records: Sequence[Record]) -> list[int]:
    return sorted(int(record.value or b"") for record in records)


def test_all_that_is_there_comes_and_then_nothing(memory: LabCluster) -> None:
    with memory.consumer("t") as consumer:
        assert consumer.read_to_end() == []
        fill(memory, range(1_000))
        assert numbers(consumer.read_to_end()) == list(range(1_000))
        assert consumer.read_to_end() == []
        fill(memory, range(1_000, 1_005))
        assert numbers(consumer.poll(timeout_ms=10_000, max_records=1)) < [1_005]
        assert len(consumer.read_to_end()) == 4, "it goes on at the position"


def test_what_is_written_after_the_call_is_left_for_the_next(
    memory: LabCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(memory, range(30))
    with memory.consumer("t") as consumer, ThreadPoolExecutor(1) as threads:
        ask = consumer._reading.offsets.ask

        async def ask_and_write(*arguments: object) -> object:
            found = await ask(*arguments)  # type: ignore[arg-type]
            await asyncio.wrap_future(threads.submit(fill, memory, range(30, 60)))
            return found

        with monkeypatch.context() as patch:
            patch.setattr(consumer._reading.offsets, "ask", ask_and_write)
            assert numbers(consumer.read_to_end()) == list(range(30))
        assert consumer.paused() == set()
        assert sum(consumer.position(("t", p)) for p in range(PARTITIONS)) == 30
        assert numbers(consumer.read_to_end()) == list(range(30, 60)), "each record comes once"


def test_every_group_gets_every_record_and_commits_it(memory: LabCluster) -> None:
    fill(memory, range(100))
    for protocol in ("consumer", "classic"):
        for group in ("billing", "shipping"):
            settings = {"group_id": f"{group}-{protocol}", "group_protocol": protocol}
            with memory.consumer("t", **settings) as consumer:
                assert numbers(consumer.read_to_end()) == list(range(100))
            with memory.consumer("t", **settings) as consumer:
                assert consumer.read_to_end() == []


def read_and_fail(memory: LabCluster, settings: dict[str, Any]) -> None:
    with memory.consumer("t", **settings) as consumer:
        assert len(consumer.read_to_end()) == 9
        raise ZeroDivisionError("the application fails while it handles them")


def test_what_was_read_is_committed_only_when_it_was_handled(memory: LabCluster) -> None:
    fill(memory, range(9))
    settings = {"group_id": "g", "auto_commit_interval_ms": 0}
    with pytest.raises(ZeroDivisionError):
        read_and_fail(memory, settings)
    with memory.consumer("t", **settings) as consumer:
        assert len(consumer.read_to_end()) == 9, "they come again"
        assert len(consumer.read_to_end()) == 0
        parts = [TopicPartition("t", p) for p in range(PARTITIONS)]
        consumer.commit()
        assert [at.offset for at in consumer.committed(parts).values() if at] == [3, 3, 3]


def test_members_of_one_group_read_their_shares(memory: LabCluster) -> None:
    fill(memory, range(90))

    async def read() -> list[Record]:
        async with (
            memory.aio_consumer("t", group_id="g") as one,
            memory.aio_consumer("t", group_id="g") as two,
        ):
            while not (one.assignment() and two.assignment()):
                await asyncio.gather(one.poll(timeout_ms=0, max_records=0), two.poll(timeout_ms=0, max_records=0))
            shares = await asyncio.gather(one.read_to_end(), two.read_to_end())
            assert all(shares)
            return [record for share in shares for record in share]

    assert numbers(asyncio.run(read())) == list(range(90))


def test_a_partition_that_is_given_up_meanwhile_is_read_by_the_other(
    memory: LabCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are not returned, and not committed: who has it now reads them from where they began."""
    fill(memory, range(90))
    with memory.consumer("t", group_id="g") as first, memory.consumer("t", group_id="g") as second:
        first.poll(timeout_ms=10_000, max_records=0)
        while len(first.assignment()) < PARTITIONS:
            first.poll(timeout_ms=10, max_records=0)
        core, read_all = first._steps.group.core, first._out.take
        taken: list[Record] = []

        def take(records_max: int) -> list[Record]:
            """When all is in hand and the call not over, another member comes."""
            taken.extend(got := read_all(records_max))
            while got and len(taken) == 90 and core.holdings.job() is None:
                second.poll(timeout_ms=5, max_records=0)
            return got

        monkeypatch.setattr(first._out, "take", take)
        kept = first.read_to_end()
        monkeypatch.undo()
        while not second.assignment():
            first.poll(timeout_ms=5, max_records=0)
            second.poll(timeout_ms=5, max_records=0)
        rest = second.read_to_end()
        assert numbers([*kept, *rest]) == list(range(90))
        assert rest, "the other has a share"


def test_out_of_time_it_goes_back(memory: LabCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(memory, range(30))
    with memory.consumer("t") as consumer:
        assert consumer.poll(timeout_ms=10_000, max_records=5)
        before = {p: consumer.position(("t", p)) for p in range(PARTITIONS)}
        real, left = consumer._out.take, [7]

        def few(_: int) -> list[Record]:
            got = real(left[0])
            left[0] -= len(got)
            return got

        with monkeypatch.context() as slow:
            slow.setattr(consumer._out, "take", few)
            with pytest.raises(WaitTimedOut, match="positions are where they were"):
                consumer.read_to_end(timeout_ms=200)
        assert left == [0], "some were in hand already"
        assert {p: consumer.position(("t", p)) for p in range(PARTITIONS)} == before
        assert consumer.paused() == set()
        assert len(consumer.read_to_end()) == 25


def test_read_committed_ends_before_what_is_not_decided(memory: LabCluster) -> None:
    fill(memory, range(3))
    with memory.producer(transactional_id="x") as producer:
        producer.begin_transaction()
        producer.send("t", b"3", partition=0)
        producer.flush()
        fill(memory, range(4, 6))
        with memory.consumer("t", isolation_level="read_committed") as consumer:
            assert numbers(consumer.read_to_end()) == [0, 1, 2, 4, 5]
            producer.commit_transaction()
            memory.wait_until_decided("t", 0)
            assert numbers(consumer.read_to_end()) == [3]
            assert consumer.read_to_end() == [], "markers are no records"
        with memory.consumer("t") as consumer:
            assert numbers(consumer.read_to_end()) == [0, 1, 2, 3, 4, 5]


def test_in_a_transaction_it_is_committed_with_it(memory: LabCluster) -> None:
    fill(memory, range(6))
    memory.create_topic("out", 1)
    settings = {"group_id": "g", "enable_auto_commit": False, "isolation_level": "read_committed"}
    with memory.producer(transactional_id="x") as producer, memory.consumer("t", **settings) as consumer:
        producer.init_transactions()
        consumer._begin_transaction()
        assert len(consumer.read_to_end()) == 6
        consumer._rewind()
        with producer.transaction(consumer):
            for record in consumer.read_to_end():
                producer.send("out", record.value)
        with producer.transaction(consumer):
            assert consumer.read_to_end() == []
    assert sorted(value for value in memory.values("out") if value is not None)[:6] == [b"%d" % n for n in range(6)]


def test_what_the_application_has_paused_is_left_alone(memory: LabCluster) -> None:
    fill(memory, range(9))
    with memory.consumer("t") as consumer:
        consumer.pause(("t", 0))
        assert numbers(consumer.read_to_end()) == [1, 2, 4, 5, 7, 8]
        assert consumer.paused() == {TopicPartition("t", 0)}


def test_it_says_what_is_wrong_with_a_call(memory: LabCluster) -> None:
    with memory.consumer() as consumer, pytest.raises(Rejected, match="reads nothing"):
        consumer.read_to_end()
    with memory.consumer("t") as consumer, pytest.raises(Rejected, match="seconds"):
        consumer.read_to_end(1.0)


@pytest.mark.real_time
async def test_the_asyncio_twin_reads_the_same(memory: LabCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await asyncio.to_thread(fill, memory, range(30))
    async with memory.aio_consumer("t") as consumer:
        assert numbers(await consumer.read_to_end()) == list(range(30))
        assert await consumer.read_to_end() == []
        await asyncio.to_thread(fill, memory, range(30, 60))
        with monkeypatch.context() as slow:
            slow.setattr(consumer._out, "take", lambda _: [])
            with pytest.raises(WaitTimedOut):
                await consumer.read_to_end(timeout_ms=50)
        assert numbers(await consumer.read_to_end()) == list(range(30, 60))
