"""
One log on this disk, whoever leads it: what appending, rolling, trimming and truncating write.

``Partition`` is built on it. Nothing here knows of clients, leaders or followers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace_broker.core.aborted import AbortedIndex
from headrace_broker.core.compaction.clean_points import cut_points
from headrace_broker.core.compaction.steps import Step
from headrace_broker.core.epochs import Epochs
from headrace_broker.core.fences import Fences, fences_of
from headrace_broker.core.partition_events import ForgetBelow, Rebuilt
from headrace_broker.core.producers import Ended, Producers
from headrace_broker.core.rows import (
    COMMITS_BIT,
    MARKER_BITS,
    NO_TOKEN,
    TRANSACTIONAL_BIT,
    AbortedRow,
    Below,
    CleanPoint,
    DropAborted,
    DropPrefix,
    DropSuffix,
    EpochRow,
    IndexRow,
    LogId,
    LogWrite,
    ProducerRow,
    PutAborted,
    PutBatch,
    PutEpoch,
    PutProducers,
    PutSegment,
    PutState,
    SegmentRow,
    StateRow,
)
from headrace_broker.core.segments import Segments
from headrace_common.core.batch import BatchHeader
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import OffsetOutOfRange
from headrace_common.core.ids import Offset, PartitionId

SNAPSHOT_EVERY_BYTES: Final = 64 << 20
"""Bytes between two producer snapshots, so that a restart replays no more than that."""

NOTHING_FORGOTTEN: Final = Offset(0)


class Parted(NamedTuple):
    """A follower's log is not a prefix of this one: the newest common epoch that it may have, and where it ends."""

    epoch: int
    end: Offset


