"""
Creation, growth and deletion of topics, for one term of the active controller.

Partitions are written before the topic that counts them, so a topic is there with all its partitions or not at all.
What a crash leaves behind is swept: partitions that no topic counts and that nobody is creating. Deletion writes the
order to the brokers and takes the topic away in one transaction; the order stays until each broker has confirmed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.errors import (
    Conflict,
    HeadraceError,
    InvalidTopic,
    MetadataUnavailable,
    Overloaded,
    Rejected,
    RequestTimedOut,
    unknown_topic,
)
from headrace_common.core.ids import NodeId, PartitionId, TopicId
from headrace_common.core.image import Partition, ReplicaRemoval, Topic, TopicDeletion
from headrace_common.runtime.clock import Deadline
from headrace_common.runtime.entropy import new_topic_id
from headrace_common.runtime.logs import logger
from headrace_common.runtime.tasks import TaskRunner
from headrace_controller.core import records
from headrace_controller.core.store import CreatedAt, Delete, DeleteUnder, Operation, Put, Unchanged
from headrace_controller.core.topics import (
    Assignments,
    Chance,
    Plan,
    Wanted,
    first_partition,
    plan_growth,
    plan_topic,
)
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.quotas import ClusterQuotas
from headrace_controller.engine.settling import PIPELINED, Settling
from headrace_controller.engine.writer import CHUNK, Decision, Writer
from headrace_controller.ports import StoreOutcomeUnknown

_CHANCES = 1 << 16
CREATED_AT_ONCE = 16
"""Topics; more would keep the store from answering the lease, and so cost this controller its office."""

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Described:
    """A topic with its partitions, as it is or as it would be."""

    topic: Topic
    partitions: Sequence[Partition]
    notes: tuple[str, ...] = ()


def chance() -> Chance:
    """A start for placement."""
    drawn = int.from_bytes(new_topic_id()[1:9], "big")
    return Chance(start=drawn % _CHANCES, shift=drawn // _CHANCES % _CHANCES)


class Topics:
    """All changes of topics in one term."""

    def __init__(
        self, writer: Writer, follower: Follower, settling: Settling, tasks: TaskRunner, quotas: ClusterQuotas
    ) -> None:
        self._writer = writer
        self._follower = follower
        self._settling = settling
        self._tasks = tasks
        self._quotas = quotas
        self._busy: set[str] = set()
        self._making: dict[str, int] = {}
        """Topics that are being made, and how many partitions they will have."""
        self._growing: set[TopicId] = set()
        self._pipeline = asyncio.Semaphore(PIPELINED)
        self._creations = asyncio.Semaphore(CREATED_AT_ONCE)

    async def create(
        self, wanted: Wanted, *, validate_only: bool, timeout_ms: int, rights: Rights = EVERYTHING
    ) -> Described:
        """
        Create one topic; the creation goes on when the caller stops waiting.

        Raises:
            Overloaded: so many others are being created that it was not begun; nothing was changed.
            RequestTimedOut: it is not finished, or this controller stops; look for the topic later.
            HeadraceError: as ``plan_topic``, ``ClusterQuotas`` and ``Writer.decide``; the topic does not exist.
        """
        deadline = Deadline(timeout_ms)
        try:
            async with deadline.limit():
                await self._creations.acquire()
        except TimeoutError:
            text = f"topic {wanted.name} waited {timeout_ms} ms for others that are being created; nothing was changed"
            raise Overloaded(f"{text}, try again") from None
        try:
            left_ms = max(1, round(deadline.left_ms))
            return await self._create(wanted, rights, validate_only=validate_only, timeout_ms=left_ms)
        finally:
            self._creations.release()

    async def _create(self, wanted: Wanted, rights: Rights, *, validate_only: bool, timeout_ms: int) -> Described:
        plan = plan_topic(wanted, self._follower.mirror.image, chance(), self._busy)
        count = len(plan.assignments)
        self._quotas.check_room(plan.name, count, new=True, under_way=self._making.items())
        if validate_only:
            return self._describe(plan, TopicId(bytes(16)))
        self._quotas.check_mutation(count, rights)
        return await self.make(plan, timeout_ms=timeout_ms)

    async def make(self, plan: Plan, *, timeout_ms: int) -> Described:
        """
        Create the topic of a plan; the creation goes on when the caller stops waiting.

        Raises:
            Conflict: a topic of this name is being changed.
            RequestTimedOut: it is not finished; look for the topic later.
            HeadraceError: as ``Writer.decide``; the topic does not exist.
        """
        self._take(plan.name)
        self._making[plan.name] = len(plan.assignments)
        task = self._tasks.start(self._finish(plan), name=f"create {plan.name}")
        done, _ = await asyncio.wait([task], timeout=timeout_ms / 1_000)
        if not done:
            raise RequestTimedOut(
                f"creating {plan.name} takes longer than {timeout_ms} ms; it goes on, look for it later"
            )
        if task.cancelled():
            raise RequestTimedOut(
                f"this controller stopped while it created {plan.name}; whether the topic exists is unknown: look for "
                "it before you create it again"
            )
        result = task.result()
        if isinstance(result, HeadraceError):
            raise result
        return result

    async def grow(
        self, name: str, count: int, assignments: Assignments, *, validate_only: bool, rights: Rights = EVERYTHING
    ) -> Described:
        """
        Add partitions up to ``count``.

        Raises:
            HeadraceError: as ``plan_growth``, ``ClusterQuotas`` and ``Writer.decide``.
        """
        topic = self._topic(name)
        new = plan_growth(topic, count, assignments, self._follower.mirror.image, chance())
        self._quotas.check_room(name, len(new), new=False, under_way=self._making.items())
        grown = replace(topic, partition_count=count)
        partitions = self._partitions(topic.topic_id, topic.partition_count, new)
        if not validate_only:
            self._quotas.check_mutation(len(new), rights)
            self._take(name)
            self._growing.add(topic.topic_id)
            try:
                await self._write(grown, partitions, was=self._follower.mirror.mod_revision(records.topic_key(name)))
            finally:
                self._busy.discard(name)
                self._growing.discard(topic.topic_id)
            self._settling.topics_changed([topic.topic_id])
            log.info("partitions added", extra={"topic": name, "partitions": count})
        old = self._follower.mirror.image.partitions_of(topic)
        return Described(grown, [*old, *partitions])

    async def delete(self, name: str, rights: Rights = EVERYTHING) -> Topic:
        """
        Order the deletion of a topic; its name is free when this returns, its logs go as brokers confirm.

        Raises:
            UnknownTopicOrPartition, InvalidTopic: there is none, or it is not the user's.
            HeadraceError: as ``ClusterQuotas.check_mutation`` and ``Writer.decide``.
        """
        topic = self._topic(name)
        self._quotas.check_mutation(topic.partition_count, rights)
        self._take(name)
        try:
            await self._writer.decide(lambda: self._deletion(topic))
        finally:
            self._busy.discard(name)
        log.info("topic deleted", extra={"topic": name, "topic_id": topic.topic_id})
        await self.sweep()
        return topic

    async def confirm(
        self, broker: NodeId, topic_ids: Sequence[TopicId], partitions: Sequence[PartitionId] = ()
    ) -> None:
        """
        ``broker`` has no log of these topics and partitions any more; what it is not to delete is passed over.

        Raises:
            HeadraceError: as ``Writer.decide``; repeat the whole.
        """
        for start in range(0, len(topic_ids), CHUNK):
            piece = topic_ids[start : start + CHUNK]
            await self._writer.decide(partial(self._confirmation, broker, piece))
        for start in range(0, len(partitions), CHUNK):
            some = partitions[start : start + CHUNK]
            await self._writer.decide(partial(self._removal_confirmation, broker, some))

    @contextmanager
    def keep_from_sweeping(self, topic_id: TopicId) -> Iterator[None]:
        """Within the block partitions of this topic are being made, whoever counts them."""
        self._growing.add(topic_id)
        try:
            yield
        finally:
            self._growing.discard(topic_id)

    async def sweep(self) -> None:
        """Delete partitions that no topic counts and that nobody is creating; what fails is swept another time."""
        mirror = self._follower.mirror
        orphans = [i for i in mirror.hidden if i.topic_id not in self._growing]
        if not orphans:
            return
        whole = {i.topic_id for i in orphans if i.topic_id not in mirror.image.topics}
        operations: list[Operation] = [DeleteUnder(records.partitions_prefix(t)) for t in sorted(whole)]
        operations += [Delete(records.partition_key(i)) for i in orphans if i.topic_id not in whole]
        try:
            for start in range(0, len(operations), CHUNK):
                await self._writer.commit(Decision(tuple(operations[start : start + CHUNK]), ()))
        except (MetadataUnavailable, StoreOutcomeUnknown) as error:
            log.warning("orphans are swept later", extra={"reason": str(error)})
            return
        log.info("partitions without a topic swept", extra={"partitions": len(orphans), "topics": len(whole)})

    def _topic(self, name: str) -> Topic:
        topic = self._follower.mirror.image.topic(name)
        if topic is None:
            raise unknown_topic(name)
        return topic

    def _take(self, name: str) -> None:
        if name in self._busy:
            raise Conflict(f"topic {name} is being changed just now; try again in a moment")
        self._busy.add(name)

    async def _finish(self, plan: Plan) -> Described | HeadraceError:
        """The creation itself; an error is a result, since the one who asked may be gone."""
        described = self._describe(plan, new_topic_id())
        topic_id = described.topic.topic_id
        self._growing.add(topic_id)
        try:
            await self._write(described.topic, described.partitions, was=0)
        except HeadraceError as error:
            log.warning("topic not created", extra={"topic": plan.name, "reason": str(error)})
            return error
        finally:
            self._busy.discard(plan.name)
            del self._making[plan.name]
            self._growing.discard(topic_id)
        self._settling.topics_changed([topic_id])
        log.info("topic created", extra={"topic": plan.name, "partitions": len(plan.assignments)})
        return described

    async def _write(self, topic: Topic, partitions: Sequence[Partition], *, was: int) -> None:
        """All partitions in chunks, the last one together with the topic that makes them visible."""
        pieces = [partitions[start : start + CHUNK] for start in range(0, len(partitions), CHUNK)]
        results = await asyncio.gather(*(self._piece(piece) for piece in pieces[:-1]), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        key = records.topic_key(topic.name)
        value = records.encode(topic)
        last = self._absent(pieces[-1])

        def decision() -> Decision | None:
            found = self._follower.mirror.mod_revision(key)
            if found != was:
                known = self._follower.mirror.image.topic(topic.name)
                if known == topic:
                    return None  # an earlier try, whose answer was lost, has landed
                raise Conflict(f"topic {topic.name} was changed meanwhile; look at it and try again")
            now = last() or Decision((), ())
            return Decision((*now.operations, Put(key, value)), (*now.compares, Unchanged(key, was)))

        await self._writer.decide(decision)

    async def _piece(self, piece: Sequence[Partition]) -> None:
        async with self._pipeline:
            await self._writer.decide(self._absent(piece))

    def _absent(self, piece: Sequence[Partition]) -> Callable[[], Decision | None]:
        keys = [records.partition_key(p.id) for p in piece]
        values = [records.encode(p) for p in piece]

        def decision() -> Decision | None:
            raw = self._follower.mirror.raw
            due = [(k, v) for k, v in zip(keys, values, strict=True) if k not in raw]
            return Decision(tuple(Put(*d) for d in due), tuple(CreatedAt(k, 0) for k, _ in due)) if due else None

        return decision

    def _describe(self, plan: Plan, topic_id: TopicId) -> Described:
        return Described(plan.topic(topic_id), self._partitions(topic_id, 0, plan.assignments), plan.notes)

    def _partitions(self, topic_id: TopicId, first: int, assignments: Assignments) -> list[Partition]:
        unfenced = self._settling.brokers().unfenced
        numbered = enumerate(assignments, first)
        return [first_partition(PartitionId(topic_id, n), replicas, unfenced) for n, replicas in numbered]

    def _deletion(self, topic: Topic) -> Decision:
        if topic.internal:
            raise InvalidTopic(f"{topic.name} is internal and cannot be deleted")
        mirror = self._follower.mirror
        if mirror.image.topic(topic.name) is None:
            raise unknown_topic(topic.name)
        holders = {r for p in mirror.image.partitions_of(topic) for r in p.replicas}
        removals = [r for r in mirror.image.removals.values() if r.id.topic_id == topic.topic_id]
        holders.update(b for r in removals for b in r.pending)
        key = records.topic_key(topic.name)
        order = TopicDeletion(topic.topic_id, topic.name, tuple(sorted(holders)))
        operations: tuple[Operation, ...] = (
            Put(records.deletion_key(topic.topic_id), records.encode(order)),
            Delete(key),
        )
        if removals:  # the greater order holds all of them
            operations = (*operations, DeleteUnder(records.removals_prefix(topic.topic_id)))
        return Decision(operations, (Unchanged(key, mirror.mod_revision(key)),))

    def _confirmation(self, broker: NodeId, topic_ids: Sequence[TopicId]) -> Decision | None:
        deletions = self._follower.mirror.image.deletions
        return self._plan_confirmation(broker, {records.deletion_key(id): deletions.get(id) for id in topic_ids})

    def _removal_confirmation(self, broker: NodeId, partitions: Sequence[PartitionId]) -> Decision | None:
        removals = self._follower.mirror.image.removals
        return self._plan_confirmation(broker, {records.removal_key(id): removals.get(id) for id in partitions})

    def _plan_confirmation(
        self, broker: NodeId, orders: Mapping[str, TopicDeletion | ReplicaRemoval | None]
    ) -> Decision | None:
        """``broker`` has carried out these orders, by their keys; the last one that does ends an order."""
        mirror = self._follower.mirror
        operations: list[Operation] = []
        compares = []
        for key, order in orders.items():
            if order is None or broker not in order.pending:
                continue
            rest = tuple(b for b in order.pending if b != broker)
            operations.append(Put(key, records.encode(replace(order, pending=rest))) if rest else Delete(key))
            compares.append(Unchanged(key, mirror.mod_revision(key)))
        if not operations:
            return None
        operations.append(Put(records.REMOVAL_KEY, records.encode_number(broker)))
        return Decision(tuple(operations), tuple(compares))


def check_once(names: Iterable[str]) -> None:
    """
    Each name once in a request.

    Raises:
        Rejected: with the names that are there twice.
    """
    twice = sorted(n[:80] for n, count in Counter(names).items() if count > 1)
    if twice:
        raise Rejected(f"named more than once in the request: {', '.join(twice)}; name each once")
