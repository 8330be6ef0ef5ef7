"""Where the consumer's core says that reading is, beside what it hands out: told once, whatever it was that moved."""

from __future__ import annotations

from headrace._core.fetch_answers import Answer
from headrace._core.fetch_plans import FetchLimits
from headrace._core.fetch_positions import FetchPositions
from headrace._core.fetch_state import Ends, Place
from headrace._core.starts import Beginning, End
from headrace_common.core.ids import TopicId, TopicPartition

from .fetching import T0, TOPIC_ID, A, PlainLog, answer_for, batch, control, hand_out, look_up

K0 = (TOPIC_ID, 0)


def reading(start: int | None = 0) -> FetchPositions:
    core = FetchPositions(FetchLimits(), Beginning())
    core.add(T0, Beginning() if start is None else start)
    core.placed(T0, TOPIC_ID, A, 0, 0.0)
    return core


def answer(core: FetchPositions, *batches: bytes, end: int, stable: int | None = None) -> bool:
    plan = core.fetch(A)
    assert plan is not None
    said = Answer(plan.entries[K0], 0, "", end, 0, batches, last_stable=end if stable is None else stable)
    return core.answers.take(plan, [said], 0.0)


def places(core: FetchPositions) -> list[tuple[TopicPartition, int, Ends]]:
    """What is told of partitions of which nothing is handed out."""
    return [(place.tp, place.offset, place.ends) for place in core.state.take_places({})]


def test_a_start_is_told_once_the_end_is_known() -> None:
    core = reading(start=None)
    look_up(core, {T0: PlainLog(start=7, end=7)})
    assert places(core) == [], "who hears of it wants to know whether that is the end"
    assert answer(core, end=7)
    assert places(core) == [(T0, 7, Ends(7, 7))]
    assert not answer(core, end=7)
    assert places(core) == []


def test_what_applications_never_see_moves_the_position_and_is_told() -> None:
    core = reading()
    assert answer(core, control(0), control(1), end=3)
    assert places(core) == [(T0, 2, Ends(3, 3))]
    assert answer(core, control(2), end=3), "whoever waits is woken"
    assert places(core) == [(T0, 3, Ends(3, 3))]


def test_a_position_that_was_sought_is_told() -> None:
    core, log = reading(), PlainLog(end=7)
    answer(core, end=7)
    assert places(core) == [(T0, 0, Ends(7, 7))]
    core.seek(T0, 3)
    assert places(core) == [(T0, 3, Ends(7, 7))]
    core.seek(T0, End())
    assert places(core) == [], "it is looked up"
    look_up(core, {T0: log})
    assert places(core) == [(T0, 7, Ends(7, 7))]


def test_what_follows_records_is_told_with_them() -> None:
    core = reading()
    answer(core, batch(0, 2), control(2), end=3)
    assert places(core) == [], "records are here that will tell it"
    partition = core.partitions[T0]
    assert hand_out(core) == (T0, [0, 1])
    assert core.state.take_places({partition: (partition.epoch, 2)}) == [Place(T0, 3, -1, Ends(3, 3))]
    assert places(core) == []


def test_what_was_handed_out_before_the_position_went_elsewhere_is_told_as_it_was() -> None:
    core = reading()
    answer(core, batch(0, 2), end=9)
    partition = core.partitions[T0]
    taken = {partition: (partition.epoch, 2)}
    hand_out(core)
    core.seek(T0, 5)
    assert core.state.take_places(taken) == [Place(T0, 2, -1, Ends(9, 9))]
    assert places(core) == [(T0, 5, Ends(9, 9))]


def test_an_end_that_moves_alone_is_told() -> None:
    core = reading()
    answer(core, end=4, stable=0)
    assert places(core) == [(T0, 0, Ends(4, 0))]
    assert answer(core, end=6, stable=0), "of a transaction that is open"
    assert places(core) == [(T0, 0, Ends(6, 0))]


def test_a_paused_partition_is_told_of_when_it_goes_on() -> None:
    core = reading()
    plan = core.fetch(A)
    core.pause(T0)
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 1, 0, [control(0)], last_stable=1)], 0.0)
    assert places(core) == []
    core.resume(T0)
    assert places(core) == [(T0, 1, Ends(1, 1))]


def test_the_end_in_an_answer_that_came_too_late_counts() -> None:
    """A broker does not repeat it on that stream."""
    core = reading()
    plan = core.fetch(A)
    core.seek(T0, 5)
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 5, 0, [], last_stable=5)], 0.0)
    assert places(core) == [(T0, 5, Ends(5, 5))]


def test_a_partition_that_comes_back_has_the_end_that_was_told_last() -> None:
    core = reading()
    plan = core.fetch(A)
    core.remove(T0)
    core.add(T0, 5)
    core.placed(T0, TOPIC_ID, A, 0, 0.0)
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 5, 0, [], last_stable=5)], 0.0)
    core.remove(T0)
    assert not core.state.untold
    core.add(T0, 5)
    core.placed(T0, TOPIC_ID, A, 0, 0.0)
    assert places(core) == [(T0, 5, Ends(5, 5))]


def test_the_end_of_a_topic_that_was_deleted_is_not_that_of_the_new_one() -> None:
    core = reading()
    plan = core.fetch(A)
    core.placed(T0, TopicId(b"n" * 16), A, 0, 0.0)
    look_up(core, {T0: PlainLog()})
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 50, 0, [], last_stable=50)], 0.0)
    assert places(core) == []


def test_a_log_that_was_cut_is_told() -> None:
    core = reading()
    answer(core, batch(0, 4), end=4)
    partition = core.partitions[T0]
    hand_out(core)
    core.state.take_places({partition: (partition.epoch, 4)})
    plan = core.fetch(A)
    core.answers.take(plan, [Answer(plan.entries[K0], 0, "", 4, 0, [], diverging=(0, 1), last_stable=4)], 0.0)
    assert places(core) == [], "the application hears of what is lost first"
    core.state.resets.clear()
    assert places(core) == [(T0, 1, Ends(4, 4))]


def test_a_position_that_was_gone_is_told_where_it_goes_on() -> None:
    core, log = reading(), PlainLog(start=100, end=100)
    plan = core.fetch(A)
    core.answers.take(plan, [answer_for(plan, K0, log)], 0.0)
    assert places(core) == [], "it is looked up"
    look_up(core, {T0: log})
    assert places(core) == [], "the application hears of what is lost first"
    core.state.resets.clear()
    assert places(core) == [(T0, 100, Ends(100, -1))]
