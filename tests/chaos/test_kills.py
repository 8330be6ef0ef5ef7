"""
Processes are killed while records flow; afterwards the checker must find nothing.

Real etcd, controller and brokers under the supervisor; idempotent producers with acks=all; consumers that follow. The
faults come from a seed, which a failure names.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest
from tests.chaos.guard import GUARDED, guarded

from headrace import TopicPartition, aio
from headrace_cli.local import LocalCluster, NotRunning
from headrace_cli.local.state import Health
from headrace_common.core.errors import HeadraceError
from headrace_verify.checker import Assign, Operation, Outcome, Poll, Send, check

TOPIC = "chaos"
PARTITIONS = 6
BACK_SECONDS = 60.0
SECONDS = int(os.environ.get("CHAOS_SECONDS", "20"))
SEED = int(os.environ.get("CHAOS_SEED", "20261121"))


class History:
    """What was done and seen, in the order of completion."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.next_value = 0

    def value(self) -> int:
        """A number never used before."""
        self.next_value += 1
        return self.next_value


async def produce(history: History, process: int, bootstrap: str, stop: asyncio.Event) -> None:
    """Send numbered values to every partition until told to stop."""
    async with aio.Producer(bootstrap, acks="all", delivery_timeout_ms=60_000, linger_ms=2) as producer:
        waiting: list[asyncio.Task[None]] = []
        while not stop.is_set():
            for partition in range(PARTITIONS):
                value = history.value()
                delivery = await producer.send(TOPIC, str(value).encode(), partition=partition)
                waiting.append(asyncio.ensure_future(note(history, process, partition, value, delivery)))
            await asyncio.sleep(0.002)
        await asyncio.gather(*waiting)


async def note(history: History, process: int, partition: int, value: int, delivery: aio.Delivery) -> None:
    """Write down how one send ended."""
    key = f"{TOPIC}-{partition}"
    try:
        metadata = await delivery
        history.operations.append(Send(process, Outcome.OK, key, value, metadata.offset))
    except HeadraceError:
        history.operations.append(Send(process, Outcome.INFO, key, value))


async def consume(history: History, process: int, bootstrap: str, stop: asyncio.Event) -> None:
    """Follow all partitions from the beginning."""
    async with aio.Consumer(TOPIC, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        while not stop.is_set():
            await poll(history, process, consumer)


async def poll(history: History, process: int, consumer: aio.Consumer) -> int:
    """One poll, written down; how many records it gave."""
    records = await consumer.poll(timeout_ms=200)
    if records:
        points = tuple((f"{r.topic}-{r.partition}", r.offset, int(r.value)) for r in records)
        history.operations.append(Poll(process, points))
    return len(records)


async def read_everything(history: History, bootstrap: str) -> None:
    """The final phase: from the beginning to the end of each partition."""
    process = 99
    history.operations.append(Assign(process))
    async with aio.Consumer(TOPIC, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(TOPIC, n) for n in range(PARTITIONS)]
        ends = await consumer.end_offsets(partitions)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            await poll(history, process, consumer)
            positions = [(await consumer.position(p), ends[p]) for p in partitions]
            if all(at >= end for at, end in positions):
                return
    raise AssertionError("the final read did not reach the end within 60 s")


class Killer:
    """
    Kills processes of a cluster whose supervisor starts them again.

    A victim may still be away from the last time: it is waited for. Once it may die before it serves, the time after
    that it gets there first; a supervisor gives up what never does.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.died_young: set[str] = set()

    def kill(self, name: str) -> None:
        """Kill it as soon as it can be."""
        deadline = time.monotonic() + BACK_SECONDS
        while not self._killed(name):
            assert time.monotonic() < deadline, f"{name} was not back after {BACK_SECONDS:.0f} s"
            time.sleep(0.01)

    def _killed(self, name: str) -> bool:
        ready = self.cluster.process(name).health is Health.READY
        if not ready and name in self.died_young:
            return False
        try:
            self.cluster.kill(name)
        except NotRunning:
            return False
        if ready:
            self.died_young.discard(name)
        else:
            self.died_young.add(name)
        return True


async def run(cluster: LocalCluster, victims: list[str], seed: int) -> History:
    """Produce and consume while processes die, then read all."""
    chance = random.Random(seed)
    history = History()
    bootstrap = ",".join(cluster.bootstrap_servers)
    async with aio.AdminClient(bootstrap) as admin:
        await admin.create_topic(TOPIC, PARTITIONS, 1)
    stop_producing, stop_consuming = asyncio.Event(), asyncio.Event()
    consumers = [asyncio.ensure_future(consume(history, n, bootstrap, stop_consuming)) for n in (11, 12)]
    producers = [asyncio.ensure_future(produce(history, n, bootstrap, stop_producing)) for n in (1, 2)]
    killer = Killer(cluster)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        await asyncio.sleep(chance.uniform(0.5, 2.5))
        await asyncio.to_thread(killer.kill, chance.choice(victims))
    await asyncio.to_thread(cluster.wait_ready)
    stop_producing.set()
    await asyncio.wait_for(asyncio.gather(*producers), 120)
    stop_consuming.set()
    await asyncio.wait_for(asyncio.gather(*consumers), 60)
    await read_everything(history, bootstrap)
    return history


@pytest.mark.chaos
@pytest.mark.timeout(SECONDS + 240)
@pytest.mark.parametrize(
    "victims",
    [["broker-1", "broker-2", "broker-3"], ["controller-1", "etcd-1", "broker-1"]],
    ids=["brokers", "metadata-and-a-broker"],
)
async def test_nothing_acknowledged_is_lost_doubled_or_reordered(tmp_path: Path, victims: list[str]) -> None:
    with (
        LocalCluster(tmp_path / "data", brokers=3, restart_delay_ms=200, tls=GUARDED) as cluster,
        guarded(cluster, TOPIC),
    ):
        history = await run(cluster, victims, SEED)
    verdict = check(history.operations)
    assert verdict.sends_ok > 1000, f"seed {SEED}: only {verdict.sends_ok} sends were acknowledged"
    assert verdict.counts == {}, f"seed {SEED}\n{verdict.describe()}"
