"""
Members that come, go, fail and are put out while they copy a topic in transactions: each record is copied once.
Real producers and consumers on threads.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace import TopicPartition
from headrace.errors import HeadraceError, Then

from .groups import PATIENCE_S, PROTOCOLS, fill

PARTITIONS, RECORDS = 4, 2000
SHORT_LIVES = 25
"""Then a copier stays and nothing goes wrong with it: where a rebalance takes as long as a life nobody would get on."""


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Copier:
    """Lives several times: joins, copies some transactions, and ends in one way or another."""

    def __init__(self, memory: LabCluster, protocol: str, number: int, over: threading.Event) -> None:
        self._memory = memory
        self._settings = {"group_id": "g", "retry_backoff_ms": 10, **PROTOCOLS[protocol]}
        self._chance = random.Random(number)
        self._name = f"copier-{number}"
        self._over = over
        self.aborted = 0

    def run(self) -> None:
        for _ in range(SHORT_LIVES):
            self._live(self._chance.randint(3, 15))
        self._live(None)

    def _live(self, transactions: int | None) -> None:
        reads = {"enable_auto_commit": False, "isolation_level": "read_committed", **self._settings}
        with (
            self._memory.consumer("t", **reads) as consumer,
            self._memory.producer(transactional_id=self._name, linger_ms=0) as producer,
        ):
            for _ in itertools.count() if transactions is None else range(transactions):
                if self._over.is_set():
                    return
                try:
                    with producer.transaction(consumer):
                        for _ in range(self._chance.randint(1, 3)):
                            for record in consumer.poll(timeout_ms=20, max_records=self._chance.randint(1, 20)):
                                producer.send("out", record.value, partition=record.partition)
                        if transactions is not None:
                            self._perhaps_go_wrong(consumer.group_metadata().member_id)
                except ZeroDivisionError:
                    self.aborted += 1
                except HeadraceError as error:
                    if error.then is Then.FENCED:
                        raise
                    self.aborted += 1

    def _perhaps_go_wrong(self, member_id: str) -> None:
        match self._chance.randrange(8):
            case 0:
                raise ZeroDivisionError
            case 1:
                self._memory.evict("g", member_id)


def test_each_record_is_copied_once(labs: Labs, protocol: str) -> None:
    memory = labs(group_consumer_heartbeat_interval_ms=20)
    memory.create_topic("t", PARTITIONS)
    memory.create_topic("out", PARTITIONS)
    values = [b"%d" % n for n in range(RECORDS)]
    fill(memory, values, PARTITIONS)
    memory.await_group()
    over = threading.Event()
    copiers = [Copier(memory, protocol, number, over) for number in range(3)]
    deadline = time.monotonic() + 2 * PATIENCE_S
    tps = [TopicPartition("t", number) for number in range(PARTITIONS)]
    with ThreadPoolExecutor(len(copiers)) as threads:
        lives = [threads.submit(copier.run) for copier in copiers]
        while not over.is_set():
            committed = memory.committed("g")
            done = all(tp in committed and committed[tp].offset == RECORDS // PARTITIONS for tp in tps)
            if done or time.monotonic() > deadline or any(life.done() for life in lives):
                over.set()
            over.wait(0.01)
    for life in lives:
        life.result()
    assert sum(copier.aborted for copier in copiers), "something went wrong, or this shows nothing"
    for number in range(PARTITIONS):
        copied = memory.committed_values("out", number)
        assert copied == values[number::PARTITIONS], "in order, once"
