"""Two real controllers on a real etcd: kills, pauses, restarts, and creations cut in the middle."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import pytest
from services.controller.tests.kit.client import Client, StubBroker, Watcher, active_of, eventually
from services.controller.tests.kit.etcd import EtcdProcess
from services.controller.tests.kit.process import ControllerProcess

from headrace_common.core.errors import ErrorCode, MetadataUnavailable, NetworkFailed, NotController, RequestTimedOut
from headrace_controller.adapters.etcd_store import EtcdStore
from headrace_proto.v1 import controller_pb2 as pb

pytestmark = pytest.mark.integration
Start = Callable[..., Awaitable[ControllerProcess]]


async def partition_keys(etcd: EtcdProcess) -> list[str]:
    async with EtcdStore.open([etcd.endpoint], "/headrace/headrace/") as store:
        return [i.key for i in (await store.list_all()).items if i.key.startswith("partitions/")]


async def test_kill_the_active_controller(start: Start) -> None:
    first, second = await start(1), await start(2)
    async with Client.open(first.endpoint) as one, Client.open(second.endpoint) as two, StubBroker.open(1) as broker:
        await active_of([one])
        joined = await one.register(broker.node)
        assert (await one.create("before", 6)).error == ErrorCode.NONE
        with pytest.raises(NotController) as refusal:
            await two.create("refused", 1)
        assert refusal.value.endpoint_hint == str(first.endpoint)
        assert (
            await eventually(lambda: two.describe("before"), lambda r: not r.error)
        ).topic.topic.partition_count == 6
        epoch = (await one.cluster()).active_controller.epoch
        await first.kill()
        await active_of([two])
        cluster = await two.cluster()
        assert cluster.active_controller.id == 2
        assert cluster.active_controller.epoch > epoch
        vitals = await two.beat(broker.node, joined.epoch, joined.revision)
        assert not vitals.fenced, "registrations outlive controllers"
        assert (await two.create("after", 1)).error == ErrorCode.NONE
        again = await start(1)
        async with Client.open(again.endpoint) as one_again:
            assert not (await eventually(lambda: one_again.describe("after"), lambda r: not r.error)).error
            with pytest.raises(NotController):
                await one_again.create("refused", 1)


async def test_sigterm_hands_over_without_waiting_for_the_lease(start: Start) -> None:
    first = await start(1, "--lease-ttl-s", "60")
    async with Client.open(first.endpoint) as one:
        await active_of([one])
        second = await start(2, "--lease-ttl-s", "60")
        async with Client.open(second.endpoint) as two:
            first.signal(signal.SIGTERM)
            assert await first.wait() == 0
            await active_of([two])


async def test_a_paused_controller_that_comes_back_changes_nothing(start: Start, etcd: EtcdProcess) -> None:
    first, second = await start(1), await start(2)
    async with Client.open(first.endpoint) as one, Client.open(second.endpoint) as two, StubBroker.open(1) as broker:
        await active_of([one])
        await one.register(broker.node)
        first.signal(signal.SIGSTOP)
        await active_of([two], besides=1)
        assert (await two.create("mine", 3)).error == ErrorCode.NONE
        before = await two.cluster()
        first.signal(signal.SIGCONT)
        with pytest.raises((NotController, MetadataUnavailable, NetworkFailed, RequestTimedOut)):
            await one.call(
                "CreateTopics", pb.CreateTopicsRequest(topics=[pb.NewTopic(name="zombie")], timeout_ms=1_000)
            )
        seen = await eventually(one.cluster, lambda c: c.active_controller.id == 2 and c.topic_count == 1)
        assert seen.active_controller.epoch == before.active_controller.epoch

        async def refusal() -> NotController:
            with pytest.raises(NotController) as refused:
                await one.create("zombie", 1)
            return refused.value

        assert (await eventually(refusal)).endpoint_hint == str(second.endpoint)  # once it has etcd again
        assert len(await partition_keys(etcd)) == 3
        assert (await two.create("still mine", 1)).error == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert (await two.create("still-mine", 1)).error == ErrorCode.NONE


@pytest.mark.parametrize("kill", [False, True])
async def test_etcd_restarts(start: Start, etcd: EtcdProcess, kill: bool) -> None:
    first = await start(1)
    async with Client.open(first.endpoint) as one, StubBroker.open(1) as broker:
        await active_of([one])
        joined = await one.register(broker.node)
        await one.create("before", 2)
        watcher = Watcher(one)
        await watcher.until(lambda image: "before" in image.topic_ids)
        await etcd.stop(kill=kill)
        await eventually(one.cluster, lambda c: not c.metadata_store_reachable)
        assert (await one.describe("before")).topic.topic.partition_count == 2
        assert await refusal_of(one.create("refused", 1)) == ErrorCode.METADATA_UNAVAILABLE
        await etcd.start()
        await eventually(one.cluster, lambda c: c.metadata_store_reachable)  # its next attempt may be a second away
        await active_of([one])
        await eventually(lambda: one.beat(broker.node, joined.epoch, watcher.image.revision), lambda v: not v.fenced)
        assert (await one.create("after", 2)).error == ErrorCode.NONE
        await watcher.until(lambda image: {"before", "after"} <= set(image.topic_ids))
        await watcher.close()


async def refusal_of(creation: Awaitable[pb.TopicResult]) -> int:
    """The error, whether the whole call was refused or, while the lease still lasted, the topic alone."""
    try:
        return (await creation).error
    except MetadataUnavailable as error:
        return error.code


async def test_compaction_under_a_paused_controller(start: Start, etcd: EtcdProcess) -> None:
    first, second = await start(1), await start(2)
    async with Client.open(first.endpoint) as one, Client.open(second.endpoint) as two, StubBroker.open(1) as broker:
        await active_of([one])
        await one.register(broker.node)
        await one.create("old", 4)
        watcher = Watcher(two)
        await watcher.until(lambda image: "old" in image.topic_ids)
        second.signal(signal.SIGSTOP)
        await one.call("DeleteTopics", pb.DeleteTopicsRequest(names=["old"]))
        await one.create("new", 5)
        await etcd.restart()
        await etcd.compact()
        second.signal(signal.SIGCONT)
        await watcher.until(lambda image: set(image.topic_ids) == {"new"} and len(image.partitions) == 5)
        assert len(watcher.image.deletions) == 1
        await watcher.close()


@pytest.mark.parametrize("chunks", [1, 10, 30, 49])
async def test_5000_partitions_with_the_controller_killed_between_two_chunks(
    start: Start, etcd: EtcdProcess, chunks: int
) -> None:
    first, second = await start(1), await start(2)
    async with (
        Client.open(first.endpoint) as one,
        Client.open(second.endpoint) as two,
        StubBroker.open(1) as broker,
        EtcdStore.open([etcd.endpoint], "/headrace/headrace/") as store,
    ):
        await active_of([one])
        joined = await one.register(broker.node)
        watcher = Watcher(two)
        written = 0
        async with store.watch((await store.list_all()).revision + 1) as changes:
            creation = one.stub.CreateTopics(
                pb.CreateTopicsRequest(
                    topics=[pb.NewTopic(name="big", partition_count=5_000, replication_factor=1)], timeout_ms=30_000
                )
            )
            creation.add_done_callback(lambda _: None)  # sends it
            async for batch in changes:
                written += sum(c.key.startswith("partitions/") for c in batch.changes)
                if written >= chunks * 100:
                    await first.kill()
                    break
        await active_of([two])
        await two.beat(broker.node, joined.epoch, joined.revision)

        async def whole() -> bool:
            count = len(await partition_keys(etcd))
            exists = not (await two.describe("big")).error
            return count == (5_000 if exists else 0)

        await eventually(whole, lambda w: w)
        retried = await two.create("big", 5_000)
        assert retried.error in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
        described = await two.describe("big")
        assert [p.partition for p in described.topic.partitions] == list(range(5_000))
        assert all(p.leader == 1 for p in described.topic.partitions)
        assert len(await partition_keys(etcd)) == 5_000
        await watcher.until(lambda image: len(image.partitions) == 5_000)
        await watcher.close()


async def test_a_dead_broker_is_noticed_by_its_stream(start: Start) -> None:
    first = await start(1, "--session-timeout-ms", "600000")
    async with (
        Client.open(first.endpoint) as one,
        StubBroker.open(1) as broker,
        StubBroker.open(2) as other,
        Client.open(first.endpoint) as of_broker,
    ):
        await active_of([one])
        await one.register(broker.node)
        await one.register(other.node)
        stream, observer = Watcher(of_broker, broker.node), Watcher(one, other.node)
        await one.create("t", 2)
        await stream.until(lambda image: len(image.partitions) == 2)
        await broker.die()
        await of_broker.channel.close()
        await observer.until(lambda image: sorted(p.leader for p in image.partitions.values()) == [-1, 2])
        await observer.close()
