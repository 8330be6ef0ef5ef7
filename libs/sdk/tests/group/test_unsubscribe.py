"""``unsubscribe``: what was read is given back in order, nothing is read, and a new beginning is possible."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, NoReturn

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace import TopicPartition
from headrace.errors import InvalidTxnState, Rejected

from .groups import PROTOCOLS, Member, fill, until


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs()
    backend.create_topic("t", 6)
    backend.create_topic("u", 2)
    return backend


def test_others_have_the_partitions_at_once_and_go_on_behind_what_was_read(memory: LabCluster, protocol: str) -> None:
    fill(memory, [b"%d" % n for n in range(12)], 6)
    first, second = Member(memory, protocol), Member(memory, protocol)
    until(lambda: len(first.values) + len(second.values) == 12 and bool(first.held and second.held), first, second)
    first.consumer.unsubscribe()
    assert first.story[-1][0] == "-"
    assert (first.consumer.assignment(), first.consumer.subscription(), first.consumer.state) == (set(), set(), "idle")
    until(lambda: len(second.held) == 6, second)
    assert len(first.values) + len(second.values) == 12, "nothing was read twice"
    with pytest.raises(Rejected, match="reads nothing"):
        first.poll()
    first.close()
    second.close()


def test_it_may_subscribe_again(memory: LabCluster, protocol: str) -> None:
    fill(memory, [b"%d" % n for n in range(12)], 6)
    fill(memory, [b"u0", b"u1"], 2, "u")
    member = Member(memory, protocol)
    until(lambda: len(member.values) == 12, member)
    member.consumer.unsubscribe()
    member.consumer.subscribe(["u"])
    until(lambda: len(member.values) == 14, member)
    assert ({tp.topic for tp in member.consumer.assignment()}, member.consumer.subscription()) == ({"u"}, {"u"})
    member.consumer.unsubscribe()
    member.consumer.subscribe(["t"])
    fill(memory, [b"later"], 6)
    until(lambda: b"later" in member.values, member)
    assert len(member.values) == 15, "each record came once"
    member.close()


def test_it_may_be_given_partitions_and_commit_for_the_group(memory: LabCluster, protocol: str) -> None:
    fill(memory, [b"%d" % n for n in range(12)], 6)
    member = Member(memory, protocol)
    until(lambda: len(member.values) == 12, member)
    member.consumer.unsubscribe()
    member.consumer.assign([("t", 0)])
    fill(memory, [b"later"], 6)
    until(lambda: b"later" in member.values, member)
    member.consumer.commit()
    zero = TopicPartition("t", 0)
    at = member.consumer.committed([zero])[zero]
    assert at is not None
    assert at.offset == 3
    member.consumer.unsubscribe()
    assert member.consumer.assignment() == set()
    member.close()


def test_without_a_group_and_before_anything_was_read(memory: LabCluster, protocol: str) -> None:
    with memory.consumer("t") as consumer:
        consumer.unsubscribe()
        with pytest.raises(Rejected, match="reads nothing"):
            consumer.poll()
        assert consumer.subscription() == set()
        consumer.subscribe(["u"])
        assert len(consumer.assignment()) == 2
        consumer.unsubscribe()
        assert (consumer.assignment(), consumer.state) == (set(), "idle")
    with memory.consumer("t", group_id="g", **PROTOCOLS[protocol]) as consumer:
        consumer.unsubscribe()
        assert consumer.subscription() == set()


async def test_the_asyncio_twin_does_the_same(memory: LabCluster, protocol: str) -> None:
    async with memory.aio_consumer("t", group_id="g", **PROTOCOLS[protocol]) as consumer:
        while not consumer.assignment():
            await consumer.poll(timeout_ms=5)
        await consumer.unsubscribe()
        assert (consumer.assignment(), consumer.state) == (set(), "idle")
        await consumer.subscribe(["u"])
        while not consumer.assignment():
            await consumer.poll(timeout_ms=5)
        assert {tp.topic for tp in consumer.assignment()} == {"u"}


def test_not_in_the_middle_of_a_transaction_or_a_rebalance(memory: LabCluster, protocol: str) -> None:
    settings = {"group_id": "g", "enable_auto_commit": False, **PROTOCOLS[protocol]}
    with memory.producer(transactional_id="x") as producer, memory.consumer("t", **settings) as consumer:
        with producer.transaction(consumer), pytest.raises(InvalidTxnState, match="unsubscribe has to wait"):
            consumer.unsubscribe()
        consumer.subscribe(["t"], on_assign=lambda _: consumer.unsubscribe())
        with pytest.raises(Rejected, match="callback"):
            consumer.poll(timeout_ms=20_000)
        consumer.subscribe(["t"])


def test_its_time_bounds_it_also_while_nobody_answers_a_commit(
    memory: LabCluster, protocol: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(memory, [b"%d" % n for n in range(12)], 6)
    member = Member(memory, protocol, enable_auto_commit=True, auto_commit_interval_ms=3_600_000)
    until(lambda: len(member.values) == 12, member)
    steps = member.consumer._steps
    assert steps is not None
    asked = threading.Event()

    async def silence(*_: Any) -> NoReturn:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    monkeypatch.setattr(steps.group.committing, "_ask", silence)
    leaving = threading.Thread(target=member.consumer.unsubscribe, args=(200,), daemon=True)
    leaving.start()
    leaving.join(20)
    assert not leaving.is_alive()
    assert asked.is_set()
    assert [r for r in caplog.records if "given up uncommitted" in r.message]
    member.consumer.close(timeout=0.2)  # the commit is still not answered
