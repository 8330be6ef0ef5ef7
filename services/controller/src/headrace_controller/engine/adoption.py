"""
Writes topics that were planned from what brokers have, and raises shard epochs above the tokens in their logs.

Partitions first, the topic that counts them last, as in every creation; partitions that an earlier try left behind
are written over, since what it was decided from may have changed. For one term; used by ``Restoring`` and ``Strays``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from headrace_common.core.ids import NO_NODE, NodeId
from headrace_common.core.image import Partition, Shard, ShardKey, TopicDeletion
from headrace_controller.core import records
from headrace_controller.core.restore_record import RESTORE_KEY, encode_restore
from headrace_controller.core.restoring import TopicPlan
from headrace_controller.core.store import Compare, Operation, Put, Unchanged
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.topics import Topics
from headrace_controller.engine.writer import CHUNK, Changed, Decision, Writer

Guard = Callable[[], None]
"""Raises when what was decided may not hold any more; asked before each write."""


class Adoption:
    """Writes of planned topics."""

    def __init__(self, writer: Writer, follower: Follower, topics: Topics) -> None:
        self._writer = writer
        self._follower = follower
        self._topics = topics

    async def write(self, plan: TopicPlan, guard: Guard, holders: Sequence[NodeId]) -> None:
        """
        Write one topic; it is there with all its partitions, or not at all.

        Args:
            holders: brokers that may have logs of the topic that it replaces.

        Raises:
            Changed: the topic that has the name is not the one of the plan any more.
            HeadraceError: as ``Writer.decide``, and what ``guard`` raises.
        """
        pieces = [plan.new[start : start + CHUNK] for start in range(0, len(plan.new), CHUNK)]
        with self._topics.keep_from_sweeping(plan.topic.topic_id):
            for piece in pieces[:-1]:
                await self._writer.decide(partial(self._plan_partitions, piece, guard))
            last = pieces[-1] if pieces else ()
            await self._writer.decide(lambda: self._plan_topic(plan, last, guard, holders))

    async def raise_epochs(self, tokens: Mapping[ShardKey, int], guard: Guard) -> None:
        """
        Bring shard epochs to the fencing tokens at least, so that the next owner's epoch is above them.

        Raises:
            HeadraceError: as ``Writer.decide``, and what ``guard`` raises.
        """
        keys = sorted(tokens, key=str)
        for start in range(0, len(keys), CHUNK):
            piece = {key: tokens[key] for key in keys[start : start + CHUNK]}
            await self._writer.decide(partial(self._plan_epochs, piece, guard))

    def _plan_partitions(self, piece: Sequence[Partition], guard: Guard) -> Decision | None:
        guard()
        mirror = self._follower.mirror
        due = [p for p in piece if mirror.partition(p.id) != p]
        keys = [records.partition_key(p.id) for p in due]
        if not due:
            return None
        puts = tuple(Put(key, records.encode(p)) for key, p in zip(keys, due, strict=True))
        return Decision(puts, tuple(Unchanged(key, mirror.mod_revision(key)) for key in keys))

    def _plan_topic(
        self, plan: TopicPlan, piece: Sequence[Partition], guard: Guard, holders: Sequence[NodeId]
    ) -> Decision | None:
        mirror = self._follower.mirror
        found = mirror.image.topic(plan.topic.name)
        if found == plan.topic:
            return None  # an earlier try, whose answer was lost, has landed
        if found != plan.was:
            raise Changed
        first = self._plan_partitions(piece, guard) or Decision((), ())
        guard()
        key = records.topic_key(plan.topic.name)
        operations: list[Operation] = [*first.operations, Put(key, records.encode(plan.topic))]
        compares: list[Compare] = [*first.compares, Unchanged(key, mirror.mod_revision(key))]
        if plan.adopted and plan.was is not None and plan.delete_replaced:
            order = TopicDeletion(plan.was.topic_id, plan.was.name, tuple(sorted(holders)))
            operations.append(Put(records.deletion_key(order.topic_id), records.encode(order)))
        if plan.adopted and mirror.waits_for_logs and mirror.restore is not None:
            counted = replace(mirror.restore, adopted_topics=mirror.restore.adopted_topics + 1)
            operations.append(Put(RESTORE_KEY, encode_restore(counted)))
            compares.append(Unchanged(RESTORE_KEY, mirror.mod_revision(RESTORE_KEY)))
        return Decision(tuple(operations), tuple(compares))

    def _plan_epochs(self, tokens: Mapping[ShardKey, int], guard: Guard) -> Decision | None:
        guard()
        mirror = self._follower.mirror
        operations: list[Operation] = []
        compares: list[Compare] = []
        for key, token in tokens.items():
            shard = mirror.image.shards.get(key) or Shard(key, NO_NODE, 0)
            if shard.epoch >= token:
                continue
            name = records.shard_key(key)
            operations.append(Put(name, records.encode(replace(shard, epoch=token))))
            compares.append(Unchanged(name, mirror.mod_revision(name)))
        return Decision(tuple(operations), tuple(compares)) if operations else None
