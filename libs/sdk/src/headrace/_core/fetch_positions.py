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

from typing import NamedTuple

from headrace._core.fetch_answers import FetchAnswers
from headrace._core.fetch_events import PositionReset, TopicRecreated
from headrace._core.fetch_partition import NO_TOPIC_ID, PartitionFetch, Trouble, Unreadable
from headrace._core.fetch_plans import FetchLimits, FetchPlan
from headrace._core.fetch_state import FetchState
from headrace._core.remedies import Asker, Remedy, remedy_for
from headrace._core.starts import Beginning, End, LastCommitted, Start
from headrace_common.core.errors import (
    CorruptBatch,
    ErrorCode,
    HeadraceError,
    LeaderNotAvailable,
    NetworkFailed,
    UnsupportedCompression,
    UnsupportedVersion,
)
from headrace_common.core.ids import NO_NODE, NodeId, TopicId, TopicPartition


class Lookup(NamedTuple):
    """One start to look up, with ``ListOffsets`` or, for ``LastCommitted``, at the group's coordinator."""

    partition: PartitionFetch
    epoch: int
    start: Start


class FetchPositions:
    """All assigned partitions of one consumer; see the module's text."""

    def __init__(self, limits: FetchLimits, reset: Start | None) -> None:
        self.state = FetchState(limits, reset)
        self.partitions = self.state.partitions
        self.rooms = self.state.rooms
        self.answers = FetchAnswers(self.state)

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
            self.state.untold[partition] = None
        self.partitions[tp] = partition

    def remove(self, tp: TopicPartition) -> None:
        """Do not read ``tp`` any more; what was fetched of it is dropped."""
        partition = self.partitions.pop(tp)
        partition.assigned = False
        self.state.drop_buffer(partition)
        partition.lose_position(None)
        self.state.troubled.pop(partition, None)
        self.state.untold.pop(partition, None)
        self.state.sources.lead(partition)
        self.state.settle(partition)

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
            self.state.lead_by(partition, leader, leader_epoch)
        if leader == NO_NODE:
            self.state.went_wrong(partition, LeaderNotAvailable(f"{tp} has no leader now"), now_ms)
        self.state.settle(partition)

    def unplaced(self, tp: TopicPartition, error: HeadraceError, now_ms: float) -> None:
        """Metadata does not know ``tp``."""
        partition = self.partitions[tp]
        self.state.sources.lead(partition)
        partition.leader = NO_NODE
        self.state.went_wrong(partition, error, now_ms)
        self.state.settle(partition)

    def refused(self, error: HeadraceError) -> None:
        """
        The cluster tells this client nothing: the application is told that, once, if it waits for it. It waits where
        nobody is known to lead, and where the leader could not be asked: a client that has to log in asks nobody.
        """
        waiting = [p for p in self.partitions.values() if p.leader == NO_NODE or _is_unasked(p)]
        for partition in waiting[:1]:
            self.state.fail(partition, error)

    def _recreated(self, partition: PartitionFetch) -> None:
        if partition.position is not None:
            self.state.tell(TopicRecreated(partition.tp, partition.position))
        partition.leader_epoch = -1
        partition.base, partition.sought = None, False
        self.state.drop_buffer(partition)
        partition.lose_position(self.state.reset)

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
        self.state.drop_buffer(partition)
        if isinstance(to, int):
            partition.move_to(to)
            self.state.untold[partition] = None
            self.rooms.sought(partition)
        else:
            partition.lose_position(to)
        self.rooms.moved(partition)
        self.state.settle(partition)

    def pause(self, tp: TopicPartition) -> None:
        """Hand nothing of ``tp`` out and fetch nothing more; what was fetched is kept while there is room."""
        partition = self.partitions[tp]
        if partition.paused:
            return
        partition.paused = True
        self.rooms.charge(partition)
        if partition in self.state.ready:
            self.state.ready.remove(partition)
        if self.rooms.paused_bytes > self.state.limits.fetch_max_bytes and partition.position is not None:
            self.state.drop_buffer(partition)
            partition.move_to(partition.position)
            self.rooms.moved(partition)
        self.state.settle(partition)

    def resume(self, tp: TopicPartition) -> None:
        partition = self.partitions[tp]
        if not partition.paused:
            return
        partition.paused = False
        if partition.has_records:
            self.state.ready.append(partition)
        self.state.settle(partition)

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
        self.state.went_well(partition)
        if offset < 0:
            partition.start = End()
            self.state.settle(partition)
            return
        partition.move_to(offset)
        self.state.untold[partition] = None
        partition.last_epoch = partition.position_epoch = last_epoch
        if isinstance(lookup.start, LastCommitted):
            partition.base, partition.sought = offset, False
        if lost is not None:
            start = offset if isinstance(lookup.start, Beginning) else partition.log_start_offset
            self.state.tell(PositionReset(partition.tp, lost, offset, start))
        self.rooms.moved(partition)
        self.state.settle(partition)

    def lookup_failed(self, lookup: Lookup, error: HeadraceError, now_ms: float) -> None:
        """The broker could not say, for one partition or for the whole call."""
        partition, epoch, _ = lookup
        if partition.epoch != epoch:
            return
        partition.looking_up = False
        match remedy_for(Asker.CONSUMER, error.code):
            case Remedy.RAISE | Remedy.RESET:
                self.state.fail(partition, error)
            case remedy:
                self.state.went_wrong(partition, error, now_ms, refresh=remedy is Remedy.REFRESH)
        self.state.settle(partition)

    # --- fetching -----------------------------------------------------------------------------------------------

    def fetch(self, broker: NodeId) -> FetchPlan | None:
        """The fetch to send to ``broker`` now, if any. It counts as sent until ``answers`` hears how it ended."""
        fetches = self.rooms.brokers.get(broker)
        return None if fetches is None else fetches.next_plan()

    # --- handing out --------------------------------------------------------------------------------------------

    def next_batch(self) -> PartitionFetch | None:
        """
        Open the next batch to hand out: it is the ``open`` of the partition returned, to be read from ``position``.
        Partitions take turns. The caller ends it with ``handed_out`` or ``give_back``.
        """
        if not self.state.ready:
            return None
        partition = self.state.ready.popleft()
        fetched = partition.buffer.popleft()
        self.rooms.count(partition, -len(fetched.batch))
        assert fetched.batch, "positions have stepped over what is not for applications"
        if partition.has_records:
            self.state.ready.append(partition)
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
        self.state.step_over(partition)
        if partition.drain_first or partition.failure is not None:
            self.state.settle(partition)  # it waited until all was handed out

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
            self.state.ready.appendleft(partition)
        elif had:
            self.state.ready.remove(partition)
            self.state.ready.appendleft(partition)

    def meet_damage(self, partition: PartitionFetch, epoch: int, position: int, error: HeadraceError) -> HeadraceError:
        """
        The open batch could not be decoded, or a record of it by the application; the caller raises what this returns.
        It is fetched again, from ``position``.
        """
        fetched = partition.open
        if partition.epoch != epoch or fetched is None:
            return error
        self.state.drop_buffer(partition)
        partition.move_to(position)
        if isinstance(error, CorruptBatch | UnsupportedVersion | UnsupportedCompression):
            where = max(position, fetched.header.base_offset)
            error = partition.meet_unreadable(where, fetched.header.next_offset, error)
        self.rooms.moved(partition)
        self.state.settle(partition)
        return error

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
        return bool(self.state.failed or self.state.troubled)

    def take_failure(self, now_ms: float) -> HeadraceError | None:
        """What has to be raised now, once: failures of drained partitions, and partitions stuck for too long."""
        for partition in list(self.state.failed):
            if partition.failure is None:
                del self.state.failed[partition]
            elif not partition.has_records and partition.open is None:
                error, partition.failure = partition.failure, None
                del self.state.failed[partition]
                self.state.settle(partition)
                return error
        for partition in self.state.troubled:
            trouble = partition.trouble
            assert trouble is not None, "the troubled have a trouble"
            if not partition.paused and (
                now_ms - trouble.since_ms >= self.state.limits.api_timeout_ms or self._gone(trouble, now_ms)
            ):
                seconds = (now_ms - trouble.since_ms) / 1000
                trouble.since_ms = now_ms
                text = f"{partition.tp} could not be read for {seconds:.0f} s ({trouble.failures} attempts)"
                return type(trouble.error)(f"{text}: {trouble.error}", code=trouble.error.code)
        return None

    def _gone(self, trouble: Trouble, now_ms: float) -> bool:
        """Whether the topic has been unknown for so long that it will not come back."""
        bound_ms = self.state.limits.gone_after_ms
        unknown = trouble.error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return bound_ms is not None and unknown and now_ms - trouble.same_since_ms >= bound_ms

    def without_position(self) -> list[TopicPartition]:
        """Partitions that only a seek can help: no position, and ``auto_offset_reset`` is ``none``."""
        if self.state.reset is not None:
            return []
        return [p.tp for p in self.partitions.values() if p.position is None and p.start is None and not p.failure]

    # --- time ---------------------------------------------------------------------------------------------------

    def tick(self, now_ms: float) -> float | None:
        """Let partitions be asked whose pause is over; return when to call again, or None."""
        over, due = self.state.sources.tick(now_ms)
        for partition in over:
            self.state.settle(partition)
        for partition in list(self.state.troubled):
            trouble, retry_at_ms = partition.trouble, partition.retry_at_ms
            assert trouble is not None, "the troubled have a trouble"
            if not retry_at_ms:
                continue
            if retry_at_ms <= now_ms and partition.leader != NO_NODE:
                partition.retry_at_ms = 0.0
                self.state.settle(partition)
                continue
            if retry_at_ms <= now_ms:
                self.state.went_wrong(partition, trouble.error, now_ms)
            due = partition.retry_at_ms if due is None else min(due, partition.retry_at_ms)
        return due


def _is_unasked(partition: PartitionFetch) -> bool:
    """Whether who leads it could not be asked the last time."""
    return partition.trouble is not None and isinstance(partition.trouble.error, NetworkFailed)
