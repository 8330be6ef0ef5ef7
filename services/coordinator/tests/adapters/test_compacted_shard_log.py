"""Loads of a shard whose log compaction has rewritten, or rewrites meanwhile: the last value of each key, no more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from services.broker.tests.kit.cluster import FakeCluster, image_of, topic_id_of
from services.broker.tests.kit.compacting import batches_of, compact
from services.broker.tests.kit.dialogue import running_broker

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.engine.broker import Broker
from headrace_common.core.ids import PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, ShardKey, ShardKind
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.tasks import TaskRunner
from headrace_coordinator.adapters import grpc_shard_log
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.adapters.grpc_shard_log import GrpcShardLog, GrpcShardLogs
from headrace_coordinator.ports import Record

TOPIC = INTERNAL_TOPICS[ShardKind.GROUPS]
KEY = ShardKey(ShardKind.GROUPS, 0)
ID = PartitionId(topic_id_of(TOPIC), 0)
DAY_MS = 86_400_000


class Tenured(FakeCluster):
    tenure_until_ms = 0.0


@dataclass
class World:
    broker: Broker
    store: MemoryLogs
    logs: GrpcShardLogs
    state: dict[bytes, bytes] = field(default_factory=dict)
    token: int = 0
    now_ms: int = 0

    async def take_over(self) -> tuple[GrpcShardLog, int]:
        self.token += 1
        log = self.logs.open(KEY, self.token)
        return log, await log.take_over()

    async def append(self, log: GrpcShardLog, *records: Record) -> None:
        await log.append(records)
        self.state.update({key: value for key, value in records if value is not None})
        for key, value in records:
            if value is None:
                self.state.pop(key, None)

    async def compact(self, *, later_ms: int = 0, retention_ms: int = DAY_MS) -> None:
        self.now_ms += later_ms
        await compact(self.broker, self.store, ID, now_ms=self.now_ms, delete_retention_ms=retention_ms)

    @property
    def batches(self) -> list[tuple[int, int, int]]:
        replica = self.broker.replicas.get(ID)
        assert replica is not None
        return [(int(base), int(end), count) for base, end, count in batches_of(self.store, replica)]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    cluster, clock, store = Tenured(), SystemClock(), MemoryLogs()
    async with running_broker(store, cluster) as (broker, server), TaskRunner() as tasks:
        image = image_of({TOPIC: 1}, configs={TOPIC: {"cleanup.policy": "compact"}}, endpoint=server.endpoint)
        internal = {id: replace(topic, internal=True) for id, topic in image.topics.items()}
        cluster.show(replace(image, topics=internal))
        await broker.follower.changed.wait()
        connections = BrokerConnections(tasks)
        yield World(broker, store, GrpcShardLogs(cluster, connections, clock), now_ms=clock.now_ms())
        await connections.close()


async def load(log: GrpcShardLog, until: int) -> tuple[dict[bytes, bytes], int]:
    """The state, as a shard host makes it, and how many records it was read from."""
    latest: dict[bytes | None, bytes | None] = {}
    records = 0
    async for part in log.read(until):  # an offset
        latest.update(zip(part.keys, part.values, strict=True))
        records += len(part.keys)
    return {key: value for key, value in latest.items() if key is not None and value is not None}, records


async def test_a_load_reads_live_keys_not_history(world: World) -> None:
    log, _ = await world.take_over()
    for number in range(600):
        await world.append(log, (b"key-%d" % (number % 5), b"%d" % number))
    log, until = await world.take_over()
    state, records = await load(log, until)
    assert (state, records) == (world.state, 600)
    await world.compact()
    log, until = await world.take_over()
    state, records = await load(log, until)
    assert (state, records) == (world.state, 5)
    assert len(world.batches) < 25, "what is gone takes a few headers, not one for each record"


async def test_a_load_ends_at_the_end_of_the_log_although_its_tail_is_a_gap(world: World) -> None:
    log, _ = await world.take_over()
    await world.append(log, (b"stays", b"1"))
    for number in range(10):
        await world.append(log, (b"goes", b"%d" % number))
    await world.append(log, (b"goes", None))
    await log.append(())
    log, until = await world.take_over()  # its fence stands behind all that
    await world.compact()
    await world.compact(later_ms=2 * DAY_MS)
    await world.append(log, (b"other", b"2"))
    await world.append(log, (b"other", None))
    await world.compact(later_ms=2 * DAY_MS)
    await world.append(log, (b"more", b"3"))
    await world.append(log, (b"last", b"4"))
    await world.append(log, (b"last", None))
    await world.compact(retention_ms=0)
    assert world.batches[-1][2] == 0
    for end in {until, *(end for _, end, _ in world.batches[2:]), world.batches[-1][1] - 1}:
        state, _ = await load(log, end)
        assert state.get(b"stays") == b"1"
        assert b"goes" not in state, "neither value nor deletion is left"
    assert (await load(log, world.batches[-1][1]))[0] == world.state


async def test_old_fences_go_and_the_last_still_holds(world: World) -> None:
    for number in range(8):
        log, _ = await world.take_over()
        await world.append(log, (b"k", b"%d" % number))
    before = sum(count for _, _, count in world.batches)
    await world.compact()
    await world.compact(later_ms=2 * DAY_MS)
    await world.append(log, (b"k", b"last"))
    await world.compact(later_ms=2 * DAY_MS)
    assert sum(count for _, _, count in world.batches) < before
    await log.append([(b"k", b"the writer of the last fence goes on")])
    assert await log.take_over() > 0
    new, until = await world.take_over()
    assert (await load(new, until))[0] == {b"k": b"the writer of the last fence goes on"}


@pytest.mark.parametrize("seed", range(3))
async def test_a_load_while_the_log_is_rewritten_gives_what_a_quiet_one_gives(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletions stay longer than a load takes; that is what it needs."""
    monkeypatch.setattr(grpc_shard_log, "READ_BYTES", 600)
    random = Random(seed)
    for _ in range(4):
        log, until = await world.take_over()
        fetched = log._fetch_batches

        async def compacting(at: int, fetched: object = fetched) -> object:
            found = await fetched(at)
            if random.random() < 0.4:
                await world.compact(later_ms=1_000)
            return found

        monkeypatch.setattr(log, "_fetch_batches", compacting)
        assert (await load(log, until))[0] == world.state
        monkeypatch.setattr(log, "_fetch_batches", fetched)
        for _ in range(60):
            key = b"key-%d" % random.randrange(12)
            records: list[Record] = [(key, None if random.random() < 0.3 else random.randbytes(random.randrange(200)))]
            await world.append(log, *records)
            if random.random() < 0.1:
                await world.compact(later_ms=random.choice([1_000, DAY_MS + 1]))
