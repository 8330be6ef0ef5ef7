"""ISR changes, elections and moves with real controllers on a real etcd: kills, pauses, and work left half done."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from services.controller.tests.kit.client import Client, StubBroker, Watcher, active_of, eventually
from services.controller.tests.kit.etcd import EtcdProcess
from services.controller.tests.kit.process import ControllerProcess

from headrace_common.core.errors import ErrorCode, HeadraceError, NetworkFailed, NotController, RequestTimedOut
from headrace_common.core.image import ClusterImage
from headrace_controller.adapters.etcd_store import EtcdStore
from headrace_proto.v1 import cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb

pytestmark = pytest.mark.integration
Start = Callable[..., Awaitable[ControllerProcess]]


class Brokers:
    """Stub brokers, registered, each with its stream to a controller."""

    def __init__(self, stubs: Sequence[StubBroker]) -> None:
        self.stubs = {stub.node.id: stub for stub in stubs}
        self.epochs: dict[int, int] = {}
        self.streams: dict[int, tuple[Client, Watcher]] = {}

    @staticmethod
    @asynccontextmanager
    async def open(client: Client, count: int) -> AsyncIterator[Brokers]:
        async with AsyncExitStack() as stack:
            stubs = [await stack.enter_async_context(StubBroker.open(n)) for n in range(1, count + 1)]
            brokers = Brokers(stubs)
            for number, stub in brokers.stubs.items():
                brokers.epochs[number] = (await client.register(stub.node)).epoch
            yield brokers
            for _, stream in brokers.streams.values():
                await stream.close()

    async def follow(self, controller: ControllerProcess, stack: AsyncExitStack) -> None:
        """Each broker opens a stream of its own there."""
        for number, stub in self.stubs.items():
            client = await stack.enter_async_context(Client.open(controller.endpoint))
            self.streams[number] = (client, Watcher(client, stub.node))
            await self.streams[number][1].until(lambda image: image.revision > 0)

    async def die(self, number: int) -> None:
        """As kill -9: its port refuses and its stream breaks."""
        await self.stubs[number].die()
        client, _ = self.streams.pop(number)
        await client.channel.close()

    async def beat(self, client: Client, revision: int) -> None:
        for number, stub in self.stubs.items():
            if number in self.epochs:
                await client.beat(stub.node, self.epochs[number], revision)

    def proposal(self, partition: cluster_pb2.Partition, members: Sequence[int]) -> pb.AlterPartition:
        known = set(partition.isr)
        isr = [pb.IsrMember(broker_id=m, broker_epoch=None if m in known else self.epochs[m]) for m in members]
        return pb.AlterPartition(
            topic_id=partition.topic_id,
            partition=partition.partition,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=isr,
        )

    async def propose(
        self, client: Client, partitions: Sequence[cluster_pb2.Partition], members: Callable[..., Sequence[int]]
    ) -> list[pb.AlterPartitionResult]:
        """Each leader asks for its partitions."""
        results: list[pb.AlterPartitionResult] = []
        for leader in sorted({p.leader for p in partitions}):
            led = [p for p in partitions if p.leader == leader]
            request = pb.AlterPartitionsRequest(
                broker_id=leader,
                broker_epoch=self.epochs[leader],
                partitions=[self.proposal(p, members(p)) for p in led],
            )
            results += (await client.call("AlterPartitions", request)).partitions
        return results


async def partitions_of(client: Client, topic: str) -> list[cluster_pb2.Partition]:
    return list((await client.describe(topic)).topic.partitions)


def sets(partitions: Sequence[cluster_pb2.Partition]) -> set[tuple[int, ...]]:
    return {tuple(sorted(p.isr)) for p in partitions}


async def test_isr_changes_are_taken_written_and_seen_by_the_standby(start: Start) -> None:
    first, second = await start(1), await start(2)
    async with Client.open(first.endpoint) as one, Client.open(second.endpoint) as two:
        await active_of([one])
        async with Brokers.open(one, 3) as brokers:
            await one.create("t", 300, 3)
            before = await partitions_of(one, "t")
            shrunk = await brokers.propose(one, before, lambda p: [p.leader])
            assert {r.error for r in shrunk} == {ErrorCode.NONE}
            assert all(len(r.current.isr) == 1 and len(r.current.elr) == 2 for r in shrunk)
            stale = await brokers.propose(one, before, lambda p: p.replicas[:2])
            assert {r.error for r in stale} == {ErrorCode.INVALID_UPDATE_VERSION}
            grown = await brokers.propose(one, [r.current for r in shrunk], lambda p: p.replicas)
            assert {(r.error, len(r.current.isr), len(r.current.elr)) for r in grown} == {(ErrorCode.NONE, 3, 0)}
            with pytest.raises(NotController):
                await brokers.propose(two, before, lambda p: p.replicas)
            here = await partitions_of(one, "t")
            there = await eventually(lambda: partitions_of(two, "t"), lambda found: found == here)
            assert sets(there) == {(1, 2, 3)}
            cluster = await two.cluster()
            assert (cluster.under_replicated_partition_count, cluster.under_min_isr_partition_count) == (0, 0)


async def test_a_dead_broker_of_1000_partitions_with_the_controller_killed_between_two_chunks(
    start: Start, etcd: EtcdProcess
) -> None:
    first, second = await start(1), await start(2)
    async with (
        Client.open(first.endpoint) as one,
        Client.open(second.endpoint) as two,
        EtcdStore.open([etcd.endpoint], "/headrace/headrace/") as store,
        AsyncExitStack() as stack,
    ):
        await active_of([one])
        async with Brokers.open(one, 3) as brokers:
            await one.create("t", 1_000, 3)
            await brokers.follow(first, stack)
            observer = Watcher(two)
            await observer.until(lambda image: len(image.partitions) == 1_000)
            written = 0
            async with store.watch((await store.list_all()).revision + 1) as changes:
                await brokers.die(1)
                async for batch in changes:
                    written += sum(c.key.startswith("partitions/") for c in batch.changes)
                    if written:
                        await first.kill()
                        break
            left = [p for p in observer.image.partitions.values() if 1 in p.isr]
            await observer.until(lambda image: all(p.leader != 1 and 1 not in p.isr for p in image.partitions.values()))
            assert all(not p.offline and p.isr == p.isr[:2] for p in observer.image.partitions.values())
            assert left or written >= 1_000, "it was cut short, or the machine was too slow to cut it"
            await active_of([two])
            await observer.close()


async def test_a_paused_controller_that_comes_back_takes_no_isr_change(start: Start) -> None:
    first, second = await start(1), await start(2)
    async with Client.open(first.endpoint) as one, Client.open(second.endpoint) as two:
        await active_of([one])
        async with Brokers.open(one, 3) as brokers:
            await one.create("t", 10, 3)
            await eventually(lambda: two.describe("t"), lambda r: not r.error)
            first.signal(signal.SIGSTOP)
            await active_of([two], besides=1)
            before = await partitions_of(two, "t")
            shrunk = await brokers.propose(two, before, lambda p: [p.leader])
            assert {r.error for r in shrunk} == {ErrorCode.NONE}
            first.signal(signal.SIGCONT)
            await refused(brokers.propose(one, before, lambda p: p.replicas[:2]))
            await refused(one.call("DrainBroker", pb.DrainBrokerRequest(broker_id=1, drained=True), 3))
            assert [r.current for r in shrunk] == sorted(
                await partitions_of(two, "t"), key=lambda p: (p.leader, p.partition)
            )
            assert not any(n.drained for n in (await two.cluster()).nodes)
            seen = await eventually(lambda: partitions_of(one, "t"), lambda found: {len(p.isr) for p in found} == {1})
            assert len(seen) == 10


async def refused(call: Awaitable[object]) -> None:
    with pytest.raises(HeadraceError) as refusal:
        await call
    assert refusal.value.code in {ErrorCode.NOT_CONTROLLER, ErrorCode.METADATA_UNAVAILABLE} or isinstance(
        refusal.value, (NetworkFailed, RequestTimedOut)
    )


async def test_the_next_controller_finishes_a_move_and_the_log_left_behind_is_confirmed(start: Start) -> None:
    first, second = await start(1), await start(2)
    async with Client.open(first.endpoint) as one, Client.open(second.endpoint) as two:
        await active_of([one])
        async with Brokers.open(one, 4) as brokers:
            await one.create("t", 200, 3)
            before = await partitions_of(one, "t")
            targets = {p.partition: sorted({1, 2, 3, 4} - {p.replicas[0]}) for p in before}
            asked = [
                pb.Reassignment(topic_id=p.topic_id, partition=p.partition, replicas=targets[p.partition])
                for p in before
            ]
            answer = await one.call("AlterReassignments", pb.AlterReassignmentsRequest(reassignments=asked))
            assert {o.error for o in answer.partitions} == {ErrorCode.NONE}
            listed = await one.call("ListReassignments", pb.ListReassignmentsRequest())
            assert len(listed.partitions) == 200
            await first.kill()
            await active_of([two])
            await brokers.beat(two, 0)
            moving = await partitions_of(two, "t")
            results = await brokers.propose(two, moving, lambda p: p.replicas)
            assert {r.error for r in results} == {ErrorCode.NONE}
            observer = Watcher(two)
            await observer.until(lambda image: arrived(image) and len(image.removals) == 200)
            for p in observer.image.partitions.values():
                assert sorted(p.replicas) == sorted(p.isr) == targets[p.id.partition]
                assert observer.image.removals[p.id].pending == tuple({1, 2, 3, 4} - set(p.replicas))
            for number, epoch in brokers.epochs.items():
                mine = [i for i, r in observer.image.removals.items() if number in r.pending]
                refs = [cluster_pb2.PartitionRef(topic_id=i.topic_id, partition=i.partition) for i in mine]
                await two.call(
                    "ConfirmDeletions",
                    pb.ConfirmDeletionsRequest(broker_id=number, broker_epoch=epoch, partitions=refs),
                )
            await observer.until(lambda image: not image.removals)
            await observer.close()


def arrived(image: ClusterImage) -> bool:
    return all(not p.adding and not p.removing for p in image.partitions.values())


async def test_all_replicas_died_and_the_longest_log_leads(start: Start) -> None:
    first = await start(1)
    async with Client.open(first.endpoint) as one, AsyncExitStack() as stack:
        await active_of([one])
        cluster_id = (await one.cluster()).cluster_id
        async with Brokers.open(one, 3) as brokers:
            await one.create("t", 20, 3)
            await brokers.follow(first, stack)
            for number in (1, 2, 3):
                await brokers.die(number)
            observer = Watcher(one)
            await observer.until(lambda image: [p.offline for p in image.partitions.values()] == [True] * 20, 30)
            eligible = {i: p.elr for i, p in observer.image.partitions.items()}
            assert {len(elr) for elr in eligible.values()} == {2}
            for number in (3, 2, 1):
                missing = {i for i, elr in eligible.items() if min(elr) < number}
                assert all(observer.image.partitions[i].offline for i in missing), "not before all of them are back"
                stub = await stack.enter_async_context(StubBroker.open(number, start=1))
                stub.log_end = (5, 100 * number)
                await one.register(stub.node, cluster_id=cluster_id)
            await observer.until(lambda image: not any(p.offline for p in image.partitions.values()))
            for i, p in observer.image.partitions.items():
                assert (len(p.isr), p.recovering, p.last_known_elr) == (1, False, ())
                assert p.leader == max(eligible[i]), "its log is the longest"
            await observer.close()
