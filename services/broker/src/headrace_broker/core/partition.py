"""
One partition as this broker keeps it: led, followed, or neither.

As leader it decides which offsets a batch gets, when it is committed, and who is in sync; as follower it copies and
truncates. Only the storage loop calls ``handle``. Events go in, effects come out, in the order in which they must be
done; effects that are ``LogWrite`` belong to one group, and ``GroupWritten`` follows when the flush policy counts it
as written. The algorithms are those of KIP-101, 279, 497, 595, 903 and 966 (docs/replication.md tells them).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace_broker.core.epochs import Epochs
from headrace_broker.core.fences import Fences, token_in
from headrace_broker.core.leadership import Assignment, Leadership, Proposal
from headrace_broker.core.local_log import SNAPSHOT_EVERY_BYTES, LocalLog, segment_rows
from headrace_broker.core.partition_events import (
    Answer,
    BatchArrived,
    BatchesCopied,
    CheckpointAsked,
    Deposed,
    Effect,
    Elected,
    Emptied,
    Event,
    Followed,
    FollowerFetched,
    FollowersChecked,
    GroupWritten,
    PeersChanged,
    ProposalRefused,
    ProposeIsr,
    Reassigned,
    Reconfigured,
    Refuse,
    RetentionChecked,
    ShowUpTo,
    TrimAsked,
    Truncated,
)
from headrace_broker.core.producers import Producers
from headrace_broker.core.rows import EpochRow, LogId, LogWrite, PutSegment, StateRow
from headrace_broker.core.segments import Segments
from headrace_common.core.batch import BatchHeader, stamp, stamp_log_append_time
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import (
    CorruptBatch,
    FencedLeaderEpoch,
    HeadraceError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from headrace_common.core.ids import NodeId, Offset, PartitionId

__all__ = ["SNAPSHOT_EVERY_BYTES", "Following", "Parted", "Partition", "segment_rows"]

ALL: Final = -1
"""``acks``: every replica that is in sync."""
_LOG_APPEND_TIME_BIT: Final = 0x08


class Following(NamedTuple):
    """Whom this broker follows, and in which leader epoch."""

    leader: NodeId
    epoch: int


class Parted(NamedTuple):
    """A follower's log is not a prefix of this one: the newest common epoch that it may have, and where it ends."""

    epoch: int
    end: Offset


@dataclass(slots=True, order=True)
class _Waiting:
    end: Offset
    ref: object = field(compare=False)
    base_offset: Offset = field(compare=False)
    log_append_time_ms: int = field(compare=False)


