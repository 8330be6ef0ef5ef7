"""Who is called when a record's fate is known: in the order of the calls, whatever happens to batches; and by name."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import Does, Fault, LabCluster, Labs

from headrace import Delivery, Producer, aio
from headrace._callbacks import warn_of_blocked
from headrace.errors import ErrorCode, InvalidPartitions, Rejected

FAULTS = {
    "none": [],
    "lost answers": [Fault(Does.DROP), Fault(Does.DROP, after=True), Fault(Does.SILENCE, after=True)],
    "retries": [Fault(Does.ERROR, partition=1, code=ErrorCode.OVERLOADED)] * 3,
    "splits": [Fault(Does.ERROR, code=ErrorCode.MESSAGE_TOO_LARGE)] * 3,
    "given up": [Fault(Does.ERROR, partition=n, code=ErrorCode.INVALID_TIMESTAMP) for n in (0, 1, 2)],
}


@pytest.fixture
def cluster(labs: Labs) -> LabCluster:
    made = labs(brokers=1)
    made.create_topic("t", 3)
    return made


class Calls:
    """What was called, in which order, by partition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.numbers: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def note(self, partition: int, number: int, _: Delivery) -> None:
        with self._lock:
            self.numbers[partition].append(number)

    def check(self, count: int) -> None:
        assert sum(map(len, self.numbers.values())) == count
        assert self.numbers == {partition: sorted(numbers) for partition, numbers in self.numbers.items()}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
def test_callbacks_of_a_partition_come_in_the_order_of_the_calls(cluster: LabCluster, faults: list[Fault]) -> None:
    calls = Calls()
    with Producer(
        _transport=cluster.transport(), request_timeout_ms=100, linger_ms=0, batch_size=400, retry_backoff_ms=1
    ) as producer:
        producer.send_many("t", [b"first"] * 3, partition=[0, 1, 2]).result(10)
        cluster.inject("produce", *faults)
        for number in range(3_000):
            delivery = producer.send("t", b"x", partition=number % 3)
            delivery.add_done_callback(partial(calls.note, number % 3, number))
        producer.flush(60)
    calls.check(3_000)


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
async def test_so_do_tasks_that_wait_and_reports_of_batches(cluster: LabCluster, faults: list[Fault]) -> None:
    woken: dict[int, list[int]] = {0: [], 1: [], 2: []}
    reported: dict[int, list[int]] = {0: [], 1: [], 2: []}

    async def wait(delivery: Delivery, number: int) -> None:
        await asyncio.gather(delivery, return_exceptions=True)
        woken[number % 3].append(number)

    async with aio.Producer(
        _transport=cluster.transport(),
        request_timeout_ms=100,
        batch_size=400,
        retry_backoff_ms=1,
        on_delivery=lambda batch: reported[batch.partition].append(batch.timestamp_ms),
    ) as producer:
        await (await producer.send_many("t", [b"first"] * 3, partition=[0, 1, 2]))
        cluster.inject("produce", *faults)
        tasks = []
        for number in range(900):
            delivery = await producer.send("t", b"x", partition=number % 3, timestamp_ms=10**12 + number)
            tasks.append(asyncio.create_task(wait(delivery, number)))
            if not number % 50:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
    for numbers in woken.values():
        assert numbers == sorted(numbers)
        assert len(numbers) == 300
    for stamps in reported.values():
        stamps.pop(0)  # of the first record, which was stamped with the time
        known = [stamp for stamp in stamps if stamp >= 0]
        assert known == sorted(known)


async def test_records_that_no_partitioner_takes_are_told_of_behind_those_before(cluster: LabCluster) -> None:
    """They fail at once, while the ones before are still under way."""
    release = asyncio.Event()
    told: list[str] = []

    def partitioner(topic: str, key: bytes | None, partitions: int) -> int:
        return 0

    async with aio.Producer(_transport=cluster.transport(), linger_ms=0, partitioner=partitioner) as producer:
        await (await producer.send("t", b"first"))
        cluster.inject("produce", Fault(Does.HOLD, until=release))
        before = await producer.send("t", b"before")
        before.add_done_callback(lambda _: told.append("before"))
        await asyncio.sleep(0.02)
        producer._engine._core.take = _refuse  # type: ignore[method-assign]
        after = await producer.send("t", b"after")
        after.add_done_callback(lambda _: told.append("after"))
        await asyncio.sleep(0.02)
        assert told == []
        release.set()
        assert isinstance((await asyncio.gather(after, return_exceptions=True))[0], InvalidPartitions)
        assert told == ["before", "after"]


def _refuse(*_: object) -> None:
    raise InvalidPartitions("not one of ours")


def test_a_callback_that_comes_late_is_called_at_once(cluster: LabCluster) -> None:
    with Producer(_transport=cluster.transport()) as producer:
        delivery = producer.send("t", b"x", partition=0)
        delivery.result(10)
        producer.flush(10)
        threads: list[int] = []
        delivery.add_done_callback(lambda _: threads.append(threading.get_ident()))
        assert threads == [threading.get_ident()]


