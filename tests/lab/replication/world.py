"""
One run of brokers and controllers under faults, from one seed: the real engines, with clients that write, operators,
and a ghost that looks into all of them after every step.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

import grpc.aio
from tests.lab.kind import Outcome
from tests.lab.opening import measure, open_cluster
from tests.lab.replication.clients import NOW_MS, Client, Sent, all_answered
from tests.lab.replication.faults import Faults
from tests.lab.replication.ghost import Ghost
from tests.lab.replication.profile import Profile
from tests.lab.replication.verdicts import Verdicts, asked
from tests.lab.replication.writers import take_over
from tests.lab.watch import Process

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core.partition import Partition as Core
from headrace_broker.core.rows import LogWrite
from headrace_broker.engine.image_applier import ImageApplier
from headrace_common.core.batch import BatchHeader, RecordColumns, build_batch
from headrace_common.core.features import REQUIRED_FENCES
from headrace_common.core.ids import NO_NODE, PartitionId
from headrace_common.core.image import ClusterImage
from headrace_common.rpc.channels import Channels, Security
from headrace_common.rpc.node_gate import NODE_KEY, TOKEN_KEY
from headrace_controller.adapters.memory_store import MemoryStore
from headrace_controller.core.store import Transaction
from headrace_lab.cluster import Cluster
from headrace_lab.nodes import address
from headrace_proto.v1 import controller_pb2
from headrace_proto.v1.controller_pb2_grpc import ControllerStub

STEPS = 4_000
LOOK_S = 0.05
READY_S_MAX = 30.0
CALM_S_MAX = 40.0
QUIET_S = 1.0
"""So long after healing producers end."""
FIRST_PRODUCER = 201


@dataclass(eq=False)
class World:
    """Everything of one seed."""

    cluster: Cluster
    profile: Profile
    random: Random
    ghost: Ghost
    problems: list[str]
    kind: Kind
    counts: Counter[str] = field(default_factory=Counter)
    story: list[str] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    calm: bool = False
    last_token: int = 0
    store_slow_until_s: float = 0.0
    """Until then most transactions of the metadata take long."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        token = self.cluster.token.read_text().split()[0]
        self.channels: Channels[str] = Channels(Security(lambda _: ((NODE_KEY, "admin-1"), (TOKEN_KEY, token))))
        self.brokers = list(range(1, self.profile.brokers + 1))
        self.faults = Faults(self)
        self.ghost.on_joined = lambda process, id: self.faults.unsound.get(process.id, set()).discard(id)
        self.ghost.on_disorder = self._disorder
        self.ghost.on_fenced = self._fenced
        self.verdicts = Verdicts(self)
        self.ghost.verdict_of = self.verdicts.verdict_of
        self.ghost.required = self.profile.required
        self.cluster.on_crash = self._crashed

    # --- what the others ask ------------------------------------------------------------------------------

    def say(self, what: str) -> None:
        """Note what happens, for the story."""
        self.story.append(f"{asyncio.get_running_loop().time():8.3f} {what}")

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done beside all else."""
        self.tasks.append(asyncio.create_task(work))

    def begin(self, client: Client) -> None:
        """One more client."""
        self.clients.append(client)
        self.spawn(client.run())

    def next_token(self, number: int) -> int:
        """Above all before it, for the writer of this number."""
        self.last_token += 1
        self.ghost.holders[self.last_token] = number
        return self.last_token

    def batch(self, count: int, producer: int, epoch: int, sequence: int, *, transactional: bool = False) -> bytes:
        """What a producer sends."""
        if self.kind.make_batch is not None:
            return self.kind.make_batch(count, producer, epoch, sequence)
        return build_batch(
            RecordColumns([b"v"] * count, timestamps_ms=NOW_MS),
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )

    def leader_by_hearsay(self, id: PartitionId) -> tuple[int, int]:
        """What a client finds out: from a broker that it asks, as old as that broker's image."""
        process = self.ghost.process_of(self.random.choice(self.brokers))
        partition = None if process is None else process.replicas.image.partitions.get(id)
        return (NO_NODE, -1) if partition is None else (partition.leader, partition.leader_epoch)

    def acknowledged(self, client: Client, one: Sent, base: int) -> None:
        """A client was told that a batch is committed; then it is."""
        self.counts["batches acknowledged"] += 1
        truth = self.ghost.truth(client.partition)
        found = truth.batches.get(base)
        wanted = (client.number, client.epoch, one.sequence)
        if one.sequence >= 0 and (found is None or found[3:] != wanted):
            self.problems.append(f"acknowledged: {wanted} at {base}, committed is {found} of {truth.end}")

    def _crashed(self, name: str, error: BaseException) -> None:
        """No fault of these worlds is one that a process ends by."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        self.problems.append(f"crash: {name}: {type(error).__name__}: {error} in {last.name} of {last.filename}")

    def _disorder(self, process: Process, core: Core, header: BatchHeader) -> None:
        """A batch whose predecessors were all acknowledged cannot be out of order at the true leader."""
        partition = self.ghost.partitions()[core.id]
        if partition.leader != process.id or partition.leader_epoch != core.leader_epoch:
            return
        for client in self.clients:
            same = (client.number, client.epoch) == (header.producer_id, header.producer_epoch) and client.acks != 1
            same = same and client.transactional_id is None  # where its first records are deleted it has to begin anew
            first = client.sent[0].sequence if client.sent else None
            if same and first == header.base_sequence and client.partition == core.id:
                self.ghost.wrong("sequence lost", process, core, f"{first} of {client.number}")

    def _fenced(self, process: Process, core: Core, header: BatchHeader, place: int) -> None:
        """Whoever waits for a batch that is committed, from before a fence, is not told that it is not there."""
        for client in self.clients:
            waits = any(one.sequence == header.base_sequence for one in client.sent)
            if waits and (client.number, client.epoch) == (header.producer_id, header.producer_epoch):
                text = f"{header.base_sequence} of {client.number} is at {place} and was refused for its token"
                self.ghost.wrong("untrue refusal", process, core, text)

    # --- the whole life ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """A quiet start, faults, and at times healing."""
        await self.until(lambda: self._unfenced() == len(self.brokers), READY_S_MAX, "start")
        await self._create_topic()
        for id in sorted(self.ghost.partitions()):
            for turn in range(2):
                acks = 1 if turn and self.profile.acks_one else -1
                self.begin(Client(FIRST_PRODUCER + len(self.clients), id, self, acks))
            if self.profile.writers:
                self.spawn(take_over(id, self))
        if self.profile.transactions:
            self.spawn(self.verdicts.time_out())
        if self.kind.script is not None:
            await self.kind.script(self)
            return
        self.spawn(self.faults.run())
        stop = measure(self.cluster)[0] + STEPS
        while measure(self.cluster)[0] < stop and not self.problems:
            await asyncio.sleep(LOOK_S)
        if self.profile.heals and not self.problems:
            await self._heal()

    async def _create_topic(self) -> None:
        configs = {"min.insync.replicas": str(self.profile.min_isr), **self.kind.topic_configs}
        if self.profile.required:
            await self.until(self._may_require, READY_S_MAX, "feature level")
            configs["fencing.required"] = "true"
        topic = controller_pb2.NewTopic(
            name="t",
            partition_count=self.profile.partitions,
            replication_factor=self.profile.replicas,
            configs=configs,
        )
        request = controller_pb2.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        for number in range(1, self.profile.controllers + 1):
            stub = ControllerStub(self.channels.to(str(address(f"controller-{number}"))))
            try:
                await stub.CreateTopics(request, timeout=10)
            except grpc.aio.AioRpcError:
                continue
        await self.until(lambda: len(self.ghost.partitions()) == self.profile.partitions, READY_S_MAX, "topic")

    def _may_require(self) -> bool:
        processes = (self.ghost.process_of(broker) for broker in self.brokers)
        return any(one is not None and one.replicas.image.has(REQUIRED_FENCES) for one in processes)

    async def _heal(self) -> None:
        self.faults.heal()
        self.calm = True
        await asyncio.sleep(QUIET_S)
        for client in self.clients:
            client.done = True
        await self.until(lambda: not self.why(), CALM_S_MAX, "liveness", self.why)

    async def until(
        self, condition: Callable[[], object], seconds: float, name: str, why: Callable[[], str] = str
    ) -> None:
        """Wait for it; that it does not come within so many seconds is a problem."""
        end = asyncio.get_running_loop().time() + seconds
        while not condition() and not self.problems:
            if asyncio.get_running_loop().time() > end:
                self.problems.append(f"{name}: not within {seconds:.0f} s: {why()}")
                return
            await asyncio.sleep(LOOK_S)

    def _unfenced(self) -> int:
        return sum(not node.fenced for node in self.ghost.nodes().values())

    def why(self) -> str:
        """What is still missing after healing; empty: nothing."""
        for id, partition in self.ghost.partitions().items():
            if partition.leader == NO_NODE:
                return f"nobody leads {partition}"
            if set(partition.isr) != set(partition.replicas):
                return f"not all are in sync: {partition}"
            if partition.adding or partition.removing:
                return f"the reassignment does not end: {partition}"
            process = self.ghost.process_of(partition.leader)
            replica = None if process is None else process.replicas.get(id)
            if replica is None or replica.core.leader_epoch != partition.leader_epoch:
                return f"the leader does not know of {partition}"
            if replica.core.leading is None or replica.core.leading.pending is not None:
                return f"a proposal is not decided: {partition}"
            if all_answered(self.clients) and replica.core.high_watermark != replica.core.log_end:
                return f"high watermark {replica.core.high_watermark} of {replica.core.log_end}: {partition}"
            if all_answered(self.clients) and replica.core.last_stable != replica.core.log_end:
                return f"last stable {replica.core.last_stable} of {replica.core.log_end}: {partition}"
        if unfinished := self.verdicts.describe_unfinished():
            return unfinished
        waiting = [client.number for client in self.clients if client.sent and not client.over]
        return f"clients {waiting} have no answer" if waiting else ""


@contextmanager
def late_images(profile: Profile, random: Random, world: Callable[[], World | None]) -> Iterator[None]:
    """Brokers take images in a little later than they hear of them, and some much later."""
    take = ImageApplier.take

    async def taken(self: ImageApplier, image: ClusterImage) -> None:
        present = world()
        if present is not None:
            delay = random.random() * profile.image_delay_s
            if not present.calm and random.random() * profile.image_slow_one_in < 1:
                delay += random.random() * 2.0
            await asyncio.sleep(delay)
        await take(self, image)

    with patch.object(ImageApplier, "take", taken):
        yield


@contextmanager
def slow_store(profile: Profile, random: Random, world: Callable[[], World | None]) -> Iterator[None]:
    """Transactions of the metadata take a while to get there, and some a long while."""
    commit = MemoryStore.commit

    async def committed(self: MemoryStore, transaction: Transaction) -> Any:
        present = world()
        if present is not None:
            delay = random.random() * profile.store_s
            slow = asyncio.get_running_loop().time() < present.store_slow_until_s
            if not present.calm and random.random() < (0.5 if slow else 0.05):
                delay += random.random()
            await asyncio.sleep(delay)
        return await commit(self, transaction)

    with patch.object(MemoryStore, "commit", committed):
        yield


@contextmanager
def stalling_stores(profile: Profile, random: Random, world: Callable[[], World | None]) -> Iterator[None]:
    """Stores of brokers are behind at times, and take nothing in for up to a fifth of a second."""
    write = MemoryLogs.write

    def written(self: MemoryLogs, writes: Sequence[LogWrite]) -> None:
        present = world()
        if present is not None and not present.calm and self.stalls == 0 and random.random() < profile.stall_share:
            self.stalls = random.randint(1, 10)
        write(self, writes)

    with patch.object(MemoryLogs, "write", written):
        yield


async def play(seed: int) -> Outcome:
    """One run."""
    random = Random(seed)
    return await play_in(seed, Profile.drawn(random), random, Kind())


@dataclass(frozen=True)
class Kind:
    """What a kind of world has besides."""

    ghost: Callable[[Callable[[str], None]], Ghost] = Ghost
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Of brokers' settings."""
    make_batch: Callable[[int, int, int, int], bytes] | None = None
    script: Callable[[World], Awaitable[None]] | None = None
    """What is done to the cluster, in place of faults."""


