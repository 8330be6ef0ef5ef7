"""
Makes this broker's logs what the cluster image says: creates, leads, stops leading, deletes.

One task follows the image, another carries out deletions. Only a ``TopicDeletion`` deletes a log; one that the image
does not know is stray: kept, not served. To begin to lead, the image must show this very process, unfenced; to go on
it must only not say otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import Deposed, Elected, Event, Followed, Reassigned, Reconfigured
from headrace_broker.core.producers import Ended, Producers
from headrace_broker.core.recovered import RecoveredLog
from headrace_broker.core.roles import choose_role, depose, find_changed
from headrace_broker.core.rows import DropLog, LogWrite
from headrace_broker.core.segments import Segments
from headrace_broker.engine.rebuilding import read_rows
from headrace_broker.engine.replicas import Replica, Replicas, Standing
from headrace_broker.engine.replication import Replication
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.engine.tail_cache import TailCache
from headrace_broker.engine.topic_noter import TopicNoter
from headrace_broker.ports import Cluster, LogStore
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import HeadraceError, NotLeader, StorageFailed
from headrace_common.core.ids import Offset, PartitionId, TopicId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, NodeKey, Role
from headrace_common.core.image import Partition as PartitionMetadata
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import jitter

DELETION_RETRY_MS: Final = 1_000

_log = logging.getLogger(__name__)
_Step = tuple[Replica, Event | Sequence[LogWrite]]


class ImageApplier:
    """One for the broker."""

    def __init__(
        self,
        replicas: Replicas,
        loop: StorageLoop,
        store: LogStore,
        tail: TailCache,
        clock: Clock,
        incarnation: bytes,
        replication: Replication,
        topic_noter: TopicNoter,
    ) -> None:
        self._replicas = replicas
        self._loop = loop
        self._store = store
        self._tail = tail
        self._clock = clock
        self._incarnation = incarnation
        self._key = NodeKey(Role.BROKER, replicas.broker_id)
        self._may_lead = False
        self._replication = replication
        self._topic_noter = topic_noter
        self._accepted: list[Replica] = []
        """Logs whose loss of records the image accepts, until their evidence is lowered."""
        self._to_delete = asyncio.Event()
        self.changed = asyncio.Event()
        """Set after the first image that was taken in."""
        self._moved = asyncio.Event()

    # --- at opening ---------------------------------------------------------------------------------------

    def adopt(self, found: Iterable[RecoveredLog]) -> None:
        """Take over the logs that the store found; all are stray until an image names them."""
        config = TopicConfig.effective({}, {})
        now_ms = self._clock.now_ms()
        for log in found:
            core = restore(self._store, log, config, now_ms, jitter(0.5, ratio=1.0))
            self._replicas.add(Replica(core, Standing.STRAY, damage=log.damage))

    # --- following ----------------------------------------------------------------------------------------

    async def run(self, cluster: Cluster) -> None:
        """Take in each image; ends only when cancelled."""
        async for image in cluster.images():
            await self.take(image)

    async def take(self, image: ClusterImage) -> None:
        """Do what ``image`` changes; returns when it is on disk by the flush policy."""
        old = self._replicas.image
        self._replicas.image = image
        node = image.nodes.get(self._key)
        may_lead = node is not None and not node.fenced and node.incarnation == self._incarnation
        unlocked, self._may_lead = may_lead and not self._may_lead, may_lead
        steps: list[_Step] = []
        logs = len(self._replicas)
        new_defaults = self._defaults(image) != self._defaults(old)
        if image.topics is not old.topics or new_defaults:
            steps += self._reconfigure(old, image, all_changed=new_defaults)
        if unlocked or image.partitions is not old.partitions or image.topics is not old.topics:
            steps += self._assign(EMPTY_IMAGE if unlocked else old, image)
        if image.deletions is not old.deletions or image.removals is not old.removals:
            self._to_delete.set()
        if image.topics is not old.topics or len(self._replicas) > logs or self._topic_noter.waiting:
            await self._topic_noter.bring_up()
            self._to_delete.set()  # what a note held up may be done now
        await self._lower_evidence()
        if image.nodes is not old.nodes:  # first: who is fenced must not be asked to join again
            self._replication.take_peers(image)
        await self._loop.post_all(steps)
        for replica in dict.fromkeys(replica for replica, _ in steps):
            self._replication.follow(replica)
            replica.tell_followers()
        if old.revision == 0:
            self._report_strays()
        self.changed.set()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def wait_for_image(self, revision: int) -> None:
        """Return when an image of at least this revision was taken in."""
        while self._replicas.image.revision < revision:
            await self._moved.wait()

    async def _lower_evidence(self) -> None:
        """Before anything is written to logs whose loss was accepted: or they were damaged again after a restart."""
        accepted, self._accepted = self._accepted, []
        if accepted:
            cores = [replica.core for replica in accepted]
            ends = [(core.log, core.log_end, core.epochs.epoch_at(Offset(core.log_end - 1))) for core in cores]
            await self._store.lower_evidence(ends)

    def _report_strays(self) -> None:
        stray = [replica for replica in self._replicas.all() if replica.standing is Standing.STRAY]
        if stray:
            _log.warning("stray logs found: kept, not served", extra={"logs": len(stray), **_about(stray[0], None)})

    def _reconfigure(self, old: ClusterImage, image: ClusterImage, *, all_changed: bool) -> list[_Step]:
        steps: list[_Step] = []
        for topic_id, topic in image.topics.items():
            before = old.topics.get(topic_id)
            if before is topic and not all_changed:
                continue
            config = self._config(image, topic_id)
            for replica in self._replicas.of_topic(topic_id):
                replica.topic, replica.internal = topic.name, topic.internal
                if replica.core.config != config:
                    steps.append((replica, Reconfigured(config)))
                    if replica.metadata is not None and replica.core.leading is not None:
                        assignment = self._replication.assignment(replica.metadata, config)
                        steps.append((replica, Reassigned(assignment, self._clock.monotonic_ms())))
        return steps

    def _defaults(self, image: ClusterImage) -> dict[str, str]:
        return {**image.cluster_configs, **image.broker_configs.get(self._replicas.broker_id, {})}

    def _config(self, image: ClusterImage, topic_id: TopicId) -> TopicConfig:
        topic = image.topics.get(topic_id)
        return TopicConfig.effective({} if topic is None else topic.configs, self._defaults(image))

    def message_limits(self, names: Iterable[str], bytes_max: int) -> dict[bytes, int]:
        """``max.message.bytes``, or ``bytes_max`` if less, of those of the topics that exist, by topic id."""
        image = self._replicas.image
        defaults = self._defaults(image)
        topics = (image.topic(name) for name in names)
        return {
            topic.topic_id: min(bytes_max, TopicConfig.effective(topic.configs, defaults).max_message_bytes)
            for topic in topics
            if topic is not None
        }

    def _assign(self, old: ClusterImage, image: ClusterImage) -> list[_Step]:
        before = old.partitions
        if image.topics is not old.topics:  # a topic that has become complete is new with all that it has
            before = {id: partition for id, partition in before.items() if id.topic_id in old.topics}
        steps, aside = list[_Step](), list[Replica]()
        for id in find_changed(before, image.partitions):
            partition, replica = image.partitions.get(id), self._replicas.get(id)
            if partition is not None and id.topic_id not in image.topics:
                continue  # its topic is not complete yet
            if partition is not None and self._replicas.broker_id in partition.replicas:
                steps += self._host(image, partition)
            elif replica is not None:
                aside.append(replica)
        return steps + self._set_aside(image, aside)

    def _host(self, image: ClusterImage, partition: PartitionMetadata) -> list[_Step]:
        steps: list[_Step] = []
        replica = self._replicas.get(partition.id)
        if replica is None:
            replica, writes = self._create(image, partition.id)
            steps.append((replica, writes))
        if replica.standing is Standing.DELETING:
            return steps
        replica.metadata = partition
        leads = partition.leader == self._replicas.broker_id
        if replica.damage is not None and leads and partition.recovering:
            _log.warning("the loss of records was accepted", extra=_about(replica, partition.leader_epoch))
            replica.damage = None
            self._accepted.append(replica)
        topic = image.topics[partition.id.topic_id]
        replica.topic, replica.internal = topic.name, topic.internal
        replica.standing = Standing.ONLINE if replica.damage is None else Standing.DAMAGED
        config = self._config(image, partition.id.topic_id)
        if replica.core.config != config:
            steps.append((replica, Reconfigured(config)))
        return steps + self._turn(replica, partition, config)

    def _turn(self, replica: Replica, partition: PartitionMetadata, config: TopicConfig) -> list[_Step]:
        assignment, now_ms = self._replication.assignment(partition, config), self._clock.monotonic_ms()
        sound = replica.damage is None
        event = choose_role(replica.core, partition, assignment, now_ms, sound=sound, may_lead=self._may_lead)
        match event:
            case None:
                return []
            case Elected():
                self._say(replica, partition.leader_epoch)
                replica.lose_followers()
            case Followed() | Deposed():
                replica.lose_followers()
                replica.wake()
        return [(replica, event)]

    def _say(self, replica: Replica, epoch: int) -> None:
        known = replica.core.epochs.latest
        if epoch >= known:
            _log.debug("leading", extra=_about(replica, epoch))
            return
        _log.error(
            "the log knows leader epoch %d, the metadata an older one: it is not led; was the metadata restored?",
            known,
            extra=_about(replica, epoch),
        )

    def _create(self, image: ClusterImage, partition_id: PartitionId) -> tuple[Replica, list[LogWrite]]:
        config = self._config(image, partition_id.topic_id)
        core, writes = Partition.create(
            partition_id, self._store.new_log_id(), config, self._clock.now_ms(), jitter(0.5, ratio=1.0)
        )
        replica = Replica(core, Standing.ONLINE)
        self._replicas.add(replica)
        return replica, writes

    def _set_aside(self, image: ClusterImage, replicas: Sequence[Replica]) -> list[_Step]:
        """The image has no use for these logs. They stay; only an order to delete their topic removes them."""
        alive = [replica for replica in replicas if replica.standing is not Standing.DELETING]
        for replica in alive:
            replica.standing, replica.metadata = Standing.STRAY, None
        ordered = {removal.id for removal in image.removals.values() if self._replicas.broker_id in removal.pending}
        stray = [
            replica for replica in alive if replica.id.topic_id not in image.deletions and replica.id not in ordered
        ]
        if stray:
            _log.warning("stray logs: kept, not served", extra={"logs": len(stray), **_about(stray[0], None)})
        return [self._depose(replica) for replica in alive]

    def _depose(self, replica: Replica) -> _Step:
        replica.lose_followers()
        replica.wake()
        return replica, depose()

    # --- deleting -----------------------------------------------------------------------------------------

    async def delete(self, cluster: Cluster) -> None:
        """Carry out deletions and confirm them, again and again until the image drops them; ends when cancelled."""
        while True:
            await self._to_delete.wait()
            self._to_delete.clear()
            topics, partitions = self._order_removals()
            if not topics and not partitions:
                continue
            await self._drop(topics, partitions)
            try:
                await cluster.confirm_deletions(topics, partitions)
            except HeadraceError as error:
                _log.warning(
                    "deletions could not be confirmed: %s",
                    error,
                    extra={"topics": len(topics), "partitions": len(partitions)},
                )
                await self._clock.sleep_ms(DELETION_RETRY_MS)
                self._to_delete.set()

    def _order_removals(self) -> tuple[list[TopicId], list[PartitionId]]:
        image, me = self._replicas.image, self._replicas.broker_id
        topics = [deletion.topic_id for deletion in image.deletions.values() if me in deletion.pending]
        partitions = [
            removal.id
            for removal in image.removals.values()
            if me in removal.pending
            and not self._topic_noter.may_know_more(removal.id.topic_id)
            and (removal.id not in image.partitions or me not in image.partitions[removal.id].replicas)
        ]
        return topics, partitions

    async def _drop(self, topics: Sequence[TopicId], partitions: Sequence[PartitionId]) -> None:
        doomed = [replica for topic_id in topics for replica in self._replicas.of_topic(topic_id)]
        single = (self._replicas.get(partition) for partition in partitions if partition.topic_id not in topics)
        doomed += [replica for replica in single if replica is not None]
        if not doomed:
            return
        gone = NotLeader("the log was deleted here by order; refresh metadata")
        for replica in doomed:
            replica.standing = Standing.DELETING
        await self._loop.post_all((replica, Deposed(gone)) for replica in doomed)
        for replica in doomed:
            replica.lose_followers()
            replica.wake()
            self._replication.follow(replica)
        await self._store.lower_evidence([(replica.core.log, Offset(0), -1) for replica in doomed])
        await self._loop.post_all((replica, [DropLog(replica.core.log)]) for replica in doomed)
        self._tail.drop({replica.core.log for replica in doomed})
        for replica in doomed:
            self._replicas.remove(replica)
        _log.info(
            "logs were deleted by order",
            extra={"logs": len(doomed), "topics": len(topics), "partitions": len(partitions)},
        )
        await self._take_back([replica.id for replica in doomed])
        await self._store.reclaim()

    async def _take_back(self, deleted: Iterable[PartitionId]) -> None:
        """Replicas that were given to this broker again while their logs were being deleted begin anew."""
        image, steps = self._replicas.image, list[_Step]()
        for id in deleted:
            partition = image.partitions.get(id)
            hosted = partition is not None and self._replicas.broker_id in partition.replicas
            if partition is not None and hosted and id.topic_id in image.topics and self._replicas.get(id) is None:
                steps += self._host(image, partition)
        await self._topic_noter.bring_up()
        await self._loop.post_all(steps)
        for replica in dict.fromkeys(replica for replica, _ in steps):
            self._replication.follow(replica)


def restore(
    store: LogStore, log: RecoveredLog, config: TopicConfig, now_ms: int, roll_jitter: float = 0.0
) -> Partition:
    """
    The partition of a log that the store found: producers from their snapshot and the index rows after it.

    The rows of a damaged log may not be readable; it does not lead before its loss is accepted.
    """
    try:
        rows = read_rows(store, log.log, log.producers_at, log.log_end)
        ended = _find_ended(store, log, now_ms)
        first_batch = _base_of_start(store, log)
    except StorageFailed:
        if log.damage is None:
            raise
        rows, ended, first_batch = [], [], None
    producers = Producers(log.producers)
    ended += producers.replay(rows, now_ms)
    producers.forget_above(config.producer_ids_max)
    segments = Segments.recover(log.segments, log.last_row, log.log_end, now_ms, roll_jitter)
    segments.drop_below(log.state.log_start)
    core = Partition.recover(log.state, log.log, config, segments, log.log_end, log.epochs, producers, first_batch)
    core.with_transactions(log.aborted, ended)
    core.snapshot_bytes = sum(row.size for row in rows)  # one that holds the log start is in no snapshot either
    return core


def _base_of_start(store: LogStore, log: RecoveredLog) -> Offset | None:
    """The base of the batch that holds the log start, if it begins below."""
    start = log.state.log_start
    holder = store.floor(log.log, start)
    return holder.base_offset if holder is not None and holder.next_offset > start else None


def _find_ended(store: LogStore, log: RecoveredLog, now_ms: int) -> list[Ended]:
    """Transactions that end between the high watermark and a snapshot above it: their markers may yet be cut."""
    watermark = log.state.high_watermark
    if log.producers_at <= watermark:
        return []
    at, known = store.producers_before(log.log, watermark) or (log.state.log_start, ())
    return Producers(known).replay(read_rows(store, log.log, at, log.producers_at), now_ms)


def _about(replica: Replica, epoch: int | None) -> dict[str, object]:
    return {**replica.log_fields, "epoch": epoch}
