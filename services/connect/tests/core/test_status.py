"""The status topic: the newest word of whoever has the item counts."""

from __future__ import annotations

from headrace_connect_worker.core.records import RunState, SplitSpec, Status, TopicUsed, Work
from headrace_connect_worker.core.status import Statuses


def status(epoch: int, state: RunState = RunState.RUNNING, *, task: int | None = 0, fenced: int = 0) -> Status:
    return Status("c", task, state, "", f"w:{epoch}", epoch, fenced)


def test_an_old_word_does_not_count() -> None:
    statuses = Statuses()
    assert statuses.task("c", 0) is None
    assert statuses.apply(status(5))
    assert not statuses.apply(status(4, RunState.FAILED))
    assert statuses.task("c", 0) == status(5)
    assert statuses.apply(status(5, RunState.FAILED))
    assert statuses.apply(status(6))
    assert statuses.task("c", 0) == status(6)
    assert statuses.apply(status(1, task=None)), "another item's epochs are its own"
    assert statuses.connector("c") == status(1, task=None)


def test_what_was_found_by_an_old_watcher_does_not_count() -> None:
    statuses = Statuses()
    new, old = Work("c", "source", 3, splits=(SplitSpec("a"),), epoch=5), Work("c", "source", 3, epoch=4)
    assert statuses.apply(new)
    assert not statuses.apply(old)
    assert statuses.work("c") == new
    statuses.apply(Work("c", ""))
    assert statuses.work("c") is None
    assert statuses.apply(old)


def test_who_was_fenced_is_known_by_the_generation() -> None:
    statuses = Statuses()
    statuses.apply(status(5, RunState.UNASSIGNED, fenced=70))
    assert statuses.fenced("c", 70)
    assert not statuses.fenced("c", 71)
    statuses.apply(status(5))
    assert not statuses.fenced("c", 70)
    assert not statuses.fenced("x", 70)


def test_leftovers_are_what_is_there_no_more() -> None:
    statuses = Statuses()
    for record in (
        status(1, task=None),
        status(1),
        status(1, task=1),
        Work("c", "source", epoch=1),
        TopicUsed("c", "t", 0, 5),
        TopicUsed("d", "t", 0, 5),
        Work("d", "sink", epoch=1),
    ):
        statuses.apply(record)
    assert list(statuses.leftovers({"c": 2, "d": 0})) == []
    assert list(statuses.leftovers({"c": 1, "d": 0})) == [Status("c", 1, None)]
    for leftover in list(statuses.leftovers({})):
        statuses.apply(leftover)
    assert list(statuses.leftovers({})) == []
    assert (statuses.connector("c"), statuses.work("d"), statuses.topics("c")) == (None, None, {})
