"""
Gives shards to coordinators, makes the internal topics they are partitions of, and raises those topics' replication;
for one term of the active controller.

It compares, it does not remember, as ``Settling`` does: whatever changed, it reckons who should own each shard
(``core.shards``) and writes the differences.
"""

from __future__ import annotations

import asyncio

from headrace_common.core.errors import Conflict, CoordinatorNotAvailable, MetadataUnavailable
from headrace_common.core.ids import NodeId
from headrace_common.core.image import INTERNAL_TOPICS, ShardKind
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.logs import logger
from headrace_controller.core import records, shards
from headrace_controller.core.internal_topics import add_replicas, plan_internal
from headrace_controller.core.store import Put, Unchanged
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.reassignments import Reassignments
from headrace_controller.engine.topics import Topics, chance
from headrace_controller.engine.waiting import event_within
from headrace_controller.engine.writer import CHUNK, Decision, Writer
from headrace_controller.ports import StoreOutcomeUnknown

_MAKE_MS_MAX = 10_000
_OWNERS_WAIT_MS = 1_000

log = logger(__name__)


class Shards:
    """All shards during one term."""

    def __init__(
        self, writer: Writer, follower: Follower, topics: Topics, reassignments: Reassignments, clock: Clock
    ) -> None:
        self._writer = writer
        self._follower = follower
        self._topics = topics
        self._reassignments = reassignments
        self._clock = clock
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self.settled = asyncio.Event()
        """Set while no shard is known whose owner would have to change."""
        self.moves = 0
        """Changes of owners that this term has written."""

    def changed(self) -> None:
        """Coordinators, brokers, internal topics or their settings are not what they were: look again."""
        self.settled.clear()
        self._wake.set()

    async def run(self) -> None:
        """
        Settle whenever something changed, until cancelled.

        Raises:
            NotController: the term is over.
        """
        self.changed()
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.settle()
                if not self._wake.is_set():
                    self.settled.set()
                await self._raise_replication()
                failures = 0
            except (MetadataUnavailable, StoreOutcomeUnknown) as error:
                failures += 1
                log.warning("shards are given owners later", extra={"reason": str(error)})
                self._wake.set()
                await self._clock.sleep_ms(backoff_ms(failures))

    async def settle(self) -> None:
        """
        Give every shard the owner that it should have now; one pass at a time.

        Raises:
            NotController, MetadataUnavailable, StoreOutcomeUnknown: some may be written; repeat it.
        """
        async with self._turn:
            while await self._writer.decide(self._next_changes):
                pass

    async def ensure(self, kind: ShardKind) -> int:
        """
        Make the internal topic of ``kind`` unless it is there; the revision of an image that has it.

        Waits a moment for its shards to get owners, which they get only where coordinators live.

        Raises:
            CoordinatorNotAvailable: it cannot be made now; the text says what it waits for.
            HeadraceError: as ``Topics.create``.
        """
        name = INTERNAL_TOPICS[kind]
        if self._follower.mirror.image.topic(name) is None:
            plan = plan_internal(kind, self._follower.mirror.image, chance())
            try:
                await self._topics.make(plan, timeout_ms=_MAKE_MS_MAX)
            except Conflict as error:  # somebody else makes it just now
                raise CoordinatorNotAvailable(f"topic {name} is being made just now; try again in a moment") from error
            self.changed()
        await event_within(self.settled, self._clock, _OWNERS_WAIT_MS)
        return self._follower.mirror.image.revision

    def gave_up_by(self, coordinator: NodeId) -> bool:
        """Whether a coordinator that leaves owns no shard any more."""
        owned = any(s.owner == coordinator for s in self._follower.mirror.image.shards.values())
        return self.settled.is_set() and not owned

    def _next_changes(self) -> Decision | None:
        mirror = self._follower.mirror
        if mirror.waits_for_logs:
            return None  # tokens in the logs are not known yet
        due = shards.find_due(mirror.image)[:CHUNK]
        if not due:
            return None
        keys = [records.shard_key(s.key) for s in due]
        self.moves += len(due)
        log.info("shards change owners", extra={"shards": [(str(s.key), s.owner, s.epoch) for s in due[:10]]})
        return Decision(
            tuple(Put(k, records.encode(s)) for k, s in zip(keys, due, strict=True)),
            tuple(Unchanged(k, mirror.mod_revision(k)) for k in keys),
        )

    async def _raise_replication(self) -> None:
        """More replicas for internal topics where more brokers have joined; what cannot start now starts later."""
        if self._follower.mirror.waits_for_logs:
            return
        targets = add_replicas(self._follower.mirror.image)
        if targets:
            log.info("internal topics get more replicas", extra={"partitions": len(targets)})
            await self._reassignments.alter(targets, validate_only=False)
