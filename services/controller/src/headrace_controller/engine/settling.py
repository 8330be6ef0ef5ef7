"""
Brings every partition to what the present brokers allow: leaders, ISR and ELR follow the fencing of nodes.

One task of the active controller. It compares, it does not remember: whatever changed, it looks at all partitions
concerned, computes what they should be (``core.election``) and writes the differences in chunks. So a pass that a
crash cut short is simply finished by the next active controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from headrace_common.core.errors import HeadraceError, MetadataUnavailable, UnknownTopicOrPartition
from headrace_common.core.ids import NodeId, PartitionId, TopicId
from headrace_common.core.image import ClusterImage, Node, NodeKey, Partition, ReplicaRemoval
from headrace_common.runtime.clock import Clock, give_way
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.logs import logger
from headrace_controller.core import election, reassign, records
from headrace_controller.core.election import Brokers, Rules
from headrace_controller.core.store import Compare, Delete, Operation, Put, Unchanged
from headrace_controller.core.topics import min_isr_of
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.writer import CHUNK, Decision, Writer
from headrace_controller.ports import StoreOutcomeUnknown

PIPELINED = 4
"""Chunks on their way to the store at one time."""

_SCANNED_AT_ONCE = 1_000

log = logger(__name__)

Step = Callable[[Partition], Partition]


class Settling:
    """Leadership of all partitions in one term."""

    def __init__(self, writer: Writer, follower: Follower, clock: Clock) -> None:
        self._writer = writer
        self._follower = follower
        self._clock = clock
        self._wake = asyncio.Event()
        self._all = True
        self._topics: set[TopicId] = set()
        self.turn = asyncio.Lock()
        """Held by whoever brings many partitions somewhere; two side by side would only make each other repeat."""
        self.settled = asyncio.Event()
        """Set while nothing is known that would have to change."""
        self.moves = 0
        """Partitions whose leader this term has changed."""
        self.unclean = 0
        """Partitions that this term gave to replicas that may have lost committed records."""
        self.passed = asyncio.Event()
        """Set after each pass; whoever waits for that clears it."""
        self.crowded: frozenset[NodeId] = frozenset()
        """Brokers without room on their disks; ``Relief`` keeps it."""
        self._brokers: tuple[Mapping[NodeKey, Node], bool, frozenset[NodeId], Brokers] | None = None

    def nodes_changed(self) -> None:
        """Look at everything again."""
        self._all = True
        self.settled.clear()
        self._wake.set()

    def reassignments_changed(self, topics: Iterable[TopicId]) -> None:
        """Look at these topics, whose replicas are on the move; nobody's leaving waits for that."""
        self._topics.update(topics)
        self._wake.set()

    def topics_changed(self, topics: Iterable[TopicId]) -> None:
        self._topics.update(topics)
        self.settled.clear()
        self._wake.set()

    async def run(self) -> None:
        """
        Settle whenever something changed, until cancelled.

        Raises:
            NotController: the term is over.
        """
        self._wake.set()
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            everything, topics = self._all, frozenset(self._topics)
            self._all, self._topics = False, set()
            try:
                async with self.turn:
                    await self.bring(self._list_concerned(everything, topics), self.should_be)
                failures = 0
            except (MetadataUnavailable, StoreOutcomeUnknown) as error:
                failures += 1
                log.warning("partitions are settled later", extra={"reason": str(error)})
                self._all = self._all or everything
                self._topics.update(topics)
                self._wake.set()
                await self._clock.sleep_ms(backoff_ms(failures))
            self.passed.set()
            if not self._wake.is_set():
                self.settled.set()

    async def bring(self, partitions: Sequence[Partition], step: Step) -> int:
        """
        Apply ``step`` to each partition where it changes something, in chunks; how many it changed.

        ``step`` is asked again with the partition as it stands when the store has moved on. Call it with ``turn``.

        Raises:
            NotController, MetadataUnavailable, StoreOutcomeUnknown: some chunks may be written; repeat the whole.
        """
        due: list[tuple[Partition, Partition]] = []
        for start in range(0, len(partitions), _SCANNED_AT_ONCE):
            now = partitions[start : start + _SCANNED_AT_ONCE]
            due += [(p, new) for p, new in zip(now, map(step, now), strict=True) if new is not p]
            await give_way()  # heartbeats and the lease go on meanwhile
        pieces = list(self._pieces(due))
        for start in range(0, len(pieces), PIPELINED):
            batch = pieces[start : start + PIPELINED]
            results = await asyncio.gather(*(self._write(piece, step) for piece in batch), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        if due:
            log.info("partitions settled", extra={"partitions": len(due)})
        return len(due)

    async def attempt(
        self, ids: Sequence[PartitionId], step: Step, *, validate_only: bool = False
    ) -> list[Partition | HeadraceError]:
        """
        Apply ``step`` to each of these partitions by itself: what each is then, or why ``step`` refused it.

        Raises:
            HeadraceError: as ``bring``.
        """
        refusals: dict[PartitionId, HeadraceError] = {}

        def tried(partition: Partition) -> Partition:
            refusals.pop(partition.id, None)
            try:
                return step(partition)
            except HeadraceError as refusal:
                refusals[partition.id] = refusal
                return partition

        async with self.turn:
            image = self._follower.mirror.image
            found = [image.partitions[i] for i in ids if i in image.partitions]
            if validate_only:
                planned = {p.id: tried(p) for p in found}
            else:
                await self.bring(found, tried)
                planned = {i: p for i in ids if (p := self._follower.mirror.image.partitions.get(i)) is not None}
        return [refusals.get(i) or planned.get(i) or _unknown(i) for i in ids]

    async def _write(self, piece: Sequence[Partition], step: Step) -> None:
        def decision() -> Decision | None:
            operations: list[Operation] = []
            compares: list[Compare] = []
            for old in piece:
                now = self._follower.mirror.partition(old.id)
                new = None if now is None else step(now)
                if now is None or new is None or new is now:
                    continue
                key = records.partition_key(old.id)
                operations.append(Put(key, records.encode(new)))
                compares.append(Unchanged(key, self._follower.mirror.mod_revision(key)))
                self._order_removal(now, new, operations, compares)
                self._note(now, new)
            return Decision(tuple(operations), tuple(compares)) if operations else None

        await self._writer.decide(decision)

    def _pieces(self, due: Iterable[tuple[Partition, Partition]]) -> Iterator[list[Partition]]:
        """Chunks for one transaction each; where replicas may change, an order to delete a log goes with it."""
        removals = self._follower.mirror.image.removals
        piece: list[Partition] = []
        weight = 0
        for old, new in due:
            moves = reassign.is_under_way(old) or old.replicas != new.replicas or old.id in removals
            own = 2 if moves else 1
            if weight + own > CHUNK:
                yield piece
                piece, weight = [], 0
            piece.append(old)
            weight += own
        if piece:
            yield piece

    def _order_removal(
        self, old: Partition, new: Partition, operations: list[Operation], compares: list[Compare]
    ) -> None:
        """Who lost the replica is to delete its log; who got it back is not."""
        if old.replicas == new.replicas:
            return
        mirror = self._follower.mirror
        order = mirror.image.removals.get(new.id)
        before = () if order is None else order.pending
        pending = reassign.to_delete(old, new, before)
        if pending == before:
            return
        key = records.removal_key(new.id)
        operations.append(Put(key, records.encode(ReplicaRemoval(new.id, pending))) if pending else Delete(key))
        compares.append(Unchanged(key, mirror.mod_revision(key)))

    def _note(self, old: Partition, new: Partition) -> None:
        if new.leader == old.leader:
            return
        self.moves += 1
        extra = {"partition": str(new.id), "leader": new.leader, "epoch": new.leader_epoch, "was": old.leader}
        again = old.offline and new.leader not in {*old.isr, *old.elr}  # it had not recovered from another one
        if new.recovering and (again or not old.recovering):
            self.unclean += 1
            log.warning("a replica that may have lost committed records leads (unclean election)", extra=extra)
        else:
            log.debug("leader changes", extra=extra)

    def _list_concerned(self, everything: bool, topics: frozenset[TopicId]) -> list[Partition]:
        image = self._follower.mirror.image
        if everything:
            return list(image.partitions.values())
        return [p for i in sorted(topics) if i in image.topics for p in image.partitions_of(image.topics[i])]

    def should_be(self, partition: Partition) -> Partition:
        """What a partition should be with the brokers and settings as they are; a ``Step``."""
        return election.settle(partition, self.brokers(), self.rules_of(partition))

    def brokers(self) -> Brokers:
        """The brokers as the image has them now; nobody of them may lead before a restore is finished."""
        mirror = self._follower.mirror
        nodes, waits = mirror.image.nodes, mirror.waits_for_logs
        known, crowded = self._brokers, self.crowded
        if known is None or known[0] is not nodes or known[1] is not waits or known[2] is not crowded:
            found = replace(brokers_of(mirror.image), crowded=crowded)
            known = self._brokers = (nodes, waits, crowded, replace(found, unfenced=frozenset()) if waits else found)
        return known[3]

    def rules_of(self, partition: Partition) -> Rules:
        """What holds for elections of the partition: its topic's settings, and what a restore forgot."""
        mirror = self._follower.mirror
        topic = mirror.image.topics.get(partition.id.topic_id)
        unclean = topic is not None and topic.configs.get("unclean.leader.election.enable") == "true"
        return Rules(min_isr_of(topic, partition), unclean, mirror.number(records.LEADER_EPOCH_KEY, -1))


def _unknown(id: PartitionId) -> HeadraceError:
    return UnknownTopicOrPartition(f"partition {id} does not exist; its topic may have been deleted")


def brokers_of(image: ClusterImage) -> Brokers:
    registered = image.brokers()
    alive = [n for n in registered if not n.fenced]
    return Brokers(
        unfenced=frozenset(n.key.id for n in alive),
        leaving=frozenset(n.key.id for n in alive if n.in_controlled_shutdown),
        drained=frozenset(n.key.id for n in registered if n.drained),
        epochs={n.key.id: n.epoch for n in registered},
    )
