"""Copying between logs that were compacted independently: gaps, deletions that have gone, markers, producers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from services.broker.tests.kit.assignments import assigned
from services.broker.tests.kit.batches import NOW_MS

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.core.compaction.cleaning import Cleaning
from headrace_broker.core.compaction.dirty_keys import DirtyKeys
from headrace_broker.core.compaction.offset_map import OffsetMap
from headrace_broker.core.compaction.plan import dirty_range
from headrace_broker.core.compaction.rules import rules_of
from headrace_broker.core.copying import continue_log
from headrace_broker.core.local_log import segment_rows
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import (
    AskEnrolment,
    BatchArrived,
    BatchesCopied,
    Compacted,
    Effect,
    Elected,
    Emptied,
    Enrolled,
    Followed,
    FollowerFetched,
    GroupWritten,
    MarkerArrived,
    Refuse,
)
from headrace_broker.core.rows import IndexRow, LogWrite
from headrace_broker.engine.image_applier import restore
from headrace_broker.engine.rebuilding import prepare_trim
from headrace_common.core.batch import (
    RecordColumns,
    build_batch,
    build_gap_batch,
    build_marker_batch,
    decode_batch,
    read_header,
)
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import CorruptBatch, NotLeader, OffsetOutOfRange
from headrace_common.core.ids import NodeId, Offset, PartitionId, TopicId

ID = PartitionId(TopicId(b"t" * 16), 0)
CONFIG = replace(TopicConfig.effective({"cleanup.policy": "compact"}, {}), segment_bytes=500)
RETENTION_MS, AWAY_MS = 1_000, 2_000.0
MOVED = NotLeader("moved")
Pairs = Sequence[tuple[bytes, bytes | None]]


@dataclass
class One:
    """One replica on a store in memory. ``now_ms`` is its wall clock and its monotonic clock."""

    number: int
    store: MemoryLogs = field(default_factory=MemoryLogs)
    now_ms: int = NOW_MS
    sequences: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.core, writes = Partition.create(ID, self.store.new_log_id(), CONFIG, self.now_ms)
        self.store.write(writes)

    def handle(self, event: object) -> list[Effect]:
        effects = self.core.handle(event)
        assert not any(isinstance(effect, Refuse) for effect in effects)
        self.store.write([effect for effect in effects if isinstance(effect, LogWrite)])
        return effects

    def lead(self, epoch: int) -> None:
        self.handle(
            Elected(assigned(epoch, (self.number, 8, 9), (self.number,), me=self.number, min_isr=1), self.now_ms)
        )

    def follow(self, epoch: int) -> None:
        self.handle(Followed(NodeId(1), epoch, MOVED))

    def append(self, pairs: Pairs, *, producer: int = -1, transactional: bool = False) -> None:
        epoch, sequence = self.sequences.get(producer, (0, 0)) if producer >= 0 else (-1, -1)
        batch = build_batch(
            RecordColumns([v for _, v in pairs], [k for k, _ in pairs], timestamps_ms=self.now_ms),
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        self.sequences[producer] = epoch, sequence + len(pairs)
        told = "t" if transactional else None
        arrived = BatchArrived(read_header(batch), batch, 1, self.now_ms, None, None, transactional_id=told)
        asked = [effect for effect in self.handle(arrived) if isinstance(effect, AskEnrolment)]
        for one in asked:
            self.handle(Enrolled(one.producer_id, one.number, None, self.now_ms))
        self.handle(GroupWritten(self.core.log_end, self.now_ms))

    def end(self, producer: int, *, commit: bool) -> None:
        epoch = self.sequences[producer][0] + 1
        self.sequences[producer] = epoch, 0
        batch = build_marker_batch(producer, epoch, commit=commit, timestamp_ms=self.now_ms)
        self.handle(MarkerArrived(read_header(batch), batch, commit, self.now_ms, None))
        self.handle(GroupWritten(self.core.log_end, self.now_ms))

    def compact(self) -> None:
        core, store = self.core, self.store
        dirty = dirty_range(core, lambda offset: store.floor(core.log, offset), 0, self.now_ms)
        if dirty.end <= dirty.start:
            return
        spared = core.forgets_below(self.now_ms, AWAY_MS)
        rules = rules_of(core, dirty.end, core.clean_points, RETENTION_MS, self.now_ms, spared)
        keys = DirtyKeys(dirty.start, OffsetMap(1 << 16, 7), rules, "t-0")
        for row in list(store.index(core.log, dirty.start, dirty.end)):
            keys.take(row, self.batch(row) if keys.wants(row) else None)
        keys.map.complete()
        cleaning = Cleaning(core.log, "t-0", rules, keys.map, dirty.start, segment_rows(core))
        for row in list(store.index(core.log, core.first_batch, dirty.end)):
            step = cleaning.take(row, self.batch(row) if cleaning.wants(row) else None)
            if step is not None:
                self.handle(Compacted(step, core.truncations))
        self.handle(Compacted(cleaning.finish(core.clean_points), core.truncations))

    def batch(self, row: IndexRow) -> bytes:
        return self.store._live[self.core.log].batches[row.base_offset]

    def rows(self) -> list[IndexRow]:
        return list(self.store.index(self.core.log, Offset(0), self.core.log_end))

    def copy(self, leader: One, batches_max: int = 10_000) -> int:
        """Ask once; how often it had to begin anew for that (0 or 1)."""
        core, theirs = self.core, leader.core
        try:
            assert theirs.compare(core.epochs.latest, core.log_end, core.forgotten_to) is None
        except OffsetOutOfRange:
            self.handle(Emptied(theirs.leader_epoch or 0, theirs.log_start, self.now_ms))
            self.copy(leader, batches_max)
            return 1
        self.report(leader)
        holder = leader.store.floor(theirs.log, core.log_end)
        start = core.log_end if holder is None else holder.base_offset
        rows = list(leader.store.index(theirs.log, start, theirs.written_end))[:batches_max]
        found = continue_log([leader.batch(row) for row in rows if row.next_offset > core.log_end], core.log_end)
        event = BatchesCopied(
            theirs.leader_epoch or 0,
            tuple((read_header(batch), batch) for batch in found),
            theirs.high_watermark,
            self.now_ms,
            theirs.forgotten_to,
        )
        self.handle(event)
        self.handle(GroupWritten(core.log_end, self.now_ms))
        self.report(leader)
        return 0

    def report(self, leader: One) -> None:
        core = self.core
        leader.handle(FollowerFetched(NodeId(self.number), 1, core.log_end, core.written_end, False, leader.now_ms))

    def check(self) -> None:
        """Dense, and rows say what batches are."""
        at = self.core.first_batch
        for row in self.rows():
            header = read_header(self.batch(row))
            assert (row.base_offset, row.next_offset, row.record_count) == (at, header.next_offset, header.record_count)
            at = row.next_offset
        assert at == self.core.log_end

    def table(self) -> dict[bytes, bytes]:
        """What a reader of committed records has in the end."""
        found: dict[bytes, bytes] = {}
        for row in self.rows():
            decoded = decode_batch(self.batch(row))
            gone = any(
                aborted.producer_id == row.producer_id and aborted.first <= row.base_offset <= aborted.last
                for aborted in self.core.aborted.rows()
            )
            if (
                decoded.is_control
                or (decoded.header.transactional and gone)
                or row.base_offset >= self.core.last_stable
            ):
                continue
            for offset, key, value in zip(decoded.offsets(), decoded.keys(), decoded.values(), strict=True):
                if offset < self.core.log_start:
                    continue
                found.pop(key or b"", None)
                if value is not None:
                    found[key or b""] = value
        return found

    def producers(self) -> object:
        rows = self.core.producers.snapshot()
        known = [(row.producer_id, row.epoch, _sequences(row), row.transaction_start, row.committed) for row in rows]
        return sorted(known, key=lambda one: one[0])

    def reopened(self) -> Partition:
        store = self.store.reopen()
        [found] = store.list_recovered()
        return restore(store, found, CONFIG, NOW_MS)


def _sequences(row: object) -> object:
    return [(one.first_sequence, one.last_sequence, one.base_offset) for one in row.batches]


def led(epoch: int = 1) -> One:
    leader = One(1)
    leader.lead(epoch)
    return leader


def following(number: int = 8, epoch: int = 1) -> One:
    one = One(number)
    one.follow(epoch)
    return one


def keyed(leader: One, count: int, keys: int = 3) -> None:
    for at in range(count):
        leader.append([(b"k%d" % (at % keys), b"%d" % leader.core.log_end)])


# --- gaps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", range(31))
@pytest.mark.parametrize("batches_max", [1, 100])
def test_a_follower_goes_on_from_any_end_inside_what_the_leader_has_compacted(end: int, batches_max: int) -> None:
    leader, follower = led(), following()
    keyed(leader, 30)
    follower.copy(leader, end) if end else None
    assert follower.core.log_end == end
    leader.compact()
    assert any(row.record_count == 0 and row.last_offset_delta > 3 for row in leader.rows()), "there are gaps"
    rounds = 0
    while follower.core.log_end < leader.core.log_end:
        assert follower.copy(leader, batches_max) == 0, "values that gave way to others are no reason"
        rounds += 1
    follower.check()
    assert rounds <= 30
    assert follower.table() == leader.table()
    assert follower.core.high_watermark == leader.core.high_watermark == 30


@pytest.mark.parametrize("end", range(31))
def test_so_does_one_that_has_compacted_as_well(end: int) -> None:
    leader, follower = led(), following()
    keyed(leader, 30)
    if end:
        follower.copy(leader, end)
        follower.compact()
    leader.compact()
    follower.copy(leader)
    follower.compact()
    follower.check()
    assert follower.table() == leader.table()


@pytest.mark.parametrize("start", range(1, 30))
def test_a_follower_begins_inside_a_gap_where_the_leaders_log_does(start: int) -> None:
    leader, follower = led(), following()
    keyed(leader, 30)
    leader.compact()
    leader.handle(prepare_trim(leader.store, leader.core, Offset(start), NOW_MS))
    assert follower.copy(leader) == 1
    follower.check()
    follower.handle(prepare_trim(follower.store, follower.core, Offset(start), NOW_MS))
    follower.check()
    assert follower.core.log_start == start
    assert follower.core.first_batch >= leader.core.first_batch, "nothing is kept that the leader has dropped"
    assert follower.table() == leader.table()


def test_only_gaps_are_cut_to_size() -> None:
    gap = build_gap_batch(10, 20, 3, base_timestamp=5, max_timestamp=6)
    after = build_gap_batch(20, 21, 3, base_timestamp=5, max_timestamp=6)
    assert continue_log([], Offset(0)) == []
    assert continue_log([gap, after], Offset(10)) == [gap, after]
    rest, same = continue_log([gap, after], Offset(13))
    assert same is after
    header = read_header(rest)
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (13, 20, 3)
    assert (header.base_timestamp, header.max_timestamp, header.record_count) == (5, 6, 0)
    records = build_batch(RecordColumns([b"v"] * 3, [b"k"] * 3, timestamps_ms=5))
    assert continue_log([records], Offset(1)) == [records]


def test_a_whole_gap_is_refused_by_a_log_that_ends_inside() -> None:
    leader, follower = led(), following()
    keyed(leader, 4)
    follower.copy(leader, 2)
    gap = build_gap_batch(0, 4, 1, base_timestamp=NOW_MS, max_timestamp=NOW_MS)
    with pytest.raises(CorruptBatch):
        follower.core.handle(BatchesCopied(1, ((read_header(gap), gap),), Offset(4), NOW_MS))


# --- where logs part ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parted", "point"), [((1, 30), 30), ((1, 33), 33), ((1, 29), None), ((1, 2), None)])
def test_a_cut_below_what_was_compacted_takes_all(parted: tuple[int, int], point: int | None) -> None:
    """A value that is kept for the sake of nothing: what took its place would be gone."""
    leader, follower = led(), following()
    keyed(leader, 30)
    follower.copy(leader)
    follower.compact()
    leader.append([(b"k0", b"x")] * 4)
    follower.copy(leader)
    follower.core.high_watermark = Offset(30)
    assert follower.core.truncation_point(parted[0], Offset(parted[1])) == point


def test_a_log_that_is_not_compacted_is_cut_where_the_logs_part() -> None:
    core = Partition.create(ID, MemoryLogs().new_log_id(), TopicConfig.effective({}, {}), NOW_MS)[0]
    core.begin_epoch(1)
    core.log_end = core.written_end = core.high_watermark = Offset(30)
    assert core.truncation_point(1, Offset(7)) == 7


# --- deletions that have gone -------------------------------------------------------------------------------------


def deleted_and_gone(leader: One) -> int:
    """``k`` is deleted, and nothing of that is left; where the deletion was."""
    at = leader.core.log_end
    leader.append([(b"k", None)])
    keyed(leader, 10)
    leader.compact()
    leader.now_ms += RETENTION_MS
    keyed(leader, 10)
    leader.compact()
    return at


def test_who_was_away_while_deletions_went_begins_anew() -> None:
    leader, follower = led(), following()
    leader.append([(b"k", b"v")])
    follower.copy(leader)
    leader.now_ms += int(AWAY_MS)
    at = deleted_and_gone(leader)
    assert all(row.record_count == 0 for row in leader.rows() if row.base_offset <= at < row.next_offset)
    assert leader.core.forgotten_to > at
    assert follower.copy(leader, 2) == 1
    assert follower.core.forgotten_to == leader.core.forgotten_to
    while follower.core.log_end < leader.core.log_end:
        assert follower.copy(leader, 1) == 0, "it copies what deletions had gone from already"
    assert follower.table() == leader.table()
    assert b"k" not in follower.table()


def test_who_has_copied_the_deletions_goes_on() -> None:
    leader, follower = led(), following()
    leader.append([(b"k", b"v")])
    leader.append([(b"k", None)])
    keyed(leader, 10)
    follower.copy(leader)
    leader.now_ms += int(AWAY_MS)
    leader.compact()
    leader.now_ms += RETENTION_MS
    keyed(leader, 10)
    leader.compact()
    assert 0 < leader.core.forgotten_to <= follower.core.log_end
    assert follower.copy(leader) == 0
    assert follower.table() == leader.table()


def test_deletions_stay_while_a_follower_that_is_heard_needs_them() -> None:
    leader, follower = led(), following()
    leader.append([(b"k", b"v")])
    for _ in range(3):
        leader.now_ms += int(AWAY_MS) - 1
        follower.copy(leader, 1) if follower.core.log_end == 0 else follower.report(leader)
        deleted_and_gone(leader)
    assert leader.core.forgotten_to == 0
    assert follower.copy(leader) == 0
    assert b"k" not in follower.table()


def test_a_follower_removes_only_deletions_that_its_leader_has_removed() -> None:
    leader, follower, late = led(), following(8), following(9)
    leader.append([(b"k", b"v")])
    late.copy(leader)
    leader.append([(b"k", None)])
    keyed(leader, 10)
    for _ in range(3):
        follower.now_ms += 2 * RETENTION_MS
        keyed(leader, 10)
        follower.copy(leader)
        follower.compact()
    assert follower.core.clean_points[0].at_ms + RETENTION_MS < follower.now_ms
    assert follower.core.forgotten_to == 0
    leader.now_ms += int(AWAY_MS)
    deleted_and_gone(leader)
    follower.copy(leader)
    follower.now_ms += RETENTION_MS
    follower.compact()
    assert 0 < follower.core.forgotten_to <= leader.core.forgotten_to


def test_what_is_forgotten_outlives_a_restart_and_not_the_log() -> None:
    leader = led()
    leader.append([(b"k", b"v")])
    leader.now_ms += int(AWAY_MS)
    deleted_and_gone(leader)
    forgotten = leader.core.forgotten_to
    assert leader.reopened().forgotten_to == forgotten > 0
    follower = following()
    follower.copy(leader, 1)
    assert follower.reopened().forgotten_to == forgotten
    follower.handle(Emptied(1, Offset(0), NOW_MS))
    assert follower.reopened().forgotten_to == 0


def test_a_marker_that_is_gone_counts_as_a_deletion() -> None:
    """Without it the follower would hold its readers back for ever, or take what was aborted for committed."""
    leader, follower = led(), following()
    leader.append([(b"k", b"v")], producer=5, transactional=True)
    follower.copy(leader)
    leader.end(5, commit=False)
    leader.append([(b"other", b"v")], producer=5, transactional=True)
    leader.end(5, commit=True)
    leader.now_ms += int(AWAY_MS)
    for _ in range(3):
        keyed(leader, 10)
        leader.compact()
        leader.now_ms += RETENTION_MS + 1
    assert leader.core.forgotten_to > 1
    assert follower.core.last_stable == 0
    assert follower.copy(leader) == 1
    assert follower.core.last_stable == follower.core.log_end
    assert follower.table() == leader.table()
    assert follower.producers() == leader.producers()


# --- any history --------------------------------------------------------------------------------------------------

OPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("send"), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("write"), st.integers(2, 3), st.integers(0, 3)),
    st.tuples(st.just("end"), st.integers(2, 3), st.booleans()),
    st.tuples(st.just("compact"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("copy"), st.integers(1, 2), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.sampled_from((400, 1_100, 2_500)), st.just(0)),
    st.tuples(st.just("lead"), st.just(0), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(OPS, max_size=120))
def test_any_history_leaves_followers_with_what_the_leader_shows(ops: list[tuple[str, int, int]]) -> None:
    replicas, epoch = [led(), following(8), following(9)], 1
    leader = replicas[0]
    undecided = set[int]()
    for op, one, two in ops:
        value = b"%d" % leader.core.log_end
        if op == "put":
            leader.append([(b"k%d" % one, None if two else value)])
        elif op == "send":
            leader.append([(b"k%d" % two, value)], producer=one)
        elif op == "write":
            leader.append([(b"k%d" % two, value)], producer=one, transactional=True)
            undecided.add(one)
        elif op == "end" and one in undecided:
            leader.end(one, commit=bool(two))
            undecided.remove(one)
        elif op == "compact":
            replicas[one].compact()
        elif op == "copy":
            replicas[one].copy(leader, two)
        elif op == "wait":
            for each in replicas:
                each.now_ms += one
        elif op == "lead":
            epoch += 1
            leader.lead(epoch)
            for each in replicas[1:]:
                each.follow(epoch)
    for producer in undecided:
        leader.end(producer, commit=False)
    for follower in replicas[1:]:
        while follower.core.log_end < leader.core.log_end:
            follower.copy(leader, 3)
        follower.check()
        assert follower.table() == leader.table()
        assert follower.core.last_stable == follower.core.log_end == leader.core.last_stable
        assert follower.producers() == leader.producers()
        follower.compact()
        assert follower.table() == leader.table()
