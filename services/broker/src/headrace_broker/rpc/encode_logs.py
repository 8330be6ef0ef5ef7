"""The logs of a broker as messages of ``broker.proto``: what it holds, how whole that is; pure."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_broker.core.recovered import RecoveryReport
from headrace_broker.core.rows import SegmentRow
from headrace_broker.core.topic_notes import TopicNote
from headrace_broker.engine.cleaner import Compaction
from headrace_broker.engine.describing import count_stored_bytes, oldest_ms
from headrace_broker.engine.inventory import Page
from headrace_broker.engine.replicas import ACCEPT_LOSS, Replica, Standing
from headrace_broker.engine.scrubber import Scrub
from headrace_common.rpc.convert import topic_to_proto
from headrace_proto.v1 import broker_pb2 as pb

_STATES = {
    Standing.ONLINE: pb.ONLINE,
    Standing.STRAY: pb.STRAY,
    Standing.DAMAGED: pb.DAMAGED,
    Standing.DELETING: pb.DELETING,
}


def log_description(
    replica: Replica,
    segments: Sequence[SegmentRow] | None,
    compaction: Compaction | None = None,
    known_as: TopicNote | None = None,
    unreadable: str | None = None,
) -> pb.LogDescription:
    """One log of this broker; ``known_as``: what is noted of its topic; ``unreadable``: a batch of it."""
    core = replica.core
    damage = replica.damage
    note = None
    if damage is not None:
        note = (
            f"lost acknowledged records {damage.recovered_end} to {damage.evident_end - 1}: {damage.reason};"
            f" {ACCEPT_LOSS}"
        )
    elif replica.standing is Standing.STRAY:
        name = "" if known_as is None else f"; last heard of as {known_as.topic.name}-{replica.id.partition}"
        note = f"not in the cluster's metadata: kept, not served{name}"
    return pb.LogDescription(
        topic_id=replica.id.topic_id,
        partition=replica.id.partition,
        state=_STATES[replica.standing],
        log_start_offset=core.log_start,
        log_end_offset=core.log_end,
        high_watermark=core.high_watermark,
        size_bytes=count_stored_bytes(core),
        leader_epoch=core.epochs.latest,
        segments=[_segment(row, core.log_start, core.log_end) for row in segments or ()],
        note=note,
        fencing_token=core.fences.token if core.fences.token >= 0 else None,
        last_stable_offset=core.last_stable,
        oldest_open=_oldest_open(replica),
        oldest_timestamp_ms=oldest_ms(core),
        compaction=None if compaction is None else _compaction(compaction),
        unreadable=unreadable,
    )


def scrub(found: Scrub) -> pb.Scrub:
    """How far the scrub of this broker is."""
    return pb.Scrub(
        running=found.running,
        logs=found.logs,
        logs_done=found.logs_done,
        bytes_read=found.bytes_read,
        lost_logs=found.lost,
        last_ended_ms=found.last_ended_ms,
    )


def inventory_page(page: Page) -> pb.InventoryResponse:
    return pb.InventoryResponse(
        topics=[
            pb.HeldTopic(topic=topic_to_proto(note.topic), incarnation=note.incarnation, revision=note.revision)
            for note in page.topics
        ],
        logs=[
            pb.HeldLog(
                topic_id=log.id.topic_id,
                partition=log.id.partition,
                last_epoch=log.last_epoch,
                written_end=log.written_end,
                damaged=log.damaged,
                known_epoch=log.known_epoch,
                fencing_token=log.fencing_token,
            )
            for log in page.logs
        ],
    )


def _compaction(found: Compaction) -> pb.LogCompaction:
    return pb.LogCompaction(
        cleaned_to=found.cleaned_to,
        cleanable_to=found.cleanable_to,
        clean_bytes=found.clean_bytes,
        dirty_bytes=found.dirty_bytes,
        last_ms=found.last_ms,
        waits_for=found.waits_for,
        stuck=found.stuck,
    )


def _oldest_open(replica: Replica) -> pb.LogTransaction | None:
    found = replica.core.producers.oldest_open()
    if found is None:
        return None
    producer_id, known = found
    return pb.LogTransaction(
        producer_id=producer_id,
        producer_epoch=known.epoch,
        first_offset=known.transaction_start or 0,
        since_ms=known.transaction_since_ms,
    )


def _segment(row: SegmentRow, log_start: int, log_end: int) -> pb.SegmentDescription:
    end = log_end if row.end_offset is None else row.end_offset
    return pb.SegmentDescription(
        base_offset=row.base_offset,
        end_offset=end,
        size_bytes=row.size if log_start < end else 0,
        created_at_ms=row.created_at_ms,
        sealed_at_ms=row.sealed_at_ms,
        min_timestamp_ms=row.min_timestamp,
        max_timestamp_ms=row.max_timestamp,
    )


def report_text(report: RecoveryReport) -> str:
    """What opening the data directory found, in sentences."""
    first = (
        f"{'clean' if report.clean else 'unclean'} start: {report.logs} logs, {report.bytes_checked} bytes checked in"
        f" {report.seconds:.2f} s"
    )
    damaged = [f"{one.partition}: {one.reason}" for one in report.damaged]
    return "; ".join([first, *report.cuts, *damaged])
