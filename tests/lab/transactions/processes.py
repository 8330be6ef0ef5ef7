"""Processes of clients: each a node of the lab that can be killed, paused and cut off, and started again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace_lab.loop import Node

if TYPE_CHECKING:
    from tests.lab.transactions.world import World


class Process:
    """One at a time lives under the name."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.node: Node | None = None
        self.idle = False
        """It has nothing more to do."""

    @property
    def lives(self) -> bool:
        """Also while it is paused."""
        return self.node is not None

    @property
    def paused(self) -> bool:
        return self.node is not None and self.node.paused

    def start(self) -> None:
        """A new process."""
        lab = self.world.cluster.lab
        self.node, self.idle = lab.node(self.name), False
        lab.loop.create_task(self._run(), name=self.name, context=self.node.context.copy())

    def kill(self) -> None:
        """It stops in its midst."""
        if self.node is not None:
            self.world.tell(f"{self.name} is killed")
            node, self.node = self.node, None
            self.world.cluster.lab.network.kill(node)

    async def _run(self) -> None:
        try:
            await self._live()
        except Exception as error:  # noqa: BLE001 - whatever a client breaks with is a find
            self.world.wrong(f"{type(error).__name__}: {self.name}: {error}")

    async def _live(self) -> None:
        raise NotImplementedError

    async def _sleep(self, seconds_max: float) -> None:
        await asyncio.sleep(self.world.random.random() * seconds_max)
