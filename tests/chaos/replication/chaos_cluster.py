"""The cluster under faults as a fault sees it: who leads, who is active, is everything in sync; and the fault log."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import grpc
from chaos_network import Network
from libs.common.tests.kit.as_node import as_node

from headrace.finding import ClusterAddress
from headrace_cli.local import LocalCluster
from headrace_cli.local.plan import host_of
from headrace_common.rpc.channels import open_channel
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

ASK_SECONDS = 1.0
RACKS = {1: "rack-1", 2: "rack-2", 3: "rack-3"}
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the fault log."""

    at_ns: int
    text: str


@dataclass(slots=True)
class Chaos:
    """What faults act on."""

    cluster: LocalCluster
    topic: str
    partitions: int
    chance: random.Random
    began_ns: int = field(default_factory=time.monotonic_ns)
    lines: list[LogLine] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What is wrong by itself, whatever the checker finds."""
    network: Network | None = None
    stubs: dict[int, BrokerStub] = field(default_factory=dict)

    @staticmethod
    @asynccontextmanager
    async def open(cluster: LocalCluster, topic: str, partitions: int, seed: int) -> AsyncIterator[Chaos]:
        """Channels to all brokers until the end of the block."""
        chaos = Chaos(cluster, topic, partitions, random.Random(seed))
        shown = as_node(cluster.directory.path, asking_for=cluster.authorization, tls=cluster.options.tls)
        channels = {number: open_channel(chaos._inside(number), shown) for number in chaos.addresses}
        chaos.stubs = {number: BrokerStub(channel) for number, channel in channels.items()}
        try:
            yield chaos
        finally:
            for channel in channels.values():
                await channel.close()

    def say(self, text: str) -> None:
        """Into the fault log, and for whoever watches."""
        line = LogLine(time.monotonic_ns(), text)
        self.lines.append(line)
        print(f"  {(line.at_ns - self.began_ns) / 1e9:7.2f}  {text}", file=sys.stderr, flush=True)

    # --- what is there --------------------------------------------------------------------------------------

    @property
    def addresses(self) -> Mapping[int, ClusterAddress]:
        """Broker → where the administrator speaks to it."""
        shown = self.cluster.administrator
        return {number: replace(shown, servers=(address,)) for number, address in enumerate(shown, start=1)}

    def _inside(self, broker: int) -> str:
        """Where nodes speak to it."""
        name = f"broker-{broker}"
        return f"{host_of(self.cluster.options, name)}:{self.cluster.state.ports[f'{name}.internal']}"

    async def described(self, broker: int) -> pb.MetadataResponse | None:
        """The cluster as this broker has it; None when it does not answer."""
        try:
            return await self.stubs[broker].Metadata(
                pb.MetadataRequest(topics=[self.topic]), timeout=ASK_SECONDS, wait_for_ready=False
            )
        except grpc.RpcError:
            return None

    async def newest(self) -> pb.MetadataResponse:
        """The newest that any broker has."""
        while True:
            answers = await asyncio.gather(*(self.described(broker) for broker in self.stubs))
            found = [answer for answer in answers if answer is not None and answer.topics]
            if found:
                return max(found, key=lambda answer: answer.revision)
            await asyncio.sleep(LOOK_SECONDS)

    async def leaders(self) -> dict[int, int]:
        """Partition → leader, -1: none."""
        return {one.partition: one.leader for one in (await self.newest()).topics[0].partitions}

    async def by_leaderships(self) -> list[int]:
        """Brokers, the one that leads most partitions first."""
        counts = Counter((await self.leaders()).values())
        return sorted(self.stubs, key=lambda broker: (-counts[broker], broker))

    async def active_controller(self) -> str:
        """The name of its process."""
        while True:
            active = (await self.newest()).active_controller
            if active.id >= 0 and active.HasField("grpc"):
                return f"controller-{active.id}"
            await asyncio.sleep(LOOK_SECONDS)

    async def topic_id(self) -> bytes:
        """16 bytes."""
        return (await self.newest()).topics[0].topic_id

    # --- waiting --------------------------------------------------------------------------------------------

    async def in_sync(self, timeout_seconds: float) -> float | None:
        """Seconds until every partition has all its replicas in the ISR and a leader; None: not in time."""
        began = time.monotonic()
        while time.monotonic() - began < timeout_seconds:
            topic = (await self.newest()).topics[0]
            whole = [p for p in topic.partitions if p.leader >= 0 and set(p.isr) == set(p.replicas)]
            if len(whole) == self.partitions:
                return time.monotonic() - began
            await asyncio.sleep(LOOK_SECONDS)
        return None

    async def processes_ready(self, timeout_seconds: float = 60) -> None:
        """Until the supervisor says that all run."""
        await asyncio.to_thread(self.cluster.wait_ready, timeout_seconds)

    # --- what faults do -------------------------------------------------------------------------------------

    async def kill(self, *names: str, number: signal.Signals = signal.SIGKILL) -> None:
        """A signal to all these processes at once; returns when they are gone (not for SIGSTOP and SIGCONT)."""
        states = [self.cluster.process(name) for name in names]
        for state in states:
            assert state.identity is not None, f"{state.name} does not run"
            state.identity.signal(number)
        self.say(f"{number.name} {' '.join(names)}")
        if number in (signal.SIGSTOP, signal.SIGCONT):
            return
        for state in states:
            assert state.identity is not None
            gone = await asyncio.to_thread(state.identity.wait_gone, 30.0)
            assert gone, f"{state.name} did not end after {number.name}"

    async def start(self, *names: str) -> None:
        """Start processes of a cluster whose supervisor leaves the dead alone."""
        for name in names:
            await asyncio.to_thread(self.cluster.restart, name)
        self.say(f"start {' '.join(names)}")

    @property
    def net(self) -> Network:
        """The network of a run with cuts."""
        assert self.network is not None, "the plan of this run has no cuts"
        return self.network

    def cut(self, *ways: tuple[str, str]) -> None:
        """Nothing passes on these ways (from, to) any more."""
        for source, target in ways:
            self.net.cut(source, target)
        self.say("cut " + ", ".join(f"{source} → {target}" for source, target in ways))

    def heal_network(self) -> None:
        """All cuts are undone."""
        self.net.heal()
        self.say("the network is whole")
