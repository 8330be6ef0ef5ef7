"""Plans of new positions: dialogues for what people ask, and properties for any log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_admin.core.lag import Bounds, Committed, Owner, PartitionLag, age_ms, lags, total
from headrace_admin.core.resets import (
    At,
    Current,
    Earliest,
    Found,
    Given,
    Latest,
    Planned,
    ShiftBy,
    Since,
    Target,
    choose_partitions,
    plan,
)
from headrace_common.core.errors import LeaderNotAvailable, Rejected, UnknownTopicOrPartition
from headrace_common.core.ids import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
COUNTS = {"a": 2, "b": 1}


def found(partition: TopicPartition = A0, start: int = 10, end: int = 30, committed: int | None = 20) -> Found:
    return Found(partition, Bounds(start, end), committed)


@pytest.mark.parametrize(
    ("target", "committed", "new", "note"),
    [
        (Earliest(), 20, 10, None),
        (Latest(), 20, 30, None),
        (Current(), 20, 20, None),
        (Current(), 5, 10, "5 is below the first record: to 10"),
        (Current(), None, 30, "nothing is committed: to the end"),
        (At(12), None, 12, None),
        (At(9), 20, 10, "9 is below the first record: to 10"),
        (At(31), 20, 30, "31 is beyond the end: to 30"),
        (At(30), 20, 30, None),
        (ShiftBy(5), 20, 25, None),
        (ShiftBy(-11), 20, 10, "9 is below the first record: to 10"),
        (ShiftBy(11), 20, 30, "31 is beyond the end: to 30"),
        (Given({A0: 13}), 20, 13, None),
        (Given({A0: 99}), 20, 30, "99 is beyond the end: to 30"),
    ],
)
def test_where_a_group_goes_on(target: Target, committed: int | None, new: int, note: str | None) -> None:
    state = found(committed=committed)
    assert plan(target, [state]) == [Planned(A0, committed, new, state.bounds, note)]


def test_a_time_is_a_record_or_the_end() -> None:
    there, nobody = Found(A0, Bounds(0, 9), 3, since=4), Found(A1, Bounds(0, 9), 3, since=None)
    assert [(p.new, p.note) for p in plan(Since(1), [there, nobody])] == [
        (4, None),
        (9, "no record is that young: to the end"),
    ]


@pytest.mark.parametrize("number", [-1, -(2**31), 1, 2**31 - 1])
@pytest.mark.parametrize("target", [Earliest(), Given({B0: 1})])
def test_partitions_that_do_not_exist_are_named(number: int, target: Target) -> None:
    for topic in ("b", "nosuch", "", "ü"):
        one = TopicPartition(topic, number)
        asked = Given({one: 1}) if isinstance(target, Given) else target
        named = [] if isinstance(target, Given) else [(topic, [number])]
        with pytest.raises(UnknownTopicOrPartition, match=repr(topic)):
            choose_partitions(named, COUNTS, [], asked)


def test_nothing_is_shifted_from_nowhere_and_those_are_named() -> None:
    with pytest.raises(Rejected, match="committed at a-1, so"):
        plan(ShiftBy(1), [found(), found(A1, committed=None)])
    many = [Found(TopicPartition("a", n), Bounds(0, 1), None) for n in range(7)]
    with pytest.raises(Rejected, match="a-4 and 2 more"):
        plan(ShiftBy(1), many)


def test_no_offset_is_below_zero() -> None:
    for target in (At(-1), Given({A0: -1})):
        with pytest.raises(Rejected, match="below 0"):
            plan(target, [found()])


def test_whole_topics_partitions_of_them_or_all_that_is_committed() -> None:
    assert choose_partitions([("a", [])], COUNTS, [], Earliest()) == [A0, A1]
    assert choose_partitions([("b", []), ("a", [1])], COUNTS, [], Earliest()) == [A1, B0]
    assert choose_partitions([("a", [1]), ("a", [])], COUNTS, [], Earliest()) == [A0, A1]
    assert choose_partitions([], COUNTS, [B0, A1], Earliest()) == [A1, B0]
    assert choose_partitions([], COUNTS, [B0, TopicPartition("deleted", 0)], Earliest()) == [B0]
    assert choose_partitions([], COUNTS, [B0], Given({A1: 4})) == [A1]


@pytest.mark.parametrize(
    ("named", "target", "says"),
    [
        ([("c", [])], Earliest(), "'c' does not exist"),
        ([("a", [2])], Earliest(), "no partition 2; it has 0 to 1"),
        ([], Given({TopicPartition("a", 7): 0}), "no partition 7"),
        ([], Given({TopicPartition("c", 0): 0}), "'c' does not exist"),
    ],
)
def test_what_does_not_exist_is_not_reset(named: list[tuple[str, list[int]]], target: Target, says: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match=says):
        choose_partitions(named, COUNTS, [], target)


def test_nothing_to_reset_too_much_or_two_answers_to_one_question() -> None:
    with pytest.raises(Rejected, match="name the topics"):
        choose_partitions([], COUNTS, [], Earliest())
    with pytest.raises(Rejected, match="more than the 10000"):
        choose_partitions([("huge", [])], {"huge": 10_001}, [], Earliest())
    with pytest.raises(Rejected, match="name no topics"):
        choose_partitions([("b", [])], COUNTS, [], Given({A0: 1}))


bounds = st.tuples(st.integers(0, 2**40), st.integers(0, 1000)).map(lambda b: Bounds(b[0], b[0] + b[1]))
offsets = st.integers(0, 2**63 - 1)
targets = st.one_of(
    st.just(Earliest()),
    st.just(Latest()),
    st.just(Current()),
    offsets.map(At),
    st.integers(-(2**63), 2**63 - 1).map(ShiftBy),
    st.just(Since(5)),
    offsets.map(lambda o: Given({A0: o})),
)


@st.composite
def states(draw: st.DrawFn) -> Found:
    held = draw(bounds)
    return Found(A0, held, draw(offsets), draw(st.none() | st.integers(held.start, held.end)))


@given(targets, states())
def test_no_plan_leaves_the_log_and_it_says_when_it_would_have(target: Target, state: Found) -> None:
    (planned,) = plan(target, [state])
    assert state.bounds.start <= planned.new <= state.bounds.end
    assert planned.old == state.committed
    if planned.note is None and isinstance(target, At):
        assert planned.new == target.offset
    if isinstance(target, At) and not state.bounds.start <= target.offset <= state.bounds.end:
        assert planned.note is not None


@given(targets.filter(lambda t: not isinstance(t, ShiftBy)), states())
def test_a_plan_that_was_carried_out_is_the_same_plan_again(target: Target, state: Found) -> None:
    (first,) = plan(target, [state])
    (again,) = plan(target, [Found(A0, state.bounds, first.new, state.since)])
    assert again.new == first.new or (isinstance(target, Current) and again.note is None)


@given(st.integers(-100, 100), bounds.filter(lambda b: b.end > b.start), st.data())
def test_a_shift_and_back_returns_unless_a_note_said_otherwise(count: int, held: Bounds, data: st.DataObject) -> None:
    at = data.draw(st.integers(held.start, held.end))
    (there,) = plan(ShiftBy(count), [Found(A0, held, at)])
    (back,) = plan(ShiftBy(-count), [Found(A0, held, there.new)])
    assert there.note is not None or back.new == at


# --- lag ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("committed", "start", "end", "lag", "first"),
    [
        (20, 10, 30, 10, 20),
        (30, 10, 30, 0, None),
        (31, 10, 30, 0, None),
        (5, 10, 30, 20, 10),
        (0, 0, 0, 0, None),
    ],
)
def test_records_that_are_there_and_not_read(committed: int, start: int, end: int, lag: int, first: int | None) -> None:
    one = PartitionLag(A0, Committed(committed), Bounds(start, end))
    assert (one.lag, one.first_unread) == (lag, first)


def test_what_is_not_known_is_not_zero() -> None:
    nothing = PartitionLag(A0, None, Bounds(0, 9))
    unled = PartitionLag(A1, Committed(3), None)
    assert [(one.lag, one.first_unread, age_ms(one, 5, 9)) for one in (nothing, unled)] == [(None, None, None)] * 2
    assert total([nothing, unled, PartitionLag(B0, Committed(3), Bounds(0, 9))]) == 6


def test_ages_are_zero_without_lag_absent_without_a_record_and_never_negative() -> None:
    read, unread = PartitionLag(A0, Committed(9), Bounds(0, 9)), PartitionLag(A0, Committed(8), Bounds(0, 9))
    assert age_ms(read, None, 100) == 0
    assert age_ms(unread, None, 100) is None
    assert age_ms(unread, 60, 100) == 40
    assert age_ms(unread, 160, 100) == 0


def test_partitions_that_are_held_or_committed_are_told_each_once() -> None:
    owner, lost = Owner("m", "app"), LeaderNotAvailable("nobody leads b-0")
    found = lags(
        {A0: Committed(1), B0: Committed(2)}, {A0: owner, A1: owner}, {A0: Bounds(0, 4), A1: Bounds(0, 2), B0: lost}
    )
    assert [(one.partition, one.lag, one.owner, one.error) for one in found] == [
        (A0, 3, owner, None),
        (A1, None, owner, None),
        (B0, None, None, lost),
    ]
