"""What threads of a producer share, with threads that switch all the time and calls that are interrupted anywhere."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, repeat
from types import FrameType
from typing import Any

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread
from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace import Delivery, Producer
from headrace._intake import Intake
from headrace.errors import Internal, Rejected
from headrace_common.core.batch import decode_batch


class Interrupted(BaseException):
    """What Ctrl+C is, for a test."""


@pytest.fixture
def cluster(labs: Labs) -> LabCluster:
    made = labs(brokers=1)
    made.create_topic("t", 3)
    made.create_topic("one", 1)
    return made


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def rows(cluster: LabCluster, topic: str) -> list[tuple[int, bytes | None, bytes | None, Any]]:
    """(partition, key, value, headers) of all that was written."""
    found = []
    for partition in range(3 if topic == "t" else 1):
        for batch in cluster.log(topic, partition).batches:
            decoded = decode_batch(batch)
            found += zip(repeat(partition), decoded.keys(), decoded.values(), decoded.headers(), strict=False)
    return found


def test_the_rule_is_watched(cluster: LabCluster) -> None:
    from ..conftest import BROKEN

    with Producer(_transport=cluster.transport()) as producer:
        producer.send("one", b"x").result(10)
        with pytest.raises(AssertionError, match="closed was touched without the token"):
            producer._intake.closed  # noqa: B018
        assert producer._intake.within(lambda: len(producer._intake.closed)) == 0
    BROKEN.clear()


def test_large_records_from_threads_that_switch_all_the_time(frequent_switches: None) -> None:
    broker = BrokerThread({"t": 3})
    try:
        with Producer(broker.address) as producer:

            def work(_: int) -> list[Delivery]:
                return [producer.send("t", bytes(100_000), partition=number % 3) for number in range(300)]

            with ThreadPoolExecutor(2) as pool:
                deliveries = [each for some in pool.map(work, range(2)) for each in some]
            producer.flush(60)
            assert len({(each.result().partition, each.result().offset) for each in deliveries}) == 600
    finally:
        broker.stop()


class Interrupts:
    """Raises ``Interrupted`` in the main thread a short while after each ``arm``."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.struck = 0

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGVTALRM, self._strike)
        return self

    def __exit__(self, *_: object) -> None:
        self.disarm()
        signal.signal(signal.SIGVTALRM, self._before)

    def arm(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, self._chance.uniform(1e-6, 2e-4))

    def disarm(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _strike(self, *_: object) -> None:
        self.struck += 1
        raise Interrupted


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # strikes inside callbacks of the GC
def test_calls_that_are_interrupted_anywhere_leave_a_sound_producer(
    cluster: LabCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.aio._engine.Intake", Intake)  # the watched one has functions that interrupts strike
    accepted: list[tuple[Any, bytes]] = []
    with Producer(_transport=cluster.transport(), linger_ms=1, batch_size=2_000) as producer, Interrupts(1) as strikes:
        send = producer.send
        turns = count()
        while strikes.struck <= 60:  # how many turns that takes is the kernel's affair: its timers tick coarsely
            turn = next(turns)
            try:
                strikes.arm()
                for n in range(turn * 100, turn * 100 + 100):
                    text = b"%d" % n
                    accepted.append((send("t", text, text), text))
                    accepted.append((send("t", text, text, headers={"n": text}), text))
                    accepted.append((send("t", text, text, partition=n % 3), text))
                    many = producer.send_many("t", [text] * 2, [text] * 2, headers=[{"n": text}] * 2)
                    accepted += [(each, text) for each in many]
                strikes.disarm()
            except Interrupted:
                pass
        strikes.disarm()
        producer.flush(60)
        assert hasattr(producer._intake.token, "free")
        assert producer._intake.within(lambda: producer._intake.available) == 32 << 20
    assert all(each.done() for each, _ in accepted)
    written = rows(cluster, "t")
    assert len(written) >= len(accepted)
    for _, key, value, headers in written:
        assert key == value
        assert not headers or [data for _, data in headers] == [value]
    where: dict[tuple[int, int], bytes | None] = {}
    for partition in range(3):
        where.update({(partition, at): value for at, value in enumerate(cluster.values("t", partition))})
    for delivery, text in accepted:
        metadata = delivery.result()
        assert where[metadata.partition, metadata.offset] == text


def test_a_signal_handler_that_interrupts_a_section_is_refused(cluster: LabCluster) -> None:
    with Producer(_transport=cluster.transport()) as producer:
        producer.send("one", b"first").result(10)
        said: list[Exception] = []

        def handler(signum: int, frame: FrameType | None) -> None:
            try:
                producer.send("one", b"from the handler")
            except Rejected as error:
                said.append(error)

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            producer._intake.within(lambda: signal.raise_signal(signal.SIGUSR1))
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert "interrupted" in str(said)
        assert producer.send("one", b"second").result(10).offset == 1


def test_a_token_that_nobody_gives_back_never_lets_two_in(cluster: LabCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace._intake._NAPS_MAX", 20)
    intake: Intake
    with Producer(_transport=cluster.transport()) as producer:
        producer.send("one", b"a").result(10)
        intake = producer._intake
        intake.token.take()
        with pytest.raises(Internal, match="new producer"):
            producer.send("one", b"b")
        intake.token.free = True
        assert producer.send("one", b"b").result(10).offset == 1
