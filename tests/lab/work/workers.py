"""Workers of a cluster of the lab, each a process of its own: real members of a work group, who do what it says."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.aio import WorkGroup
from headrace.errors import FencedInstanceId, HeadraceError
from headrace.work_types import Declaration, GivenItem, WorkChange
from headrace_lab.loop import Node

if TYPE_CHECKING:
    from tests.lab.work.world import World

GROUP: Final = "work"
TURN_S: Final = 0.1
LAG: Final = 400
"""Of who begins to follow an item; it catches up by a third with each turn."""


class Worker:
    """One place; ``start`` makes a new process of it."""

    def __init__(self, number: int, world: World) -> None:
        self.number = number
        self.world = world
        self.node: Node | None = None
        self.group: WorkGroup | None = None
        self.doing: dict[str, int] = {}
        """Items -> epochs, of the present process."""
        self.version = 0
        self.closing = self.gone = self.paused = False

    @property
    def name(self) -> str:
        """Of its node."""
        return f"worker-{self.number}"

    def start(self, instance_id: str | None = None) -> None:
        """A new process, and a new membership."""
        lab = self.world.cluster.lab
        self.node, self.group, self.doing = lab.node(self.name), None, {}
        self.closing = self.paused = False
        self.lags: dict[str, int] = {}
        self.instance_id = instance_id or f"at-{self.number}"
        declaration = self.world.profile.declarations[self.version]
        coroutine = self._live(declaration, self.doing)
        task = lab.loop.create_task(coroutine, name=self.name, context=self.node.context.copy())
        task.add_done_callback(partial(self._ended, self.node))

    def die(self) -> None:
        """Killed. What it had open stays open."""
        node, self.node, self.doing = self.node, None, {}
        if node is not None:
            self.world.cluster.lab.network.kill(node)

    def _ended(self, node: Node, task: asyncio.Task[None]) -> None:
        if node.alive and not task.cancelled() and (error := task.exception()) is not None:
            self.world.tell(f"crash: {self.name}: {type(error).__name__}: {error}")
        if self.node is node:
            self.die()

    # --- the application ------------------------------------------------------------------------------------------

    async def _live(self, declaration: Declaration, doing: dict[str, int]) -> None:
        settings: dict[str, Any] = {"group_instance_id": self.instance_id, "transactional_id_prefix": "app"}
        servers = self.world.cluster.address
        group = self.group = WorkGroup(GROUP, declaration, servers, default_api_timeout_ms=15_000, **settings)
        while not self.closing:
            try:
                change = await group.poll(timeout_ms=int(TURN_S * 1_000))
            except FencedInstanceId:
                self.world.counts["workers replaced"] += 1
                break
            except HeadraceError as error:
                self.world.counts[f"application: {type(error).__name__}"] += 1
                continue
            if change is not None:
                await self._change(group, doing, change)
            self._catch_up(group)
            for item, epoch in doing.items():
                self.world.target.write(item, epoch, group.member_id)
        for item in list(doing):
            self._stop(group, doing, item)
        await group.close()

    async def _change(self, group: WorkGroup, doing: dict[str, int], change: WorkChange) -> None:
        """What is lost has its transaction open until the worker has heard of it."""
        tid = group.transactional_id or ""
        for given in change.assigned:
            self.world.target.take(given, tid)
            self._end(group, given)
            doing[given.id] = given.epoch
            self.lags.pop(given.id, None)
        for given in change.raised:
            doing[given.id] = given.epoch
            self._end(group, given)
        follows = change.standby | change.warm_up
        if not change.lost:
            self.lags = {item: self.lags.get(item, LAG) for item in follows}
        if stopping := change.revoked | change.lost:
            await asyncio.sleep(self.world.rng.random() * self.world.profile.give_up_s)
        for item in stopping:
            self._stop(group, doing, item)

    def _end(self, group: WorkGroup, given: GivenItem) -> None:
        """End what earlier owners left open."""
        self.world.target.end(given.unended)
        if given.unended:
            group.report(ended=given.unended)

    def _stop(self, group: WorkGroup, doing: dict[str, int], item: str) -> None:
        if doing.pop(item, None) is not None:
            self.world.target.let_go(item)
        group.give_up(item)

    def _catch_up(self, group: WorkGroup) -> None:
        if any(self.lags.values()):
            self.lags = {item: lag // 3 for item, lag in self.lags.items()}
            group.report(lags=self.lags)