@dataclass(slots=True)
class Partition(LocalLog):
    """The log, and what this broker is to it. ``leading`` and ``following`` are never both set."""

    leading: Leadership | None = None
    following: Following | None = None
    leader_high_watermark: Offset = Offset(0)
    """What the leader said last, while following."""
    _waiting_written: list[_Waiting] = field(default_factory=list)
    _waiting_committed: list[_Waiting] = field(default_factory=list)

    @staticmethod
    def create(
        partition: PartitionId, log: LogId, config: TopicConfig, now_ms: int, roll_jitter_ms: int = 0
    ) -> tuple[Partition, list[LogWrite]]:
        """A new, empty log, and the writes that make it exist."""
        start = Offset(0)
        segments = Segments.fresh(start, now_ms, roll_jitter_ms)
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
    ) -> Partition:
        """The log as it was found at opening. What is found is written; what of it is committed the cluster knows."""
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
            first_batch=state.log_start,
            fences=Fences(state.cut(log_end).fences),
            cleaned_to=state.cleaned_to,
            checkpoint=state.high_watermark,
        )

    @property
    def leader_epoch(self) -> int | None:
        """The epoch in which this broker leads; None: it does not."""
        return None if self.leading is None else self.leading.assignment.leader_epoch

    @property
    def known_epoch(self) -> int | None:
        """The leader epoch in which this broker leads or follows; None: neither."""
        if self.leading is not None:
            return self.leading.assignment.leader_epoch
        return None if self.following is None else self.following.epoch

    @property
    def end_known(self) -> bool:
        """Whether the high watermark is the end of what is committed: a new leader first has to find out."""
        return self.leading is not None and self.high_watermark >= self.leading.epoch_start

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
            case Reconfigured(config):
                self.config = config
                return []
            case CheckpointAsked(whole):
                snapshot = self.snapshot() if whole else []
                return [self.state(), *snapshot] if snapshot or self.high_watermark > self.checkpoint else []

    def check_epoch(self, claimed: int | None, *, follower: bool = False) -> HeadraceError | None:
        """
        What is wrong with a client's idea of who leads; None: nothing.

        With ``follower`` it is content with a broker that only follows.
        """
        known = self.known_epoch if follower else self.leader_epoch
        if known is None:
            return NotLeader("this broker does not lead the partition; refresh metadata and ask the leader")
        if claimed is None or claimed == known:
            return None
        if claimed < known:
            return FencedLeaderEpoch(f"leader epoch {claimed} is old, it is {known}; refresh metadata")
        return UnknownLeaderEpoch(f"leader epoch {claimed} is not known here yet, it is {known}; retry")

    def compare(self, last_epoch: int, log_end: Offset) -> Parted | None:
        """
        Whether a log that ends at ``log_end`` with ``last_epoch`` is a prefix of this leader's (KIP-101, KIP-595).

        Raises:
            OffsetOutOfRange: it ends below this log's start.
        """
        if log_end < self.log_start:
            raise OffsetOutOfRange(f"the log begins at {self.log_start}, the follower's ends at {log_end}")
        if last_epoch < 0:
            return None if log_end == self.log_start else Parted(-1, Offset(-1))
        epoch, end = self.epochs.end_offset_for(last_epoch, self.log_end)
        return Parted(epoch, end) if epoch < last_epoch or end < log_end else None

    # --- appending, as leader -----------------------------------------------------------------------------

    def _append(self, event: BatchArrived) -> list[Effect]:
        wrong = self.check_epoch(event.leader_epoch)
        if wrong is not None:
            return [Refuse(event.ref, wrong)]
        wrong = self.fences.refusal(event.fencing_token, event.fence)
        if wrong is not None:
            return [Refuse(event.ref, wrong)]
        header, leading = event.header, self.leading
        assert leading is not None, "only a leader appends"
        if header.producer_id >= 0:
            try:
                sent_before = self.producers.check(
                    header.producer_id, header.producer_epoch, header.base_sequence, header.record_count
                )
            except HeadraceError as error:
                return [Refuse(event.ref, error)]
            if sent_before is not None:
                return self._answer_again(event, leading, sent_before.base_offset)
        if event.acks == ALL and not leading.enough:
            return [Refuse(event.ref, NotEnoughReplicas(f"{_too_few(leading)}; nothing was appended, send it again"))]
        return self._accept(event, leading.assignment.leader_epoch)

    def _accept(self, event: BatchArrived, epoch: int) -> list[Effect]:
        header, base, now_ms, stamped_ms = event.header, self.log_end, event.now_ms, -1
        if self.config.log_append_time:
            batch = stamp_log_append_time(event.batch, base, epoch, now_ms)
            attributes, stamped_ms = header.attributes | _LOG_APPEND_TIME_BIT, now_ms
            header = header._replace(attributes=attributes, base_timestamp=now_ms, max_timestamp=now_ms)
        else:
            batch = stamp(event.batch, base, epoch)
        effects: list[Effect] = [*self.appended(header, batch, base, epoch, now_ms)]
        if event.fence is not None:
            effects += self.fenced(base, event.fence)
        self._wait(event, _Waiting(self.log_end, event.ref, base, stamped_ms))
        return effects

    def _wait(self, event: BatchArrived, waiting: _Waiting) -> None:
        if event.acks == 0:
            return
        queue = self._waiting_written if event.acks == 1 else self._waiting_committed
        if queue and waiting.end < queue[-1].end:
            insort(queue, waiting)
        else:
            queue.append(waiting)

    def _answer_again(self, event: BatchArrived, leading: Leadership, base: Offset) -> list[Effect]:
        end = Offset(base + event.header.last_offset_delta + 1)
        if event.acks == 0:
            return []
        if end <= (self.written_end if event.acks == 1 else self.high_watermark):
            return [Answer(event.ref, base, -1)]
        if event.acks == ALL and not leading.enough:
            return [Refuse(event.ref, NotEnoughReplicasAfterAppend(_appended_already(leading)))]
        self._wait(event, _Waiting(end, event.ref, base, -1))
        return []

    # --- written, committed -------------------------------------------------------------------------------

    def _written(self, end: Offset, now_ms: float) -> list[Effect]:
        assert self.written_end <= end <= self.log_end, f"{self.written_end} <= {end} <= {self.log_end}"
        grew = end > self.written_end
        self.written_end = end
        effects: list[Effect] = []
        if self._waiting_written:
            _release(self._waiting_written, end, effects)
        if self.leading is None:
            return effects + self._show(min(self.leader_high_watermark, end)) if self.following else effects
        if grew:
            self.leading.grown(now_ms)
        return effects + self._commit(self.leading)

    def _commit(self, leading: Leadership) -> list[Effect]:
        return self._show(leading.committed(self.written_end))

    def _show(self, end: Offset) -> list[Effect]:
        """Everything below ``end`` is committed."""
        before = self.high_watermark
        if end <= before:
            return []
        assert end <= self.written_end, f"{end} is committed and only {self.written_end} written"
        self.high_watermark = end
        effects: list[Effect] = [ShowUpTo(end, before)]
        if self._waiting_committed:
            _release(self._waiting_committed, end, effects)
        return effects

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
        return [Refuse(one.ref, reason) for one in waiting]

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
            reason = NotEnoughReplicasAfterAppend(_appended_already(leading))
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
            self.leader_high_watermark = self.high_watermark
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
        tokens = [token_in(header, batch) for header, batch in event.batches]  # before anything has changed
        effects: list[Effect] = [*self.emptied(start, event.now_ms, self.fences.token)] if inside else []
        for (header, batch), token in zip(event.batches, tokens, strict=True):
            effects += self.begin_epoch(header.leader_epoch)
            effects += self.appended(header, batch, self.log_end, header.leader_epoch, event.now_ms)
            if token is not None:
                effects += self.fenced(Offset(header.base_offset), token)
        self.leader_high_watermark = max(self.leader_high_watermark, event.high_watermark)
        return effects + self._show(min(self.leader_high_watermark, self.written_end))

    def _begins_inside(self, first: BatchHeader) -> bool:
        """Whether this empty log was to start inside a batch, where the leader's does: it takes the batch whole."""
        empty = self.log_start == self.log_end
        return empty and first.base_offset < self.log_end < first.next_offset

    def _truncate(self, event: Truncated) -> list[Effect]:
        if self.following is None or self.following.epoch != event.leader_epoch:
            return []
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
        if self.leading is None:
            return []
        config, effects = self.config, list[Effect]()
        if self.segments.aged(now_ms, config.segment_ms):
            effects += self.roll(now_ms)
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


def _too_few(leading: Leadership) -> str:
    now = leading.assignment
    return f"{len(now.isr)} replicas are in sync and min.insync.replicas is {now.min_isr}"


def _appended_already(leading: Leadership) -> str:
    return f"{_too_few(leading)}; the batch was appended and is not committed yet, send it again unchanged"


def _release(queue: list[_Waiting], end: Offset, effects: list[Effect]) -> None:
    done = 0
    for waiting in queue:
        if waiting.end > end:
            break
        effects.append(Answer(waiting.ref, waiting.base_offset, waiting.log_append_time_ms))
        done += 1
    del queue[:done]
