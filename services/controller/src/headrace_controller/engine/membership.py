"""
Keeps this controller registered as a node, like any other: at itself while it is active, else at who is.

So that the cluster's description shows standbys, and whether they live.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headrace_common.core.errors import HeadraceError, Kind, MetadataUnavailable, NotController
from headrace_common.core.image import Node
from headrace_common.runtime.auditing import Auditing
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import jitter
from headrace_common.runtime.logs import logger
from headrace_controller.core.sessions import Heartbeat
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.nodes import Joining
from headrace_controller.ports import ControllerPeer

_RETRY_MS: Final = 500

log = logger(__name__)


class Membership:
    """This controller as a node of the cluster."""

    def __init__(
        self,
        engine: ControllerEngine,
        peer: ControllerPeer,
        clock: Clock,
        node: Node,
        interval_ms: int,
        auditing: Auditing | None = None,
    ) -> None:
        self._engine = engine
        self._auditing = auditing
        self._peer = peer
        self._clock = clock
        self._node = node
        self._interval_ms = interval_ms
        self._registered = False

    async def run(self) -> None:
        """Register and send heartbeats, until cancelled; what fails is tried again."""
        while True:
            try:
                if not self._registered:
                    await self._register()
                await self._heartbeat()
                wait = float(self._interval_ms)
            except HeadraceError as error:
                wait = _RETRY_MS
                if error.kind is Kind.FENCED:
                    self._registered = False
                log.debug("this controller is not registered yet", extra={"reason": str(error)})
            await self._clock.sleep_ms(jitter(wait, ratio=0.1))

    async def _register(self) -> None:
        previous = self._node.epoch or None
        if self._engine.candidate.term is not None:
            joined = await self._engine.register(Joining(self._node, previous_epoch=previous))
            epoch = joined.epoch
            if self._auditing is not None and (start := self._auditing.start) is not None:
                self._auditing.registered(self._node.key, start.id, start.public_key, "")
        else:
            image = self._engine.image
            active = image.active_controller
            if active is None or active.grpc is None:
                raise NotController("no controller is active just now")
            epoch = await self._peer.register(
                active.grpc, self._node, image.cluster_id, None if self._auditing is None else self._auditing.start
            )
        self._node = replace(self._node, epoch=epoch)
        self._registered = True

    async def _heartbeat(self) -> None:
        image = self._engine.image
        known = self._node.feature_level_max
        start, events = ("", 0) if self._auditing is None else self._auditing.standing
        heartbeat = Heartbeat(
            self._node.key,
            self._node.epoch,
            image.revision,
            feature_level_max=known,
            audit_start=start,
            audit_events=events,
        )
        if self._engine.candidate.term is not None:
            await self._engine.heartbeat(heartbeat)
            return
        active = image.active_controller
        if active is None or active.grpc is None:
            raise MetadataUnavailable("no controller is active just now")
        await self._peer.heartbeat(active.grpc, heartbeat)
