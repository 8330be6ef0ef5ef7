"""The queue of commits: one at a time, in order, repeated only where that was asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace import TopicPartition
from headrace._core.commits import CommitQueue, SendCommit, Settled
from headrace.errors import (
    ClientClosed,
    HeadraceError,
    IllegalGeneration,
    NetworkFailed,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from headrace.records import Committed

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def at(offset: int, tp: TopicPartition = A) -> dict[TopicPartition, Committed]:
    return {tp: Committed(offset)}


def test_one_at_a_time_in_the_order_of_the_calls() -> None:
    queue = CommitQueue(100, 1_000)
    assert queue.add("one", at(1), 9_000) == [SendCommit(at(1))]
    assert queue.add("two", at(2), 9_000) == []
    assert queue.answered({}, 0) == [Settled("one", at(1), None), SendCommit(at(2))]
    assert queue.answered({A: None}, 0) == [Settled("two", at(2), None)]
    assert queue.idle


def test_those_that_wait_go_together_and_the_newest_counts() -> None:
    queue = CommitQueue(100, 1_000)
    queue.add(0, at(1), None)
    for ref, offsets in enumerate((at(2), at(7, B), at(3)), 1):
        assert queue.add(ref, offsets, None) == []
    queue.add("sync", at(4), 9_000)
    effects = queue.answered({}, 0)
    assert effects[1] == SendCommit({A: Committed(3), B: Committed(7)})
    no = UnknownMemberId("no")
    assert queue.answered({B: no}, 0) == [
        Settled(1, at(2), None),
        Settled(2, at(7, B), no),
        Settled(3, at(3), None),
        SendCommit(at(4)),
    ]


def test_what_does_not_exist_is_not_repeated_for_longer_than_a_new_topic_may_take() -> None:
    queue = CommitQueue(100, 1_000)
    queue.add("sync", {**at(1), **at(5, B)}, 60_000)
    gone, busy = UnknownTopicOrPartition("gone"), RebalanceInProgress()
    assert queue.answered({A: gone, B: busy}, 0) == []
    assert queue.tick(2_000) == [SendCommit({**at(1), **at(5, B)})]
    assert queue.answered({A: gone}, 2_000) == []
    assert queue.tick(4_000) == [SendCommit(at(1))]
    assert queue.answered({A: gone}, 4_999) == []
    assert queue.tick(6_000) == [SendCommit(at(1))]
    assert queue.answered({A: gone}, 6_000) == [Settled("sync", {**at(1), **at(5, B)}, gone)]
    assert queue.idle


def test_one_with_a_deadline_is_repeated_for_what_failed() -> None:
    queue = CommitQueue(100, 1_000)
    queue.add("sync", {**at(1), **at(5, B)}, 1_000)
    assert queue.answered({B: RebalanceInProgress()}, 0) == []
    assert queue.retry_at_ms == 100
    assert queue.tick(99) == []
    assert queue.tick(100) == [SendCommit(at(5, B))]
    assert queue.failed(NetworkFailed(), 150) == []
    assert queue.retry_at_ms == 350
    assert queue.tick(350) == [SendCommit(at(5, B))]
    late = NetworkFailed("late")
    assert queue.failed(late, 1_000) == [Settled("sync", {**at(1), **at(5, B)}, late)]


def test_a_newer_one_waits_until_the_repeated_one_is_settled() -> None:
    queue = CommitQueue(100, 1_000)
    queue.add("old", at(1), 1_000)
    queue.failed(NetworkFailed(), 0)
    assert queue.add("new", at(2), None) == []
    assert queue.tick(100) == [SendCommit(at(1))]
    assert queue.answered({}, 100) == [Settled("old", at(1), None), SendCommit(at(2))]


def test_what_cannot_help_is_not_repeated() -> None:
    queue = CommitQueue(100, 1_000)
    for error in (UnknownMemberId(), OffsetMetadataTooLarge()):
        queue.add("sync", at(1), 1_000)
        assert queue.answered({A: error}, 0) == [Settled("sync", at(1), error)]


def test_without_a_deadline_it_is_tried_once() -> None:
    queue = CommitQueue(100, 1_000)
    queue.add("once", at(1), None)
    error = NetworkFailed()
    assert queue.failed(error, 0) == [Settled("once", at(1), error)]


def test_a_member_that_only_moved_on_commits_again_at_once() -> None:
    queue = CommitQueue(100, 1_000)
    queue.add("once", at(1), None)
    for _ in range(5):
        assert queue.answered({A: StaleMemberEpoch()}, 0, moved_on=True) == [SendCommit(at(1))]
    error = StaleMemberEpoch()
    assert queue.answered({A: error}, 0, moved_on=True) == [Settled("once", at(1), error)], "bounded"


def test_nothing_to_commit_is_a_place_in_the_line() -> None:
    queue = CommitQueue(100, 1_000)
    assert queue.add("barrier", {}, None) == [Settled("barrier", {}, None)]
    queue.add("first", at(1), 1_000)
    queue.add("barrier", {}, None)
    assert queue.answered({}, 0)[-1] == Settled("barrier", {}, None)


def test_closing_answers_everybody() -> None:
    queue = CommitQueue(100, 1_000)
    queue.add("one", at(1), None)
    queue.add("two", at(2), 1_000)
    closed = ClientClosed()
    assert queue.close(closed) == [Settled("one", at(1), closed), Settled("two", at(2), closed)]


ERRORS: list[HeadraceError | None] = [
    None,
    NetworkFailed(),
    RebalanceInProgress(),
    UnknownMemberId(),
    StaleMemberEpoch(),
]


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "add sync", "answer", "fail", "tick"]), st.sampled_from(ERRORS)), max_size=60
    )
)
def test_no_commit_is_overtaken_by_an_older_one_and_each_is_settled_once(
    steps: list[tuple[str, HeadraceError | None]],
) -> None:
    queue = CommitQueue(10, 40)
    now, number = 0.0, 0
    under_way: list[int] = []
    sent: list[int] = []
    settled: list[int] = []

    def take(effects: list[SendCommit | Settled]) -> None:
        for effect in effects:
            if isinstance(effect, SendCommit):
                assert not under_way, "one at a time"
                under_way.append(effect.offsets[A].offset)
                sent.append(effect.offsets[A].offset)
            else:
                assert isinstance(effect.ref, int)
                settled.append(effect.ref)

    for what, error in steps:
        now += 7
        if what.startswith("add"):
            number += 1
            take(queue.add(number, at(number), now + 50 if what == "add sync" else None))
        elif what == "tick":
            take(queue.tick(now))
        elif under_way:
            under_way.clear()
            take(queue.answered({A: error}, now) if what == "answer" else queue.failed(error or NetworkFailed(), now))
    assert sent == sorted(sent)
    assert settled == sorted(set(settled)), "in order, each once"
    while not queue.idle:
        now += 100
        take(queue.tick(now))
        if under_way:
            under_way.clear()
            take(queue.answered({}, now))
    assert settled == list(range(1, number + 1))


def test_what_was_given_up_while_its_commit_waited_is_not_committed() -> None:
    """Lost, read on by another one, and had again: the position of before would have gone out under the new epoch."""
    queue = CommitQueue(100, 1_000)
    no = IllegalGeneration("given up")
    queue.add("under way", at(1), None)
    queue.add("waits", {**at(2), **at(5, B)}, None)
    queue.give_up({A}, no)
    assert queue.answered({A: None}, 0) == [Settled("under way", at(1), None), SendCommit(at(5, B))]
    assert queue.answered({}, 0) == [Settled("waits", {**at(2), **at(5, B)}, no)]
    assert queue.add("had again", at(7), None) == [SendCommit(at(7))]


def test_what_was_given_up_is_not_repeated_under_a_newer_epoch() -> None:
    queue = CommitQueue(100, 1_000)
    no = IllegalGeneration("given up")
    queue.add("async", {**at(1), **at(5, B)}, None)
    queue.give_up({A}, no)
    old = StaleMemberEpoch("old")
    assert queue.answered({A: old, B: old}, 0, moved_on=True) == [SendCommit(at(5, B))]
    assert queue.answered({B: None}, 0) == [Settled("async", {**at(1), **at(5, B)}, no)]


def test_a_repeated_commit_ends_when_all_of_it_was_given_up() -> None:
    queue = CommitQueue(100, 1_000)
    no = IllegalGeneration("given up")
    queue.add("sync", at(1), 9_000)
    assert queue.failed(NetworkFailed("lost"), 0) == []
    queue.give_up({A}, no)
    assert queue.tick(100) == [Settled("sync", at(1), no)]
    assert queue.idle
