"""How long to wait: seconds are never taken for milliseconds, and a wait that nobody can mean is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace import Consumer, Producer
from headrace._waits import check_seconds, check_wait_ms
from headrace.errors import InvalidConfig, Rejected


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs()
    backend.create_topic("t", 1)
    return backend


@pytest.fixture
def consumer(memory: LabCluster) -> Iterator[Consumer]:
    with memory.consumer("t", group_id="g") as made:
        yield made


@pytest.fixture
def producer(memory: LabCluster) -> Iterator[Producer]:
    with memory.producer() as made:
        yield made


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (1.0, "timeout_ms=1000"),
        (0.5, "timeout_ms=500"),
        (0.01, "timeout_ms=10"),
        (2.25, "timeout_ms=2250"),
        (-1, "0 or more"),
        (-0.1, "0 or more"),
        (float("nan"), "number"),
        (True, "number"),
        ("1000", "number"),
        pytest.param(10**400, "number", id="beyond-floats"),
    ],
)
def test_a_poll_in_seconds_or_of_no_time_says_what_was_meant(consumer: Consumer, given: Any, hint: str) -> None:
    for call in (consumer.poll, consumer.poll_table, consumer.poll_batches):
        with pytest.raises(Rejected, match=hint):
            call(given)
        with pytest.raises(Rejected, match=hint):
            call(timeout_ms=given)


def test_commits_wait_in_milliseconds_too(consumer: Consumer) -> None:
    with pytest.raises(Rejected, match="timeout_ms=1000"):
        consumer.commit(timeout_ms=1.0)


async def test_the_asyncio_twin_refuses_the_same(memory: LabCluster) -> None:
    async with memory.aio_consumer("t", group_id="g") as consumer:
        for given in (1.0, -1):
            with pytest.raises(Rejected):
                await consumer.poll(given)
            with pytest.raises(Rejected):
                await consumer.poll_table(given)
            with pytest.raises(Rejected):
                await consumer.poll_batches(given)
            with pytest.raises(Rejected):
                await consumer.commit(timeout_ms=given)
        with pytest.raises(Rejected, match="timeout=10"):
            await consumer.close(10_000)
    async with memory.aio_producer() as producer:
        delivery = await producer.send("t", b"one")
        with pytest.raises(Rejected, match="timeout=30"):
            await producer.flush(30_000)
        with pytest.raises(Rejected):
            delivery.result(30_000)
        with pytest.raises(Rejected):
            await producer.close(-1)


@pytest.mark.parametrize("given", [None, 0, 0.0, 1, 5, 10_000, 50.0, 1_000.0, 3.2871, 0.00021, float("inf")])
def test_milliseconds_are_taken_as_they_are(given: float | None) -> None:
    assert check_wait_ms(given) == given


@pytest.mark.parametrize("given", [None, 0, 0.5, 1, 3_600])
def test_seconds_are_taken_as_they_are(given: float | None) -> None:
    assert check_seconds(given) == given


def test_seconds_without_end_are_no_limit() -> None:
    assert check_seconds(float("inf")) is None


WRONG_SECONDS = [
    (30_000, "timeout=30"),
    (-1, "0 or more"),
    (float("nan"), "number"),
    pytest.param(10**400, "number", id="beyond-floats"),
]


@pytest.mark.parametrize(("given", "hint"), WRONG_SECONDS)
def test_waits_of_producers_are_seconds(producer: Producer, given: float, hint: str) -> None:
    delivery = producer.send("t", b"one")
    calls: list[Callable[[float], Any]] = [producer.flush, producer.close, delivery.result, delivery.exception]
    calls.append(producer.send_many("t", [b"two"]).result)
    for call in calls:
        with pytest.raises(Rejected, match=re.escape(hint)):
            call(given)
    assert delivery.result(10).offset == 0, "what was refused has ended nothing"
    with pytest.raises(Rejected, match=re.escape(hint)):  # not returned as the fate of a record that was written
        delivery.exception(given)
    assert delivery.exception() is None


def test_a_consumer_of_nothing_says_so(memory: LabCluster) -> None:
    for settings in ({}, {"group_id": "g"}):
        with memory.consumer(**settings) as consumer:
            polls = (consumer.poll, consumer.poll_table, consumer.poll_batches)
            for call in (*polls, lambda consumer=consumer: next(iter(consumer))):
                with pytest.raises(Rejected, match="subscribe"):
                    call()
            consumer.subscribe(["t"])
            assert consumer.poll(timeout_ms=0) == []


async def test_a_consumer_of_nothing_says_so_with_asyncio(memory: LabCluster) -> None:
    async with memory.aio_consumer() as consumer:
        for call in (consumer.poll, consumer.poll_table, consumer.poll_batches, lambda: anext(aiter(consumer))):
            with pytest.raises(Rejected, match="subscribe"):
                await call()
        await consumer.assign([("t", 0)])
        assert await consumer.poll(timeout_ms=0) == []


def test_a_member_that_was_given_nothing_waits(memory: LabCluster) -> None:
    """More members than partitions, and a pattern that matches nothing yet, are no mistakes."""
    with memory.consumer(group_id="g") as consumer:
        consumer.subscribe(pattern="nothing-yet-.*")
        assert consumer.poll(timeout_ms=0) == []


def test_the_setting_that_reading_creates_no_topics_is_taken(memory: LabCluster) -> None:
    with memory.consumer("t", **{"allow.auto.create.topics": False}) as consumer:
        assert consumer.poll(timeout_ms=0) == []
    with pytest.raises(InvalidConfig, match="create_topic"):
        memory.consumer("t", allow_auto_create_topics=True)
