"""What befalls workers: killed, paused, replaced while they sleep, cut off; at any moment, or at a step of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.lab.streams.hosts import Host
from tests.lab.streams.profile import WORKER_SESSION_MS
from tests.lab.streams.steps import STEPS

from headrace.errors import HeadraceError
from headrace_lab.loop import NODE

if TYPE_CHECKING:
    from tests.lab.streams.world import World

AFTER_S: Final = (0.0, 0.003, 0.03)
"""A worker is hurt at most so long after it began a step."""
LOOK_S: Final = 0.05
FIRST_STEPS: Final = ("join", "init", "take", "fence", "fence", "positions read", "ends", "reach")
"""Before a worker feeds anything."""
COMMIT_STEPS: Final = ("send", "prepare", "positions", "commit")
"""While a transaction is open, the last ones without a look at the group."""


class Faults:
    """Calls one method of itself after the other, drawn from the profile."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random

    async def run(self, count: int) -> None:
        """So many, one after the other."""
        profile = self._world.profile
        for _ in range(count):
            await asyncio.sleep(profile.hurt_every_s * (0.3 + 1.4 * self._random.random()))
            name = self._random.choice(profile.faults)
            self._world.counts[f"fault {name}"] += 1
            getattr(self, name)()

    async def keep_running(self) -> None:
        """Whatever happens to workers, others are started until enough work; sometimes late."""
        hosts = self._world.hosts
        while True:
            await asyncio.sleep(LOOK_S * (1 + self._random.choice((0, 1, 10)) * self._random.random()))
            free = [host for host in hosts if not host.lives]
            if free and sum(host.works for host in hosts) < self._world.profile.workers:
                self._random.choice(free).start()

    def notice(self, step: str) -> None:
        """A node begins a step of a worker."""
        node = NODE.get(None)
        host = next((one for one in self._world.hosts if one.node is node), None)
        if host is None or host.doomed is None or host.doomed[0] != step:
            return
        (_, hurt), host.doomed = host.doomed, None
        self._world.tell(f"{host.name} at {step}")
        self._world.counts[f"hurt at {step}"] += 1
        loop = self._world.cluster.lab.loop
        delay = self._random.random() * self._random.choice(AFTER_S)
        loop.call_later(delay, lambda: hurt(host) if host.node is node else None, context=loop.test.context)

    def _doom(self, hurt: Callable[[Host], object]) -> None:
        host = self._living()
        if host is not None:
            host.doomed = (self._random.choice(tuple(STEPS)), hurt)

    def _living(self) -> Host | None:
        working = [host for host in self._world.hosts if host.works]
        return self._random.choice(working) if working else None

    # --- at any moment --------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """kill -9."""
        host = self._living()
        if host is not None:
            host.kill()

    def pause(self) -> None:
        """A zombie: others take over meanwhile."""
        host = self._living()
        if host is not None:
            self._pause(host)

    def _pause(self, host: Host) -> None:
        host.pause(self._random.choice((0.3, 1.0, 3.0, 12.0)) * (0.5 + self._random.random()))

    def twin(self) -> None:
        """One more is started."""
        free = [host for host in self._world.hosts if not host.lives]
        if free:
            self._random.choice(free).start()

    def twin_at(self) -> None:
        """One more is started, and something happens to it before it has taken over."""
        free = [host for host in self._world.hosts if not host.lives]
        if free:
            host = self._random.choice(free)
            host.start()
            hurt = self._random.choice((Host.kill, self._rest, self._rest, self._rest, self._stall))
            host.doomed = (self._random.choice(FIRST_STEPS), hurt)

    def _rest(self, host: Host) -> None:
        host.pause(self._random.random())

    def stop(self) -> None:
        """SIGTERM."""
        host = self._living()
        if host is not None:
            self._world.tell(f"{host.name} is stopped")
            host.stop.set()

    def abort(self) -> None:
        """An operator aborts what a worker has open."""
        self._world.tell("an open transaction is aborted")
        self._aborting = asyncio.create_task(self._abort())

    async def _abort(self) -> None:
        try:
            async with self._world.cluster.admin() as admin:
                listed = await admin.list_transactions(states=["ongoing"])
                for one in listed.transactions[:1]:
                    await admin.abort_transaction(one.transactional_id)
        except HeadraceError:
            self._world.counts["aborts refused"] += 1

    def wipe(self) -> None:
        """A machine without a worker loses its disk."""
        free = [host for host in self._world.hosts if not host.lives]
        if free:
            host = self._random.choice(free)
            self._world.tell(f"{host.name} loses its disk")
            host.disk.wipe()

    def cut(self) -> None:
        """A worker and a node of the cluster do not reach each other for a while."""
        host = self._living()
        if host is None:
            return
        network, loop = self._world.cluster.lab.network, self._world.cluster.lab.loop
        other = self._random.choice(self._world.nodes())
        seconds = self._random.choice((0.3, 1.0, 4.0)) * (0.5 + self._random.random())
        self._world.tell(f"{host.name} is cut off from {other} for {seconds:.1f} s")
        for source, target in ((host.name, other), (other, host.name)):
            network.cut(source, target)
            loop.call_later(seconds, network.mend, source, target, context=loop.test.context)

    # --- at a step ------------------------------------------------------------------------------------------------

    def kill_at(self) -> None:
        """kill -9 in a step."""
        self._doom(Host.kill)

    def pause_at(self) -> None:
        """It stands still in a step."""
        self._doom(self._pause)

    def sleep_at(self) -> None:
        """It stands still with an open transaction, for longer than its session, and wakes up before it times out."""
        host = self._living()
        if host is not None:
            seconds = WORKER_SESSION_MS / 1e3 * (1 + self._random.random())
            host.doomed = (self._random.choice(COMMIT_STEPS), lambda one: one.pause(seconds))

    def reset_at(self) -> None:
        """Its connections break: requests and answers of the step are lost."""
        self._doom(self._reset)

    def _reset(self, host: Host) -> None:
        self._world.tell(f"{host.name} loses its connections")
        for other in self._world.nodes():
            self._world.cluster.lab.network.reset(host.name, other)

    def stall_at(self) -> None:
        """Answers to it come late."""
        self._doom(self._stall)

    def _stall(self, host: Host) -> None:
        seconds = self._random.choice((0.3, 2.0, 6.0)) * self._random.random()
        self._world.tell(f"{host.name} hears nothing for {seconds:.1f} s")
        for connection in list(self._world.cluster.lab.network.connections):
            if connection.client is host.node:
                connection.stall_answers(seconds)
