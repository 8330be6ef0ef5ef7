"""
Two logs with any histories become one: the follower asks, the leader compares, the follower cuts and copies.

The oracle is the list of (epoch, record) of each offset: after the dialogue the follower's log is the leader's, it has
kept the longest prefix that they had in common, and has never held a mixture. The cases of KIP-101 and KIP-279 stand
below by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from services.broker.tests.kit.batches import NOW_MS

from headrace_broker.core.epochs import Epochs
from headrace_broker.core.local_log import LocalLog, Parted
from headrace_broker.core.partition import Partition
from headrace_broker.core.partition_events import Rebuilt
from headrace_broker.core.producers import Producers
from headrace_broker.core.rows import EpochRow, LogId, StateRow
from headrace_broker.core.segments import Segments
from headrace_common.core.configs import TopicConfig
from headrace_common.core.errors import OffsetOutOfRange
from headrace_common.core.ids import Offset, PartitionId, TopicId

ID = PartitionId(TopicId(b"t" * 16), 0)
LOG = LogId(1)
CONFIG = TopicConfig.effective({}, {})
ROUNDS_MAX = 40

History = list[tuple[int, int]]
"""Leader epochs in the order in which this log was led or copied, each with how many records it wrote; 0: none."""


@dataclass
class Model:
    """A partition core whose records are (epoch, offset) pairs: in one epoch one leader writes, so these are unique."""

    core: Partition
    records: list[int] = field(default_factory=list)
    """The epoch of each record, from offset 0 on."""

    @staticmethod
    def of(history: History, start: int = 0) -> Model:
        rows, records = list[EpochRow](), list[int]()
        for epoch, count in history:
            rows.append(EpochRow(epoch, Offset(len(records))))
            records += [epoch] * count
        end = Offset(len(records))
        state = StateRow(ID, Offset(min(start, end)), Offset(0))
        segments = Segments.fresh(Offset(0), NOW_MS)
        return Model(Partition.recover(state, LOG, CONFIG, segments, end, rows, Producers()), records)

    def append(self, epoch: int, count: int) -> None:
        self.core.begin_epoch(epoch)
        self.records += [epoch] * count
        self.core.log_end = self.core.written_end = Offset(len(self.records))

    def cut(self, point: Offset | None, start: Offset) -> None:
        if point is None:
            self.core.empty(start, NOW_MS)
            self.records = [-1] * start
        else:
            self.core.cut(point, Rebuilt(Producers(), Segments.fresh(point, NOW_MS), 0))
            del self.records[point:]

    def visible(self) -> list[int]:
        return self.records[self.core.log_start :]


def common_prefix(one: Model, other: Model) -> int:
    """Offsets below are the same in both, as far as both have them."""
    low = max(one.core.log_start, other.core.log_start)
    at = low
    while at < min(len(one.records), len(other.records)) and one.records[at] == other.records[at]:
        at += 1
    return at


def converge(leader: Model, follower: Model) -> int:
    """The dialogue of 04-replication, section 3, until the leader has nothing against the log; rounds that it took."""
    for round_number in range(ROUNDS_MAX):
        try:
            parted = leader.core.compare(follower.core.epochs.latest, follower.core.log_end)
        except OffsetOutOfRange:
            follower.cut(None, leader.core.log_start)
            continue
        if parted is None:
            return round_number
        before = follower.core.log_end, follower.core.epochs.latest
        point = follower.core.truncation_point(*parted)
        follower.cut(point, leader.core.log_start)
        assert point is None or (follower.core.log_end, follower.core.epochs.latest) != before, "every round cuts"
    raise AssertionError("they never agree")


def copy(leader: Model, follower: Model) -> None:
    """Everything that the follower does not have, epoch by epoch as batches carry it."""
    for offset in range(follower.core.log_end, leader.core.log_end):
        follower.append(leader.records[offset], 1)


@st.composite
def forked(draw: st.DrawFn) -> tuple[History, History]:
    """Two histories with a common beginning; an epoch has one leader, so after the fork no epoch is in both."""
    epochs = sorted(draw(st.sets(st.integers(0, 30), min_size=1, max_size=9)))
    counts = [draw(st.integers(0, 4)) for _ in epochs]
    shared = draw(st.integers(0, len(epochs)))
    first = [(e, n) for e, n in zip(epochs[:shared], counts, strict=False)]
    sides: tuple[History, History] = ([*first], [*first])
    if first:  # the last common epoch: one side has more of it, as it led and the other copied
        epoch, count = first[-1]
        sides[draw(st.integers(0, 1))][-1] = (epoch, draw(st.integers(0, count)))
    for epoch, count in zip(epochs[shared:], counts[shared:], strict=True):
        sides[draw(st.integers(0, 1))].append((epoch, count))
    return sides


@given(forked(), st.integers(0, 3))
@example(([(0, 2), (2, 1)], [(0, 2), (1, 1)]), 1)
def test_two_logs_become_one_and_keep_what_they_had_in_common(histories: tuple[History, History], more: int) -> None:
    leader, follower = Model.of(histories[0]), Model.of(histories[1])
    leader.append(31, more)  # whoever is elected begins an epoch that nobody has seen
    kept = common_prefix(leader, follower)
    rounds = converge(leader, follower)
    assert follower.records == leader.records[: len(follower.records)], "a prefix, no mixture"
    assert follower.core.log_end >= kept, "nothing that both had was cut"
    assert rounds <= len(histories[0]) + len(histories[1]) + 1
    copy(leader, follower)
    assert follower.records == leader.records
    assert leader.core.compare(follower.core.epochs.latest, follower.core.log_end) is None


@given(forked(), st.integers(0, 12), st.integers(0, 12))
def test_logs_that_were_trimmed_become_one_as_well(
    histories: tuple[History, History], leader_start: int, follower_start: int
) -> None:
    """Only what is committed is trimmed, and that both have."""
    leader, follower = Model.of(histories[0]), Model.of(histories[1])
    committed = common_prefix(leader, follower)
    leader = Model.of(histories[0], min(leader_start, committed))
    follower = Model.of(histories[1], min(follower_start, committed))
    leader.append(31, 1)
    converge(leader, follower)
    assert follower.core.log_end >= committed, "what is committed was not cut"
    copy(leader, follower)
    start = max(leader.core.log_start, follower.core.log_start)
    assert follower.records[start:] == leader.records[start:]


@given(forked())
def test_a_follower_that_lost_its_tail_is_only_behind(histories: tuple[History, History]) -> None:
    leader = Model.of(histories[0])
    follower = Model.of(histories[0])
    for end in range(len(leader.records), -1, -1):
        follower.cut(Offset(end), Offset(0))
        assert leader.core.compare(follower.core.epochs.latest, follower.core.log_end) is None


# --- the cases of the KIPs, by name -------------------------------------------------------------------------------


def test_kip_101_scenario_1_high_watermark_truncation_followed_by_immediate_leader_election() -> None:
    """B has m2 but not yet the high watermark that covers it; restarted it keeps m2, and leads with it."""
    a, b = Model.of([(0, 2)]), Model.of([(0, 2)])
    assert b.core.high_watermark == 0
    assert converge(a, b) == 0
    assert b.records == [0, 0]


def test_kip_101_scenario_2_replica_divergence_on_restart_after_multiple_hard_failures() -> None:
    """Both crash; B, without m2, leads in epoch 1 and writes m3 where A has m2: A cuts m2, although the ends agree."""
    a, b = Model.of([(0, 2)]), Model.of([(0, 1), (1, 1)])
    assert b.core.compare(0, Offset(2)) == Parted(0, Offset(1))
    assert converge(b, a) == 1
    assert a.records == [0]
    copy(b, a)
    assert a.records == [0, 1]


def test_kip_279_fast_leader_failover() -> None:
    """A led epoch 1 and B epoch 2 without hearing of it; B does not know epoch 1, and says which one it knows."""
    a, b = Model.of([(0, 10), (1, 10)]), Model.of([(0, 15), (2, 5)])
    b.records = [0] * 10 + [0] * 5 + [2] * 5
    assert b.core.compare(1, Offset(20)) == Parted(0, Offset(15))
    assert a.core.truncation_point(0, Offset(15)) == 10, "by its own epoch 0, not by the leader's end of it"
    converge(b, a)
    assert a.records == [0] * 10


def test_kip_279_more_than_one_round() -> None:
    """Epochs alternate between the two: each round goes back one."""
    a = Model.of([(0, 2), (1, 2), (3, 2), (5, 2)])
    b = Model.of([(0, 2), (2, 2), (4, 2), (6, 2)])
    assert converge(b, a) > 1
    assert a.records == [0, 0]


def test_kip_279_an_epoch_without_records_counts() -> None:
    a, b = Model.of([(0, 3), (2, 0)]), Model.of([(0, 3), (1, 2)])
    a.append(3, 0)
    assert a.core.compare(1, Offset(5)) == Parted(0, Offset(3))
    converge(a, b)
    assert b.records == [0, 0, 0]


@pytest.mark.parametrize(
    ("asked", "found"), [(-1, (-1, -1)), (0, (-1, -1)), (1, (1, 4)), (2, (1, 4)), (3, (3, 9)), (9, (3, 9))]
)
def test_the_end_of_an_epoch_is_where_the_next_known_one_begins(asked: int, found: tuple[int, int]) -> None:
    epochs = Epochs([EpochRow(1, Offset(0)), EpochRow(3, Offset(4))])
    assert epochs.end_offset_for(asked, Offset(9)) == found


def test_nothing_in_common_is_said_as_such() -> None:
    a, b = Model.of([(5, 3)]), Model.of([(4, 3)])
    assert a.core.compare(4, Offset(3)) == Parted(-1, Offset(-1))
    assert LocalLog.truncation_point(b.core, -1, Offset(-1)) is None
    converge(a, b)
    assert b.records == []
