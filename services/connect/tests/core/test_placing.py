"""The items of the work group."""

from __future__ import annotations

import pytest

from headrace.work_types import WorkItem
from headrace_connect_worker.core.herd import HerdState
from headrace_connect_worker.core.placing import (
    LEADER,
    TASK_WEIGHT,
    TaskItem,
    WatcherItem,
    declaration_of,
    list_items,
    parse,
    task_id,
    watcher_id,
)
from headrace_connect_worker.core.records import TargetState

from .herds import HerdTopic


@pytest.mark.parametrize("name", ["shop", "a/b", "a.b", "ü%2F", "x" * 80, " "])
def test_names_come_back_out_of_items(name: str) -> None:
    assert parse(watcher_id(name)) == WatcherItem(name)
    assert parse(task_id(name, 9_999)) == TaskItem(name, 9_999)
    assert parse(LEADER) is None
    assert len(task_id(name, 9_999)) <= 249


def test_there_is_always_a_leader_and_tasks_when_they_are_known() -> None:
    herd = HerdTopic()
    assert [item.id for item in list_items(HerdState())] == ["leader"]
    herd.put()
    assert [item.id for item in list_items(herd.state)] == ["leader", "c/c"]
    herd.find("a", "b")
    herd.plan()
    herd.put("b")
    assert list_items(herd.state) == (
        WorkItem("leader", stateful=True),
        WorkItem("c/b", stateful=True),
        WorkItem("c/c", stateful=True),
        WorkItem("t/c/0", TASK_WEIGHT),
        WorkItem("t/c/1", TASK_WEIGHT),
    )
    herd.target(TargetState.STOPPED)
    assert [item.id for item in list_items(herd.state)] == ["leader", "c/b", "c/c"]


def test_a_declaration_has_the_offset_that_was_read_as_version() -> None:
    herd = HerdTopic()
    empty = declaration_of(herd.state, list_items(herd.state))
    assert empty.version == 1
    herd.put()
    first = declaration_of(herd.state, list_items(herd.state))
    assert first.version == herd.state.offset + 2
    again = declaration_of(herd.state, list_items(herd.state))
    assert again == first, "whoever has read as far declares the same"
