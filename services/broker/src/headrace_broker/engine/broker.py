"""
The broker: one method per RPC, and the loops behind them.

``main`` builds it from a store and a cluster, runs its loops in a ``TaskRunner`` and hands it to the servicers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from headrace_broker.core.leadership import Assignment
from headrace_broker.core.local_log import segment_rows
from headrace_broker.core.measures import Measures, PartitionGauges, TopicGauges
from headrace_broker.core.partition_events import CheckpointAsked
from headrace_broker.core.recovered import RecoveryReport
from headrace_broker.core.rows import SegmentRow
from headrace_broker.engine.audit_log import AuditLog
from headrace_broker.engine.body_checks import BodyChecks
from headrace_broker.engine.cleaner import Cleaner, Compaction
from headrace_broker.engine.client_rates import ClientRates
from headrace_broker.engine.cold_reader import ColdReader
from headrace_broker.engine.coordinators import Coordinators
from headrace_broker.engine.describing import KnownProducers, describe_producers, topic_gauges
from headrace_broker.engine.enrolments import Enrolments
from headrace_broker.engine.fetch import Fetches
from headrace_broker.engine.image_applier import ImageApplier
from headrace_broker.engine.inventory import Page, find_last_written, list_pages
from headrace_broker.engine.markers import Markers
from headrace_broker.engine.offsets import Offsets
from headrace_broker.engine.permitted import Permitted
from headrace_broker.engine.produce import ProduceSession
from headrace_broker.engine.producer_ids import ProducerIds
from headrace_broker.engine.rebuilding import prepare_trim
from headrace_broker.engine.record_notes import WRITE, NotedTopics, RecordNotes
from headrace_broker.engine.replicas import Replica, Replicas, Standing
from headrace_broker.engine.replicate_session import Stored
from headrace_broker.engine.replication import Replication
from headrace_broker.engine.scrubber import Scrub, Scrubber
from headrace_broker.engine.shares import Shares
from headrace_broker.engine.stamping import StampingClock
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.engine.storage_queue import Flush, QueueLimits
from headrace_broker.engine.tail_cache import TailCache
from headrace_broker.engine.topic_noter import TopicNoter
from headrace_broker.engine.upkeep import Upkeep
from headrace_broker.ports import Cluster, Disk, Leaders, TransactionCoordinators
from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType
from headrace_common.core.errors import ErrorCode, HeadraceError, OffsetOutOfRange, Rejected
from headrace_common.core.ids import NO_PRODUCER_ID, NodeId, Offset, PartitionId, TopicId
from headrace_common.runtime.auditing import RecordTeller
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.tasks import TaskRunner

POLICY_VIOLATION: Final = ErrorCode.POLICY_VIOLATION
TRIMS_PER_REQUEST_MAX: Final = 10_000
PRODUCER_ID_CLAIM_MAX: Final = 2**48
"""Controllers count up from a small number; an id above this was made up by a client."""
GAUGES_PER_PARTITION_MAX: Final = 200
"""With more logs than this their ends are not published one by one; DescribeLogs has them."""


@dataclass(frozen=True, slots=True)
class Who:
    """Which process this is."""

    broker_id: NodeId
    incarnation: bytes
    cluster_id: str


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the engine takes from the configuration."""

    flush: Flush = Flush.GROUP
    tail_cache_bytes: int = 64 << 20
    limits: QueueLimits = QueueLimits()
    disk_reserve_bytes: int | None = None
    """None: 5 % of the disk, at most 5 GiB."""

    def reserve(self, total: int) -> int:
        """Bytes to keep free on a disk of ``total`` bytes."""
        if self.disk_reserve_bytes is not None:
            return self.disk_reserve_bytes
        return min(total // 20, 5 << 30)


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The answer of DeleteRecords for one partition."""

    partition: PartitionId
    log_start: int = -1
    error: HeadraceError | None = None


class Broker:
    """Everything behind the RPCs; all calls on one event loop."""

    def __init__(
        self,
        who: Who,
        settings: EngineSettings,
        *,
        disk: Disk,
        cluster: Cluster,
        leaders: Leaders,
        transactions: TransactionCoordinators,
        clock: Clock,
        tasks: TaskRunner,
    ) -> None:
        stamps, store = StampingClock(clock), disk.logs
        self.who = who
        self.measures = Measures()
        self.replicas = Replicas(who.broker_id)
        self.tail = TailCache(settings.tail_cache_bytes)
        self.loop = StorageLoop(store, stamps, self.tail, self.measures, settings.flush, settings.limits)
        self.shares = Shares(settings.limits.bytes_max)
        cold = ColdReader(store, tasks, self.measures)
        self.tail.on_forget = cold.forget
        stored = Stored(store, self.tail, cold)
        self.replication = Replication(self.replicas, self.loop, stored, cluster, leaders, stamps, tasks)
        self.topic_noter = TopicNoter(self.replicas, disk.notes, self.loop)
        self.follower = ImageApplier(
            self.replicas, self.loop, store, self.tail, stamps, who.incarnation, self.replication, self.topic_noter
        )
        self.rates = ClientRates(clock, self.measures)
        self._noted = NotedTopics(self.replicas, WRITE)
        self.fetches = Fetches(self.replicas, self.tail, cold, self.measures, self.rates)
        self.offsets = Offsets(self.replicas, store, cold)
        self.body_checks = BodyChecks(self.replicas)
        self.upkeep = Upkeep(self.replicas, self.loop, store, clock, self.measures, settings.reserve)
        self.upkeep.on_disk_low = cluster.say_disk_low
        self.cleaner = Cleaner(
            self.replicas, self.loop, store, clock, tasks, self.measures, self.upkeep.time_ms, settings.reserve
        )
        self.cleaner.on_lost = self.replication.lost.on_lost_batch
        self.scrubber = Scrubber(self.replicas, cold, clock, self.measures)
        self.producer_ids = ProducerIds(cluster, tasks)
        self.markers = Markers(self.replicas, self.loop, clock, self.measures)
        self.enrolments = Enrolments(self.replicas, self.loop, transactions, clock, self.measures)
        self.coordinators = Coordinators(self.replicas, self.follower, cluster, tasks)
        self.audit_log = AuditLog(self.replicas, self.loop, self.coordinators, clock)
        self._store = store
        self._reserve = settings.reserve
        self._cluster = cluster
        self._clock = clock
        self._tasks = tasks
        self._started = False
        self.follower.adopt(store.list_recovered())

    @property
    def report(self) -> RecoveryReport:
        """What opening the store found."""
        return self._store.report

    @property
    def damaged(self) -> tuple[PartitionId, ...]:
        """Logs that lost acknowledged records, but for those whose loss was accepted: what a registration says."""
        return tuple(replica.id for replica in self.replicas.all() if replica.damage is not None)

    @property
    def highest(self) -> tuple[int, int]:
        """
        The highest leader epoch in the logs, and the highest producer id in them or given out here: what a registration
        claims. A client may write under any id, so ids that no controller ever reaches claim nothing.
        """
        cores = [replica.core for replica in self.replicas.all()]
        epochs = (core.epochs.latest for core in cores)
        ids = (core.producers.highest_id(PRODUCER_ID_CLAIM_MAX) for core in cores)
        return max(epochs, default=0), max(self.producer_ids.highest, *ids, NO_PRODUCER_ID)

    def start(self) -> None:
        """Begin to work: the storage loop, the image, the clock."""
        self._started = True
        start = self._tasks.start
        start(self.loop.run(), name="storage-loop")
        start(self.loop.flush(), name="storage-flush")
        start(self.follower.run(self._cluster), name="image")
        start(self.follower.delete(self._cluster), name="deletions")
        start(self.enrolments.run(), name="enrolments")
        start(self.upkeep.run_retention(), name="retention")
        start(self.upkeep.run_disk_watch(), name="disk")
        start(self.upkeep.run_expiry(), name="late-requests")
        start(self.cleaner.run(), name="cleaner")
        start(self.scrubber.run(), name="scrub")
        start(self.replication.proposals.run(), name="isr-changes")
        start(self.replication.check_followers(), name="followers")
        start(self.replication.lost.run(), name="lost-batches")
        start(self.replication.checkpoint(), name="high-watermarks")

    def drain(self) -> None:
        """Whoever waits for records is answered at once; compaction and scrub rest; produce requests are taken."""
        self.cleaner.drain()
        self.scrubber.drain()
        self.fetches.drain()
        self.offsets.drain()

    async def checkpoint(self) -> None:
        """Write what spares the next start work; called last, when nothing is appended any more."""
        if not self._started:
            return
        sound = [replica for replica in self.replicas.all() if replica.damage is None]  # a write would cut what is kept
        await self.loop.post_all((replica, CheckpointAsked()) for replica in sound)

    def produce_session(
        self,
        may_write_internal: Callable[[], bool] = lambda: True,
        whose: str | None = None,
        rights: Rights = EVERYTHING,
        client_id: str = "",
        tell: RecordTeller | None = None,
    ) -> ProduceSession:
        """
        For one produce stream; give it back with ``end_session``.

        ``whose``: see ``shares``; None: it has no bound but the queue's. ``rights``: of its caller, who shows
        ``client_id``. ``tell``: the audit that it has written records.
        """
        session = ProduceSession(
            self.replicas,
            self.loop,
            self._clock,
            self.measures,
            may_write_internal=may_write_internal,
            share=None if whose is None else self.shares.of(whose),
            rights=rights,
            rate=self.rates.writes(rights, client_id),
        )
        session.notes = None if tell is None else RecordNotes(self._noted, tell)
        self.upkeep.sessions[session] = None
        return session

    def end_session(self, session: ProduceSession) -> None:
        """The stream is over."""
        self.upkeep.sessions.pop(session, None)

    async def trim(self, asks: Sequence[tuple[PartitionId, int]], rights: Rights = EVERYTHING) -> list[Trimmed]:
        """
        Move log starts up; -1: to the high watermark. One answer per ask, in order.

        Raises:
            Rejected: too many at once.
        """
        if len(asks) > TRIMS_PER_REQUEST_MAX:
            raise Rejected(f"the request names {len(asks)} partitions; {TRIMS_PER_REQUEST_MAX} is the most")
        logs = Permitted(self.replicas, rights, Operation.DELETE)
        return await asyncio.gather(*(self._trim(logs, partition, offset) for partition, offset in asks))

    async def _trim(self, logs: Permitted, partition: PartitionId, offset: int) -> Trimmed:
        try:
            replica = logs.get_leading(partition, None)
            core = replica.core
            if replica.internal:
                raise Rejected(f"{replica.topic} is internal; its records are the system's", code=POLICY_VIOLATION)
            if offset < -1:
                raise OffsetOutOfRange(f"offset {offset} is negative; -1 means the high watermark")
            start = core.high_watermark if offset == -1 else Offset(offset)
            await self.loop.post(replica, partial(prepare_trim, self._store, core, start, self._clock.now_ms()))
            return Trimmed(partition, core.log_start)
        except HeadraceError as error:
            return Trimmed(partition, error=error)

    @staticmethod
    def describes_itself(rights: Rights) -> bool:
        """Whether the caller is told of the broker as a whole: of its disk, and of logs that no topic has."""
        return rights.shows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)

    def logs(self, topics: Sequence[TopicId], rights: Rights = EVERYTHING) -> list[Replica]:
        """The logs of these topics, or all of them, strays included; of them those that the caller is told of."""
        found = list(self.replicas.all())
        if topics:
            found = [replica for topic_id in dict.fromkeys(topics) for replica in self.replicas.of_topic(topic_id)]
        if self.describes_itself(rights):
            return found
        return [one for one in found if rights.shows(Operation.DESCRIBE, ResourceType.TOPIC, one.topic)]

    def producers(
        self, partitions: Sequence[PartitionId], *, open_only: bool, rights: Rights = EVERYTHING
    ) -> AsyncIterator[KnownProducers]:
        """What partitions know of their producers; see ``describe_producers``."""
        return describe_producers(self.replicas, partitions, open_only=open_only, rights=rights)

    def segments(self, replica: Replica) -> Sequence[SegmentRow]:
        """All segments of a log, the active one last."""
        return segment_rows(replica.core)

    def compaction(self, replica: Replica) -> Compaction | None:
        """How far the compaction of a log is; None: it is not one to compact."""
        return self.cleaner.describe(replica)

    def scrub(self) -> Scrub:
        """How far the scrub of stored batches is."""
        return self.scrubber.describe()

    def disk(self) -> tuple[int, int, int]:
        """Bytes free and in all, and what is kept free: with less new records are refused."""
        free, total = self._store.free_bytes()
        return free, total, self._reserve(total)

    def gauges(self) -> Mapping[str, Callable[[], float]]:
        """Numbers of the moment, by name; each may be read from any thread."""
        logs = {f"logs_{standing.value}": partial(self._count, standing) for standing in Standing}
        return {
            "queue_bytes": lambda: self.loop.queued_bytes,
            "tail_cache_bytes": lambda: self.tail.size,
            "fetch_bytes_in_flight": lambda: self.fetches.answers.all.size,
            "disk_free_bytes": lambda: self.disk()[0],
            "disk_reserve_bytes": lambda: self.disk()[2],
            "image_revision": lambda: self.replicas.image.revision,
            "producer_ids_left": lambda: self.producer_ids.left,
            "partitions_led": lambda: sum(one.core.leader_epoch is not None for one in self.replicas.all()),
            "partitions_followed": lambda: self.replication.copied_partitions,
            "replication_streams_broken": lambda: self.replication.broken_streams,
            "under_replicated_partitions": lambda: self._count_led(lambda now: len(now.isr) < len(now.replicas)),
            "under_min_isr_partitions": lambda: self._count_led(lambda now: len(now.isr) < now.min_isr),
            "enrolments_waiting": lambda: self.enrolments.unanswered,
            "enrolment_parked_bytes": lambda: self.loop.effects.parked_bytes,
            "open_transactions": lambda: sum(len(one.core.producers.open) for one in self.replicas.all()),
            "last_stable_lag_records_max": lambda: max(self._count_held_back(), default=0),
            "last_stable_lag_records": lambda: sum(self._count_held_back()),
            "oldest_open_transaction_s": self._oldest_open_s,
            "cleaner_dirty_ratio_max": lambda: self.cleaner.dirty_ratio_max,
            "cleaner_stuck_logs": lambda: self.cleaner.stuck_logs,
            "cleaner_idle_s": lambda: self.cleaner.idle_s,
            **logs,
        }

    def _count_held_back(self) -> list[int]:
        """Records that are committed and not decided, of each log that is led here."""
        led = (one.core for one in self.replicas.all() if one.core.leading is not None)
        return [core.high_watermark - core.last_stable for core in led]

    def _oldest_open_s(self) -> float:
        """The age of the transaction that has been open for longest in a log that is led here; 0: none is open."""
        led = (one.core for one in self.replicas.all() if one.core.leading is not None)
        oldest = (found[1].transaction_since_ms for core in led if (found := core.producers.oldest_open()))
        since_ms = min(oldest, default=None)
        return 0.0 if since_ms is None else max(0.0, (self._clock.now_ms() - since_ms) / 1_000)

    def _count_led(self, condition: Callable[[Assignment], bool]) -> int:
        led = (one.core.leading for one in self.replicas.all())
        return sum(leading is not None and condition(leading.assignment) for leading in led)

    def log_ends(self, partitions: Sequence[PartitionId]) -> list[tuple[PartitionId, int, Offset]]:
        """
        Newest epoch and written end of those of the logs that are here and sound, for an election.

        Raises:
            Rejected: too many at once.
        """
        if len(partitions) > TRIMS_PER_REQUEST_MAX:
            raise Rejected(f"the request names {len(partitions)} partitions; {TRIMS_PER_REQUEST_MAX} is the most")
        found = [self.replicas.get(partition) for partition in dict.fromkeys(partitions)]
        return [
            (one.id, *find_last_written(one))
            for one in found
            if one is not None and one.damage is None and one.standing is not Standing.DELETING
        ]

    def inventory(self, topics: Sequence[TopicId]) -> AsyncIterator[Page]:
        """All that is on disk of these topics, or of all; see ``list_pages``."""
        return list_pages(self.replicas, self.topic_noter, topics)

    def _count(self, standing: Standing) -> int:
        return sum(one.standing is standing for one in self.replicas.all())

    def topic_gauges(self) -> Iterable[TopicGauges]:
        return topic_gauges(self.replicas, self._clock.now_ms())

    def partition_gauges(self) -> Iterable[PartitionGauges]:
        """Where each served log stands; nothing when there are too many to publish."""
        online = [one for one in self.replicas.all() if one.standing is Standing.ONLINE]
        if len(online) > GAUGES_PER_PARTITION_MAX:
            return []
        return [
            PartitionGauges(
                one.topic,
                one.id.partition,
                one.core.log_start,
                one.core.log_end,
                one.core.high_watermark,
                one.core.last_stable,
            )
            for one in online
        ]
