"""What the config topic makes of its records, and what the leader writes; told as dialogues."""

from __future__ import annotations

import pytest

from headrace_connect_worker.core import changes
from headrace_connect_worker.core.herd import HerdState, Restart
from headrace_connect_worker.core.records import (
    ConnectorConfigured,
    RestartSaid,
    SplitSpec,
    TargetSet,
    TargetState,
    TaskConfigured,
    TaskDropped,
    TasksCommitted,
    Work,
)
from headrace_connect_worker.core.refusals import BadCommand, Conflict, NoSuchConnector

from .herds import CONFIG, HerdTopic


@pytest.fixture
def herd() -> HerdTopic:
    return HerdTopic()


def test_a_connector_has_no_tasks_before_its_watcher_has_looked(herd: HerdTopic) -> None:
    herd.put()
    connector = herd.state.connectors["c"]
    assert (connector.config, connector.target, connector.tasks) == (CONFIG, TargetState.STARTED, None)
    assert herd.plan() == []


def test_splits_are_shared_by_at_most_so_many_tasks(herd: HerdTopic) -> None:
    herd.put()
    herd.find("a", "b", "c")
    written = herd.plan()
    assert herd.shares() == [["a", "c"], ["b"]]
    assert isinstance(written[-1], TasksCommitted), "the commit is the last of its transaction"
    assert herd.plan() == [], "nothing is written twice"


def test_splits_that_come_and_go_move_no_others(herd: HerdTopic) -> None:
    herd.put()
    herd.find("a", "b", "c")
    herd.plan()
    before = herd.generation()
    herd.find("a", "b", "c", "d")
    herd.plan()
    assert herd.shares() == [["a", "c"], ["b", "d"]]
    assert herd.generation() > before
    herd.find("b", "c", "d")
    herd.plan()
    assert herd.shares() == [["c"], ["b", "d"]]


def test_a_split_whose_detail_differs_is_another_generation(herd: HerdTopic) -> None:
    herd.put()
    herd.find("a")
    herd.plan()
    before = herd.generation()
    at = herd.state.connectors["c"].config_offset
    herd.statuses.apply(Work("c", "source", at, splits=(SplitSpec("a", {"path": "/b"}),), epoch=2))
    herd.plan()
    assert herd.generation() > before


def test_fewer_splits_drop_tasks_in_the_same_transaction(herd: HerdTopic) -> None:
    herd.put(tasks_max="3")
    herd.find("a", "b", "c")
    herd.plan()
    herd.find("a")
    written = herd.plan()
    assert [record for record in written if isinstance(record, TaskDropped)] == [
        TaskDropped("c", 1),
        TaskDropped("c", 2),
    ]
    assert herd.shares() == [["a"]]
    herd.find()
    herd.plan()
    assert herd.shares() == []
    assert herd.plan() == []


def test_what_was_found_for_another_configuration_does_not_count(herd: HerdTopic) -> None:
    herd.put()
    herd.find("a", "b")
    herd.plan()
    old, before = herd.state.connectors["c"].config_offset, herd.generation()
    herd.put(tasks_max="1")
    assert herd.shares() == [["a"], ["b"]], "the tasks go on with what they were begun with"
    assert herd.plan() == []
    herd.find("a", "b", offset=old, epoch=2)
    assert herd.plan() == []
    herd.find("a", "b", epoch=3)
    herd.plan()
    assert herd.shares() == [["a", "b"]]
    assert herd.generation() > before
    tasks = herd.state.connectors["c"].tasks
    assert tasks is not None
    assert tasks.config["tasks.max"] == "1"


def test_another_configuration_is_another_generation_though_the_splits_are_the_same(herd: HerdTopic) -> None:
    herd.put()
    herd.find("a")
    herd.plan()
    before = herd.generation()
    herd.put(topic="other")
    herd.find("a")
    herd.plan()
    assert herd.generation() > before


