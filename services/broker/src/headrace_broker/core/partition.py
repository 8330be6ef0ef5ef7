"""
One partition as this broker keeps it: led, followed, or neither.

As leader it decides which offsets a batch gets, when it is committed, and who is in sync; as follower it copies and
truncates. Only the storage loop calls ``handle``. Events go in, effects come out, in the order in which they must be
done; effects that are ``LogWrite`` belong to one group, and ``GroupWritten`` follows when the flush policy counts it
as written. The algorithms are those of KIP-101, 279, 497, 595, 903 and 966 (docs/replication.md tells them).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace_broker.core.aborted import AbortedIndex
from headrace_broker.core.compaction.clean_points import cut_at
from headrace_broker.core.compaction.steps import StepOutdated
from headrace_broker.core.controls import said_by
from headrace_broker.core.epochs import Epochs
from headrace_broker.core.fences import Fences
from headrace_broker.core.leadership import Assignment, Leadership, Proposal
from headrace_broker.core.led_log import Following, LedLog, appended_already
from headrace_broker.core.local_log import SNAPSHOT_EVERY_BYTES, segment_rows
from headrace_broker.core.partition_events import (
    BatchArrived,
    BatchesCopied,
    CheckpointAsked,
    Compacted,
    Deposed,
    Effect,
    Elected,
    Emptied,
    Enrolled,
    Event,
    Followed,
    FollowerFetched,
    FollowersChecked,
    GroupWritten,
    MarkerArrived,
    PeersChanged,
    ProposalRefused,
    ProposeIsr,
    Reassigned,
    Reconfigured,
    Refuse,
    RetentionChecked,
    TrimAsked,
    Truncated,
)
from headrace_broker.core.producers import Ended, Producers
from headrace_broker.core.rows import (
    AbortedRow,
    EpochRow,
    LogId,
    LogWrite,
    PutSegment,
    StateRow,
)
from headrace_broker.core.segments import Segments
from headrace_common.core.batch import BatchHeader
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import (
    CorruptBatch,
    HeadraceError,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetOutOfRange,
)
from headrace_common.core.ids import NodeId, Offset, PartitionId

__all__ = ["SNAPSHOT_EVERY_BYTES", "Following", "Parted", "Partition", "segment_rows"]

NOTHING_FORGOTTEN: Final = Offset(0)


class Parted(NamedTuple):
    """A follower's log is not a prefix of this one: the newest common epoch that it may have, and where it ends."""

    epoch: int
    end: Offset


