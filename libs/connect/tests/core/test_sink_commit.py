"""A sink's task: what it does at each step, what follows from each failure, and which records become dead letters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.ids import TopicPartition
from headrace_connect.core.errors import Fault
from headrace_connect.core.pieces import Piece, Records, Row, halves
from headrace_connect.core.sink_commit import REJOINS_MAX, Phase, SinkCommit, SinkRules
from headrace_connect.core.sink_steps import (
    Assigned,
    Close,
    CloseAsked,
    Commit,
    CommitGroup,
    Committed,
    End,
    Failed,
    FlushAsked,
    GroupCommitted,
    Lost,
    Open,
    Opened,
    Polled,
    Prepare,
    Prepared,
    Rejoin,
    Revoked,
    Seek,
    SendDead,
    Settle,
    Settled,
    Show,
    Step,
    Ticked,
    Write,
)

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(number: int, first: int, count: int, partition: TopicPartition = ONE, **more: Any) -> Records:
    return Records(number, partition, range(first, first + count), first + count, **more)


def polled(*batches: Records, drained: bool = False, now_ms: float = 0) -> Polled:
    return Polled(batches, drained, now_ms)


def working(*, keeps_positions: bool = True, tolerates: bool = True, **rules: Any) -> SinkCommit:
    task = SinkCommit(SinkRules(keeps_positions, tolerates, **rules))
    task.handle(Assigned([ONE, TWO], 5))
    task.handle(Opened({ONE: 0, TWO: 0} if keeps_positions else {}))
    return task


def away(step: Step = Step.WRITE, now_ms: float = 0) -> Failed:
    return Failed(step, Fault.WORLD, retriable=True, reason="away", now_ms=now_ms)


def bug(step: Step = Step.WRITE, **more: Any) -> Failed:
    return Failed(step, Fault.BUG, retriable=False, reason="bad", now_ms=0, **more)


# --- positions in the target ----------------------------------------------------------------------------------------


def test_it_opens_under_the_epoch_and_reads_from_what_the_target_has() -> None:
    task = SinkCommit(SinkRules(keeps_positions=True))
    assert task.handle(Assigned([TWO, ONE], 5)) == [Open({ONE: 5, TWO: 5})]
    assert task.handle(Opened({ONE: 7})) == [Seek({ONE: 7}), Show({ONE: 7})]
    assert task.reads


def test_what_is_written_is_committed_with_its_positions_when_it_is_time() -> None:
    task = working()
    records = batch(1, 0, 3)
    assert task.handle(polled(records)) == [Write(Piece.whole(records))]
    assert (task.due_ms(), task.handle(Ticked(999))) == (1_000, [])
    assert task.handle(Ticked(1_000)) == [Commit({ONE: 3})]
    assert task.handle(Committed()) == [CommitGroup({ONE: 3})]
    assert task.handle(GroupCommitted()) == []
    assert task.progressed
    assert task.due_ms() is None


@pytest.mark.parametrize("full", [{"rows_max": 3}, {"bytes_max": 10}])
def test_a_full_group_is_committed_at_once(full: dict[str, int]) -> None:
    assert working(**full).handle(polled(batch(1, 0, 3, bytes=10)))[-1] == Commit({ONE: 3})


def test_where_there_is_nothing_more_it_is_committed_soon() -> None:
    task = working()
    task.handle(polled(batch(1, 0, 1), drained=True))
    assert task.due_ms() == 20


def test_positions_that_move_without_records_are_committed_once() -> None:
    task = working()
    assert task.handle(polled(batch(1, 4, 0))) == []
    assert task.handle(Ticked(1_000)) == [Commit({ONE: 4})]
    task.handle(Committed())
    task.handle(GroupCommitted())
    task.handle(polled(batch(2, 4, 0)))
    assert task.due_ms() is None


@pytest.mark.parametrize("step", [Step.OPEN, Step.WRITE, Step.COMMIT, Step.SETTLE, Step.DEAD_LETTERS])
def test_a_target_that_is_away_is_opened_again_after_a_while_and_the_same_is_written(step: Step) -> None:
    task = working()
    records = batch(1, 0, 3)
    task.handle(polled(records))
    assert task.handle(away(step)) == []
    assert (task.phase, task.due_ms(), task.reads) == (Phase.WAITING, 300, False)
    assert task.handle(Ticked(299)) == []
    assert task.handle(Ticked(300)) == [Open({ONE: 5, TWO: 5})]
    assert task.handle(Opened({ONE: 0})) == [Write(Piece.whole(records)), Commit({ONE: 3})]


def test_a_target_is_left_alone_for_as_long_as_it_says() -> None:
    task = working()
    task.handle(polled(batch(1, 0, 2)))
    task.handle(Failed(Step.WRITE, Fault.WORLD, retriable=True, reason="busy", now_ms=10, after_ms=5_000))
    assert (task.phase, task.due_ms()) == (Phase.WAITING, 5_010)


def test_a_target_that_stays_away_fails_the_task() -> None:
    task = working(retry_timeout_ms=1_000)
    task.handle(polled(batch(1, 0, 3)))
    task.handle(away(now_ms=0))
    task.handle(Ticked(300))
    assert task.handle(away(Step.OPEN, now_ms=1_000)) == [End(Fault.WORLD, "away")]


@pytest.mark.parametrize(("position", "left"), [(3, None), (0, 0), (2, 2)])
def test_after_an_unknown_commit_the_target_tells_what_took_place(position: int, left: int | None) -> None:
    task = working()
    records = batch(1, 0, 3)
    task.handle(polled(records))
    task.handle(Ticked(1_000))
    task.handle(away(Step.COMMIT, 1_000))
    task.handle(Ticked(9_000))
    effects = task.handle(Opened({ONE: position}))
    if left is None:
        assert effects == [Show({ONE: position})]
        assert task.reads
    else:
        shown = [Show({ONE: position})] if position else []
        assert effects == [*shown, Write(Piece(records, left, 3 - left)), Commit({ONE: 3})]


def test_the_group_shows_what_the_target_has_and_hears_it_once() -> None:
    """Who has written it may be dead, and nothing more may come."""
    task = working()
    assert task.handle(Lost([TWO])) == [Close([TWO])]
    assert task.handle(Assigned([TWO], 6)) == [Open({TWO: 6})]
    assert task.handle(Opened({TWO: 9})) == [Seek({TWO: 9}), Show({TWO: 9})]
    task.handle(away(Step.OPEN))
    task.handle(Ticked(9_000))
    assert task.handle(Opened({ONE: 0, TWO: 9})) == []


def test_a_target_that_went_back_is_followed() -> None:
    task = working()
    task.handle(polled(batch(1, 0, 3)))
    task.handle(Ticked(1_000))
    task.handle(Committed())
    task.handle(GroupCommitted())
    task.handle(polled(batch(2, 3, 2)))
    task.handle(away())
    task.handle(Ticked(9_000))
    assert task.handle(Opened({ONE: 1})) == [Seek({ONE: 1}), Show({ONE: 1})]
    assert task.group == []


def test_a_partition_that_another_holds_is_given_up_and_the_member_joins_anew() -> None:
    task = working()
    task.handle(polled(batch(1, 0, 3)))
    taken = Failed(Step.COMMIT, Fault.FENCED, retriable=False, reason="", now_ms=0, taken=True)
    assert task.handle(taken) == [Close([ONE, TWO]), Rejoin()]
    assert task.group == []
    assert task.handle(Assigned([ONE], 7)) == [Open({ONE: 7})]
    for _ in range(REJOINS_MAX - 1):
        assert Rejoin() in task.handle(taken)
        task.handle(Assigned([ONE], 7))
    (end,) = task.handle(taken)
    assert isinstance(end, End)


# --- the group ------------------------------------------------------------------------------------------------------


def test_what_is_taken_back_is_committed_before() -> None:
    task = working()
    task.handle(polled(batch(1, 0, 3), batch(2, 0, 1, TWO)))
    assert task.handle(Revoked([ONE])) == [Commit({ONE: 3, TWO: 1})]
    task.handle(Committed())
    assert task.handle(GroupCommitted()) == [Close([ONE])]
    assert set(task.epochs) == {TWO}


def test_what_is_taken_back_while_its_commit_fails_is_given_up() -> None:
    task = working()
    other = batch(2, 0, 1, TWO)
    task.handle(polled(batch(1, 0, 3), other))
    task.handle(Revoked([ONE]))
    assert task.handle(away(Step.COMMIT)) == [Close([ONE])]
    assert task.handle(Ticked(300)) == [Open({TWO: 5})]
    assert task.handle(Opened({TWO: 0})) == [Write(Piece.whole(other)), Commit({TWO: 1})]


def test_what_was_lost_is_not_committed() -> None:
    task = working()
    task.handle(polled(batch(1, 0, 3), batch(2, 0, 1, TWO)))
    assert task.handle(Lost([ONE])) == [Close([ONE])]
    assert task.handle(Ticked(1_000)) == [Commit({TWO: 1})]


def test_closing_commits_first() -> None:
    task = working()
    task.handle(polled(batch(1, 0, 3)))
    assert task.handle(CloseAsked()) == [Commit({ONE: 3})]
    task.handle(Committed())
    assert task.handle(GroupCommitted()) == [Close([ONE, TWO]), End()]


def test_closing_while_the_target_is_away_gives_up() -> None:
    task = working()
    task.handle(polled(batch(1, 0, 3)))
    task.handle(away())
    assert task.handle(CloseAsked()) == [Close([ONE, TWO]), End()]


def test_a_flush_commits_at_once() -> None:
    task = working()
    assert task.handle(FlushAsked()) == []
    task.handle(polled(batch(1, 0, 3)))
    assert task.handle(FlushAsked()) == [Commit({ONE: 3})]


def test_without_positions_in_the_target_all_is_written_again() -> None:
    task = working(keeps_positions=False)
    records = batch(1, 0, 3)
    task.handle(polled(records))
    task.handle(Ticked(1_000))
    task.handle(away(Step.COMMIT, 1_000))
    task.handle(Ticked(9_000))
    assert task.handle(Opened({})) == [Write(Piece.whole(records)), Commit({ONE: 3})]


def test_a_member_that_is_out_leaves_what_it_has_written_to_others() -> None:
    task = working(keeps_positions=False)
    task.handle(polled(batch(1, 0, 3)))
    task.handle(Ticked(1_000))
    task.handle(Committed())
    assert task.handle(Failed(Step.GROUP, Fault.FENCED, retriable=False, reason="out", now_ms=0)) == []
    assert task.reads


# --- dead letters ---------------------------------------------------------------------------------------------------


def test_dead_letters_are_prepared_and_the_target_decides_them() -> None:
    task = working()
    records = batch(1, 0, 3, bad={1: "no number"})
    assert task.handle(polled(records)) == [Write(Piece.whole(records))]
    assert task.handle(Ticked(1_000)) == [Prepare({(1, 1): "no number"})]
    assert task.handle(Prepared(b"t")) == [Commit({ONE: 3}, b"t")]
    assert task.handle(Committed()) == [Settle(b"t")]
    assert task.handle(Settled()) == [CommitGroup({ONE: 3})]
    task.handle(GroupCommitted())
    assert task.bad == {}


def test_what_is_prepared_is_settled_before_it_is_prepared_again() -> None:
    task = working()
    task.handle(polled(batch(1, 0, 3, bad={1: "no number"})))
    task.handle(Ticked(1_000))
    task.handle(Prepared(b"t"))
    task.handle(away(Step.COMMIT, 1_000))
    task.handle(Ticked(9_000))
    assert task.handle(Opened({ONE: 0})) == [Settle(b"t")]
    assert task.handle(Settled())[-1] == Prepare({(1, 1): "no number"})


def test_without_positions_in_the_target_dead_letters_come_first() -> None:
    task = working(keeps_positions=False)
    task.handle(polled(batch(1, 0, 3, bad={1: "no number"})))
    assert task.handle(Ticked(1_000)) == [SendDead({(1, 1): "no number"}), Commit({ONE: 3})]


def test_a_bad_record_fails_the_task_where_none_is_tolerated() -> None:
    task = working(tolerates=False)
    assert task.handle(polled(batch(1, 0, 3, bad={1: "no number"}))) == [End(Fault.DATA, "no number")]
    task = working(tolerates=False)
    task.handle(polled(batch(1, 0, 3)))
    refused = Failed(Step.WRITE, Fault.DATA, retriable=False, reason="no", now_ms=0, refused={(1, 1): "no"})
    assert task.handle(refused) == [End(Fault.DATA, "no")]


def test_records_that_the_target_names_are_left_out() -> None:
    task = working()
    records = batch(1, 0, 3)
    task.handle(polled(records))
    assert task.handle(bug(refused={(1, 1): "too long"})) == [Open({ONE: 5, TWO: 5})]
    assert task.handle(Opened({ONE: 0})) == [Write(Piece.whole(records)), Prepare({(1, 1): "too long"})]


def fail_on(task: SinkCommit, positions: Mapping[TopicPartition, int]) -> list[Any]:
    """Each write fails, and each opening works, until something else is asked."""
    effects = task.handle(bug())
    while isinstance(effects[0], Open):
        task.handle(Opened(positions))
        effects = task.handle(bug())
    return effects


@pytest.mark.parametrize("keeps_positions", [True, False])
def test_a_target_that_takes_nothing_makes_no_dead_letters(keeps_positions: bool) -> None:
    task = working(keeps_positions=keeps_positions)
    task.handle(polled(batch(1, 0, 2)))
    assert fail_on(task, {ONE: 0} if keeps_positions else {}) == [End(Fault.BUG, "the target takes no record: bad")]


def test_a_record_that_fails_alone_is_bad_where_opening_is_a_proof() -> None:
    task = working()
    task.handle(polled(batch(1, 0, 1)))
    for _ in range(3):
        assert task.handle(bug()) == [Open({ONE: 5, TWO: 5})]
        effects = task.handle(Opened({ONE: 0}))
    assert effects == [Prepare({(1, 0): "bad"})]


def test_what_was_polled_together_with_a_failure_comes_behind_it() -> None:
    task = working()
    first, second = batch(1, 0, 3), batch(2, 3, 1)
    task.handle(polled(first))
    task.handle(away())
    assert task.handle(polled(second)) == []
    task.handle(Ticked(300))
    assert task.handle(Opened({ONE: 0}))[0] == Write(Piece.whole(first))
    task.handle(Committed())
    assert task.handle(GroupCommitted()) == [Write(Piece.whole(second)), Commit({ONE: 4})]


def test_halves() -> None:
    first, second = batch(1, 0, 3), batch(2, 0, 5, TWO)
    group = [Piece.whole(first), Piece.whole(second)]
    assert halves(group, {}) == ([Piece(first, 0, 3), Piece(second, 0, 1)], [Piece(second, 1, 4)])
    assert halves(group, {(1, 0): "", (1, 1): ""}) == ([Piece(first, 0, 3), Piece(second, 0, 2)], [Piece(second, 2, 3)])
    assert Piece(first, 0, 2).end == 2
    assert Piece(second, 1, 4).end == 5


# --- a target for any history ---------------------------------------------------------------------------------------


@dataclass
class World:
    """A target that keeps positions, dead letters that are decided by tokens, and a log of numbers."""

    poison: Collection[int]
    """Offsets that the target refuses without saying which."""
    may_fail: Callable[[str], bool]
    rows: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    position: int = 0
    verdicts: dict[bytes, bool] = field(default_factory=dict)
    prepared: dict[bytes, list[int]] = field(default_factory=dict)
    read: int = 0
    now_ms: float = 0.0
    ended: End | None = None
    _buffer: list[int] = field(default_factory=list)
    _offsets: dict[Row, int] = field(default_factory=dict)
    _batches: int = 0

    def poll(self, count: int) -> Polled:
        """The next records; each third offset is a marker."""
        self._batches += 1
        offsets = [offset for offset in range(self.read, self.read + count) if offset % 3 != 2]
        self._offsets |= {(self._batches, index): offset for index, offset in enumerate(offsets)}
        self.read += count
        return Polled([Records(self._batches, ONE, offsets, self.read)], drained=False, now_ms=self.now_ms)

    def run(self, task: SinkCommit, event: Any) -> None:
        for effect in task.handle(event):
            match effect:
                case Open():
                    self._buffer = []
                    if self.may_fail("open"):
                        return self.run(task, away(Step.OPEN, self.now_ms))
                    return self.run(task, Opened({ONE: self.position}))
                case Seek(positions):
                    self.read = positions[ONE]
                case Write(piece):
                    written = [self._offsets[row] for row in piece.rows if row not in task.bad]
                    if self.may_fail("write"):
                        return self.run(task, away(Step.WRITE, self.now_ms))
                    if set(written) & set(self.poison):
                        return self.run(task, bug())
                    self._buffer += written
                case Prepare(dead):
                    token = b"%d" % (len(self.verdicts) + len(self.prepared))
                    self.prepared[token] = [self._offsets[row] for row in dead]
                    return self.run(task, Prepared(token))
                case Commit(positions, token):
                    return self._commit(task, positions, token)
                case Settle(token):
                    if self.may_fail("settle"):
                        return self.run(task, away(Step.SETTLE, self.now_ms))
                    if self.verdicts.setdefault(token, False) and token in self.prepared:
                        self.dead += self.prepared[token]
                    self.prepared.pop(token, None)
                    self.run(task, Settled())
                case CommitGroup():
                    self.run(task, GroupCommitted())
                case End():
                    self.ended = effect
        return None

    def _commit(self, task: SinkCommit, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        if self.may_fail("commit"):
            return self.run(task, away(Step.COMMIT, self.now_ms))
        self.rows += self._buffer
        self._buffer = []
        self.position = positions[ONE]
        if token is not None:
            assert token not in self.verdicts
            self.verdicts[token] = True
        if self.may_fail("answer"):
            return self.run(task, away(Step.COMMIT, self.now_ms))
        return self.run(task, Committed())


@given(
    st.lists(st.one_of(st.integers(1, 12), st.sampled_from(["tick", "dies", "lost"])), max_size=15),
    st.sets(st.integers(0, 60), max_size=6),
    st.data(),
)
def test_each_record_is_a_row_or_a_dead_letter_once(
    history: list[int | str], poison: set[int], data: st.DataObject
) -> None:
    world = World(poison, lambda what: data.draw(st.integers(0, 9), label=what) == 0)

    def begin() -> SinkCommit:
        task = SinkCommit(SinkRules(keeps_positions=True, tolerates=True, rows_max=8, retry_timeout_ms=-1))
        for token in list(world.prepared):  # as the runtime does it when it starts
            if world.verdicts.setdefault(token, False):
                world.dead += world.prepared[token]
            del world.prepared[token]
        world.ended = None
        world.run(task, Assigned([ONE], 1))
        return task

    def settled(task: SinkCommit) -> SinkCommit:
        """Until there is nothing left to do."""
        for _ in range(200):
            if world.ended is not None:
                task = begin()
            due_ms = task.due_ms()
            if due_ms is None and task.reads:
                return task
            world.now_ms = max(world.now_ms, due_ms or 0)
            world.run(task, Ticked(world.now_ms))
        raise AssertionError("it does not come to an end")

    task = begin()
    for what in history:
        if world.ended is not None or what == "dies":
            task = begin()
        if what == "lost":
            world.run(task, Lost([ONE]))
            world.run(task, Assigned([ONE], 1))
        elif isinstance(what, int) and task.reads:
            world.run(task, world.poll(what))
        elif (due_ms := task.due_ms()) is not None:
            world.now_ms = max(world.now_ms, due_ms)
            world.run(task, Ticked(world.now_ms))
        written = sorted(world.rows + world.dead)
        assert len(written) == len(set(written)), "nothing twice"
    world.may_fail = lambda what: False
    if task.reads and world.ended is None:
        world.run(task, world.poll(70))  # there is a good one among these
    if world.ended is None:
        task = settled(task)
    all_ = [offset for offset in range(world.position) if offset % 3 != 2]
    assert sorted(world.rows + world.dead) == all_
    assert set(world.rows).isdisjoint(poison)
    assert set(world.dead) <= poison


def test_a_target_where_each_commit_costs_is_not_given_little_ones() -> None:
    """A file for each pause of a slow topic would be a file each 20 ms."""
    soon, late = working(interval_ms=500), working(interval_ms=500, drained=False)
    for task in (soon, late):
        task.handle(polled(batch(1, 0, 3), drained=True))
    assert (soon.due_ms(), late.due_ms()) == (20, 500)
    assert late.handle(Ticked(499)) == []
    assert Commit({ONE: 3}) in late.handle(Ticked(500))
