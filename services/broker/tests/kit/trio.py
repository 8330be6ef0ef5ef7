"""
Several brokers' engines in one process over memory stores, with streams that are queues: for tests of replication.

A test moves leadership by showing images (``Trio.show``) and cuts brokers off (``Trio.cut``); ISR changes are granted
as a controller would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from services.broker.tests.kit.standalone import FakeCluster, image_of, with_coordinator
from services.broker.tests.kit.transactions import FakeTransactions

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.adapters.memory_topic_notes import MemoryTopicNotes
from headrace_broker.core.copying import CopyAnswer, CopyAsk
from headrace_broker.core.leadership import Proposal
from headrace_broker.engine.broker import Broker, EngineSettings, Who
from headrace_broker.engine.replicate_session import ReplicateSession
from headrace_broker.engine.storage_queue import Flush
from headrace_broker.ports import Disk, IsrDecision
from headrace_common.core.errors import HeadraceError, IneligibleReplica, InvalidUpdateVersion, NetworkFailed
from headrace_common.core.ids import Endpoint, NodeId, PartitionId
from headrace_common.core.image import ClusterImage, Node, NodeKey, Partition, Role
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.tasks import TaskRunner


class MemoryStream:
    """A ``Replicate`` stream without a network: what is said to it a session of the other broker takes at once."""

    def __init__(self, session: ReplicateSession, cut: Callable[[], bool], tasks: TaskRunner) -> None:
        self._session = session
        self._cut = cut
        self._cold = tasks.start(session.read_cold(), name="memory-stream-cold")

    async def send(self, ask: CopyAsk) -> None:
        """See ``LeaderStream``."""
        await asyncio.sleep(0)
        self._check()
        self._session.take(ask)

    async def receive(self) -> CopyAnswer | None:
        """See ``LeaderStream``."""
        answer = await self._session.answer()
        self._check()
        return answer

    async def close(self) -> None:
        """See ``LeaderStream``."""
        self._session.end()
        self._cold.cancel()

    def _check(self) -> None:
        if self._cut():
            raise NetworkFailed("a test has cut the stream")


@dataclass
class Member:
    """One broker of the trio."""

    id: NodeId
    broker: Broker
    store: MemoryLogs
    cluster: SharedCluster
    tasks: TaskRunner


class SharedCluster(FakeCluster):
    """One controller for all members: ISR changes are checked against what all see, and shown to all."""

    def __init__(self, trio: Trio, epoch: int) -> None:
        super().__init__()
        self.trio = trio
        self.broker_epoch = epoch

    async def alter_partitions(self, proposals: Sequence[tuple[PartitionId, Proposal]]) -> list[IsrDecision]:
        """Grants what is asked for in the present epochs."""
        await asyncio.sleep(0)
        decided = []
        for id, proposal in proposals:
            now = self.trio.image.partitions[id]
            if (now.leader_epoch, now.partition_epoch) != (proposal.leader_epoch, proposal.partition_epoch):
                decided.append(IsrDecision(error=InvalidUpdateVersion("the partition has changed")))
                continue
            isr = tuple(broker for broker, _ in proposal.isr)
            if proposal.resign:
                heir = next((broker for broker in isr if broker != now.leader), None)
                gone = IsrDecision(error=IneligibleReplica("nobody else is in sync"))
                decided.append(gone if heir is None else IsrDecision(self.trio.change(id, leader=heir)))
                continue
            decided.append(IsrDecision(self.trio.change(id, isr=isr)))
        return decided


@dataclass
class Trio:
    """The brokers, and the image that they are shown."""

    image: ClusterImage
    members: dict[NodeId, Member] = field(default_factory=dict)
    cut: set[NodeId] = field(default_factory=set)
    """Brokers that no stream reaches."""
    transactions: FakeTransactions = field(default_factory=FakeTransactions)

    def show(self, *, but: Sequence[int] = ()) -> None:
        """Show the image to everybody, or to all but some."""
        for member in self.members.values():
            if member.id not in but:
                member.cluster.show(self.image)

    def change(self, id: PartitionId, *, but: Sequence[int] = (), **fields: object) -> Partition:
        """Change one partition; its partition epoch grows, its leader epoch with the leader."""
        old = self.image.partitions[id]
        new = replace(old, **fields, partition_epoch=old.partition_epoch + 1)  # type: ignore[arg-type]  # its fields
        if new.leader != old.leader:
            new = replace(new, leader_epoch=old.leader_epoch + 1)
        self.image = replace(self.image, partitions={**self.image.partitions, id: new})
        self.show(but=but)
        return new

    def fence(self, *brokers: NodeId) -> None:
        """Fence these brokers and nobody else; to be seen with the next image."""
        nodes = {
            key: replace(node, fenced=key.role is Role.BROKER and key.id in brokers)
            for key, node in self.image.nodes.items()
        }
        self.image = replace(self.image, nodes=nodes)

    async def open(self, broker: NodeId, endpoint: Endpoint) -> MemoryStream:
        """See ``Leaders``."""
        del endpoint
        await asyncio.sleep(0)
        if broker in self.cut:
            raise NetworkFailed("a test has cut the broker off")
        member = self.members[broker]
        return MemoryStream(member.broker.replication.session(), lambda: broker in self.cut, member.tasks)


async def until(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    """Return once ``condition`` holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)


def trio_image(topic: str, partitions: int, count: int = 3) -> ClusterImage:
    """``count`` brokers; broker 1 leads all partitions of the topic, everybody is in sync."""
    ids = tuple(NodeId(n) for n in range(1, count + 1))
    nodes = [
        Node(NodeKey(Role.BROKER, n), Endpoint("127.0.0.1", 1), bytes([n]) * 16, 10 + n, fenced=False, rack=f"rack-{n}")
        for n in ids
    ]
    image = image_of({topic: partitions}, nodes=nodes)
    led = {id: replace(one, replicas=ids, isr=ids) for id, one in image.partitions.items()}
    return replace(image, partitions=led)


@asynccontextmanager
async def running_trio(
    topic: str = "t",
    partitions: int = 1,
    *,
    count: int = 3,
    flush: Flush = Flush.OS,
    tail_bytes: int = 1 << 20,
    stores: Mapping[int, MemoryLogs] | None = None,
) -> AsyncIterator[Trio]:
    """Brokers 1 to ``count``, all up and following the image; no background task may crash. ``stores``: of some."""
    trio = Trio(with_coordinator(trio_image(topic, partitions, count)))
    async with AsyncExitStack() as stack:
        for n in range(1, count + 1):
            id = NodeId(n)
            tasks = await stack.enter_async_context(TaskRunner())
            store, cluster = (stores or {}).get(n) or MemoryLogs(), SharedCluster(trio, 10 + n)
            broker = Broker(
                Who(id, bytes([n]) * 16, "c"),
                EngineSettings(flush=flush, tail_cache_bytes=tail_bytes),
                disk=Disk(store, MemoryTopicNotes()),
                cluster=cluster,
                leaders=trio,
                transactions=trio.transactions,
                clock=SystemClock(),
                tasks=tasks,
            )
            broker.start()
            trio.members[id] = Member(id, broker, store, cluster, tasks)
        trio.show()
        for member in trio.members.values():
            await member.broker.follower.changed.wait()
        yield trio
        for member in trio.members.values():
            if member.tasks.failure is not None:
                raise member.tasks.failure
            assert not member.broker.measures.cleaner_crashes, "a cleaner met an error that nobody expected"


__all__ = ["HeadraceError", "Member", "Trio", "running_trio", "until"]