def test_a_callback_of_the_same_record_is_called_from_a_callback(cluster: LabCluster) -> None:
    told: list[str] = []
    with Producer(_transport=cluster.transport()) as producer:

        def first(delivery: Delivery) -> None:
            delivery.add_done_callback(lambda _: told.append("second"))
            told.append(f"first {delivery.result().offset}")

        producer.send("t", b"x", partition=0).add_done_callback(first)
    assert told == ["second", "first 0"]


def test_who_closes_in_a_callback_is_refused_and_can_still_close_elsewhere(cluster: LabCluster) -> None:
    consumer = cluster.consumer("t", auto_offset_reset="earliest")
    refusals: list[Exception] = []

    def close(_: Delivery) -> None:
        for client in (producer, consumer):
            try:
                client.close(1)
            except Rejected as error:
                refusals.append(error)

    with Producer(_transport=cluster.transport(), linger_ms=60_000) as producer:
        delivery = producer.send("t", b"first")
        delivery.add_done_callback(close)
        producer.flush(10)
        assert len(refusals) == 2
        later = producer.send("t", b"later")
    assert later.result(0).offset >= 0, "the end of the block has flushed it"
    assert len(consumer.read_to_end()) == 2
    consumer.close()


def raising(_: Any) -> None:
    raise ValueError("mine")


@pytest.mark.parametrize("kind", ["add_done_callback", "on_delivery", "late"])
def test_a_callback_that_raises_is_named_and_harms_nobody(
    cluster: LabCluster, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    settings = {"on_delivery": raising} if kind == "on_delivery" else {}
    with Producer(_transport=cluster.transport(), **settings) as producer:
        delivery = producer.send("t", b"x", partition=2)
        if kind == "late":
            delivery.result(10)
        if kind != "on_delivery":
            delivery.add_done_callback(raising)
        producer.flush(10)
        assert producer.send("t", b"y", partition=2).result(10).offset == 1
    assert "test_callbacks.raising raised, called for t-2" in caplog.text
    assert "ValueError: mine" in caplog.text


def waiting(release: threading.Event) -> Callable[[Delivery], None]:
    def blocking(_: Delivery) -> None:
        release.wait(20)

    return blocking


@pytest.mark.parametrize("waits", ["flush", "result"])
def test_a_callback_that_blocks_is_named_to_who_waits(
    cluster: LabCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    """However long they have waited for other reasons before."""
    monkeypatch.setattr("headrace._callbacks.BLOCKS_S", 0.01)
    monkeypatch.setattr("headrace._callbacks._warned", set())
    looked, named, release = threading.Event(), threading.Event(), threading.Event()
    for module in ("headrace._runtime", "headrace.delivery"):
        monkeypatch.setattr(f"{module}.BLOCKED_LOOK_S", 0.05)
        monkeypatch.setattr(f"{module}.warn_of_blocked", lambda thread: (warn_of_blocked(thread), looked.set()))

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has not returned" in record.getMessage():
                named.set()

    logger, handler = logging.getLogger("headrace"), Seen()
    logger.addHandler(handler)
    acknowledged = asyncio.Event()
    cluster.inject("produce", Fault(Does.HOLD, until=acknowledged))
    try:
        with Producer(_transport=cluster.transport()) as producer:
            producer.send("t", b"x", partition=1).add_done_callback(waiting(release))
            last = producer.send("t", b"y", partition=1)
            waiter = threading.Thread(target=producer.flush if waits == "flush" else last.result)
            waiter.start()
            assert looked.wait(20), "when nothing blocked yet"
            cluster.soon(acknowledged.set)
            assert named.wait(15)
            release.set()
            waiter.join(20)
            producer.send("t", b"x", partition=1).add_done_callback(waiting(release))
    finally:
        release.set()
        logger.removeHandler(handler)
    told = [r.getMessage() for r in caplog.records if "waiting.<locals>.blocking, called for t-1" in r.getMessage()]
    assert len(told) == 1, "once"


def test_a_callback_that_would_end_the_program_does_not_end_the_client(
    cluster: LabCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(_transport=cluster.transport(), linger_ms=50) as producer:
        delivery = producer.send("t", b"x", partition=0)
        delivery.add_done_callback(lambda _: sys.exit(4))
        producer.flush(10)
        assert delivery.result(10).offset == 0
        assert producer.send("t", b"y", partition=0).result(10).offset == 1
    assert "ends neither program nor client" in caplog.text


def test_on_the_main_thread_it_ends_the_program(cluster: LabCluster) -> None:
    with Producer(_transport=cluster.transport()) as producer:
        delivery = producer.send("t", b"x")
        delivery.result(10)
        with pytest.raises(SystemExit):
            delivery.add_done_callback(lambda _: sys.exit(4))
