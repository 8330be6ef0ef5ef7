"""
One term in office: everything that exists only while this controller is the active one.

Built when the election is won, thrown away when it is lost, so that nothing of an old term can act in a new one.
Called by the candidate (life cycle) and by the engine's RPC methods (work).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from headrace_common.core.errors import MetadataUnavailable, NotController
from headrace_common.core.ids import NodeId
from headrace_common.core.image import ImageDelta, NodeKey, Role
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.logs import logger
from headrace_common.runtime.tasks import TaskRunner
from headrace_controller.config import ControllerConfig
from headrace_controller.core.reassign import can_finish
from headrace_controller.core.sessions import Sessions
from headrace_controller.engine.access import AccessChanges
from headrace_controller.engine.adoption import Adoption
from headrace_controller.engine.deaths import Deaths, Streams
from headrace_controller.engine.elections import Elections
from headrace_controller.engine.features import Features
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.isr_changes import IsrChanges
from headrace_controller.engine.issuers import Issuers
from headrace_controller.engine.keys import Keys
from headrace_controller.engine.logins import Logins
from headrace_controller.engine.nodes import Nodes
from headrace_controller.engine.producer_ids import ProducerIds
from headrace_controller.engine.quotas import ClusterQuotas
from headrace_controller.engine.reassignments import Reassignments
from headrace_controller.engine.relief import Relief
from headrace_controller.engine.restoring import Restoring
from headrace_controller.engine.settings import Settings
from headrace_controller.engine.settling import Settling
from headrace_controller.engine.shards import Shards
from headrace_controller.engine.strays import Strays
from headrace_controller.engine.topics import Topics
from headrace_controller.engine.users import Users
from headrace_controller.engine.writer import Writer
from headrace_controller.ports import (
    InventorySource,
    IssuerSource,
    LogEndsSource,
    MetadataStore,
    NodeProbe,
    StoreOutcomeUnknown,
)

_FORGET_KEYS_EVERY_MS: Final = 3_600_000
_LOOK_AT_ISSUERS_EVERY_MS: Final = 1_000

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Outside:
    """What a controller needs from outside the process."""

    store: MetadataStore
    probe: NodeProbe
    log_ends: LogEndsSource
    inventories: InventorySource
    issuers: IssuerSource
    clock: Clock


class Term:
    """The work of the active controller."""

    def __init__(
        self,
        *,
        config: ControllerConfig,
        outside: Outside,
        follower: Follower,
        tasks: TaskRunner,
        streams: Streams,
        elected_at: int,
        epoch: int,
    ) -> None:
        clock, probe = outside.clock, outside.probe
        self.epoch = epoch
        self.lost = asyncio.Event()
        """Set when the term is over."""
        self.lease_until_ms = 0.0
        """Until when nobody else can have been elected, on the monotonic clock."""
        self._config = config
        self._clock = clock
        self._follower = follower
        self._tasks = tasks
        self.writer = Writer(outside.store, follower, elected_at, config.etcd_timeout_ms)
        self.writer.check = self.check
        self.writer.on_lost = self.lost.set
        sessions = Sessions(config.liveness.session_timeout_ms)
        self.settling = Settling(self.writer, follower, clock)
        self.isr_changes = IsrChanges(self.settling)
        self.relief = Relief(follower, self.settling, sessions, clock)
        self.elections = Elections(follower, self.settling, outside.log_ends, clock)
        self.reassignments = Reassignments(follower, self.settling)
        self.quotas = ClusterQuotas(self.writer, follower, clock)
        self.topics = Topics(self.writer, follower, self.settling, tasks, self.quotas)
        self.shards = Shards(self.writer, follower, self.topics, self.reassignments, clock)
        self.nodes = Nodes(self.writer, follower, self.settling, self.shards, sessions, probe, clock)
        self.features = Features(self.writer, follower)
        self.settings = Settings(self.writer, follower, self.settling)
        self.access = AccessChanges(self.writer, follower, clock, config.access)
        self.keys = Keys(self.writer, follower, clock)
        self.users = Users(self.writer, follower, clock)
        self.logins = Logins(self.writer, follower, clock)
        self.issuers = Issuers(self.writer, follower, outside.issuers, clock, config.issuers)
        self.producer_ids = ProducerIds(self.writer, follower)
        adoption = Adoption(self.writer, follower, self.topics)
        self.strays = Strays(
            follower=follower, settling=self.settling, adoption=adoption, source=outside.inventories, clock=clock
        )
        self.restoring = Restoring(
            writer=self.writer,
            follower=follower,
            settling=self.settling,
            shards=self.shards,
            adoption=adoption,
            source=outside.inventories,
            clock=clock,
        )
        self.deaths = Deaths(
            nodes=self.nodes,
            follower=follower,
            probe=probe,
            clock=clock,
            spawn=self.spawn,
            streams=streams,
            probe_delay_ms=config.liveness.probe_delay_ms,
            self_key=NodeKey(Role.CONTROLLER, NodeId(config.node_id)),
        )

    def is_sure(self) -> bool:
        """Whether this controller can know that it is still the active one."""
        return not self.lost.is_set() and self._clock.monotonic_ms() < self.lease_until_ms

    def check(self) -> None:
        """
        Refuse to act when this controller cannot know that it is still the active one.

        Raises:
            NotController: the term is over.
            MetadataUnavailable: the lease could not be renewed in time.
        """
        if self.lost.is_set():
            raise NotController("this controller is no longer the active one; ask the next")
        if not self.is_sure():
            raise MetadataUnavailable(
                "this controller does not reach the metadata store; nothing was changed, try again later"
            )

    def start(self) -> None:
        """Start the loops of the term."""
        self.spawn(self.restoring.run(), "restore")
        self.spawn(self.settling.run(), "settling")
        self.spawn(self.shards.run(), "shards")
        self.spawn(self.elections.recover(), "recovery")
        self.spawn(self.elections.keep_preferred(), "preferred leaders")
        self.spawn(self.relief.run(), "relief of full disks")
        self.spawn(self._watch_sessions(), "sessions")
        self.spawn(self._forget_keys(), "old keys")
        self.spawn(self._look_at_issuers(), "keys of issuers")
        self.spawn(self.deaths.look_at_silent(self._config.liveness.stream_grace_ms), "silent nodes")

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run ``work`` while the term lasts; finding that it is over ends the work and is no failure."""
        if self.lost.is_set():
            work.close()
        else:
            self._tasks.start(self._run_until_lost(work), name=name)

    def image_moved(self, step: ImageDelta) -> None:
        """The image changed; called on the follower's task."""
        if step.nodes or step.removed_nodes:
            self.settling.nodes_changed()
        moved = step.nodes or step.removed_nodes or step.cluster_configs is not None
        if moved or any(t.internal for t in step.topics):
            self.shards.changed()
        if step.topics:
            self.settling.topics_changed(t.topic_id for t in step.topics)
        arrived = {p.id.topic_id for p in step.partitions if can_finish(p)}
        if arrived:
            self.shards.changed()  # what was on the move and is there now may get more replicas
            self.settling.reassignments_changed(arrived)

    async def _watch_sessions(self) -> None:
        await self._try_each(self.access.configure)
        while True:
            await self._clock.sleep_ms(self._config.liveness.tick_ms)
            await self._try_each(self.nodes.fence_expired, self.topics.sweep, self.features.rise, self.access.configure)
            await self._try_each(self.keys.end_breakglass)

    async def _forget_keys(self) -> None:
        while True:
            await self._clock.sleep_ms(_FORGET_KEYS_EVERY_MS)
            await self._try_each(self.keys.forget_expired, self.users.forget_old)

    async def _look_at_issuers(self) -> None:
        while True:
            await self._try_each(self.issuers.look)
            await self._clock.sleep_ms(_LOOK_AT_ISSUERS_EVERY_MS)

    async def _try_each(self, *steps: Callable[[], Awaitable[None]]) -> None:
        """What the store does not take now is done another time."""
        try:
            for step in steps:
                if self.is_sure():
                    await step()
        except (MetadataUnavailable, StoreOutcomeUnknown) as error:
            log.warning("what is due is done later", extra={"reason": str(error)})

    async def _run_until_lost(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except NotController:
            self.lost.set()