@dataclass(slots=True)
class LocalLog:
    """
    The state of one log.

    ``log_end`` is appended, ``written_end`` is down by the flush policy, ``high_watermark`` is known to be committed:
    ``log_start <= high_watermark <= written_end <= log_end``.
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
    snapshot_bytes: int = 0
    """Appended since the last producer snapshot."""
    snapshots: set[Offset] = field(default_factory=set)
    """Where producer snapshots are known to be; those from before the last restart are not."""
    first_batch: Offset = Offset(0)
    """Base of the first batch that exists; at or below the log start."""
    fences: Fences = field(default_factory=Fences)
    cleaned_to: Offset = Offset(0)
    """Everything below was compacted."""
    clean_points: tuple[CleanPoint, ...] = ()
    """When that was, ascending."""
    forgotten_to: Offset = Offset(0)
    """Deletions and markers below may be missing; a log that has what they ended, and not them, must not go on."""
    rewrites: int = 0
    """How often compaction has rewritten batches: what was found among them before may be elsewhere after."""
    truncations: int = 0
    """How often the end was cut: what was written before says nothing about the end after."""
    checkpoint: Offset = Offset(-1)
    """The high watermark as it was last stored."""
    aborted: AbortedIndex = field(default_factory=AbortedIndex)
    ending: deque[Ended] = field(default_factory=deque)
    """Transactions whose marker is at or above the high watermark, ascending by marker."""
    last_stable: Offset = Offset(0)
    """Below it every transaction is decided, with a committed marker; from ``log_start`` to ``high_watermark``."""

    def append(
        self, header: BatchHeader, batch: bytes, base: Offset, epoch: int, now_ms: int, commit: bool | None = None
    ) -> list[LogWrite]:
        """
        Take a batch in at the log end; the writes that do it, rolling included.

        ``header`` has the times and the producer as they are in ``batch``; ``epoch`` is the leader's that stamped it.
        ``commit`` is what a marker says.
        """
        end = Offset(base + header.last_offset_delta + 1)
        size = len(batch)
        writes = self._roll_before(size, end, now_ms)
        segment = self.segments.append(base, size, header.base_timestamp, header.max_timestamp)
        row = IndexRow(
            base,
            header.last_offset_delta,
            size,
            header.record_count,
            header.attributes | COMMITS_BIT if commit else header.attributes,
            epoch,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            segment.base_offset,
            segment.size,
            segment.min_timestamp,
            segment.max_timestamp,
        )
        writes.append(PutBatch(self.log, row, batch))
        self.log_end = end
        self.snapshot_bytes += size
        if header.producer_id >= 0:
            if header.attributes & MARKER_BITS == MARKER_BITS:
                assert commit is not None, "a marker has a verdict"
                writes += self._end_in_log(header, base, commit, now_ms)
                self.producers.forget_above(self.config.producer_ids_max)
                return writes
            self.producers.note_appended(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_offset_delta + 1,  # of which compaction may have left fewer
                base,
                header.max_timestamp,
                now_ms,
                transactional=bool(header.attributes & TRANSACTIONAL_BIT),
            )
            self.producers.forget_above(self.config.producer_ids_max)
        return writes

    def _end_in_log(self, header: BatchHeader, marker: Offset, commit: bool, now_ms: int) -> list[LogWrite]:
        start = self.producers.end(header.producer_id, header.producer_epoch, commit, now_ms)
        if start is None:
            return []
        self.ending.append(Ended(marker, start))
        if commit:
            return []
        first_open = self.producers.first_open
        stable = Offset(marker + 1) if first_open is None else first_open
        row = AbortedRow(header.producer_id, start, marker, stable)
        self.aborted.append(row)
        return [PutAborted(self.log, row)]

    def settle(self) -> Offset:
        """Find the last stable offset anew after the high watermark, the start or the end has moved; what it was."""
        before, watermark, ending = self.last_stable, self.high_watermark, self.ending
        if not ending and not self.producers.open:
            self.last_stable = watermark
            return before
        while ending and ending[0].marker < watermark:
            ending.popleft()
        stable = watermark
        first_open = self.producers.first_open
        if first_open is not None and first_open < stable:
            stable = first_open
        for ended in ending:
            stable = min(stable, ended.start)
        self.last_stable = max(stable, self.log_start)
        return before

    def fence(self, offset: Offset, token: int) -> list[LogWrite]:
        """The batch at ``offset``, which was appended, sets ``token``."""
        return [self.state()] if self.fences.note_appended(offset, token) else []

    def begin_epoch(self, epoch: int) -> list[LogWrite]:
        """From the log end on ``epoch`` is written."""
        row: EpochRow | None = self.epochs.assign(epoch, self.log_end)
        return [] if row is None else [PutEpoch(self.log, row)]

    def state(self) -> PutState:
        self.checkpoint = self.high_watermark
        row = StateRow(
            self.id,
            self.log_start,
            self.high_watermark,
            self.fences.rows(),
            self.cleaned_to,
            self.clean_points,
            self.forgotten_to,
        )
        return PutState(self.log, row)

    def snapshot(self) -> list[PutProducers]:
        """All producers, if anything was appended since the last time."""
        if self.snapshot_bytes == 0:
            return []
        self.snapshot_bytes = 0
        self.snapshots.add(self.log_end)
        rows: tuple[ProducerRow, ...] = self.producers.snapshot()
        return [PutProducers(self.log, self.log_end, rows)]

    def roll(self, now_ms: int) -> list[LogWrite]:
        """Seal the active segment and begin the next."""
        sealed, opened = self.segments.roll(self.log_end, now_ms)
        writes: list[LogWrite] = [PutSegment(self.log, sealed), PutSegment(self.log, opened)]
        writes += [*self.snapshot(), self.state()]
        if self.log_start == self.log_end:  # all of it was trimmed
            known = self.log_end in self.snapshots
            writes.append(DropPrefix(self.log, self.log_end, self._forget_below(self.log_end, snapshot=known)))
        return writes

    def is_aged(self, now_ms: int) -> bool:
        """
        Whether the active segment is to be sealed for its age.

        What is compacted is sealed; so where that must happen within ``max.compaction.lag.ms``, so must this (KIP-354).
        """
        return self.segments.is_aged(now_ms, *self._roll_ms())

    def _roll_ms(self) -> tuple[int, int]:
        """The age at which a segment is sealed, and how much earlier it may be, in ms."""
        config = self.config
        age_ms = min(config.segment_ms, config.compaction_lag_ms_max) if config.compacts else config.segment_ms
        return age_ms, config.segment_jitter_ms

    def compact(self, step: Step) -> list[LogWrite]:
        """Take in one step of a compaction, which applies; the writes that do it."""
        assert step.applies(self.first_batch), "checked before"
        resized = self.segments.resize(step.segments)
        markers = {write.marker for write in step.writes if type(write) is DropAborted}
        if markers:
            self.aborted.remove(markers)
        if step.writes:
            self.rewrites += 1
        writes: list[LogWrite] = [*step.writes, *(PutSegment(self.log, row) for row in resized)]
        if step.cleaned is not None:
            assert step.cleaned.end <= self.high_watermark, "what is not committed is not compacted"
            self.cleaned_to = max(self.cleaned_to, step.cleaned.end)
            self.clean_points = step.cleaned.points
        self.forgotten_to = max(self.forgotten_to, step.forgotten_to)
        writes.append(self.state())  # with each step: the high watermark too, below which the log was rewritten
        return writes

    def start_at(
        self, offset: Offset, boundary: Offset, producers: tuple[ProducerRow, ...] | None = None
    ) -> list[LogWrite | ForgetBelow]:
        """
        Records below ``offset`` are gone; ``boundary`` is the base of the batch that holds it.

        ``producers``: as they were before ``boundary``; None: a segment begins there, so there is a snapshot.
        """
        assert boundary <= offset, "the log start is in the batch at the boundary"
        self.log_start = offset
        self.settle()
        effects: list[LogWrite | ForgetBelow] = [self.state()]
        if boundary > self.first_batch:
            self.first_batch = boundary
            # What producers sent before stays known after a restart, and after a cut of all that follows.
            known = producers is not None or boundary in self.snapshots
            if producers is not None:
                effects.append(PutProducers(self.log, boundary, producers))
            elif not known:
                effects += self.snapshot()
            effects.append(DropPrefix(self.log, boundary, self._forget_below(boundary, snapshot=known)))
        effects.append(ForgetBelow(offset))
        return effects

    def _forget_below(self, boundary: Offset, *, snapshot: bool) -> Below:
        aborted = len(self.aborted)
        self.aborted.drop_below(boundary)
        self.snapshots = {offset for offset in self.snapshots if offset >= boundary}
        return Below(self.segments.drop_below(boundary), len(self.aborted) < aborted, snapshot)

    def compare(self, last_epoch: int, log_end: Offset, forgotten_to: Offset = NOTHING_FORGOTTEN) -> Parted | None:
        """
        Whether a log that ends at ``log_end`` with ``last_epoch`` is a prefix of this one (KIP-101, KIP-595).

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

    def truncation_point(self, epoch: int, end: Offset) -> Offset | None:
        """
        Where this log parts from one that holds ``epoch`` up to ``end`` and nothing newer of it (KIP-279).

        None: they have nothing in common, or what they have lacks records for the sake of later ones that are cut
        (after an unclean election: compaction never passes what is committed). All of it goes.
        """
        own_epoch, own_end = self.epochs.end_offset_for(epoch, self.log_end)
        point = min(own_end, self.log_end) if own_epoch != epoch else min(end, own_end, self.log_end)
        compacted = max(self.cleaned_to, self.high_watermark if self.config.compacts else Offset(0))
        return None if own_epoch < 0 or point < max(self.log_start, compacted) else point

    def cut(self, end: Offset, rebuilt: Rebuilt) -> list[LogWrite]:
        """Forget everything from ``end`` on, a batch boundary; what depends on it is as ``rebuilt`` says."""
        assert self.log_start <= end <= self.log_end, f"{self.log_start} <= {end} <= {self.log_end}"
        self.truncations += 1
        self.log_end = end
        self.written_end = min(self.written_end, end)
        self.high_watermark = min(self.high_watermark, end)
        self.snapshots = {offset for offset in self.snapshots if offset <= end}
        self.epochs.truncate(end)
        self.fences.truncate(end)
        self.aborted.truncate(end)
        self.ending = deque(ended for ended in self.ending if ended.marker < end)
        self.producers, self.segments = rebuilt.producers, rebuilt.segments
        self.snapshot_bytes = rebuilt.snapshot_bytes
        self.cleaned_to = min(self.cleaned_to, end)
        self.clean_points = cut_points(self.clean_points, end)
        self.settle()
        active = self.segments.active
        fresh = [PutSegment(self.log, active)] if active.base_offset >= end else []
        return [DropSuffix(self.log, end), *fresh, self.state()]

    def empty(self, start: Offset, now_ms: int, token: int = NO_TOKEN) -> list[LogWrite]:
        """Forget everything and begin anew at ``start``, before which a fence has set ``token``."""
        self.truncations += 1
        self.log_start = self.log_end = self.written_end = self.high_watermark = self.first_batch = start
        self.epochs = Epochs()
        self.fences = fences_of(token)
        self.producers = Producers()
        self.aborted = AbortedIndex()
        self.ending.clear()
        self.last_stable = start
        self.segments = Segments.fresh(start, now_ms, self.segments.roll_jitter)
        self.snapshot_bytes = 0
        self.snapshots.clear()
        self.cleaned_to, self.clean_points, self.forgotten_to = Offset(0), (), Offset(0)
        return [DropSuffix(self.log, Offset(0)), PutSegment(self.log, self.segments.active), self.state()]

    def _roll_before(self, size: int, end: Offset, now_ms: int) -> list[LogWrite]:
        age_ms, jitter_ms = self._roll_ms()
        if self.segments.must_roll(
            size, end, now_ms, segment_bytes=self.config.segment_bytes, segment_ms=age_ms, jitter_ms=jitter_ms
        ):
            return self.roll(now_ms)
        return list(self.snapshot()) if self.snapshot_bytes >= SNAPSHOT_EVERY_BYTES else []


def segment_rows(log: LocalLog) -> Sequence[SegmentRow]:
    """All segments, ascending, the active one last, as they are now."""
    return [*log.segments.sealed, log.segments.active]
