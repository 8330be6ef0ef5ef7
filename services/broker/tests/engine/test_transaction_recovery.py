"""What a restart knows of transactions whose markers were above the high watermark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from services.broker.tests.kit.batches import NOW_MS, batch_of

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import BatchesCopied, CheckpointAsked, Event, Followed, GroupWritten
from headrace_broker.core.rows import PutProducers
from headrace_broker.engine.image_applier import restore
from headrace_common.core.batch import build_marker_batch, read_header, stamp
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import NotLeader
from headrace_common.core.ids import NodeId, Offset, PartitionId, TopicId

ID = PartitionId(TopicId(b"t" * 16), 0)
CONFIG = TopicConfig.effective({}, {})


class Log:
    def __init__(self) -> None:
        self.store = MemoryLogs()
        self.core, writes = Partition.create(ID, self.store.new_log_id(), CONFIG, NOW_MS)
        self.store.write(writes)
        self.do(Followed(NodeId(2), 1, NotLeader("moved")))

    def do(self, event: Event) -> None:
        writes: list[Any] = [effect for effect in self.core.handle(event) if hasattr(effect, "log")]
        if writes:
            self.store.write(writes)

    def copy(self, batch: bytes, watermark: int) -> None:
        batch = stamp(batch, self.core.log_end, 1)
        self.do(BatchesCopied(1, ((read_header(batch), batch),), Offset(watermark), NOW_MS))
        self.do(GroupWritten(self.core.log_end))

    def restart(self, config: TopicConfig = CONFIG) -> None:
        self.store = self.store.reopen()
        [found] = self.store.list_recovered()
        self.core = restore(self.store, found, config, NOW_MS + 50_000)


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_marker_above_the_high_watermark_is_not_believed_yet(commit: bool, snapshot: bool) -> None:
    log = Log()
    log.copy(batch_of(2, producer_id=1, epoch=0, sequence=0, transactional=True), 2)
    log.do(CheckpointAsked(whole=False))
    log.copy(build_marker_batch(1, 1, commit=commit, timestamp_ms=NOW_MS), 2)
    if snapshot:
        log.store.write([PutProducers(log.core.log, log.core.log_end, log.core.producers.snapshot())])
    log.restart()
    assert (log.core.high_watermark, log.core.last_stable) == (2, 0)
    assert [(row.epoch, row.committed) for row in log.core.producers.snapshot()] == [(1, commit)]
    log.do(Followed(NodeId(2), 1, NotLeader("moved")))
    log.do(BatchesCopied(1, (), Offset(3), NOW_MS))
    assert (log.core.high_watermark, log.core.last_stable) == (3, 3)
    assert len(log.core.aborted) == (not commit)


@pytest.mark.parametrize("snapshot", [False, True])
def test_the_age_of_an_open_transaction_outlives_a_restart(snapshot: bool) -> None:
    log = Log()
    log.copy(batch_of(2, producer_id=1, epoch=0, sequence=0, transactional=True, timestamp_ms=NOW_MS), 0)
    if snapshot:
        log.do(CheckpointAsked())
    log.restart()
    found = log.core.producers.oldest_open()
    assert found is not None
    assert (found[0], found[1].transaction_start, found[1].transaction_since_ms) == (1, 0, NOW_MS)


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_restart_remembers_as_many_producers_as_the_setting_says(snapshot: bool) -> None:
    log = Log()
    for producer_id in range(12):
        log.copy(batch_of(1, producer_id=producer_id, epoch=0, sequence=0), 0)
    if snapshot:
        log.store.write([PutProducers(log.core.log, log.core.log_end, log.core.producers.snapshot())])
    log.restart(replace(CONFIG, producer_ids_max=10))
    assert {row.producer_id for row in log.core.producers.snapshot()} == set(range(2, 12))
