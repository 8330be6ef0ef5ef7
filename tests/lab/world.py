"""One run of a whole cluster in the lab under faults, from one seed: what happened, and what is wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.lab.checks import Log, problems
from tests.lab.faults import Faults
from tests.lab.workload import Workload

from headrace.records import Record
from headrace.testing import Cluster, lab
from headrace_lab.loop import LabLoop

BROKERS, COORDINATORS, PARTITIONS = 3, 2, 3
FAULTS = 12
SETTLE_S_MAX = 300.0
"""Virtual seconds after the last fault in which all that was written has to be copied and read."""


@dataclass(frozen=True)
class Outcome:
    """Of one run."""

    problems: Sequence[str]
    faults: Sequence[str]
    acknowledged: int
    messages: int
    callbacks: int
    seconds: float
    """Virtual ones."""


async def play(seed: int, faults: int = FAULTS) -> Outcome:
    """One run."""
    async with lab(seed, brokers=BROKERS, coordinators=COORDINATORS) as cluster:
        for topic in ("in", "out"):
            await cluster.create_topic(topic, PARTITIONS, min_insync_replicas="2")
        random = Random(seed)
        work = Workload(cluster, random, PARTITIONS)
        befalling = Faults(cluster, random, BROKERS, COORDINATORS)
        clients = [work.copy("copier-1"), work.copy("copier-2"), work.consume(), work.consume()]
        readers = [asyncio.create_task(client) for client in clients]
        writers = [asyncio.create_task(work.produce(name)) for name in ("a", "b")]
        await befalling.run(faults)
        work.over_writing.set()
        await asyncio.wait(writers)
        logs, copies = await _settled(cluster, work)
        work.over.set()
        await asyncio.wait(readers)
        for task in (*readers, *writers):
            task.result()
        acknowledged = work.sent.acknowledged()
        found = problems(acknowledged, work.sent.tried, logs, copies, work.read)
        loop = cluster.lab.loop
        assert isinstance(loop, LabLoop)
        return Outcome(found, befalling.names, len(acknowledged), cluster.lab.network.messages, loop.steps, loop.time())


async def _settled(cluster: Cluster, work: Workload) -> tuple[dict[int, Log], dict[int, Log]]:
    """What is in both topics, once all of it was copied and read; or after the time for that."""
    deadline = asyncio.get_running_loop().time() + SETTLE_S_MAX
    while True:
        logs, copies = await _read(cluster, "in"), await _read(cluster, "out")
        written = {value for log in logs.values() for _, value in log}
        copied = {value for log in copies.values() for _, value in log}
        if (written <= copied and written <= work.read.keys()) or asyncio.get_running_loop().time() > deadline:
            return logs, copies
        await asyncio.sleep(1)


async def _read(cluster: Cluster, topic: str) -> dict[int, Log]:
    logs: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(PARTITIONS)}
    async with cluster.consumer(isolation_level="read_committed") as consumer:
        await consumer.assign([(topic, number) for number in range(PARTITIONS)])
        for record in await consumer.read_to_end(timeout_ms=120_000):
            logs[record.partition].append((record.offset, _value(record)))
    return dict(logs)


def _value(record: Record[bytes, bytes]) -> bytes:
    return record.value or b""
