"""What the tests of the consumer's core share: batches, and a broker that answers plans from lists of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace._core.fetch_aborted import Aborted
from headrace._core.fetch_answers import Answer
from headrace._core.fetch_plans import FetchPlan
from headrace._core.fetch_positions import FetchPositions, Lookup
from headrace._core.starts import timestamp_to_ask
from headrace_common.core.batch import ControlType, RecordColumns, build_batch, build_control_batch, read_header
from headrace_common.core.errors import ErrorCode, error_for
from headrace_common.core.ids import NodeId, TopicId, TopicPartition

TOPIC_ID = TopicId(b"t" * 16)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
A, B = NodeId(1), NodeId(2)


def batch(base: int, count: int = 1, *, size: int = 10, transaction_of: int | None = None) -> bytes:
    """A batch of ``count`` records; each value says its offset. ``transaction_of``: of that producer's transaction."""
    values = [str(base + n).encode().ljust(size) for n in range(count)]
    columns = RecordColumns(values=values, timestamps_ms=1000)
    if transaction_of is None:
        return build_batch(columns, base_offset=base, leader_epoch=0)
    return build_batch(
        columns,
        base_offset=base,
        leader_epoch=0,
        producer_id=transaction_of,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def control(base: int, *, producer: int = 1, kind: ControlType = ControlType.COMMIT) -> bytes:
    """A marker."""
    return build_control_batch(kind, b"", timestamp_ms=1000, producer_id=producer, producer_epoch=0, base_offset=base)


@dataclass
class PlainLog:
    """One partition: its batches, and where it starts and ends."""

    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    end: int = 0
    open: dict[int, int] = field(default_factory=dict)
    """First offsets of open transactions, by producer."""
    aborted: list[Aborted] = field(default_factory=list)

    def append(self, count: int, *, hole: int = 0, transaction_of: int | None = None) -> None:
        """``hole`` offsets that compaction took, then a batch."""
        if transaction_of is not None:
            self.open.setdefault(transaction_of, self.end + hole)
        self.batches.append(batch(self.end + hole, count, transaction_of=transaction_of))
        self.end += hole + count

    def decide(self, producer: int, *, commit: bool) -> None:
        """The marker that ends the producer's transaction."""
        first = self.open.pop(producer)
        if not commit:
            self.aborted.append(Aborted(producer, first, self.end))
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        self.batches.append(control(self.end, producer=producer, kind=kind))
        self.end += 1

    @property
    def last_stable(self) -> int:
        return max(self.start, min([self.end, *self.open.values()]))

    def committed(self) -> list[int]:
        """What readers of committed records see, told record by record."""
        seen: list[int] = []
        for header in map(read_header, self.batches):
            if header.control or header.next_offset > self.last_stable:
                continue
            dropped = header.transactional and any(
                producer == header.producer_id and first <= header.base_offset <= last
                for producer, first, last in self.aborted
            )
            if not dropped:
                seen += [o for o in range(header.base_offset, header.next_offset) if o >= self.start]
        return seen

    def append_control(self) -> None:
        self.batches.append(control(self.end))
        self.end += 1

    def trim(self, start: int) -> None:
        self.start = start
        self.batches = [b for b in self.batches if read_header(b).next_offset > start]

    def read(self, offset: int, bytes_max: int, *, end: int | None = None) -> list[bytes]:
        found: list[bytes] = []
        for one in self.batches:
            header = read_header(one)
            if header.next_offset <= offset:
                continue
            if end is not None and header.next_offset > end:
                break
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


def answer_for(
    plan: FetchPlan, key: tuple[TopicId, int], log: PlainLog, *, bytes_max: int = 1 << 20, committed: bool = False
) -> Answer | None:
    """What a broker says about one partition of a plan; None: no news. ``committed``: to a read_committed fetch."""
    entry = plan.entries[key]
    if not log.start <= entry.offset <= log.end:
        return refusal(plan, key, ErrorCode.OFFSET_OUT_OF_RANGE, log=log)
    found = log.read(entry.offset, bytes_max, end=log.last_stable if committed else None)
    if not found:
        return None
    aborted: list[Aborted] = []
    if committed:
        begin, behind = read_header(found[0]).base_offset, read_header(found[-1]).next_offset
        aborted = [a for a in log.aborted if a.first_offset < behind and a.last_offset >= begin]
    return Answer(entry, 0, "", log.end, log.start, found, aborted=aborted)


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
        return log.last_stable
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