async def play_in(seed: int, profile: Profile, random: Random, kind: Kind) -> Outcome:
    """One run in a world of this profile."""
    problems: list[str] = []
    ghost = kind.ghost(problems.append)
    worlds: list[World] = []
    with ExitStack() as stack:
        for each in (late_images, slow_store, stalling_stores):
            stack.enter_context(each(profile, random, lambda: worlds[0] if worlds else None))
        stack.enter_context(asked(random, lambda: worlds[0] if worlds else None))
        stack.enter_context(profile.in_force(kind.defaults))
        stack.enter_context(ghost.watching())
        # Open: its clients make up their producer ids, by which the ghost knows them, and a closed cluster takes none
        # that it has not given out.
        brokers, controllers = profile.brokers, profile.controllers
        async with open_cluster(
            seed, profile.configs(), brokers=brokers, controllers=controllers, admins=0, closed=False
        ) as cluster:
            cluster.lab.network.delay_s, cluster.lab.network.hiccup = profile.network_s, profile.hiccup
            for broker in range(1, profile.brokers + 1):
                cluster.disk(broker).slow(*profile.sync_s)
            world = World(cluster, profile, random, ghost, problems, kind)
            worlds.append(world)
            await asyncio.create_task(world.run())
            steps, seconds = measure(cluster)
            world.counts["messages"] = cluster.lab.network.messages
            return Outcome(problems[:10], [str(profile), *world.story], steps, seconds, dict(world.counts))
