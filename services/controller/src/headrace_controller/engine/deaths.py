"""
Notices dead processes before their session ends: a stream breaks, so look at the node itself.

A machine that refuses the connection says that nobody listens there, and is asked twice; after a refusal silence says
the same, since a pod's network goes a moment after its processes. Another process at the address says that the
registered one is gone. All of these fence at once. Silence from the start decides nothing: a pause, a cut or a lost
machine waits for the session. When several brokers look dead within a second and no other node can be reached either,
this controller is the one that is cut off, and fences nobody on this path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

from headrace_common.core.errors import MetadataUnavailable
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.logs import logger
from headrace_controller.core.suspicion import Suspicions
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.nodes import Nodes
from headrace_controller.ports import NodeProbe, ProbeResult, StoreOutcomeUnknown

Spawn = Callable[[Coroutine[Any, Any, None], str], None]
"""Runs something while the term lasts."""

_LOOK_EVERY_MS: Final = 1_000

log = logger(__name__)


class Streams:
    """Which nodes have a stream open to this process; kept over terms."""

    def __init__(self) -> None:
        self._open: Counter[NodeKey] = Counter()

    def opened(self, key: NodeKey) -> None:
        self._open[key] += 1

    def closed(self, key: NodeKey) -> bool:
        """One less; whether it was the node's last."""
        self._open[key] -= 1
        if self._open[key] > 0:
            return False
        del self._open[key]
        return True

    def has(self, key: NodeKey) -> bool:
        """Whether the node has a stream open."""
        return key in self._open


class Deaths:
    """Looks after broken streams, for one term."""

    def __init__(
        self,
        *,
        nodes: Nodes,
        follower: Follower,
        probe: NodeProbe,
        clock: Clock,
        spawn: Spawn,
        streams: Streams,
        probe_delay_ms: int,
        self_key: NodeKey,
    ) -> None:
        self._nodes = nodes
        self._follower = follower
        self._probe = probe
        self._clock = clock
        self._spawn = spawn
        self._streams = streams
        self._delay_ms = probe_delay_ms
        self._self_key = self_key
        self._looking: set[NodeKey] = set()
        self._suspicions = Suspicions()

    def stream_broke(self, key: NodeKey) -> None:
        """A node's last stream ended; look at the node."""
        node = self._follower.mirror.image.nodes.get(key)
        if node is None or node.fenced or key in self._looking or key == self._self_key:
            return
        self._looking.add(key)
        self._spawn(self._look(node), f"look at {key}")

    async def look_at_silent(self, grace_ms: int) -> None:
        """
        Look at nodes that have no stream open here: at all of them ``grace_ms`` after the term began, at brokers and
        coordinators every second, since they may follow a standby, whose word this controller does not hear.
        """
        await self._clock.sleep_ms(grace_ms)
        nodes = list(self._follower.mirror.image.nodes)
        while True:
            for key in nodes:
                if not self._streams.has(key):
                    self.stream_broke(key)
            await self._clock.sleep_ms(_LOOK_EVERY_MS)
            known = self._follower.mirror.image.nodes
            nodes = [key for key in known if key.role in {Role.BROKER, Role.COORDINATOR}]

    async def _look(self, node: Node) -> None:
        try:
            if not await self._is_gone(node):
                return
            if not await self._trustworthy(node):
                log.warning("several nodes look dead and none can be reached; waiting for their sessions")
                return
            await self._nodes.fence(node.key, "its process is gone", epoch=node.epoch)
        except (MetadataUnavailable, StoreOutcomeUnknown) as error:
            log.warning("a dead node is fenced later", extra={"peer": str(node.key), "reason": str(error)})
        finally:
            self._looking.discard(node.key)

    async def _is_gone(self, node: Node) -> bool:
        first = await self._probe.probe(node)
        if first is ProbeResult.OTHER:
            return True
        if first is not ProbeResult.REFUSED:
            return False
        await self._clock.sleep_ms(self._delay_ms)
        return await self._probe.probe(node) not in {ProbeResult.SAME, ProbeResult.ANSWERS}

    async def _trustworthy(self, node: Node) -> bool:
        """Whether it is the node that is dead, and not this controller that is cut off."""
        now = self._follower.mirror.image.nodes.get(node.key, node)
        if now.in_controlled_shutdown:
            return True  # it said that it would go
        suspects = self._suspicions.suspect(node.key, self._clock.monotonic_ms())
        if not suspects:
            return True
        nodes = self._follower.mirror.image.nodes.values()
        others = [n for n in nodes if n.key not in suspects and not n.fenced and n.key != self._self_key]
        for other in others:
            if await self._probe.probe(other) in {ProbeResult.SAME, ProbeResult.ANSWERS}:
                self._suspicions.vouched()
                return True
        self._suspicions.nobody_vouched(suspects)
        return False
