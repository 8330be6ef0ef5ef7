"""
Finishes a restore, for one term of the active controller: waits for every expected broker, asks each what it has,
and writes who may lead and which topics there are (``core.restoring``). Until that is done nobody leads.

All of it is decided from logs that nobody can write to, so a controller that dies in the middle, or a broker that is
started anew, only makes it begin again; what was decided stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from headrace_common.core.errors import MetadataUnavailable
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import ReplicaRemoval
from headrace_common.runtime.clock import Clock, give_way
from headrace_common.runtime.logs import logger
from headrace_controller.core import records
from headrace_controller.core.restore_record import RESTORE_KEY, Restore, encode_restore
from headrace_controller.core.restoring import Plan, blank_leftovers, decide_leaders, plan_topics
from headrace_controller.core.store import Compare, Operation, Put, Unchanged
from headrace_controller.engine.adoption import Adoption, Guard
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.inventories import Asked, ask
from headrace_controller.engine.settling import Settling
from headrace_controller.engine.shards import Shards
from headrace_controller.engine.writer import Changed, Decision, Writer
from headrace_controller.ports import InventorySource, StoreOutcomeUnknown

CHUNK: Final = 50
"""Partitions in one transaction; each may come with an order to delete an empty log."""

_LOOK_EVERY_MS: Final = 250
_TELL_EVERY_MS: Final = 10_000
_NAMED_IN_LOG: Final = 20

log = logger(__name__)


class Interrupted(Exception):
    """A broker that had said what it has was started anew or is gone: ask again."""


class Restoring:
    """The end of a restore."""

    def __init__(
        self,
        *,
        writer: Writer,
        follower: Follower,
        settling: Settling,
        shards: Shards,
        adoption: Adoption,
        source: InventorySource,
        clock: Clock,
    ) -> None:
        self._writer = writer
        self._follower = follower
        self._settling = settling
        self._shards = shards
        self._adoption = adoption
        self._source = source
        self._clock = clock
        self._told: tuple[str, float] = ("", 0.0)
        self.silent: tuple[NodeId, ...] = ()
        """Brokers that were there at the last try and did not say what they have."""

    async def run(self) -> None:
        """
        Return when the restore is finished; at once where there was none.

        Raises:
            NotController: the term is over.
        """
        while self._follower.mirror.waits_for_logs:
            why = await self._try_once()
            if why:
                self._tell(why)
                await self._clock.sleep_ms(_LOOK_EVERY_MS)

    async def _try_once(self) -> str:
        """One try; why it did not get through."""
        mirror = self._follower.mirror
        restore = mirror.restore
        assert restore is not None, "this is the end of one"
        members = [n for n in mirror.image.brokers() if restore.has_joined(mirror.image, n.key.id)]
        lacking = restore.list_missing(mirror.image)
        if lacking:
            self.silent = ()
            return f"brokers {', '.join(map(str, lacking))} have not joined"
        answers = await ask(self._source, members)
        self.silent = answers.silent
        if answers.silent:
            return f"brokers {', '.join(map(str, answers.silent))} do not say what they have"
        try:
            async with self._settling.turn:
                await self._finish(restore, answers)
        except (Interrupted, Changed):
            return "a broker was restarted, or the metadata changed, while logs were compared"
        except (MetadataUnavailable, StoreOutcomeUnknown) as error:
            return str(error)
        self._settling.nodes_changed()
        self._shards.changed()
        return ""

    async def _finish(self, restore: Restore, answers: Asked) -> None:
        mirror = self._follower.mirror

        def guard() -> None:
            if not answers.still_hold(mirror.image):
                raise Interrupted

        guard()
        plan = plan_topics(mirror.image, restore, answers.inventories)
        brokers = sorted(answers.inventories)
        for topic in plan.topics:
            await self._adoption.write(topic, guard, brokers)
            said = {"topic": topic.topic.name, "topic_id": topic.topic.topic_id.hex(), "adopted": topic.adopted}
            log.warning("a topic has what came after the backup", extra=said)
            await give_way()
        ids = list(mirror.image.partitions)
        for start in range(0, len(ids), CHUNK):
            piece = ids[start : start + CHUNK]
            await self._writer.decide(partial(self._decisions, piece, plan, brokers, guard))
        await self._adoption.raise_epochs(plan.tokens, guard)
        await self._writer.decide(lambda: self._end(plan.empty_topics))
        self._tell_end(plan)

    def _decisions(
        self, ids: Sequence[PartitionId], plan: Plan, brokers: Sequence[NodeId], guard: Guard
    ) -> Decision | None:
        guard()
        mirror = self._follower.mirror
        operations: list[Operation] = []
        compares: list[Compare] = []
        for id in ids:
            now = mirror.image.partitions.get(id)
            if now is None:
                continue
            holders = plan.logs.get(id, {})
            new = decide_leaders(now, holders, brokers)
            if new is now:
                continue
            key = records.partition_key(id)
            operations.append(Put(key, records.encode(new)))
            compares.append(Unchanged(key, mirror.mod_revision(key)))
            self._clear_away(id, blank_leftovers(new, holders), operations, compares)
        return Decision(tuple(operations), tuple(compares)) if operations else None

    def _clear_away(
        self, id: PartitionId, blank: tuple[NodeId, ...], operations: list[Operation], compares: list[Compare]
    ) -> None:
        if blank:
            key = records.removal_key(id)
            operations.append(Put(key, records.encode(ReplicaRemoval(id, blank))))
            compares.append(Unchanged(key, self._follower.mirror.mod_revision(key)))

    def _end(self, empty_topics: int) -> Decision | None:
        mirror = self._follower.mirror
        if mirror.restore is None or mirror.restore.finished:
            return None
        done = replace(mirror.restore, finished=True, empty_topics=empty_topics)
        return Decision(
            (Put(RESTORE_KEY, encode_restore(done)),), (Unchanged(RESTORE_KEY, mirror.mod_revision(RESTORE_KEY)),)
        )

    def _tell(self, why: str) -> None:
        told, at_ms = self._told
        now = self._clock.monotonic_ms()
        if why != told or now - at_ms >= _TELL_EVERY_MS:
            log.warning(
                "no partition has a leader until the restore of the metadata is finished", extra={"reason": why}
            )
            self._told = (why, now)

    def _tell_end(self, plan: Plan) -> None:
        mirror = self._follower.mirror
        nobody = [str(p.id) for p in mirror.image.partitions.values() if not p.elr and not p.last_known_elr]
        extra = {
            "partitions": len(mirror.image.partitions),
            "adopted_topics": 0 if mirror.restore is None else mirror.restore.adopted_topics,
            "empty_topics": plan.empty_topics,
            "stray_topics": {i.hex(): why for i, why in list(plan.left.items())[:_NAMED_IN_LOG]},
            "only_damaged_logs": nobody[:_NAMED_IN_LOG],
        }
        log.warning("the restore of the metadata is finished: the longest of all logs lead", extra=extra)