@dataclass(slots=True)
class Partition(LedLog):
    """The log, and what this broker is to it. ``leading`` and ``following`` are never both set."""

    @staticmethod
    def create(
        partition: PartitionId, log: LogId, config: TopicConfig, now_ms: int, roll_jitter: float = 0.0
    ) -> tuple[Partition, list[LogWrite]]:
        """A new, empty log, and the writes that make it exist."""
        start = Offset(0)
        segments = Segments.fresh(start, now_ms, roll_jitter)
        fresh = Partition(partition, log, config, segments, start, start, start, start, Epochs(), Producers())
        return fresh, [fresh.state(), PutSegment(log, segments.active)]

    @staticmethod
    def recovered(
        state: StateRow,
        log: LogId,
        config: TopicConfig,
        segments: Segments,
        log_end: Offset,
        epochs: Iterable[EpochRow],
        producers: Producers,
        first_batch: Offset | None = None,
    ) -> Partition:
        """
        The log as it was found at opening. What is found is written; what of it is committed the cluster knows.

        ``first_batch`` is the base of the batch that holds the log start; None: one begins there, or there is none.
        ``with_transactions`` adds what its rows tell of those.
        """
        assert state.log_start <= log_end, f"{state.partition} starts at {state.log_start} and ends at {log_end}"
        return Partition(
            id=state.partition,
            log=log,
            config=config,
            segments=segments,
            log_start=state.log_start,
            log_end=log_end,
            written_end=log_end,
            high_watermark=Offset(min(max(state.high_watermark, state.log_start), log_end)),
            epochs=Epochs(epochs),
            producers=producers,
            first_batch=state.log_start if first_batch is None else first_batch,
            fences=Fences(state.cut(log_end).fences),
            cleaned_to=min(state.cleaned_to, log_end),
            clean_points=cut_at(state.clean_points, log_end),
            forgotten_to=state.forgotten_to,
            checkpoint=state.high_watermark,
        ).with_transactions((), ())

    def with_transactions(self, aborted: Iterable[AbortedRow], ended: Iterable[Ended]) -> Partition:
        """What was found at opening. ``ended``: those with a marker at or above the high watermark, maybe more."""
        self.aborted, self.ending = AbortedIndex(aborted), deque(ended)
        self.settle()
        return self

    def handle(self, event: Event) -> list[Effect]:
        """Apply ``event`` and return what must now be done, in order."""
        match event:
            case BatchArrived():
                return self._append(event)
            case GroupWritten(end, now_ms):
                return self._written(end, now_ms)
            case FollowerFetched():
                return self._follower_fetched(event)
            case BatchesCopied():
                return self._copy(event)
            case MarkerArrived():
                return self._end_transaction(event)
            case Enrolled():
                return self._enrolled(event)
            case Elected(assignment, now_ms):
                return self._lead(assignment, now_ms)
            case Reassigned(assignment, now_ms):
                return self._reassigned(assignment, now_ms)
            case Followed(leader, epoch, reason):
                return self._follow(Following(leader, epoch), reason)
            case Deposed(reason):
                self.following = None
                return self._stop_leading(reason)
            case FollowersChecked(now_ms, lag_ms_max, silence_ms_max):
                return self._check_followers(now_ms, lag_ms_max, silence_ms_max)
            case PeersChanged(epochs, now_ms):
                return self._peers_changed(epochs, now_ms)
            case ProposalRefused(proposal, now_ms):
                return self._refused(proposal, now_ms)
            case Truncated():
                return self._truncate(event)
            case Emptied():
                return self._empty(event)
            case TrimAsked():
                return self._trim(event)
            case RetentionChecked(now_ms, producers_before_ms):
                self.producers.expire(producers_before_ms)
                return self._retain(now_ms)
            case Compacted():
                return self._compact(event)
            case Reconfigured(config):
                self.config = config
                return []
            case CheckpointAsked(whole):
                snapshot = self.snapshot() if whole else []
                return [self.state(), *snapshot] if snapshot or self.high_watermark > self.checkpoint else []

    def compare(self, last_epoch: int, log_end: Offset, forgotten_to: Offset = NOTHING_FORGOTTEN) -> Parted | None:
        """
        Whether a log that ends at ``log_end`` with ``last_epoch`` is a prefix of this leader's (KIP-101, KIP-595).

        ``forgotten_to`` is that log's own.

        Raises:
            OffsetOutOfRange: it cannot go on from its end: that is below this log's start, or it may hold what was
                deleted, or is undecided, by records that are no longer here.
        """
        if log_end < self.log_start:
            raise OffsetOutOfRange(f"the log begins at {self.log_start}, the follower's ends at {log_end}")
        if last_epoch >= 0 and max(log_end, forgotten_to) < self.forgotten_to:
            raise OffsetOutOfRange(
                f"deletions below {self.forgotten_to} have gone, and the follower has not copied beyond {log_end}"
            )
        if last_epoch < 0:
            return None if log_end == self.log_start else Parted(-1, Offset(-1))
        epoch, end = self.epochs.end_offset_for(last_epoch, self.log_end)
        return Parted(epoch, end) if epoch < last_epoch or end < log_end else None

    def forgets_below(self, now_ms: float, away_ms: float) -> Offset:
        """
        Below, a compaction that begins now may remove deletions and markers that were to be read long enough.

        Only a leader decides that, and it spares followers that need them and were heard within ``away_ms``; a follower
        removes what its leader has removed. ``now_ms`` is monotonic.
        """
        if self.leading is not None:
            return self.leading.copied_below(now_ms, away_ms)
        return self.forgotten_to if self.following is None else max(self.forgotten_to, self.leader_forgotten_to)

    # --- leading ------------------------------------------------------------------------------------------

    def _lead(self, assignment: Assignment, now_ms: float) -> list[Effect]:
        epoch = assignment.leader_epoch
        if self.known_epoch is not None and (epoch < self.known_epoch or epoch == self.leader_epoch):
            return []
        effects: list[Effect] = []
        if self.leading is not None:  # the same leader in a new epoch: those who wait hear that it is unknown
            effects += self._stop_leading(NotLeader("the partition has a new leader epoch; send the batch again"))
        if epoch < self.epochs.latest:
            return effects
        self.following = None
        effects += self.begin_epoch(epoch)
        self.leading = Leadership.begin(assignment, self.log_end, now_ms)
        return effects + self._commit(self.leading)

    def _stop_leading(self, reason: HeadraceError) -> list[Effect]:
        self.leading = None
        waiting = [*self._waiting_written, *self._waiting_committed]
        self._waiting_written.clear()
        self._waiting_committed.clear()
        refs = [one.ref for one in waiting] + [one.ref for one in self.parking.take_all()]
        return [Refuse(ref, reason) for ref in refs]

    def _reassigned(self, assignment: Assignment, now_ms: float) -> list[Effect]:
        leading = self.leading
        if leading is None or assignment.leader_epoch != leading.assignment.leader_epoch:
            return []
        if assignment.partition_epoch < leading.assignment.partition_epoch:
            return []
        leading.changed(assignment, now_ms)
        effects = self._commit(leading)
        if not leading.enough:
            waiting, self._waiting_committed = self._waiting_committed, []
            reason = NotEnoughReplicasAfterAppend(appended_already(leading))
            effects += [Refuse(one.ref, reason) for one in waiting]
        return effects + self._propose_joining(leading, now_ms)

    def _follower_fetched(self, event: FollowerFetched) -> list[Effect]:
        leading = self.leading
        if leading is None:
            return []
        known = leading.fetched(
            event.broker,
            event.broker_epoch,
            event.log_end,
            event.written_end,
            self.written_end,
            event.now_ms,
            may_join=event.may_join,
        )
        if not known:
            return []
        proposal = leading.joining(event.broker, self.high_watermark, event.now_ms)
        effects: list[Effect] = [] if proposal is None else [ProposeIsr(proposal)]
        return effects + self._commit(leading)

    def _check_followers(self, now_ms: float, lag_ms_max: float, silence_ms_max: float) -> list[Effect]:
        leading = self.leading
        if leading is None:
            return []
        proposal = leading.leaving(now_ms, lag_ms_max, silence_ms_max)
        effects: list[Effect] = [] if proposal is None else [ProposeIsr(proposal)]
        return effects + self._commit(leading) + self._propose_joining(leading, now_ms)

    def _propose_joining(self, leading: Leadership, now_ms: float) -> list[Effect]:
        for broker in leading.followers:
            proposal = leading.joining(broker, self.high_watermark, now_ms)
            if proposal is not None:
                return [ProposeIsr(proposal)]
        return []

    def _peers_changed(self, epochs: dict[NodeId, int], now_ms: float) -> list[Effect]:
        if self.leading is None:
            return []
        self.leading.peers_changed(epochs)
        return self._commit(self.leading) + self._propose_joining(self.leading, now_ms)

    def _refused(self, proposal: Proposal, now_ms: float) -> list[Effect]:
        if self.leading is None:
            return []
        self.leading.refused(proposal, now_ms)
        return self._commit(self.leading)

    # --- following ----------------------------------------------------------------------------------------

    def _follow(self, following: Following, reason: HeadraceError) -> list[Effect]:
        if self.known_epoch is not None and following.epoch < self.known_epoch:
            return []
        effects = self._stop_leading(reason)
        if self.following != following:
            self.leader_high_watermark, self.leader_forgotten_to = self.high_watermark, Offset(0)
        self.following = following
        return effects

    def _copy(self, event: BatchesCopied) -> list[Effect]:
        following = self.following
        if following is None or following.epoch != event.leader_epoch:
            return []
        inside = bool(event.batches) and self._begins_inside(event.batches[0][0])
        start = Offset(event.batches[0][0].base_offset) if inside else self.log_end
        end, epoch = start, self.epochs.latest
        for header, _ in event.batches:
            if header.base_offset != end or not epoch <= header.leader_epoch <= following.epoch:
                raise CorruptBatch(
                    f"the leader sent a batch for offset {header.base_offset} in epoch {header.leader_epoch}, but the"
                    f" log ends at {end} in epoch {epoch}; it is asked for again"
                )
            end, epoch = Offset(header.next_offset), header.leader_epoch
        all_said = [said_by(header, batch) for header, batch in event.batches]  # before anything has changed
        effects: list[Effect] = [*self.emptied(start, event.now_ms, self.fences.token)] if inside else []
        for (header, batch), said in zip(event.batches, all_said, strict=True):
            effects += self.begin_epoch(header.leader_epoch)
            effects += self.appended(header, batch, self.log_end, header.leader_epoch, event.now_ms, said.commit)
            if said.token is not None:
                effects += self.fenced(Offset(header.base_offset), said.token)
        if event.batches and start < event.forgotten_to and self.forgotten_to < event.forgotten_to:
            self.forgotten_to = event.forgotten_to
            effects.append(self.state())
        self.leader_high_watermark = max(self.leader_high_watermark, event.high_watermark)
        self.leader_forgotten_to = event.forgotten_to
        return effects + self._show(min(self.leader_high_watermark, self.written_end))

    def _begins_inside(self, first: BatchHeader) -> bool:
        """Whether this empty log was to start inside a batch, where the leader's does: it takes the batch whole."""
        empty = self.log_start == self.log_end
        return empty and first.base_offset < self.log_end < first.next_offset

    def _truncate(self, event: Truncated) -> list[Effect]:
        if self.following is None or self.following.epoch != event.leader_epoch:
            return []
        if event.rewrites is not None and event.rewrites != self.rewrites:
            return []  # the leader is asked again
        return [*self.cut(event.end, event.rebuilt)]

    def _empty(self, event: Emptied) -> list[Effect]:
        if self.following is None or self.following.epoch != event.leader_epoch:
            return []
        return [*self.emptied(event.start, event.now_ms, event.fencing_token)]

    # --- what may go --------------------------------------------------------------------------------------

    def _trim(self, event: TrimAsked) -> list[Effect]:
        if event.offset > self.high_watermark:
            raise OffsetOutOfRange(f"offset {event.offset} is above the high watermark {self.high_watermark}")
        if event.offset <= self.log_start:
            return []
        return [*self.start_at(event.offset, event.boundary, event.producers)]

    def _retain(self, now_ms: int) -> list[Effect]:
        config, effects = self.config, list[Effect]()
        if (self.leading is not None or config.compacts) and self.aged(now_ms):
            effects += self.roll(now_ms)
        if self.leading is None:
            return effects
        start = self.segments.expired(
            now_ms,
            self.log_end,
            self.high_watermark,
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
        )
        if start is None or start <= self.log_start:
            return effects
        if start == self.log_end and self.segments.active.size:
            effects += self.roll(now_ms)
        return [*effects, *self.start_at(start, start)]

    def _compact(self, event: Compacted) -> list[Effect]:
        if event.truncations != self.truncations:
            raise StepOutdated("the end of the log was cut since the compaction began")
        if not event.step.applies(self.first_batch):
            raise StepOutdated(f"the log begins at {self.first_batch}, above where the step does")
        return [*self.compacted(event.step)]
