"""One run of a whole cluster in the lab under faults, from one seed: what happened, and what is wrong with it."""

from __future__ import annotations

import asyncio
from random import Random

from tests.lab.faults import Faults
from tests.lab.kind import Outcome
from tests.lab.opening import measure, open_cluster
from tests.lab.watch import Watch
from tests.lab.whole.checks import Log, problems, problems_of_held
from tests.lab.whole.workload import Workload

from headrace.records import Record
from headrace_lab.cluster import Cluster

BROKERS, COORDINATORS, PARTITIONS = 3, 2, 3
FAULTS = 12
LOOK_S = 0.2
"""How often it is looked whether something was found inside, in virtual seconds."""
SETTLE_S_MAX = 300.0
"""Virtual seconds after the last fault in which all that was written has to be copied and read."""


async def play(seed: int, faults: int = FAULTS) -> Outcome:
    """One run; it ends early where something does not hold inside the cluster."""
    inside: list[str] = []
    with Watch(inside.append).watching():
        async with open_cluster(seed, brokers=BROKERS, coordinators=COORDINATORS) as cluster:
            random = Random(seed)
            work = Workload(cluster, random, PARTITIONS)
            befalling = Faults(cluster, random, BROKERS, COORDINATORS)
            running = asyncio.create_task(_run(cluster, random, work, befalling, faults))
            while not running.done() and not inside:
                await asyncio.wait([running], timeout=LOOK_S)
            found = inside[:10] or running.result()
            steps, seconds = measure(cluster)
            counts = {
                "acknowledged": len(work.sent.acknowledged()),
                "taken over": len(work.held.taken),
                "messages": cluster.lab.network.messages,
            }
            return Outcome(found, befalling.names, steps, seconds, counts)


async def _run(cluster: Cluster, random: Random, work: Workload, befalling: Faults, faults: int) -> list[str]:
    """What clients find wrong in the end."""
    for topic in ("in", "out"):
        await cluster.create_topic(topic, PARTITIONS, min_insync_replicas="2")
    await cluster.create_topic("held", 1, min_insync_replicas="2")
    clients = [work.copy("copier-1"), work.copy("copier-2"), work.consume(), work.consume()]
    async with asyncio.TaskGroup() as readers:
        for client in clients:
            readers.create_task(client)
        async with asyncio.TaskGroup() as writers:
            for name in ("a", "b"):
                writers.create_task(work.produce(name))
                writers.create_task(work.hold())
            await befalling.run(faults)
            work.over_writing.set()
        logs, copies = await _settled(cluster, work)
        held = await _read(cluster, "held", 1)
        work.over.set()
    wrong = problems(work.sent.acknowledged(), work.sent.tried, logs, copies, work.read)
    return wrong + problems_of_held(work.held.taken, work.held.sent.acknowledged(), held[0])


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


async def _read(cluster: Cluster, topic: str, partitions: int = PARTITIONS) -> dict[int, Log]:
    logs: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(partitions)}
    async with cluster.consumer(isolation_level="read_committed") as consumer:
        await consumer.assign([(topic, number) for number in range(partitions)])
        for record in await consumer.read_to_end(timeout_ms=120_000):
            logs[record.partition].append((record.offset, _value(record)))
    return dict(logs)


def _value(record: Record[bytes, bytes]) -> bytes:
    return record.value or b""
