"""
The leader's end of a ``Replicate`` stream: one follower, all partitions that it copies from here.

A session keeps what the follower asked for last. The storage loop tells it when a log has grown or its high watermark
has moved; it answers with whatever there is to tell, few answers at a time, so partitions at rest cost nothing. Data
comes from the tail cache; what is no longer there is read by a task of its own, so that a follower that catches up in
one partition does not hold up the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace_broker.core.copying import Copied, CopyAnswer, CopyAsk, Position, continue_log
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import FollowerFetched
from headrace_broker.engine.cold_reader import ColdReader
from headrace_broker.engine.replicas import Replica, Replicas
from headrace_broker.engine.storage_loop import StorageLoop
from headrace_broker.engine.tail_cache import TailCache
from headrace_broker.ports import LogStore
from headrace_common.core.errors import HeadraceError, NotLeader, OffsetOutOfRange, Rejected, StaleBrokerEpoch
from headrace_common.core.ids import NodeId, Offset, PartitionId
from headrace_common.core.image import ClusterImage, NodeKey, Role
from headrace_common.runtime.clock import Clock, call_later_ms

ANSWER_BYTES_MAX: Final = 4 << 20
PARTITION_BYTES_MAX: Final = 1 << 20
UNRECEIVED_MAX: Final = 4
"""Answers on their way to a follower."""
NEWS_DELAY_MS_MAX: Final = 20
"""How long a moved high watermark waits for data to travel with; less where ``replica.fetch.wait.max.ms`` is less."""


@dataclass(slots=True, eq=False)
class _Entry:
    replica: Replica
    leader_epoch: int
    log_end: Offset
    wants: bool
    written_end: Offset = Offset(-1)
    last_epoch: int = -1
    forgotten_to: Offset = Offset(0)
    told: tuple[int, int, int] = (-1, -1, -1)
    """High watermark, log start, and up to where deletions have gone, as they were told last."""
    reading: bool = False
    """Its batches are being read from disk, or wait for that."""

    @property
    def stands(self) -> bool:
        """Whether the log is still led in the epoch that the follower follows in: else it may hold other records."""
        return self.replica.core.leader_epoch == self.leader_epoch


@dataclass(frozen=True, slots=True)
class Stored:
    """Where batches come from: memory, and the disk beneath it."""

    store: LogStore
    tail: TailCache
    cold: ColdReader


class ReplicateSessions:
    """The open sessions by follower. A follower has one: what an older stream still brings is of the past."""

    def __init__(self) -> None:
        self._open: dict[NodeId, tuple[int, ReplicateSession]] = {}

    def begin(self, broker: NodeId, epoch: int, session: ReplicateSession) -> None:
        """
        The first message of ``session`` is here; an older session of the same broker ends.

        Raises:
            StaleBrokerEpoch: a newer process of that broker has a session.
        """
        known = self._open.get(broker)
        if known is not None and not known[1].ended:
            if known[0] > epoch:
                raise StaleBrokerEpoch(f"broker {broker} copies with epoch {known[0]} already; {epoch} is older")
            known[1].end()
        self._open[broker] = (epoch, session)


class ReplicateSession:
    """One for each stream; ``end`` it whatever happens."""

    def __init__(
        self,
        replicas: Replicas,
        loop: StorageLoop,
        stored: Stored,
        clock: Clock,
        sessions: ReplicateSessions,
        fetch_wait_ms_max: Callable[[], int] = lambda: NEWS_DELAY_MS_MAX,
    ) -> None:
        self._replicas = replicas
        self._loop = loop
        self._tail = stored.tail
        self._cold = stored.cold
        self._clock = clock
        self._sessions = sessions
        self._fetch_wait_ms_max = fetch_wait_ms_max
        self._broker: tuple[NodeId, int] | None = None
        self._entries: dict[PartitionId, _Entry] = {}
        self._ready: dict[PartitionId, _Entry] = {}
        self._news: dict[PartitionId, _Entry] = {}
        self._cold_ready: deque[_Entry] = deque()
        self._outbox: list[Copied] = []
        self._wake = asyncio.Event()
        self._cold_wake = asyncio.Event()
        self._news_timer: asyncio.TimerHandle | None = None
        self._news_due = False
        self._sent = 0
        self._received = 0
        self._image: ClusterImage | None = None
        self._may_join = False
        self.ended = False

    # --- what the follower says ---------------------------------------------------------------------------

    def take(self, ask: CopyAsk) -> None:
        """
        One message of the follower.

        Raises:
            StaleBrokerEpoch: it is not the broker that began the stream, or an old process of it.
        """
        if self.ended:
            return
        if self._broker is None:
            self._sessions.begin(ask.broker, ask.broker_epoch, self)
            self._broker = (ask.broker, ask.broker_epoch)
        elif self._broker != (ask.broker, ask.broker_epoch):
            raise StaleBrokerEpoch("a stream belongs to one broker in one epoch; open another one")
        self._received = max(self._received, min(ask.received, self._sent))
        for partition in ask.withdrawn:
            self._drop(partition)
        now_ms = self._clock.monotonic_ms()
        for position in ask.positions:
            self._position(position, now_ms)
        self._wake.set()

    def _position(self, position: Position, now_ms: float) -> None:
        replica = None
        try:
            if position.written_end > position.log_end:
                raise Rejected(f"written_end is {position.written_end}, above log_end {position.log_end}")
            replica = self._replicas.get_leading(position.partition, position.leader_epoch)
            parted = replica.core.compare(position.last_epoch, position.log_end, position.forgotten_to)
        except HeadraceError as error:
            self._refuse(position, replica, error)
            return
        if parted is not None:
            self._drop(position.partition)
            answer = Copied(position.partition, position.leader_epoch, parted=parted)
            self._outbox.append(_with_start(answer, replica))
            return
        entry = self._entries.get(position.partition)
        if entry is None:
            entry = _Entry(replica, position.leader_epoch, position.log_end, wants=False)
            self._entries[position.partition] = entry
            replica.sessions.append(self)
            self.on_shown(replica)
        entry.leader_epoch = position.leader_epoch
        entry.log_end, entry.written_end = position.log_end, position.written_end
        entry.last_epoch, entry.forgotten_to = position.last_epoch, position.forgotten_to
        entry.wants = entry.wants or position.wants
        self._tell(entry, now_ms)
        self.on_grown(replica)

    def _tell(self, entry: _Entry, now_ms: float) -> None:
        """The partition hears how far the follower is."""
        broker, broker_epoch = self._broker or (NodeId(-1), -1)
        event = FollowerFetched(broker, broker_epoch, entry.log_end, entry.written_end, self._eligible(), now_ms)
        self._loop.handle_now(entry.replica, event)

    def _refuse(self, position: Position, replica: Replica | None, error: HeadraceError) -> None:
        self._drop(position.partition)
        refused = Copied(position.partition, position.leader_epoch, error=error)
        if replica is not None and isinstance(error, OffsetOutOfRange):
            refused = _with_start(refused, replica)
        self._outbox.append(refused)

    def _eligible(self) -> bool:
        """Whether the image shows the follower unfenced, here to stay, in the epoch that it speaks with."""
        image = self._replicas.image
        if image is not self._image and self._broker is not None:
            self._image = image
            node = image.nodes.get(NodeKey(Role.BROKER, self._broker[0]))
            self._may_join = (
                node is not None
                and not node.fenced
                and not node.in_controlled_shutdown
                and node.epoch == self._broker[1]
            )
        return self._may_join

    def _drop(self, partition: PartitionId) -> None:
        entry = self._entries.pop(partition, None)
        self._ready.pop(partition, None)
        self._news.pop(partition, None)
        if entry is not None:
            entry.wants = False
            entry.replica.sessions.remove(self)

    # --- what the storage loop says -----------------------------------------------------------------------

    def on_grown(self, replica: Replica) -> None:
        """More of the log is written."""
        entry = self._entries.get(replica.id)
        if entry is not None and entry.wants and replica.core.written_end > entry.log_end:
            self._ready[replica.id] = entry
            self._wake.set()

    def on_shown(self, replica: Replica) -> None:
        """Its high watermark or its start has moved."""
        entry = self._entries.get(replica.id)
        if entry is None:
            return
        self._news[replica.id] = entry
        if self._news_timer is None:
            self._news_timer = call_later_ms(self._news_delay_ms(), self._on_news_due)

    def on_reassigned(self, replica: Replica) -> None:
        """
        The image may have made the follower one of its replicas.

        The follower can hear of that before its leader does: what it said then counted for nothing, and while the
        partition is at rest it says nothing more.
        """
        entry, leading = self._entries.get(replica.id), replica.core.leading
        if entry is None or leading is None or self._broker is None:
            return
        if entry.stands and leading.expects(self._broker[0]):
            self._tell(entry, self._clock.monotonic_ms())

    def on_lost(self, replica: Replica) -> None:
        """It is not led here any more, or in another epoch."""
        entry = self._entries.get(replica.id)
        if entry is not None:
            self._drop(replica.id)
            gone = NotLeader("the partition is led elsewhere, or in another epoch; follow the metadata")
            self._outbox.append(Copied(replica.id, entry.leader_epoch, error=gone))
            self._wake.set()

    def _news_delay_ms(self) -> float:
        return min(NEWS_DELAY_MS_MAX, self._fetch_wait_ms_max())

    def _on_news_due(self) -> None:
        self._news_timer = None
        self._news_due = True
        self._wake.set()

    # --- answering ----------------------------------------------------------------------------------------

    async def answer(self) -> CopyAnswer | None:
        """The next answer, as soon as there is something to tell and the follower has taken the last ones."""
        while not self.ended:
            if self._sent - self._received < UNRECEIVED_MAX:
                partitions = self._collect()
                if partitions:
                    self._sent += 1
                    return CopyAnswer(self._sent, partitions)
            self._wake.clear()
            await self._wake.wait()
        return None

    def end(self) -> None:
        """The stream is over."""
        self.ended = True
        for partition in list(self._entries):
            self._drop(partition)
        if self._news_timer is not None:
            self._news_timer.cancel()
        self._wake.set()
        self._cold_wake.set()

    def _collect(self) -> list[Copied]:
        told, self._outbox = self._outbox, []
        room = ANSWER_BYTES_MAX
        while self._ready and room > 0:
            partition, entry = next(iter(self._ready.items()))
            del self._ready[partition]
            copied = self._take_hot(entry, min(room, PARTITION_BYTES_MAX))
            if copied is not None:
                told.append(copied)
                room -= sum(map(len, copied.batches))
        if (told or self._news_due) and self._news:
            news, self._news, self._news_due = self._news, {}, False
            told += [self._make_copied(entry, []) for entry in news.values() if self._is_news(entry)]
        return told

    def _take_hot(self, entry: _Entry, bytes_max: int) -> Copied | None:
        core = entry.replica.core
        if not entry.stands:
            self.on_lost(entry.replica)
            return None
        if not entry.wants or entry.reading or core.written_end <= entry.log_end:
            return None
        batches = self._tail.take(core.log, entry.log_end, core.written_end, bytes_max, first=True)
        if not batches:
            entry.reading = True
            self._cold_ready.append(entry)
            self._cold_wake.set()
            return None
        return self._feed(entry, batches)

    def _feed(self, entry: _Entry, batches: list[bytes]) -> Copied | None:
        """Batches that were asked for, unless deletions have gone meanwhile that the follower had to copy first."""
        try:
            entry.replica.core.compare(entry.last_epoch, entry.log_end, entry.forgotten_to)
        except OffsetOutOfRange as error:
            self._refuse_at(entry, error)
            return None
        entry.wants = False
        return self._make_copied(entry, continue_log(batches, entry.log_end))

    def _make_copied(self, entry: _Entry, batches: list[bytes]) -> Copied:
        core = entry.replica.core
        entry.told = _news_of(core)
        self._news.pop(entry.replica.id, None)
        watermark, start, forgotten_to = entry.told
        return Copied(
            entry.replica.id,
            entry.leader_epoch,
            Offset(watermark),
            Offset(start),
            batches,
            forgotten_to=Offset(forgotten_to),
        )

    def _is_news(self, entry: _Entry) -> bool:
        core = entry.replica.core
        if not entry.stands:
            self.on_lost(entry.replica)
            return False
        return entry.told != _news_of(core)

    async def read_cold(self) -> None:
        """Read what is not in the tail cache, one partition after the other; a task of the stream."""
        while not self.ended:
            if not self._cold_ready:
                self._cold_wake.clear()
                await self._cold_wake.wait()
                continue
            entry = self._cold_ready.popleft()
            asked = entry.log_end
            if not entry.wants or not entry.stands:
                entry.reading = False
                continue
            core = entry.replica.core
            forgotten_to = core.forgotten_to
            try:
                batches = await self._cold.read(
                    entry.replica, asked, PARTITION_BYTES_MAX, core.written_end, first=True, committed=False
                )
            except OffsetOutOfRange as error:
                self._refuse_at(entry, error)
            except HeadraceError as error:
                self._refuse_unreadable(entry, error)
            else:
                as_it_was = core.forgotten_to == forgotten_to  # or what was read is partly from before, partly not
                if entry.wants and entry.stands and entry.log_end == asked and batches and as_it_was:
                    copied = self._feed(entry, batches)
                    if copied is not None:
                        self._outbox.append(copied)
            entry.reading = False
            if entry.log_end != asked or core.forgotten_to != forgotten_to:  # what is wanted now has to be read anew
                self.on_grown(entry.replica)
            self._wake.set()

    def _refuse_at(self, entry: _Entry, error: OffsetOutOfRange) -> None:
        position = Position(entry.replica.id, entry.leader_epoch, -1, entry.log_end, Offset(0), wants=True)
        self._refuse(position, entry.replica, error)

    def _refuse_unreadable(self, entry: _Entry, error: HeadraceError) -> None:
        self._drop(entry.replica.id)
        self._outbox.append(Copied(entry.replica.id, entry.leader_epoch, error=error))


def _news_of(core: Partition) -> tuple[int, int, int]:
    """What followers are told of without being sent batches."""
    return core.high_watermark, core.log_start, core.forgotten_to


def _with_start(answer: Copied, replica: Replica) -> Copied:
    """Where the log starts and what was before, for a follower that may have to begin anew there."""
    core = replica.core
    answer.high_watermark, answer.log_start = core.high_watermark, core.log_start
    answer.fencing_token = core.fences.token_below(core.log_start)
    return answer
