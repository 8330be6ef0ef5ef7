"""
Groups in one process, from one seed: real coordinators, brokers, a controller and consumers, and what goes wrong.

A quiet start, faults, healing; then every shard moves, and for the members nothing has happened; then one member joins,
and nobody else gets anything; then every commit has its answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, Final
from unittest.mock import patch

from tests.lab.groups.faults import Faults
from tests.lab.groups.members import Member
from tests.lab.groups.operators import Operator
from tests.lab.groups.profile import GroupProfile, Profile, draw
from tests.lab.groups.seen import Membership
from tests.lab.groups.watch import Recorded, Watch, epoch_of
from tests.lab.kind import Outcome
from tests.lab.opening import measure, open_cluster

from headrace._core.phases import Phase
from headrace._transport.grpc import GrpcTransport
from headrace.consumer_settings import CLASSIC
from headrace.errors import NetworkFailed, RequestTimedOut
from headrace_common.core.ids import TopicPartition
from headrace_coordinator.adapters.broker_connections import BrokerConnections
from headrace_coordinator.core.records import ClassicRecord
from headrace_coordinator.core.values import GroupState, MemberState
from headrace_lab.cluster import Cluster
from headrace_lab.loop import NODE
from headrace_proto.v1.coordinator_pb2 import CommitOffsetsRequest

CALM_S_MAX: Final = 120.0
SETTLE_S: Final = 8.0
"""Broken streams that nobody has noticed are noticed by then."""
LOOK_S: Final = 0.1
LATE_S: Final = 8.0
"""A copy of an append arrives at most so much later."""
HELD_S: Final = 3.0
"""A commit is late by at most so much."""
FOUND_MAX: Final = 10


class World:
    """Everything of one seed."""

    def __init__(self, cluster: Cluster, rng: Random, profile: Profile, watch: Watch) -> None:
        self.cluster = cluster
        self.rng = rng
        self.profile = profile
        self.watch = watch
        self.counts: Counter[str] = Counter()
        self.story: list[str] = [str(profile)]
        self.brokers = list(range(1, profile.brokers + 1))
        self.coordinators = list(range(1, profile.coordinators + 1))
        self.paused: set[int] = set()
        """Coordinators."""
        self.members: list[Member] = []
        self.topics: dict[str, int] = {}
        """Those there are to be, and how many partitions they have."""
        self.quiet = False
        """Nobody looks at positions any more."""
        self.operator = Operator(self)

    def say(self, text: str) -> None:
        """For the story."""
        self.story.append(f"{asyncio.get_running_loop().time():.3f} {text}")

    # --- nodes ----------------------------------------------------------------------------------------------------

    def start_coordinator(self, number: int) -> None:
        """Unless it runs."""
        if not self.cluster.runs(coordinator=number):
            self.say(f"coordinator {number} starts")
            self.paused.discard(number)
            self.cluster.restart(coordinator=number)

    def resume_coordinator(self, number: int) -> None:
        """If it is paused."""
        if number in self.paused and self.cluster.runs(coordinator=number):
            self.say(f"coordinator {number} goes on")
            self.cluster.resume(coordinator=number)
        self.paused.discard(number)

    def start_broker(self, number: int) -> None:
        """Unless it runs."""
        if not self.cluster.runs(number):
            self.say(f"broker {number} starts")
            self.cluster.restart(number)

    def mend(self, pairs: Sequence[tuple[str, str]]) -> None:
        """These ways are whole again."""
        network = self.cluster.lab.network
        for source, target in pairs:
            network.between(source, target).cut = False
        for connection in list(network.connections):
            connection.go_on()

    # --- members --------------------------------------------------------------------------------------------------

    def add_member(self, group: GroupProfile) -> Member:
        """One more process."""
        number = len(self.members) + 1
        instance_id = f"i{number}" if self.rng.random() < group.static_share else None
        return self._add(group, instance_id)

    def twin_of(self, member: Member) -> Member:
        """A second one that has the same name."""
        return self._add(member.group, member.instance_id)

    def _add(self, group: GroupProfile, instance_id: str | None) -> Member:
        seeks_back = self.profile.seeks_back and self.rng.random() < 0.5
        number = len(self.members) + 1
        member = Member(
            number,
            self.cluster,
            self.rng,
            group,
            self.named_topics,
            instance_id,
            seeks_back,
            self.counts,
            self.watch.tell,
        )
        self.members.append(member)
        self.keep_delays()
        return member

    def keep_delays(self) -> None:
        """Messages between consumers and coordinators take what they usually take."""
        network, delay_s = self.cluster.lab.network, (0.0001, self.profile.delay_s)
        for member in self.members:
            for number in self.coordinators:
                network.between(member.name, f"coordinator-{number}").delay_s = delay_s
                network.between(f"coordinator-{number}", member.name).delay_s = delay_s

    def named_topics(self) -> list[str]:
        """What consumers subscribe to that have no pattern: those of the start that are there still."""
        return [name for name in (f"t{n}" for n in range(len(self.profile.topics))) if name in self.topics]

    def is_crowded(self) -> bool:
        """Whether there are as many as there may be."""
        return len([m for m in self.members if not m.gone]) >= self.profile.consumers_max

    def members_of(self, group: GroupProfile) -> list[Member]:
        """Those that live."""
        return [m for m in self.members if m.group is group and m.up]

    def start_again(self, member: Member) -> None:
        """Unless it runs, or is gone for good."""
        if not member.up and not member.gone:
            member.start()

    def resume(self, member: Member, incarnation: int) -> None:
        """If it is paused, in that process."""
        if member.paused and member.incarnation == incarnation and member.node is not None:
            member.paused = False
            self.cluster.lab.loop.resume(member.node)

    # --- the life of a world --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """All of it; what does not hold is told."""
        await self.operator.prepare()
        for group in self.profile.groups:
            for _ in range(self.profile.consumers):
                self.add_member(group).start()
        if not await self._until(self._why, "start"):
            return
        faults = Faults(self)
        self.say("faults begin")
        await faults.run()
        faults.heal()
        self.say("all is healed")
        if not await self._until(self._why, "liveness"):
            return
        await asyncio.sleep(SETTLE_S)
        if await self._until(self._why, "liveness") and await self._move() and await self._grow():
            for member in self.members:
                member.quiet = True
            await self._until(self._unanswered, "liveness")
            self.watch.last_look()

    async def _until(self, why: Callable[[], str], name: str) -> bool:
        """Wait until nothing is missing."""
        loop = asyncio.get_running_loop()
        end = loop.time() + CALM_S_MAX
        while text := why():
            if loop.time() > end:
                self.watch.tell(f"{name}: not within {CALM_S_MAX:.0f} s: {text}")
                return False
            await asyncio.sleep(LOOK_S)
        return True

    def _why(self) -> str:
        """What is still missing; empty: every group is stable and shares all partitions."""
        for group in self.profile.groups:
            missing = self._missing(group)
            if missing:
                return f"{group.name}: {missing}"
        return ""

    def _memberships(self, group: GroupProfile) -> list[Membership]:
        return self.watch.members.alive(group.name)

    def _missing(self, group: GroupProfile) -> str:
        record, members = self.watch.record(group.name), self.members_of(group)
        for member in members:
            if member.gone or member.closing:
                return f"{member.name} is about to end"
        found = self._memberships(group)
        if len(found) != len(members):
            return f"{len(found)} of {len(members)} have begun"
        for one in found:
            core = one.group.core
            if core.phase is not Phase.MEMBER or core.rebalancing:
                return f"{one.node} is {core.phase.name} and holds {sorted(core.holdings.held)}"
        if not members:
            return "" if record is None or not record.members else f"nobody lives, but the log has {record}"
        if record is None or {m.member_id for m in record.members} != {one.group.core.member_id for one in found}:
            return f"the log has other members: {record}"
        if not _is_settled(record) or any(epoch_of(record) != one.group.core.generation for one in found):
            return f"the log says that it is not over: {record}"
        held = [tp for one in found for tp in one.group.core.holdings.held]
        wanted = self.topics if group.by_pattern else {name: self.topics[name] for name in self.named_topics()}
        all_ = {TopicPartition(t, n) for t, size in wanted.items() for n in range(size)}
        if len(held) != len(set(held)) or set(held) != all_:
            return f"held are {sorted(held)} of {sorted(all_)}"
        return ""

    async def _move(self) -> bool:
        """All shards of one coordinator move, as it leaves or is killed: for members nothing has happened."""
        began = asyncio.get_running_loop().time()
        before = {one: one.group.core.generation for g in self.profile.groups for one in self._memberships(g)}
        number = self.rng.choice(self.coordinators)
        self.counts["calm moves"] += 1
        if self.rng.random() < 0.5:
            self.say(f"coordinator {number} is stopped")
            await self.cluster.stop(coordinator=number)
        else:
            self.say(f"coordinator {number} dies")
            self.cluster.kill(coordinator=number)
        await asyncio.sleep(SETTLE_S)
        self.start_coordinator(number)
        await asyncio.sleep(2.0)
        if not await self._until(self._why, "liveness"):
            return False
        for one, generation in before.items():
            if not one.node.alive:
                continue
            lost = [tp for tp, since in one.kept_since.items() if since > began]
            if lost or one.group.core.generation != generation:
                text = f"{one.node} was in {generation}, is in {one.group.core.generation}, was without {lost}"
                self.watch.tell(f"felt-the-move: {text}")
        return True

    async def _grow(self) -> bool:
        """One more member in each group: nobody but it gets anything new, and what stays is never given up."""
        began = asyncio.get_running_loop().time()
        before = {one: one.group.core.holdings.held for g in self.profile.groups for one in self._memberships(g)}
        for group in self.profile.groups:
            if self.members_of(group):
                self.add_member(group).start()
        await asyncio.sleep(0.6)
        if not await self._until(self._why, "growth"):
            return False
        for group in self.profile.groups:
            for one in self._memberships(group):
                if one in before:
                    self._check_growth(group, one, before[one], began)
        return True

    def _check_growth(
        self, group: GroupProfile, one: Membership, before: frozenset[TopicPartition], began: float
    ) -> None:
        held = one.group.core.holdings.held
        if group.sticks and not held <= before:
            self.watch.tell(f"moved-too-much: {one.node} got {sorted(held - before)} when another one joined")
        gaps = [tp for tp in held & before if one.kept_since[tp] > began]
        if group.protocol == CLASSIC:  # one assignment may take away what the next gives back
            gaps = [tp for tp in gaps if one.taken_away.get(tp, 0.0) < began]
        if group.keeps and gaps:
            self.watch.tell(f"given-up-needlessly: {one.node} was without {sorted(gaps)} for a while")

    def _unanswered(self) -> str:
        return next(
            (f"{m.name} has {m.pending} commits without an answer" for m in self.members if m.up and m.pending), ""
        )


@contextmanager
def bad_connections(world: World) -> Iterator[None]:
    """Copies of appends arrive again later, answers to them are lost, and commits hang, as the world has it."""
    produced, called = BrokerConnections.produce, GrpcTransport.group_call

    async def produce(connections: BrokerConnections, at: Any, entry: Any, timeout_ms: int) -> Any:
        copies = 0.0 if world.quiet else world.profile.copies
        if world.rng.random() < copies:
            context = NODE.get().context.copy()
            asyncio.get_running_loop().create_task(late(connections, at, entry, timeout_ms), context=context)
        answer = await produced(connections, at, entry, timeout_ms)
        if world.rng.random() < copies:
            raise NetworkFailed("the connection broke before the answer came")
        return answer

    async def late(connections: BrokerConnections, at: Any, entry: Any, timeout_ms: int) -> None:
        await asyncio.sleep(world.rng.random() * LATE_S)
        try:
            await produced(connections, at, entry, timeout_ms)
        except Exception:  # noqa: BLE001 - nobody waits for it
            world.counts["late copies refused"] += 1

    def group_call(transport: Any, method: Any, request: Any) -> Any:
        call = called(transport, method, request)
        return call if not isinstance(request, CommitOffsetsRequest) else partial(commit, call)

    async def commit(call: Any, coordinator: Any, timeout_ms: float) -> Any:
        name, loop = NODE.get().name, asyncio.get_running_loop()
        member = next((m for m in world.members if m.name == name), None)
        wait_s = 0.0 if member is None else member.held_until - loop.time()
        if member is not None and not member.calm and world.rng.random() < world.profile.late_commits:
            wait_s = max(wait_s, world.rng.random() * HELD_S)
        if wait_s > 0:
            await asyncio.sleep(min(wait_s, timeout_ms / 1_000))
            if wait_s >= timeout_ms / 1_000:
                raise RequestTimedOut("the request hung")
        return await call(coordinator, timeout_ms)

    with (
        patch.object(BrokerConnections, "produce", produce),
        patch.object(GrpcTransport, "group_call", group_call),
    ):
        yield


async def play(seed: int) -> Outcome:
    """One run; it ends early where something does not hold."""
    rng = Random(seed)
    profile = draw(rng)
    found: list[str] = []
    changed = asyncio.Event()

    def tell(text: str) -> None:
        found.append(text)
        changed.set()

    watch = Watch(tell, profile.shards)
    with watch.watching():
        configs, brokers, coordinators = profile.configs(), profile.brokers, profile.coordinators
        async with open_cluster(seed, configs, brokers=brokers, coordinators=coordinators) as cluster:
            world = World(cluster, rng, profile, watch)
            with bad_connections(world):
                running = asyncio.create_task(world.run())
                running.add_done_callback(lambda _: changed.set())
                await changed.wait()
                if not found:
                    running.result()
            for member in world.members:
                member.die()
            steps, seconds = measure(cluster)
            return Outcome(found[:FOUND_MAX], world.story, steps, seconds, world.counts)


def _is_settled(record: Recorded) -> bool:
    if isinstance(record, ClassicRecord):
        return record.state is GroupState.STABLE
    return all(m.epoch == record.group_epoch and m.state is MemberState.STABLE for m in record.members)
