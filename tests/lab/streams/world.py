"""
A program of Streams under faults, from one seed: what it has written in the end is what one naive pass over
its input says, each row once; its state is its changelog; its positions are those of its state.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from random import Random
from typing import Final
from unittest.mock import patch

from tests.lab.faults import Faults as ClusterFaults
from tests.lab.kind import Outcome
from tests.lab.opening import measure, open_cluster
from tests.lab.streams.ending import OUT_PARTITIONS, Ending, read_input
from tests.lab.streams.faults import Faults
from tests.lab.streams.hosts import Host
from tests.lab.streams.markers import late_markers
from tests.lab.streams.profile import Profile
from tests.lab.streams.programs import LATE, LINES, OUT, PROGRAMS, Program
from tests.lab.streams.source import Source
from tests.lab.streams.steps import noticed
from tests.lab.transactions.echoes import Echoes

from headrace.finding import API_KEY_VARIABLE
from headrace_lab.cluster import Cluster

HOSTS: Final = 4
LOOK_S: Final = 0.1
STOP_S_MAX: Final = 60.0


class World:
    """Of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.profile = Profile.drawn(self.random)
        self.program: Program = PROGRAMS[self.profile.program]()
        self.problems: list[str] = []
        self.story: list[str] = []
        self.counts: Counter[str] = Counter()
        self.hosts = [Host(self, number) for number in range(1, HOSTS + 1)]
        self.cluster: Cluster

    def wrong(self, text: str) -> None:
        """Something does not hold."""
        self.problems.append(text)

    def tell(self, what: str) -> None:
        """For the story."""
        self.story.append(f"{self.cluster.lab.loop.time():.3f} {what}")

    def nodes(self) -> list[str]:
        """Those that a worker speaks to."""
        brokers = [f"broker-{n}" for n in range(1, self.profile.brokers + 1)]
        return brokers + [f"coordinator-{n}" for n in range(1, self.profile.coordinators + 1)]

    # --- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Faults, healing, and the last look; it ends early where a worker found something."""
        profile, faults = self.profile, Faults(self)
        with noticed(faults.notice), patch.dict(os.environ):
            async with open_cluster(
                self.seed, profile.configs(), brokers=profile.brokers, coordinators=profile.coordinators
            ) as self.cluster:
                assert self.cluster.key is not None, "it is closed"
                os.environ[API_KEY_VARIABLE] = self.cluster.key.reveal()  # settings of workers have addresses alone
                life = asyncio.create_task(self._live(faults))
                while not life.done() and not self.problems:
                    await asyncio.wait([life], timeout=LOOK_S)
                if life.done():
                    life.result()
                steps, seconds = measure(self.cluster)
        return Outcome(self.problems[:10], [str(profile), *self.story], steps, seconds, self.counts)

    async def _live(self, faults: Faults) -> None:
        async with self.cluster.admin() as admin:
            await admin.alter_configs(self.profile.settings())
        least = str(min(2, self.profile.brokers))
        await self.cluster.create_topic(LINES, self.profile.partitions, min_insync_replicas=least)
        for topic in (OUT, LATE):
            await self.cluster.create_topic(topic, OUT_PARTITIONS, min_insync_replicas=least)
        source = Source(self)
        running = asyncio.create_task(faults.keep_running())
        writing = asyncio.create_task(source.run())
        await self._befall(faults)
        source.quiet = True
        await writing
        ending = Ending(self, await read_input(self))
        await ending.wait()
        running.cancel()
        if not self.problems and await self._stopped():
            await ending.judge([host.disk for host in self.hosts])

    async def _befall(self, faults: Faults) -> None:
        profile = self.profile
        of_cluster = ClusterFaults(self.cluster, self.random, profile.brokers, profile.coordinators)
        echoes = Echoes(self.cluster.lab.network, self.random, profile.doubled)
        with echoes.heard(), late_markers(self.random, profile.markers_s):
            async with asyncio.TaskGroup() as group:
                group.create_task(of_cluster.run(profile.befalls))
                group.create_task(faults.run(profile.hurts))
        self.counts["requests heard twice"] += echoes.count
        self.story += of_cluster.names
        self.tell("everything works again")
        for host in self.hosts:
            host.doomed = None
            if host.node is not None:
                self.cluster.lab.loop.resume(host.node)

    async def _stopped(self) -> bool:
        """Whether all workers have ended as they should."""
        if not any(host.lives for host in self.hosts):
            self.wrong("liveness: no worker runs")
            return False
        for host in self.hosts:
            host.stop.set()
        end = asyncio.get_running_loop().time() + STOP_S_MAX
        while any(host.lives for host in self.hosts):
            await asyncio.sleep(LOOK_S)
            if asyncio.get_running_loop().time() > end:
                self.wrong(f"liveness: {[host.name for host in self.hosts if host.lives]} do not stop")
                return False
        return True


async def play(seed: int) -> Outcome:
    """One seed."""
    return await World(seed).run()
