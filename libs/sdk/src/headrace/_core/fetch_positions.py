"""
Where a consumer is in each partition, and what it asks brokers for next.

The consumer shell feeds it what happened (assignments, leaders, answers, seeks) and does what it returns: fetches to
send, starts to look up, a metadata refresh, batches to decode. It is called under the shell's lock, by the event loop
and, in the sync consumer, by the application's thread. Times come in as monotonic milliseconds.

Rules:
- A position moves when a batch, or a part of one, was handed out; past control batches, batches of aborted
  transactions and compacted offsets too, as soon as they come next.
- What an aborted transaction wrote is dropped by one look per batch (``fetch_aborted``), and takes no room.
- A seek makes everything asked or fetched before it stale (``PartitionFetch.epoch``).
- Near the client's rack a follower may be read from (``fetch_sources``); a leader's word counts, a follower's does not.
- A position that the leader's log does not continue (``Answer.diverging``, KIP-320) is told, or goes back as far as the
  log is the one that was read.
- A paused partition keeps what was fetched, up to ``fetch_max_bytes`` over all paused ones.
- Nothing is dropped silently: each automatic reset is an event that names the range, and what cannot be retried, or
  was retried for ``api_timeout_ms``, is a failure that the application gets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from headrace._core.fetch_aborted import Aborted, AbortedRanges
from headrace._core.fetch_events import FetchEvent, LogDiverged, PositionReset, Reset, TopicRecreated
from headrace._core.fetch_partition import NO_TOPIC_ID, Fetched, PartitionFetch, Trouble, Unreadable
from headrace._core.fetch_plans import FetchLimits, FetchPlan, PlanEntry
from headrace._core.fetch_rooms import FetchRooms
from headrace._core.fetch_sources import FetchSources
from headrace._core.remedies import HOPELESS, Asker, Remedy, remedy_for
from headrace._core.starts import Beginning, End, LastCommitted, Start
from headrace.errors import LogTruncated, PositionOutOfRange
from headrace_common.core.batch.header import CONTROL_BIT, TRANSACTIONAL_BIT, read_header
from headrace_common.core.errors import (
    CorruptBatch,
    ErrorCode,
    HeadraceError,
    LeaderNotAvailable,
    UnsupportedCompression,
    UnsupportedVersion,
    error_for,
)
from headrace_common.core.ids import NO_NODE, NodeId, TopicId, TopicPartition

_MAY_BE_HIDDEN: Final = CONTROL_BIT | TRANSACTIONAL_BIT
"""Batches with neither are always handed out."""


class Lookup(NamedTuple):
    """One start to look up, with ``ListOffsets`` or, for ``LastCommitted``, at the group's coordinator."""

    partition: PartitionFetch
    epoch: int
    start: Start


class Answer(NamedTuple):
    """One partition of a fetch answer."""

    entry: PlanEntry
    error: int
    message: str
    high_watermark: int
    log_start_offset: int
    batches: Sequence[bytes]
    leader: tuple[NodeId, int] | None = None
    """Who leads instead, and its epoch, if the broker knows."""
    diverging: tuple[int, int] | None = None
    """What was read last is not in this log: the epoch up to which it is the same, and where that ends."""
    preferred: NodeId = NO_NODE
    """The replica to read from instead."""
    aborted: Sequence[Aborted] = ()
    """Aborted transactions that overlap ``batches``; only for ``read_committed``."""


