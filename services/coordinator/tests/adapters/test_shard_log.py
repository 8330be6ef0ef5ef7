"""What ``ShardLog`` promises, of the log in memory and of the one in a broker over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from services.broker.tests.kit.cluster import FakeCluster, image_of
from services.broker.tests.kit.dialogue import running_broker
from services.coordinator.tests.kit.shard_logs import MemoryShardLogs

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_common.core.errors import FencedWriter, NetworkFailed, RecordTooLarge
from headrace_common.core.ids import NO_NODE, Endpoint, PartitionId
from headrace_common.core.image import INTERNAL_TOPICS, ShardKey, ShardKind
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.tasks import TaskRunner
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.adapters.grpc_shard_log import GrpcShardLogs
from headrace_coordinator.adapters.log_batches import BATCH_BYTES
from headrace_coordinator.ports import Record, ShardLog, ShardLogs
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import errors_pb2

TOPIC = INTERNAL_TOPICS[ShardKind.GROUPS]
SHARD = 1
KEY = ShardKey(ShardKind.GROUPS, SHARD)


async def read_all(log: ShardLog, until: int) -> list[tuple[bytes | None, bytes | None]]:
    found: list[tuple[bytes | None, bytes | None]] = []
    async for part in log.read(until):  # an offset
        found += zip(part.keys, part.values, strict=True)
    return found


class Lossy(BrokerConnections):
    """Loses answers, and whole requests that arrive late."""

    def __init__(self, tasks: TaskRunner) -> None:
        super().__init__(tasks)
        self.made_up: list[pb.ProducePartitionResult] = []
        self.answers_to_lose = 0
        self.requests_to_delay = 0
        self.delayed: list[tuple[Endpoint, pb.ProducePartition]] = []

    async def produce(self, at: Endpoint, entry: pb.ProducePartition, timeout_ms: int) -> pb.ProducePartitionResult:
        if self.made_up:
            return self.made_up.pop()
        if self.requests_to_delay:
            self.requests_to_delay -= 1
            self.delayed.append((at, entry))
            raise NetworkFailed("the request is on its way, and nobody knows")
        result = await super().produce(at, entry, timeout_ms)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise NetworkFailed("the answer was lost")
        return result


@dataclass
class World:
    logs: ShardLogs
    lossy: Lossy | None = None
    memory: MemoryShardLogs | None = None
    cluster: FakeCluster = field(default_factory=FakeCluster)

    def lose_answers(self, count: int) -> None:
        if self.lossy is not None:
            self.lossy.answers_to_lose = count
        else:
            assert self.memory is not None
            self.memory.partition(SHARD).lost_answers = count


class Tenured(FakeCluster):
    tenure_until_ms = 0.0


@pytest.fixture
async def brokered() -> AsyncIterator[World]:
    cluster = Tenured()
    async with running_broker(MemoryLogs(), cluster) as (broker, server), TaskRunner() as tasks:
        image = image_of({TOPIC: 3}, configs={TOPIC: {"cleanup.policy": "compact"}}, endpoint=server.endpoint)
        internal = {id: replace(topic, internal=True) for id, topic in image.topics.items()}
        cluster.show(replace(image, topics=internal))
        await broker.follower.changed.wait()
        connections = Lossy(tasks)
        yield World(GrpcShardLogs(cluster, connections, SystemClock()), connections, cluster=cluster)
        await connections.close()


@pytest.fixture(params=["memory", "grpc"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        logs = MemoryShardLogs()
        return World(logs, memory=logs)
    found: World = request.getfixturevalue("brokered")
    return found


async def test_what_is_appended_is_read_by_the_next_writer(world: World) -> None:
    first = world.logs.open(KEY, 1)
    assert await read_all(first, await first.take_over()) == []
    await first.append([(b"a", b"1"), (b"b", b"2")])
    await first.append([(b"a", None)])
    second = world.logs.open(KEY, 2)
    assert await read_all(second, await second.take_over()) == [(b"a", b"1"), (b"b", b"2"), (b"a", None)]


async def test_an_earlier_writer_writes_no_more(world: World) -> None:
    old, new = world.logs.open(KEY, 1), world.logs.open(KEY, 2)
    await old.take_over()
    await old.append([(b"a", b"old")])
    until = await new.take_over()
    with pytest.raises(FencedWriter):
        await old.append([(b"a", b"zombie")])
    with pytest.raises(FencedWriter):
        await old.take_over()
    await new.append([(b"a", b"new")])
    assert await read_all(new, until) == [(b"a", b"old")]
    third = world.logs.open(KEY, 3)
    assert await read_all(third, await third.take_over()) == [(b"a", b"old"), (b"a", b"new")]


async def test_nobody_writes_without_having_taken_over(world: World) -> None:
    with pytest.raises(FencedWriter):
        await world.logs.open(KEY, 1).append([(b"a", b"1")])


async def test_an_empty_append_proves_the_token_and_is_never_read(world: World) -> None:
    log = world.logs.open(KEY, 1)
    await log.take_over()
    await log.append([])
    await log.append([(b"a", b"1")])
    again = world.logs.open(KEY, 2)
    assert await read_all(again, await again.take_over()) == [(b"a", b"1")]
    with pytest.raises(FencedWriter):
        await log.append([])


async def test_taking_over_twice_under_one_token_reads_everything(world: World) -> None:
    log = world.logs.open(KEY, 1)
    await log.take_over()
    await log.append([(b"a", b"1")])
    again = world.logs.open(KEY, 1)
    assert await read_all(again, await again.take_over()) == [(b"a", b"1")]
    await again.append([(b"b", b"2")])


async def test_a_lost_answer_to_the_fence(world: World) -> None:
    log = world.logs.open(KEY, 1)
    world.lose_answers(1)
    until = await log.take_over()
    await log.append([(b"a", b"1")])
    assert await read_all(log, until) == []


async def test_lost_answers_to_appends_keep_the_order(world: World) -> None:
    log = world.logs.open(KEY, 1)
    await log.take_over()
    for number in range(5):
        world.lose_answers(number % 3)
        await log.append([(b"a", str(number).encode())])
    again = world.logs.open(KEY, 2)
    values = [value for _, value in await read_all(again, await again.take_over())]
    assert values == sorted(values, key=lambda v: v or b"")
    assert values[-1] == b"4"


async def test_a_large_append_is_read_in_order(world: World) -> None:
    log = world.logs.open(KEY, 1)
    await log.take_over()
    records: list[Record] = [(f"k{n}".encode(), bytes([n % 251]) * 900) for n in range(3 * BATCH_BYTES // 900)]
    await log.append(records)
    again = world.logs.open(KEY, 2)
    assert await read_all(again, await again.take_over()) == records


# --- over gRPC only ---------------------------------------------------------------------------------------------


async def test_a_copy_that_arrives_late_brings_no_old_value_back(brokered: World) -> None:
    log = brokered.logs.open(KEY, 1)
    await log.take_over()
    await log.append([(b"a", b"0")])
    assert brokered.lossy is not None
    brokered.lossy.requests_to_delay = 1
    await log.append([(b"a", b"1")])
    await log.append([(b"a", b"2")])
    ((at, entry),) = brokered.lossy.delayed
    await brokered.lossy.produce(at, entry, 1_000)
    again = brokered.logs.open(KEY, 2)
    assert [value for _, value in await read_all(again, await again.take_over())] == [b"0", b"1", b"2"]


async def test_a_fence_that_is_cut_before_it_is_committed_is_set_again(brokered: World) -> None:
    log, lossy = brokered.logs.open(KEY, 1), brokered.lossy
    assert lossy is not None
    said = [pb.ProducePartitionResult(error=errors_pb2.FENCED_WRITER, fencing_token=token) for token in (1, 0)]
    lossy.made_up = said[::-1]  # the fence is there; then, to the note, it is not
    until = await log.take_over()
    assert not lossy.made_up
    await log.append([(b"a", b"1")])
    again = brokered.logs.open(KEY, 2)
    assert await read_all(again, await again.take_over()) == [(b"a", b"1")]
    assert until == 1


async def test_waits_for_a_leader_and_goes_on(brokered: World) -> None:
    log = brokered.logs.open(KEY, 1)
    await log.take_over()
    led = brokered.cluster.image
    id = PartitionId(led.topic_ids[TOPIC], SHARD)
    headless = replace(led.partitions[id], leader=NO_NODE, leader_epoch=1, partition_epoch=1)
    brokered.cluster.show(replace(led, partitions={**led.partitions, id: headless}))
    append = asyncio.ensure_future(log.append([(b"a", b"1")]))
    await asyncio.sleep(0)
    back = replace(led.partitions[id], leader_epoch=2, partition_epoch=2)
    brokered.cluster.show(replace(led, partitions={**led.partitions, id: back}))
    await append
    again = brokered.logs.open(KEY, 2)
    assert await read_all(again, await again.take_over()) == [(b"a", b"1")]


async def test_a_record_that_no_log_takes_is_refused_for_good(brokered: World) -> None:
    log = brokered.logs.open(KEY, 1)
    await log.take_over()
    with pytest.raises(RecordTooLarge):
        await log.append([(b"a", Random(1).randbytes(4 << 20))])


async def test_a_clock_that_is_hours_ahead_does_not_stop_the_log(brokered: World) -> None:
    class Ahead(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + 24 * 3_600_000

    assert brokered.lossy is not None
    log = GrpcShardLogs(brokered.cluster, brokered.lossy, Ahead()).open(KEY, 1)  # a fake
    await log.take_over()
    await log.append([(b"a", b"1")])
    again = brokered.logs.open(KEY, 2)
    assert await read_all(again, await again.take_over()) == [(b"a", b"1")]


async def test_connections_to_addresses_without_a_broker_are_closed(brokered: World) -> None:
    log = brokered.logs.open(KEY, 1)
    await log.take_over()
    assert brokered.lossy is not None
    (at,) = brokered.lossy.addresses
    await brokered.lossy.keep({at})
    assert brokered.lossy.addresses == {at}
    await brokered.lossy.keep(set())
    assert not brokered.lossy.addresses
    await log.append([(b"a", b"1")])
    assert brokered.lossy.addresses == {at}
