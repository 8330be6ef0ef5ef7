"""
One partition as its leader keeps it: which offsets a batch gets, what is written, what is committed, what may go.

Only the storage loop calls this. Events go in, effects come out, in the order in which they must be done; effects
that are ``LogWrite`` belong to one group, and ``GroupWritten`` follows when the flush policy counts it as written.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from headrace_broker.core.epochs import Epochs
from headrace_broker.core.partition_events import (
    Answer,
    BatchArrived,
    CheckpointAsked,
    Deposed,
    Effect,
    Elected,
    Event,
    ForgetBelow,
    GroupWritten,
    Reconfigured,
    Refuse,
    RetentionChecked,
    ShowUpTo,
    TrimAsked,
)
from headrace_broker.core.producers import Producers
from headrace_broker.core.rows import (
    DropPrefix,
    EpochRow,
    IndexRow,
    LogId,
    LogWrite,
    ProducerRow,
    PutBatch,
    PutEpoch,
    PutProducers,
    PutSegment,
    PutState,
    SegmentRow,
    StateRow,
)
from headrace_broker.core.segments import Segments
from headrace_common.core.batch import stamp, stamp_log_append_time
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import (
    FencedLeaderEpoch,
    HeadraceError,
    NotLeader,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from headrace_common.core.ids import Offset, PartitionId

SNAPSHOT_EVERY_BYTES: Final = 64 << 20
"""Bytes between two producer snapshots, so that a restart replays no more than that."""
_LOG_APPEND_TIME_BIT: Final = 0x08


@dataclass(slots=True, order=True)
class _Waiting:
    end: Offset
    ref: object = field(compare=False)
    base_offset: Offset = field(compare=False)
    log_append_time_ms: int = field(compare=False)


@dataclass(slots=True)
class Partition:
    """
    The leader's state of one partition.

    ``log_end`` is appended, ``written_end`` is down by the flush policy, ``high_watermark`` is committed:
    ``log_start <= high_watermark <= written_end <= log_end``. With one replica what is written is committed.
    """

    id: PartitionId
    log: LogId
    config: TopicConfig
    segments: Segments
    log_start: Offset
    log_end: Offset
    written_end: Offset
    high_watermark: Offset
    epochs: Epochs
    producers: Producers
    leader_epoch: int | None = None
    """None: this broker does not lead."""
    snapshot_bytes: int = 0
    """Appended since the last producer snapshot."""
    first_batch: Offset = Offset(0)
    """Base of the first batch that exists; at or below the log start."""
    fencing_token: int = -1
    cleaned_to: Offset = Offset(0)
    _checkpoint: Offset = Offset(-1)
    """The high watermark as it was last stored."""
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
        return fresh, [fresh._state(), PutSegment(log, segments.active)]

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
        """The log as it was found at opening. What is found is written; it is committed once this broker leads."""
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
            fencing_token=state.fencing_token,
            cleaned_to=state.cleaned_to,
            _checkpoint=state.high_watermark,
        )

    def handle(self, event: Event) -> list[Effect]:
        """Apply ``event`` and return what must now be done, in order."""
        match event:
            case BatchArrived():
                return self._append(event)
            case GroupWritten(end):
                return self._written(end)
            case Elected(epoch):
                return self._lead(epoch)
            case Deposed(reason):
                return self._stop_leading(reason)
            case TrimAsked(offset, boundary):
                return self._trim(offset, boundary)
            case RetentionChecked(now_ms, producers_before_ms):
                self.producers.expire(producers_before_ms)
                return self._retain(now_ms)
            case Reconfigured(config):
                self.config = config
                return []
            case CheckpointAsked():
                snapshot = self._snapshot()
                return [self._state(), *snapshot] if snapshot or self.high_watermark > self._checkpoint else []

    def check_epoch(self, claimed: int | None) -> HeadraceError | None:
        """What is wrong with a client's idea of who leads; None: nothing."""
        if self.leader_epoch is None:
            return NotLeader("this broker does not lead the partition; refresh metadata and ask the leader")
        if claimed is None or claimed == self.leader_epoch:
            return None
        if claimed < self.leader_epoch:
            return FencedLeaderEpoch(f"leader epoch {claimed} is old, it is {self.leader_epoch}; refresh metadata")
        return UnknownLeaderEpoch(f"leader epoch {claimed} is not known here yet, it is {self.leader_epoch}; retry")

    # --- appending ----------------------------------------------------------------------------------------

    def _append(self, event: BatchArrived) -> list[Effect]:
        wrong = self.check_epoch(event.leader_epoch)
        if wrong is not None:
            return [Refuse(event.ref, wrong)]
        header = event.header
        if header.producer_id >= 0:
            try:
                sent_before = self.producers.check(
                    header.producer_id, header.producer_epoch, header.base_sequence, header.record_count
                )
            except HeadraceError as error:
                return [Refuse(event.ref, error)]
            if sent_before is not None:
                return self._answer_again(event, sent_before.base_offset)
        return self._accept(event)

    def _accept(self, event: BatchArrived) -> list[Effect]:
        header, base, now_ms = event.header, self.log_end, event.now_ms
        end = Offset(base + header.last_offset_delta + 1)
        assert self.leader_epoch is not None, "only a leader appends"
        attributes, low, high, stamped_ms = header.attributes, header.base_timestamp, header.max_timestamp, -1
        if self.config.log_append_time:
            batch = stamp_log_append_time(event.batch, base, self.leader_epoch, now_ms)
            attributes, low, high, stamped_ms = attributes | _LOG_APPEND_TIME_BIT, now_ms, now_ms, now_ms
        else:
            batch = stamp(event.batch, base, self.leader_epoch)
        size = len(batch)
        effects = self._roll_before(size, end, now_ms)
        segment = self.segments.appended(base, size, low, high)
        row = IndexRow(
            base,
            header.last_offset_delta,
            size,
            header.record_count,
            attributes,
            self.leader_epoch,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            segment.base_offset,
            segment.size,
            segment.min_timestamp,
            segment.max_timestamp,
        )
        effects.append(PutBatch(self.log, row, batch))
        self.log_end = end
        self.snapshot_bytes += size
        if header.producer_id >= 0:
            self.producers.appended(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.record_count,
                base,
                header.max_timestamp,
                now_ms,
            )
        self._wait(event, _Waiting(end, event.ref, base, stamped_ms))
        return effects

    def _wait(self, event: BatchArrived, waiting: _Waiting) -> None:
        if event.acks == 0:
            return
        queue = self._waiting_written if event.acks == 1 else self._waiting_committed
        if queue and waiting.end < queue[-1].end:
            insort(queue, waiting)
        else:
            queue.append(waiting)

    def _answer_again(self, event: BatchArrived, base: Offset) -> list[Effect]:
        end = Offset(base + event.header.last_offset_delta + 1)
        if event.acks == 0:
            return []
        if end <= (self.written_end if event.acks == 1 else self.high_watermark):
            return [Answer(event.ref, base, -1)]
        self._wait(event, _Waiting(end, event.ref, base, -1))
        return []

    def _roll_before(self, size: int, end: Offset, now_ms: int) -> list[Effect]:
        config = self.config
        if self.segments.must_roll(size, end, now_ms, segment_bytes=config.segment_bytes, segment_ms=config.segment_ms):
            return self._roll(now_ms)
        return list(self._snapshot()) if self.snapshot_bytes >= SNAPSHOT_EVERY_BYTES else []

    def _roll(self, now_ms: int) -> list[Effect]:
        sealed, opened = self.segments.roll(self.log_end, now_ms)
        return [PutSegment(self.log, sealed), PutSegment(self.log, opened), *self._snapshot(), self._state()]

    def _snapshot(self) -> list[PutProducers]:
        if self.snapshot_bytes == 0:
            return []
        self.snapshot_bytes = 0
        rows: tuple[ProducerRow, ...] = self.producers.snapshot()
        return [PutProducers(self.log, self.log_end, rows)]

    def _state(self) -> PutState:
        self._checkpoint = self.high_watermark
        return PutState(
            self.log, StateRow(self.id, self.log_start, self.high_watermark, self.fencing_token, self.cleaned_to)
        )

    # --- written, committed -------------------------------------------------------------------------------

    def _written(self, end: Offset) -> list[Effect]:
        assert self.written_end <= end <= self.log_end, f"{self.written_end} <= {end} <= {self.log_end}"
        self.written_end = end
        effects: list[Effect] = []
        _release(self._waiting_written, end, effects)
        return effects + self._commit() if self.leader_epoch is not None else effects

    def _commit(self) -> list[Effect]:
        before = self.high_watermark
        self.high_watermark = self.written_end
        effects: list[Effect] = []
        if self.high_watermark > before:
            effects.append(ShowUpTo(self.high_watermark, before))
        _release(self._waiting_committed, self.high_watermark, effects)
        return effects

    # --- leading ------------------------------------------------------------------------------------------

    def _lead(self, epoch: int) -> list[Effect]:
        if self.leader_epoch is not None and epoch <= self.leader_epoch:
            return []
        effects: list[Effect] = []
        if self.leader_epoch is not None:  # the same leader in a new epoch: those who wait hear that it is unknown
            effects += self._stop_leading(NotLeader("the partition has a new leader epoch; send the batch again"))
        known = self.epochs.latest
        if epoch < known:
            return effects
        row = self.epochs.assign(epoch, self.log_end)
        self.leader_epoch = epoch
        if row is not None:
            effects.append(PutEpoch(self.log, row))
        return effects + self._commit()

    def _stop_leading(self, reason: HeadraceError) -> list[Effect]:
        self.leader_epoch = None
        waiting = [*self._waiting_written, *self._waiting_committed]
        self._waiting_written.clear()
        self._waiting_committed.clear()
        return [Refuse(one.ref, reason) for one in waiting]

    # --- what may go --------------------------------------------------------------------------------------

    def _trim(self, offset: Offset, boundary: Offset) -> list[Effect]:
        if offset > self.high_watermark:
            raise OffsetOutOfRange(f"offset {offset} is above the high watermark {self.high_watermark}")
        if offset <= self.log_start:
            return []
        assert boundary <= offset, "the log start is in the batch at the boundary"
        return self._start_at(offset, boundary)

    def _start_at(self, offset: Offset, boundary: Offset) -> list[Effect]:
        self.log_start = offset
        effects: list[Effect] = [self._state()]
        if boundary > self.first_batch:
            self.first_batch = boundary
            self.segments.drop_below(boundary)
            effects += self._snapshot()  # what producers sent before it stays known after a restart
            effects.append(DropPrefix(self.log, boundary))
        effects.append(ForgetBelow(offset))
        return effects

    def _retain(self, now_ms: int) -> list[Effect]:
        if self.leader_epoch is None:
            return []
        config, effects = self.config, []
        if self.segments.aged(now_ms, config.segment_ms):
            effects += self._roll(now_ms)
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
            effects += self._roll(now_ms)
        return effects + self._start_at(start, start)


def segment_rows(partition: Partition) -> list[SegmentRow]:
    """All segments, ascending, the active one last, as they are now."""
    return [*partition.segments.sealed, partition.segments.active]


def _release(queue: list[_Waiting], end: Offset, effects: list[Effect]) -> None:
    done = 0
    for waiting in queue:
        if waiting.end > end:
            break
        effects.append(Answer(waiting.ref, waiting.base_offset, waiting.log_append_time_ms))
        done += 1
    del queue[:done]
