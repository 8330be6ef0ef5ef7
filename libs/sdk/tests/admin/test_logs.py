"""What a description of a log becomes in Python; brokers that do not tell of compaction yet included."""

from __future__ import annotations

import pytest

from headrace.admin_types import BrokerLogs, CompactionInfo, LogInfo, SegmentInfo
from headrace_proto.v1 import admin_pb2
from headrace_proto.v1 import broker_pb2 as pb


def test_a_log_that_is_compacted() -> None:
    log = pb.LogDescription(
        topic_id=b"t" * 16,
        partition=3,
        state=pb.ONLINE,
        size_bytes=900,
        segments=[
            pb.SegmentDescription(base_offset=5, end_offset=9, size_bytes=600, created_at_ms=1, sealed_at_ms=2),
            pb.SegmentDescription(base_offset=9, end_offset=9, min_timestamp_ms=-1, max_timestamp_ms=-1),
        ],
        oldest_timestamp_ms=0,
        compaction=pb.LogCompaction(cleaned_to=5, cleanable_to=9, clean_bytes=300, dirty_bytes=600, last_ms=7),
    )
    [found] = BrokerLogs.of(admin_pb2.BrokerLogs(broker_id=1, logs=pb.DescribeLogsResponse(logs=[log]))).logs
    assert found.segments == (SegmentInfo(5, 9, 600, 1, 2, 0, 0), SegmentInfo(9, 9, 0, 0, None, -1, -1))
    assert found.oldest_timestamp_ms == 0
    assert found.compaction == CompactionInfo(5, 9, 300, 600, 7, None, False)
    assert found.compaction.dirty_ratio == pytest.approx(2 / 3)


def test_one_that_is_stuck() -> None:
    compaction = CompactionInfo.of(pb.LogCompaction(stuck=True, waits_for="batch 4 cannot be read"))
    assert (compaction.stuck, compaction.waits_for, compaction.last_ms) == (True, "batch 4 cannot be read", None)
    assert compaction.dirty_ratio == 0


def test_one_that_is_not_compacted() -> None:
    found = LogInfo.of(pb.LogDescription(state=pb.ONLINE))
    assert (found.compaction, found.oldest_timestamp_ms, found.segments) == (None, None, ())