def test_a_sink_has_as_many_tasks_as_have_something_to_do(herd: HerdTopic) -> None:
    herd.put(tasks_max="4")
    herd.find_sink(2)
    herd.plan()
    assert herd.shares() == [[], []]
    herd.find_sink(9)
    herd.plan()
    assert herd.shares() == [[], [], [], []]


def test_a_stopped_connector_has_no_tasks_and_gets_them_back(herd: HerdTopic) -> None:
    herd.put()
    herd.find("a", "b")
    herd.plan()
    herd.target(TargetState.PAUSED)
    assert herd.shares() == [["a"], ["b"]]
    herd.target(TargetState.STOPPED)
    assert herd.shares() == []
    assert len(herd.ends) == 4, "target and tasks are one transaction"
    assert herd.plan() == []
    stopped = herd.generation()
    herd.target(TargetState.STARTED)
    assert herd.shares() == [["a"], ["b"]]
    assert herd.generation() > stopped
    ends = len(herd.ends)
    herd.target(TargetState.STARTED)
    assert len(herd.ends) == ends, "what changes nothing is not written"


def test_a_new_connector_may_begin_stopped(herd: HerdTopic) -> None:
    herd.put(target=TargetState.STOPPED)
    herd.plan()
    assert herd.shares() == []
    herd.put(target=TargetState.STARTED, topic="other")
    assert herd.state.connectors["c"].target is TargetState.STOPPED, "one that is there keeps its own"


def test_nothing_of_a_deleted_connector_is_left(herd: HerdTopic) -> None:
    herd.put()
    herd.find("a", "b")
    herd.plan()
    herd.put("d")
    herd.write(changes.restart(herd.state, "c", connector=True, tasks=None, only_failed=False))
    herd.delete()
    assert list(herd.state.connectors) == ["d"]
    assert herd.state.watcher_restart("c") == Restart()
    assert list(herd.state.task_numbers("c")) == []
    with pytest.raises(NoSuchConnector, match="Connector c not found"):
        herd.delete()


def test_a_fenced_generation_is_written_again_above(herd: HerdTopic) -> None:
    herd.put()
    herd.find("a", "b")
    herd.plan()
    before = herd.generation()
    herd.plan(fenced=True)
    assert herd.generation() > before
    assert herd.shares() == [["a"], ["b"]]


def test_a_generation_counts_only_when_it_is_whole(herd: HerdTopic) -> None:
    herd.put()
    herd.write([TaskConfigured("c", 0, 7, ()), TasksCommitted("c", 2, 7, 0, {})])
    assert herd.shares() is None
    herd.write([TaskConfigured("c", 1, 6, ())])
    assert herd.shares() is None
    herd.write([TaskConfigured("c", 1, 7, ())])
    assert herd.shares() == [[], []]


def test_a_new_generation_is_above_all_that_the_log_tells_of(herd: HerdTopic) -> None:
    herd.put()
    herd.write([TaskConfigured("c", 5, 10_000, ())])
    herd.find("a")
    herd.plan()
    assert herd.generation() > 10_000
    assert list(herd.state.task_numbers("c")) == [0], "what no generation has is dropped"


def test_all_connectors_together_have_a_bound_of_tasks(herd: HerdTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "TASKS_MAX", 3)
    herd.put(tasks_max="2")
    herd.find("a", "b")
    herd.plan()
    herd.put("d", tasks_max="5")
    herd.find("a", "b", "c", name="d")
    herd.plan("d")
    assert herd.shares("d") == [["a", "b", "c"]]
    with pytest.raises(BadCommand, match=r"3 tasks, and 3 is the most.*delete connectors, or lower"):
        herd.put("e")
    said = herd.shortage("d")
    for part in ("3 tasks are wanted", "1 is there", "3 is the most", "tasks.max"):
        assert part in said
    assert not herd.shortage("c")
    herd.delete("c")
    herd.plan("d")
    assert herd.shares("d") == [["a"], ["b"], ["c"]]
    assert not herd.shortage("d")


