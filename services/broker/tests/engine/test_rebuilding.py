"""What is known of producers survives a trim of the start, whatever is cut from the end after it, and a restart."""

from __future__ import annotations

import pytest
from services.broker.tests.kit.assignments import elected
from services.broker.tests.kit.batches import NOW_MS, batch_of

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import BatchArrived, Effect, Followed, GroupWritten, Truncated
from headrace_broker.core.rows import LogWrite
from headrace_broker.engine.image_applier import restore
from headrace_broker.engine.rebuilding import prepare_trim, rebuild
from headrace_common.core.batch import read_header
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import NotLeader
from headrace_common.core.ids import NodeId, Offset, PartitionId, TopicId

ID = PartitionId(TopicId(b"t" * 16), 0)
CONFIG = TopicConfig.effective({}, {})
EARLY, LATE = 7, 8


class Log:
    """A partition core on a store in memory."""

    def __init__(self) -> None:
        self.store = MemoryLogs()
        self.core, writes = Partition.create(ID, self.store.new_log_id(), CONFIG, NOW_MS)
        self.store.write(writes)
        self.take(self.core.handle(elected(1)))

    def take(self, effects: list[Effect]) -> None:
        self.store.write([e for e in effects if isinstance(e, LogWrite)])

    def append(self, producer: int, sequence: int) -> None:
        batch = batch_of(1, producer_id=producer, epoch=0, sequence=sequence)
        self.take(self.core.handle(BatchArrived(read_header(batch), batch, 1, NOW_MS, None, sequence)))

    def written(self) -> None:
        self.take(self.core.handle(GroupWritten(self.core.log_end)))

    def trim(self, offset: int) -> None:
        self.take(self.core.handle(prepare_trim(self.store, self.core, Offset(offset), NOW_MS)))

    async def cut(self, end: int) -> None:
        self.take(self.core.handle(Followed(NodeId(2), 2, NotLeader(""))))
        await self.store.lower_evidence([(self.core.log, Offset(end), 1)])
        self.take(self.core.handle(Truncated(2, Offset(end), rebuild(self.store, self.core, Offset(end), NOW_MS))))

    def knows(self, producer: int, sequence: int) -> bool:
        """Whether a batch of this sequence would be recognised as sent before."""
        return self.core.producers.check(producer, 0, sequence, 1) is not None


@pytest.fixture
def log() -> Log:
    made = Log()
    for sequence in range(4):
        made.append(EARLY, sequence)
    for sequence in range(3):
        made.append(LATE, sequence)
    made.written()
    return made


@pytest.mark.parametrize("start", [1, 4, 5, 6])
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_cut_after_a_trim_takes_only_what_was_sent_behind_it(log: Log, start: int, restarts: bool) -> None:
    log.trim(start)
    log.append(LATE, 3)
    log.append(EARLY, 4)
    await log.cut(7)
    if restarts:
        log.store = log.store.reopen()
        (found,) = log.store.list_recovered()
        log.core = restore(log.store, found, CONFIG, NOW_MS)
    assert log.core.log_end == 7
    assert log.knows(EARLY, 3)
    assert log.knows(LATE, 2)
    log.core.producers.check(EARLY, 0, 4, 1)  # follows: it raises otherwise
    log.core.producers.check(LATE, 0, 3, 1)


async def test_a_second_trim_starts_from_the_first(log: Log) -> None:
    log.trim(2)
    log.trim(6)
    await log.cut(6)
    assert log.knows(EARLY, 3)
    assert log.knows(LATE, 1)
    assert log.core.producers.check(LATE, 0, 2, 1) is None