class FetchPositions:
    """All assigned partitions of one consumer; see the module's text."""

    def __init__(self, limits: FetchLimits, reset: Start | None) -> None:
        self._limits = limits
        self._reset = reset
        self.partitions: dict[TopicPartition, PartitionFetch] = {}
        self.rooms = FetchRooms(limits)
        self._sources = FetchSources(limits, self.rooms)
        self.doubts: dict[TopicPartition, int] = {}
        """Leader epochs under which nobody answered as a leader; the shell empties it."""
        self.refresh_reason: str | None = None
        """Why metadata should be fetched again; the shell empties it."""
        self.care = False
        """Whether there may be starts to look up, pauses to wait for, a refresh or events; the shell clears it."""
        self.events: deque[FetchEvent] = deque(maxlen=1000)
        """What should be logged; the shell empties it."""
        self.resets: deque[Reset] = deque(maxlen=1000)
        """The same, of what the application should hear before it gets more; the shell empties it."""
        self._ready: deque[PartitionFetch] = deque()
        self._troubled: dict[PartitionFetch, None] = {}
        self._failed: dict[PartitionFetch, None] = {}

    # --- what is read -------------------------------------------------------------------------------------------

    def add(self, tp: TopicPartition, start: Start | int | None, epoch: int = -1, *, stop: int | None = None) -> None:
        """
        Read ``tp`` from an offset, or from a start to look up (None: from nowhere until somebody seeks). ``epoch``:
        under which leader the record before the offset was written, if that is known. ``stop``: up to there only.
        """
        assert tp not in self.partitions, f"{tp} is assigned already"
        partition = PartitionFetch(tp, None if isinstance(start, int) else start, stop=stop)
        if isinstance(start, int):
            partition.move_to(start)
            partition.last_epoch = partition.position_epoch = epoch
        self.partitions[tp] = partition

    def remove(self, tp: TopicPartition) -> None:
        """Do not read ``tp`` any more; what was fetched of it is dropped."""
        partition = self.partitions.pop(tp)
        partition.assigned = False
        self._dropped(partition)
        partition.lose_position(None)
        self._troubled.pop(partition, None)
        self._sources.lead(partition)
        self._settle(partition)

    def placed(self, tp: TopicPartition, topic_id: TopicId, leader: NodeId, leader_epoch: int, now_ms: float) -> None:
        """Metadata says who leads ``tp``. Older news than what is known changes nothing."""
        partition = self.partitions[tp]
        if partition.topic_id not in (NO_TOPIC_ID, topic_id):
            self._recreated(partition)
        elif leader_epoch < partition.leader_epoch:
            return
        same = (leader, leader_epoch) == (partition.leader, partition.leader_epoch)
        partition.topic_id = topic_id
        if not same:
            self._led_by(partition, leader, leader_epoch)
        if leader == NO_NODE:
            self._wrong(partition, LeaderNotAvailable(f"{tp} has no leader now"), now_ms)
        self._settle(partition)

    def _led_by(self, partition: PartitionFetch, leader: NodeId, leader_epoch: int) -> None:
        """Another leader, or another epoch of it: it is asked at once."""
        self._sources.lead(partition)
        partition.leader, partition.leader_epoch = leader, leader_epoch
        partition.retry_at_ms = 0.0
        partition.looking_up = False  # who is asked may never answer; both answers are good
        self.rooms.leader_changed(leader)

    def unplaced(self, tp: TopicPartition, error: HeadraceError, now_ms: float) -> None:
        """Metadata does not know ``tp``."""
        partition = self.partitions[tp]
        self._sources.lead(partition)
        partition.leader = NO_NODE
        self._wrong(partition, error, now_ms)
        self._settle(partition)

    def _recreated(self, partition: PartitionFetch) -> None:
        if partition.position is not None:
            self._tell(TopicRecreated(partition.tp, partition.position))
        partition.leader_epoch = -1
        partition.base, partition.sought = None, False
        self._dropped(partition)
        partition.lose_position(self._reset)

    # --- seeks --------------------------------------------------------------------------------------------------

    def seek(self, tp: TopicPartition, to: int | Start, *, rebase: bool = True) -> None:
        """
        Go on at an offset, or at a start to look up. Takes effect at once; the place is checked when fetching.
        ``rebase``: a transaction that fails later goes back to here, not to what was before.
        """
        partition = self.partitions[tp]
        if rebase:
            partition.base, partition.sought = None, True
        self._go(partition, to)

    def go_on(self, tp: TopicPartition, start: int, stop: int) -> None:
        """Read another part of a partition that has come to its ``stop``."""
        partition = self.partitions[tp]
        assert partition.stopped, f"{tp} is still read"
        partition.stop = stop
        self._go(partition, start)

    def rewind(self, tp: TopicPartition) -> None:
        """Go back to what is committed, or to where reading began or was last sought if that came later."""
        partition = self.partitions[tp]
        if partition.base in (None, partition.position):
            return  # nothing was handed out since
        assert partition.base is not None, "looked at just before"
        self._go(partition, partition.base if partition.sought else LastCommitted(partition.base))

    def committed(self, tp: TopicPartition, offset: int) -> None:
        """The group has committed ``offset``, on behalf of this consumer."""
        partition = self.partitions.get(tp)
        if partition is not None:
            partition.base, partition.sought = offset, False

    def _go(self, partition: PartitionFetch, to: int | Start) -> None:
        self._dropped(partition)
        if isinstance(to, int):
            partition.move_to(to)
            self.rooms.sought(partition)
        else:
            partition.lose_position(to)
        self.rooms.moved(partition)
        self._settle(partition)

    def pause(self, tp: TopicPartition) -> None:
        """Hand nothing of ``tp`` out and fetch nothing more; what was fetched is kept while there is room."""
        partition = self.partitions[tp]
        if partition.paused:
            return
        partition.paused = True
        self.rooms.charge(partition)
        if partition in self._ready:
            self._ready.remove(partition)
        if self.rooms.paused_bytes > self._limits.fetch_max_bytes and partition.position is not None:
            self._dropped(partition)
            partition.move_to(partition.position)
            self.rooms.moved(partition)
        self._settle(partition)

    def resume(self, tp: TopicPartition) -> None:
        """Undo ``pause``."""
        partition = self.partitions[tp]
        if not partition.paused:
            return
        partition.paused = False
        if partition.has_records:
            self._ready.append(partition)
        self._settle(partition)

    # --- looking up starts --------------------------------------------------------------------------------------

    def lookups(self) -> dict[NodeId, list[Lookup]]:
        """Starts to look up now, by leader; each is then on its way until ``looked_up`` or ``lookup_failed``."""
        wanted: dict[NodeId, list[Lookup]] = {}
        for partition in self.partitions.values():
            start = partition.start
            if partition.may_look_up and start is not None and not isinstance(start, LastCommitted):
                partition.looking_up = True
                wanted.setdefault(partition.leader, []).append(Lookup(partition, partition.epoch, start))
        return wanted

    def recalls(self) -> list[Lookup]:
        """Committed offsets to ask the group's coordinator for now; as ``lookups``."""
        wanted: list[Lookup] = []
        for partition in self.partitions.values():
            if partition.may_look_up and isinstance(partition.start, LastCommitted):
                partition.looking_up = True
                wanted.append(Lookup(partition, partition.epoch, partition.start))
        return wanted

    def looked_up(self, lookup: Lookup, offset: int, last_epoch: int = -1) -> None:
        """
        The start is at ``offset``; -1: no record is that young, so it is the end, which is looked up next.
        ``last_epoch``: under which leader the record before it was written, if that is known.
        """
        partition, epoch, _ = lookup
        if partition.epoch != epoch:
            return
        lost, partition.looking_up = partition.lost_position, False
        self._well(partition)
        if offset < 0:
            partition.start = End()
            self._settle(partition)
            return
        partition.move_to(offset)
        partition.last_epoch = partition.position_epoch = last_epoch
        if isinstance(lookup.start, LastCommitted):
            partition.base, partition.sought = offset, False
        if lost is not None:
            start = offset if isinstance(lookup.start, Beginning) else partition.log_start_offset
            self._tell(PositionReset(partition.tp, lost, offset, start))
        self.rooms.moved(partition)
        self._settle(partition)

    def lookup_failed(self, lookup: Lookup, error: HeadraceError, now_ms: float) -> None:
        """The broker could not say, for one partition or for the whole call."""
        partition, epoch, _ = lookup
        if partition.epoch != epoch:
            return
        partition.looking_up = False
        match remedy_for(Asker.CONSUMER, error.code):
            case Remedy.RAISE | Remedy.RESET:
                self._fail(partition, error)
            case remedy:
                self._wrong(partition, error, now_ms, refresh=remedy is Remedy.REFRESH)
        self._settle(partition)

    # --- fetching -----------------------------------------------------------------------------------------------

    def fetch(self, broker: NodeId) -> FetchPlan | None:
        """The fetch to send to ``broker`` now, if any. It counts as sent until ``answered`` or ``fetch_failed``."""
        fetches = self.rooms.brokers.get(broker)
        return None if fetches is None else fetches.next_plan()

    def answered(self, plan: FetchPlan, answers: Iterable[Answer], now_ms: float) -> bool:
        """Take an answer in; True: there is something to hand out, or to raise, that was not there before."""
        fetches = self.rooms.brokers[plan.broker]
        served: list[PartitionFetch] = []
        refused: set[PartitionFetch] = set()
        news = False
        for answer in answers:
            partition = answer.entry.partition
            fresh = partition.epoch == answer.entry.epoch and partition.fetch_offset == answer.entry.offset
            if not fresh or not partition.assigned:
                continue
            if answer.error:
                refused.add(partition)
                self._refused(plan, answer, now_ms)
                news = news or partition.failure is not None
                continue
            if answer.diverging is not None or answer.preferred != NO_NODE:
                self._turned_away(plan, answer, now_ms)
                news = news or partition.failure is not None
                continue
            partition.high_watermark, partition.log_start_offset = answer.high_watermark, answer.log_start_offset
            if answer.batches:
                served.append(partition)
                news = self._take_in(partition, plan, answer) or news
        for partition in [p for p in self._troubled if p not in refused and p in fetches.members]:
            self._well(partition)  # who has no news is not in the answer, but was asked and is not refused
        fetches.answered(served)
        self.rooms.wake(fetches)
        return news

    def fetch_failed(self, plan: FetchPlan, error: HeadraceError, now_ms: float) -> None:
        """The fetch as a whole got no answer, or was refused."""
        fetches = self.rooms.brokers[plan.broker]
        fetches.broke()
        remedy = remedy_for(Asker.CONSUMER, error.code)
        to_raise = remedy in HOPELESS
        for partition in list(fetches.members):
            if self._follower_erred(partition, plan, error, now_ms):
                continue
            if to_raise:
                self._fail(partition, error)
            self._wrong(partition, error, now_ms, refresh=remedy is Remedy.REFRESH)
            self._settle(partition)
            to_raise = False
        self.rooms.wake(fetches)

    def fetch_abandoned(self, plan: FetchPlan) -> None:
        """The shell gave the fetch up, for somebody was late for it."""
        fetches = self.rooms.brokers[plan.broker]
        fetches.broke()
        self.rooms.wake(fetches)

    def _take_in(self, partition: PartitionFetch, plan: FetchPlan, answer: Answer) -> bool:
        """
        Buffer the batches. They are as stored, so the first may begin below the fetch offset; holes are fine.
        True: there is more to hand out or to raise.
        """
        had, size, kept = partition.has_records, 0, 0
        expected = partition.fetch_offset
        aborted = AbortedRanges(answer.aborted) if answer.aborted else None
        for at, batch in enumerate(answer.batches):
            try:
                header = read_header(batch)
                if size and header.base_offset < expected:
                    raise CorruptBatch(f"its base offset {header.base_offset} is below {expected}, where it must begin")
            except HeadraceError as error:
                follows = _readable_base(answer.batches[at + 1 :], expected)
                self._fail(partition, self._unreadable(partition, expected, follows, error))
                break
            if header.next_offset <= expected:
                continue
            if partition.stop is not None and header.base_offset >= partition.stop:
                partition.pass_over(header)
                expected = header.next_offset
                break
            expected, partition.last_epoch = header.next_offset, header.leader_epoch
            size += len(batch)
            hides = header.attributes & _MAY_BE_HIDDEN
            hidden = hides and (hides & CONTROL_BIT or (aborted is not None and aborted.hold(header)))
            if hidden or not header.record_count:
                partition.pass_over(header)
                continue
            partition.buffer.append(Fetched(batch, header))
            kept += len(batch)
        partition.fetch_offset, partition.drain_first = expected, False
        partition.step_over()
        plan.answered_bytes += size
        self.rooms.count(partition, kept)
        if partition.has_records and not had:
            self._ready.append(partition)
        self.rooms.moved(partition)
        self._settle(partition)
        return bool(kept) or partition.failure is not None or partition.stopped

    def _refused(self, plan: FetchPlan, answer: Answer, now_ms: float) -> None:
        partition = answer.entry.partition
        if plan.broker != partition.source:
            return
        error = error_for(answer.error, f"{partition.tp}: {answer.message}" if answer.message else f"{partition.tp}")
        if self._follower_erred(partition, plan, error, now_ms):
            return
        match remedy_for(Asker.CONSUMER, error.code):
            case Remedy.RESET:
                self._out_of_range(partition, answer)
            case Remedy.RAISE:
                self._fail(partition, error)
            case remedy:
                self._wrong(partition, error, now_ms, refresh=remedy is Remedy.REFRESH)
                if answer.leader is not None and answer.leader[1] > partition.leader_epoch:
                    self._led_by(partition, *answer.leader)
        self._settle(partition)

    def _follower_erred(self, partition: PartitionFetch, plan: FetchPlan, error: HeadraceError, now_ms: float) -> bool:
        """Whether it was a follower that could not be read from, so that the leader is asked now."""
        if plan.broker == partition.leader or plan.broker != partition.follower:
            return False
        if not self._sources.erred(partition, error, now_ms):
            return False
        self.care = True
        self._settle(partition)
        return True

    def _turned_away(self, plan: FetchPlan, answer: Answer, now_ms: float) -> None:
        """No records: another replica is nearer, or what was read is not in this log."""
        partition = answer.entry.partition
        if plan.broker != partition.source:
            return
        if answer.diverging is None:
            self._well(partition)
            if plan.broker == partition.leader:
                self._sources.follow(partition, answer.preferred, now_ms)
                self.care = True
        elif not self._follower_erred(partition, plan, LogTruncated(), now_ms):
            self._diverged(partition, answer.diverging[1])
        self._settle(partition)

    def _diverged(self, partition: PartitionFetch, end_offset: int) -> None:
        """The leader's log is the one that was read up to ``end_offset``."""
        if partition.buffer or partition.open is not None:
            partition.drain_first = True  # the application first gets what is here, then hears of it
            return
        lost, end_offset = partition.fetch_offset, max(0, end_offset)
        if self._reset is None and end_offset < lost:
            self._fail(partition, LogTruncated.at(partition.tp, lost, end_offset))
            return
        partition.move_to(min(lost, end_offset))
        if partition.base is not None:
            partition.base = min(partition.base, end_offset)
        self.rooms.moved(partition)
        if end_offset < lost:
            self._tell(LogDiverged(partition.tp, lost, end_offset))

    def _out_of_range(self, partition: PartitionFetch, answer: Answer) -> None:
        if partition.buffer or partition.open is not None:
            partition.drain_first = True
            return
        lost = partition.fetch_offset
        partition.log_start_offset = answer.log_start_offset
        if self._reset is None:
            log_start, log_end = answer.log_start_offset, answer.high_watermark
            self._fail(partition, PositionOutOfRange.at(partition.tp, lost, log_start, log_end))
            return
        self._dropped(partition)
        partition.lose_position(self._reset)
        partition.lost_position = lost

    # --- handing out --------------------------------------------------------------------------------------------

    def next_batch(self) -> PartitionFetch | None:
        """
        Open the next batch to hand out: it is the ``open`` of the partition returned, to be read from ``position``.
        Partitions take turns. The caller ends it with ``handed_out`` or ``give_back``.
        """
        if not self._ready:
            return None
        partition = self._ready.popleft()
        fetched = self._pop(partition)
        assert fetched.batch, "positions have stepped over what is not for applications"
        if partition.has_records:
            self._ready.append(partition)
        assert partition.position is not None, "a partition with records has a position"
        partition.open = fetched
        return partition

    def handed_out(self, partition: PartitionFetch, epoch: int, position: int) -> None:
        """The open batch was handed out up to ``position``, which is behind it or, after a failure, within it."""
        fetched = partition.open
        if partition.epoch != epoch or fetched is None:
            return
        assert partition.position is not None, "an open batch means that there is a position"
        assert partition.position <= position <= fetched.header.next_offset, "positions move within the open batch"
        if partition.unreadable is not None and partition.unreadable.first < fetched.header.next_offset:
            partition.unreadable = None  # the leader has sent it sound
        if position > partition.position:
            partition.position_epoch = fetched.header.leader_epoch
        partition.position = position
        if position < fetched.header.next_offset:
            self.give_back(partition, epoch, position)
            return
        partition.open = None
        partition.step_over()
        if partition.drain_first or partition.failure is not None:
            self._settle(partition)  # it waited until all was handed out

    def give_back(self, partition: PartitionFetch, epoch: int, position: int) -> None:
        """The rest of the open batch, from ``position`` on, is handed out later."""
        fetched = partition.open
        if partition.epoch != epoch or fetched is None:
            return
        partition.open, partition.position = None, position
        had = partition.has_records
        partition.buffer.appendleft(fetched)
        self.rooms.count(partition, len(fetched.batch))
        if partition.has_records and not had:
            self._ready.appendleft(partition)
        elif had:
            self._ready.remove(partition)
            self._ready.appendleft(partition)

    def damaged(self, partition: PartitionFetch, epoch: int, position: int, error: HeadraceError) -> HeadraceError:
        """
        The open batch could not be decoded, or a record of it by the application; the caller raises what this returns.
        It is fetched again, from ``position``.
        """
        fetched = partition.open
        if partition.epoch != epoch or fetched is None:
            return error
        self._dropped(partition)
        partition.move_to(position)
        if isinstance(error, CorruptBatch | UnsupportedVersion | UnsupportedCompression):
            where = max(position, fetched.header.base_offset)
            error = self._unreadable(partition, where, fetched.header.next_offset, error)
        self.rooms.moved(partition)
        self._settle(partition)
        return error

    def _unreadable(self, partition: PartitionFetch, first: int, follows: int, error: HeadraceError) -> HeadraceError:
        """Remember the batch; the error as the application gets it."""
        text = f"{partition.tp}@{first}: {error}; reading can go on at offset {follows}, see Consumer.skip_batch()"
        told = type(error)(text)
        partition.unreadable = Unreadable(first, follows, told)
        return told

    def skip(self, tp: TopicPartition) -> Unreadable:
        """Go on behind the batch of ``tp`` that cannot be read; ``unreadable`` has it. A rewind goes back before it."""
        partition = self.partitions[tp]
        skipped = partition.unreadable
        assert skipped is not None, f"{tp} can be read"
        self._go(partition, skipped.next_offset)
        return skipped

    @property
    def has_failures(self) -> bool:
        """Whether ``take_failure`` may have something."""
        return bool(self._failed or self._troubled)

    def take_failure(self, now_ms: float) -> HeadraceError | None:
        """What has to be raised now, once: failures of drained partitions, and partitions stuck for too long."""
        for partition in list(self._failed):
            if partition.failure is None:
                del self._failed[partition]
            elif not partition.has_records and partition.open is None:
                error, partition.failure = partition.failure, None
                del self._failed[partition]
                self._settle(partition)
                return error
        for partition in self._troubled:
            trouble = partition.trouble
            assert trouble is not None, "the troubled have a trouble"
            if not partition.paused and (
                now_ms - trouble.since_ms >= self._limits.api_timeout_ms or self._gone(trouble, now_ms)
            ):
                seconds = (now_ms - trouble.since_ms) / 1000
                trouble.since_ms = now_ms
                text = f"{partition.tp} could not be read for {seconds:.0f} s ({trouble.failures} attempts)"
                return type(trouble.error)(f"{text}: {trouble.error}", code=trouble.error.code)
        return None

    def _gone(self, trouble: Trouble, now_ms: float) -> bool:
        """Whether the topic has been unknown for so long that it will not come back."""
        bound_ms = self._limits.gone_after_ms
        unknown = trouble.error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return bound_ms is not None and unknown and now_ms - trouble.same_since_ms >= bound_ms

    def without_position(self) -> list[TopicPartition]:
        """Partitions that only a seek can help: no position, and ``auto_offset_reset`` is ``none``."""
        if self._reset is not None:
            return []
        return [p.tp for p in self.partitions.values() if p.position is None and p.start is None and not p.failure]

    # --- time ---------------------------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> float | None:
        """Let partitions be asked whose pause is over; return when to call again, or None."""
        over, due = self._sources.tick(now_ms)
        for partition in over:
            self._settle(partition)
        for partition in list(self._troubled):
            trouble, retry_at_ms = partition.trouble, partition.retry_at_ms
            assert trouble is not None, "the troubled have a trouble"
            if not retry_at_ms:
                continue
            if retry_at_ms <= now_ms and partition.leader != NO_NODE:
                partition.retry_at_ms = 0.0
                self._settle(partition)
                continue
            if retry_at_ms <= now_ms:
                self._wrong(partition, trouble.error, now_ms)
            due = partition.retry_at_ms if due is None else min(due, partition.retry_at_ms)
        return due

    # --- bookkeeping --------------------------------------------------------------------------------------------

    def _wrong(self, partition: PartitionFetch, error: HeadraceError, now_ms: float, *, refresh: bool = True) -> None:
        limits = self._limits
        partition.went_wrong(error, now_ms, limits.retry_backoff_ms, limits.retry_backoff_max_ms)
        self._troubled[partition] = None
        self.care = True
        if refresh:
            self.refresh_reason = str(error)
            self.doubts[partition.tp] = partition.leader_epoch

    def _well(self, partition: PartitionFetch) -> None:
        partition.went_well()
        self._troubled.pop(partition, None)

    def _tell(self, event: FetchEvent) -> None:
        self.events.append(event)
        if isinstance(event, PositionReset | LogDiverged):
            self.resets.append(event)
        self.care = True

    def _fail(self, partition: PartitionFetch, error: HeadraceError) -> None:
        partition.failure = error
        self._failed[partition] = None

    def _dropped(self, partition: PartitionFetch) -> None:
        """Before the buffer is emptied: give its room back."""
        self.rooms.count(partition, -partition.buffered_bytes)
        if partition.buffer and partition in self._ready:
            self._ready.remove(partition)

    def _pop(self, partition: PartitionFetch) -> Fetched:
        fetched = partition.buffer.popleft()
        self.rooms.count(partition, -len(fetched.batch))
        return fetched

    def _settle(self, partition: PartitionFetch) -> None:
        """After any change."""
        self.care = self.care or partition.may_look_up
        self.rooms.settle(partition)


def _readable_base(batches: Sequence[bytes], above: int) -> int:
    """Where the first of ``batches`` begins that can be read and is above that offset; without one, the next offset."""
    for batch in batches:
        try:
            base = read_header(batch).base_offset
        except HeadraceError:
            continue
        if base > above:
            return base
    return above + 1