def test_each_connector_keeps_a_place_for_a_task(herd: HerdTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has none yet, or is stopped, has one when it begins."""
    monkeypatch.setattr(changes, "TASKS_MAX", 3)
    herd.put("c", tasks_max="9")
    herd.put("d", target=TargetState.STOPPED)
    herd.find("a", "b", "c", "d")
    herd.plan()
    assert len(herd.shares() or ()) == 2
    assert "2 are there" in herd.shortage("c")
    herd.find("a", "b", "c", "d", "e")
    herd.plan()
    assert len(herd.shares() or ()) == 2, "nor when a rescan finds more"
    assert "5 tasks are wanted" in herd.shortage("c")
    herd.put("c", tasks_max="2")
    herd.find("a", "b", "c", "d", "e")
    assert not herd.shortage("c"), "no more are wanted"
    herd.target(TargetState.STARTED, "d")
    herd.find("a", name="d")
    herd.plan("d")
    assert herd.shares("d") == [["a"]]


def test_sinks_are_bound_too(herd: HerdTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "TASKS_MAX", 3)
    herd.put("c", tasks_max="9")
    herd.find_sink(7)
    herd.plan()
    assert herd.shares() == [[], [], []]
    assert "7 tasks are wanted" in herd.shortage("c")


def test_restarts_are_remembered_by_their_offset(herd: HerdTopic) -> None:
    herd.put()
    herd.find("a", "b")
    herd.plan()
    herd.write(changes.restart(herd.state, "c", connector=True, tasks=(1,), only_failed=False))
    at = herd.state.offset
    assert herd.state.watcher_restart("c") == Restart(at)
    assert herd.state.task_restart("c", 1) == Restart(at)
    assert herd.state.task_restart("c", 0) == Restart()
    herd.write(changes.restart(herd.state, "c", connector=False, tasks=None, only_failed=True))
    assert herd.state.watcher_restart("c") == Restart(at)
    assert herd.state.task_restart("c", 0) == Restart(herd.state.offset, only_failed=True)
    with pytest.raises(NoSuchConnector, match="no task 2"):
        changes.restart(herd.state, "c", connector=False, tasks=(2,), only_failed=False)
    assert HerdState().task_restart("x", 0) == Restart()


def test_what_is_wrong_is_refused(herd: HerdTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    herd.put()

    def put(name: str, config: dict[str, str], *, only_new: bool = False) -> object:
        return changes.put_config(herd.state, name, config, only_new=only_new, target=None)

    with pytest.raises(Conflict, match="already exists"):
        put("c", CONFIG, only_new=True)
    with pytest.raises(BadCommand, match="the name 'x'"):
        put("c", {**CONFIG, "name": "x"})
    with pytest.raises(BadCommand, match="bytes"):
        put("c", {"k": "v" * (257 << 10)})
    assert put("c", CONFIG) == []
    monkeypatch.setattr(changes, "CONNECTORS_MAX", 1)
    with pytest.raises(BadCommand, match="1 is the most"):
        put("d", CONFIG)
    assert put("c", {**CONFIG, "more": "1"}) == [ConnectorConfigured("c", {**CONFIG, "more": "1"})]
    with pytest.raises(NoSuchConnector):
        changes.set_target(herd.state, "x", TargetState.PAUSED, None, herd.draw)
    with pytest.raises(NoSuchConnector):
        changes.restart(herd.state, "x", connector=True, tasks=(), only_failed=False)


def test_records_of_one_that_is_not_there_make_nothing() -> None:
    state = HerdState()
    state.apply(0, TargetSet("x", TargetState.PAUSED))
    state.apply(1, RestartSaid("y", True, None, False))
    assert state.connectors == {}
    state.apply(2, ConnectorConfigured("x", {}))
    assert state.connectors["x"].target is TargetState.PAUSED
