"""Which certificates the nodes show: asked of every node, and of this process; remembered for the status."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from headrace_admin.core.ending import Ending, find_ending
from headrace_admin.ports import Cluster, Nodes
from headrace_common.core.errors import HeadraceError
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.core.served_certificates import Served
from headrace_common.runtime.clock import Clock, limit_ms

REMEMBERED_MS: Final = 60_000.0
"""How long the status goes by what a node has told."""
_AT_ONE_TIME: Final = 16
_ASK_MS_MAX: Final = 3_000


@dataclass(frozen=True, slots=True)
class Told:
    """What one node has told."""

    node: NodeKey
    served: tuple[Served, ...] = ()
    error: str = ""
    """Empty: it has answered."""


class NodeCertificates:
    """Any number of calls at one time on one event loop."""

    def __init__(self, cluster: Cluster, nodes: Nodes, clock: Clock) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._clock = clock
        self._known: dict[NodeKey, tuple[bytes, float, tuple[Served, ...]]] = {}
        """By node: its incarnation, when it was asked, and what it told."""

    async def here(self, *, look: bool) -> Told:
        """This process alone."""
        return Told(self._nodes.key, await self._nodes.own(look=look))

    async def gather(self, *, look: bool) -> list[Told]:
        """All registered nodes, by name, and why some do not tell; ``look``: they look at their files first."""
        turns = asyncio.Semaphore(_AT_ONE_TIME)

        async def ask(node: Node) -> Told:
            async with turns:
                try:
                    return Told(node.key, await self._nodes.certificates(node, look=look))
                except HeadraceError as error:
                    return Told(node.key, error=str(error))

        nodes = sorted(self._cluster.image.nodes.values(), key=lambda node: str(node.key))
        return list(await asyncio.gather(*map(ask, nodes)))

    async def ending(self) -> tuple[Ending, ...]:
        """
        Nodes whose certificates near their end, as far as they tell within seconds. Other admin processes are not
        asked: they tell callers alone, and each says it of itself.
        """
        own = await self._nodes.own(look=False)
        if not own:
            return ()
        nodes = {
            node.key: node
            for node in self._cluster.image.nodes.values()
            if node.key.role is not Role.ADMIN and not node.fenced
        }
        self._known = {key: known for key, known in self._known.items() if key in nodes}
        await asyncio.gather(*(self._refresh(node) for node in nodes.values()))
        told = {key: served for key, (_, _, served) in self._known.items()}
        return find_ending({**told, self._nodes.key: own}, self._clock.now_ms())

    async def _refresh(self, node: Node) -> None:
        now_ms = self._clock.monotonic_ms()
        incarnation, asked_ms, _ = self._known.get(node.key, (b"", 0.0, ()))
        if incarnation == node.incarnation and now_ms - asked_ms < REMEMBERED_MS:
            return
        try:
            async with limit_ms(_ASK_MS_MAX):
                served = await self._nodes.certificates(node, look=False)
        except (HeadraceError, TimeoutError):
            return  # what it told before is still true, or it is of a version that does not tell
        self._known[node.key] = node.incarnation, now_ms, served
