"""What the tests of the consumer's core share: batches, and a broker that answers plans from lists of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace._core.fetch_plans import FetchPlan
from headrace._core.fetch_positions import Answer, FetchPositions, Lookup
from headrace._core.starts import timestamp_to_ask
from headrace_common.core.batch import ControlType, RecordColumns, build_batch, build_control_batch, read_header
from headrace_common.core.errors import ErrorCode, error_for
from headrace_common.core.ids import NodeId, TopicId, TopicPartition

TOPIC_ID = TopicId(b"t" * 16)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
A, B = NodeId(1), NodeId(2)


def batch(base: int, count: int = 1, *, size: int = 10) -> bytes:
    """A batch of ``count`` records; each value says its offset."""
    values = [str(base + n).encode().ljust(size) for n in range(count)]
    return build_batch(RecordColumns(values=values, timestamps_ms=1000), base_offset=base, leader_epoch=0)


def control(base: int) -> bytes:
    """A commit marker."""
    return build_control_batch(
        ControlType.COMMIT, b"", timestamp_ms=1000, producer_id=1, producer_epoch=0, base_offset=base
    )


@dataclass
class PlainLog:
    """One partition: its batches, and where it starts and ends."""

    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def append(self, count: int, *, hole: int = 0) -> None:
        """``hole`` offsets that compaction took, then a batch."""
        self.batches.append(batch(self.end + hole, count))
        self.end += hole + count

    def append_control(self) -> None:
        self.batches.append(control(self.end))
        self.end += 1

    def trim(self, start: int) -> None:
        self.start = start
        self.batches = [b for b in self.batches if read_header(b).next_offset > start]

    def read(self, offset: int, bytes_max: int) -> list[bytes]:
        found: list[bytes] = []
        for one in self.batches:
            if read_header(one).next_offset <= offset:
                continue
            if found and bytes_max < len(one):
                break
            found.append(one)
            bytes_max -= len(one)
        return found

    def visible(self) -> list[int]:
        headers = [read_header(b) for b in self.batches]
        return [
            offset
            for h in headers
            if not h.control
            for offset in range(h.base_offset, h.next_offset)
            if offset >= self.start
        ]


def answer_for(plan: FetchPlan, key: tuple[TopicId, int], log: PlainLog, *, bytes_max: int = 1 << 20) -> Answer | None:
    """What a broker says about one partition of a plan; None: no news."""
    entry = plan.entries[key]
    if not log.start <= entry.offset <= log.end:
        return refusal(plan, key, ErrorCode.OFFSET_OUT_OF_RANGE, log=log)
    found = log.read(entry.offset, bytes_max)
    return Answer(entry, 0, "", log.end, log.start, found) if found else None


def refusal(
    plan: FetchPlan,
    key: tuple[TopicId, int],
    code: ErrorCode,
    *,
    log: PlainLog | None = None,
    leader: tuple[NodeId, int] | None = None,
) -> Answer:
    log = log or PlainLog()
    return Answer(plan.entries[key], int(code), "", log.end, log.start, [], leader)


def look_up(core: FetchPositions, logs: dict[TopicPartition, PlainLog], now_ms: float = 0.0) -> int:
    """Answer all lookups that are wanted; the number of them."""
    count = 0
    for lookups in core.lookups().values():
        for lookup in lookups:
            count += 1
            log = logs[lookup.partition.tp]
            core.looked_up(lookup, found_by(lookup, log))
    return count


def found_by(lookup: Lookup, log: PlainLog) -> int:
    asked = timestamp_to_ask(lookup.start, wall_ms=10_000)
    if asked == -1:
        return log.end
    if asked == -2:
        return log.start
    return next((o for o in log.visible() if asked <= 1000), -1)


def hand_out(core: FetchPositions) -> tuple[TopicPartition, list[int]] | None:
    """Take one batch whole, as the shell does, and return its offsets from the position on."""
    partition = core.next_batch()
    if partition is None:
        return None
    assert partition.open is not None
    assert partition.position is not None
    header = partition.open.header
    offsets = [o for o in range(header.base_offset, header.next_offset) if o >= partition.position]
    core.handed_out(partition, partition.epoch, header.next_offset)
    return partition.tp, offsets


def failure(code: ErrorCode, text: str = "") -> Exception:
    return error_for(code, text)
