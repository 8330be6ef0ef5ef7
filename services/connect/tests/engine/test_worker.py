"""Workers that share connectors: who runs what, who leads, and what becomes of failures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from services.connect.tests.kit.world import TestWorker, World, of_sink

from headrace.work_types import GivenItem
from headrace_common.core.errors import InvalidConfig, NonEmptyGroup
from headrace_connect.core.errors import Fault
from headrace_connect.core.host_messages import TopicSeen
from headrace_connect_worker.core.placing import task_id
from headrace_connect_worker.core.records import RunState, Status, TargetState, TopicUsed, Work
from headrace_connect_worker.core.refusals import BadCommand, Conflict, NoSuchConnector, NotLeader, NotWritten
from headrace_connect_worker.ports import ConnectorOffset, HostUnavailable, WriteFailed

CONFIG = {"connector.class": "files", "tasks.max": "2"}
STARTED, PAUSED, STOPPED = TargetState.STARTED, TargetState.PAUSED, TargetState.STOPPED


async def test_a_connector_is_created_runs_is_scaled_and_deleted(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.splits["c"] = ["x", "y", "z"]
    assert await worker.herd.put_config("c", CONFIG)
    assert worker.herd.state.connectors["c"].config == CONFIG, "who was answered reads it"
    await world.until(lambda: world.running == {("c", 0): ["x", "z"], ("c", 1): ["y"]})
    await world.until(lambda: world.state("c", 1) is RunState.RUNNING)
    assert world.state("c") is RunState.RUNNING
    assert not await worker.herd.put_config("c", {**CONFIG, "tasks.max": "3"})
    await world.until(lambda: world.running == {("c", 0): ["x"], ("c", 1): ["y"], ("c", 2): ["z"]})
    await worker.herd.delete("c")
    await world.until(lambda: not world.running and not worker.hosts.watches)
    await world.until(lambda: world.state("c") is None and world.state("c", 2) is None)
    assert worker.herd.statuses.work("c") is None
    with pytest.raises(NoSuchConnector):
        await worker.herd.delete("c")


async def test_what_a_sink_has_prepared_is_settled_before_it_is_deleted(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.sinks["c"] = 1
    config = {**CONFIG, "errors.deadletterqueue.topic.name": "dead"}
    await worker.herd.put_config("c", config)
    worker.hosts.unsettled = "the database is away"
    with pytest.raises(Conflict, match="the database is away"):
        await worker.herd.delete("c")
    assert "c" in worker.herd.state.connectors
    worker.hosts.unsettled = ""
    await worker.herd.delete("c")
    assert "c" not in worker.herd.state.connectors
    assert worker.hosts.calls.count(("settle", config)) == 2
    await worker.herd.put_config("c", CONFIG)
    await worker.herd.delete("c")
    assert len([call for call in worker.hosts.calls if call[0] == "settle"]) == 2, "it has no dead letters"


async def test_workers_share_tasks_and_take_them_over(world: World) -> None:
    workers = [world.worker(name) for name in "abc"]
    leader = await world.until_leader()
    world.outer.splits["c"] = [f"s{number}" for number in range(6)]
    await leader.herd.put_config("c", {**CONFIG, "tasks.max": "6"})
    await world.until(lambda: len(world.running) == 6)
    assert [len(worker.running) for worker in workers] == [2, 2, 2]
    gone = workers[1]
    await gone.kill()
    world.workers.remove(gone)
    world.group.kill(gone.membership)
    await world.until(lambda: len(world.running) == 6)
    generations = {task.generation for worker in world.workers for task in worker.hosts.tasks.values()}
    assert len(generations) == 1, "nobody was disturbed by it"


async def test_others_forward_to_the_leader(world: World) -> None:
    workers = [world.worker(name) for name in "ab"]
    leader = await world.until_leader()
    (other,) = [worker for worker in workers if worker is not leader]
    assert other.herd.leader is not None
    assert not other.herd.leader.is_me
    assert leader.herd.leader is not None
    assert leader.herd.leader.is_me
    with pytest.raises(NotLeader) as refused:
        await other.herd.put_config("c", CONFIG)
    assert refused.value.url == f"http://{leader.name}:8083"


async def test_a_paused_leader_writes_nothing(world: World) -> None:
    old, other = world.worker("a"), world.worker("b")
    assert await world.until_leader() is old
    old.log.paused.clear()
    late = asyncio.ensure_future(old.herd.put_config("late", CONFIG))
    await asyncio.sleep(1)
    world.group.kill(old.membership)
    await world.until(lambda: other.worker.leading.leads)
    await other.herd.put_config("c", CONFIG)
    old.log.paused.set()
    with pytest.raises(NotWritten):
        await late
    await asyncio.sleep(30)
    assert list(other.herd.state.connectors) == ["c"]
    world.group.tell_lost(old.membership)
    await asyncio.sleep(1)
    with pytest.raises(NotLeader):
        await old.herd.put_config("late", CONFIG)
    assert list(other.herd.state.connectors) == ["c"]


async def test_who_leads_has_read_what_the_leaders_before_it_wrote(world: World) -> None:
    old, other = world.worker("a"), world.worker("b")
    assert await world.until_leader() is old
    other.log.sees.clear()
    await old.herd.put_config("c", CONFIG)
    await old.kill()
    world.workers.remove(old)
    world.group.kill(old.membership)
    await world.until(lambda: len(world.configs.rows) >= 4)
    await asyncio.sleep(5)
    assert not other.worker.leading.leads
    with pytest.raises(NotLeader):
        await other.herd.put_config("c", CONFIG, only_new=True)
    other.log.sees.set()
    await world.until(lambda: other.worker.leading.leads)
    with pytest.raises(Conflict, match="already exists"):
        await other.herd.put_config("c", CONFIG, only_new=True)


async def test_a_leader_that_does_not_know_whether_it_wrote_looks(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    worker.log.fail_next = WriteFailed("no answer", unknown=True)
    with pytest.raises(NotWritten, match="nobody can tell") as failed:
        await worker.herd.put_config("c", CONFIG)
    assert failed.value.unknown
    await world.until(lambda: worker.worker.leading.leads)
    assert "c" in worker.herd.state.connectors
    worker.log.fail_next = WriteFailed("aborted", unknown=False)
    await worker.herd.put_config("d", CONFIG), "what was surely not written is written again"
    assert "d" in worker.herd.state.connectors
    world.outer.splits["d"] = ["x"]
    worker.log.fail_next = WriteFailed("no answer", unknown=True)
    worker.hosts.look("d")
    await world.until(lambda: ("d", 0) in world.running)


async def test_a_connector_is_paused_resumed_and_stopped(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.splits["c"] = ["x"]
    await worker.herd.put_config("c", CONFIG, target=PAUSED)
    await world.until(lambda: world.state("c", 0) is RunState.PAUSED and world.state("c") is RunState.PAUSED)
    await worker.herd.set_target("c", STARTED)
    await world.until(lambda: world.state("c", 0) is RunState.RUNNING and world.state("c") is RunState.RUNNING)
    generation = worker.hosts.tasks["c", 0].generation
    await worker.herd.set_target("c", STOPPED)
    await world.until(lambda: not world.running and world.state("c") is RunState.STOPPED)
    assert not worker.hosts.watches
    await worker.herd.set_target("c", STARTED)
    await world.until(lambda: world.state("c", 0) is RunState.RUNNING)
    assert worker.hosts.tasks["c", 0].generation > generation


async def test_a_task_that_waits_while_another_of_its_connector_leaves_hears_of_a_pause(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [world.worker(name) for name in "ab"]
    leader = await world.until_leader()
    world.outer.splits["c"] = ["x", "y"]
    await leader.herd.put_config("c", CONFIG)
    await world.until(lambda: all(len(worker.running) == 1 for worker in workers))
    (watching,) = [worker for worker in workers if worker.hosts.watches]
    (other,) = [worker for worker in workers if worker is not watching]
    ((_, leaves), (_, comes)) = (next(iter(worker.running)) for worker in (other, watching))
    monkeypatch.setattr(world.group, "assign", lambda: None)
    watching.membership.revoke(task_id("c", comes))
    await world.until(lambda: not watching.running)
    other.membership.revoke(task_id("c", leaves))
    other.membership.give(GivenItem(task_id("c", comes), world.group.epoch + 1))
    await world.until(lambda: list(other.running) == [("c", comes)])
    await leader.herd.set_target("c", PAUSED)
    await world.until(lambda: world.state("c", comes) is RunState.PAUSED)


async def test_a_host_that_crashes_is_started_again_and_hurts_no_other(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.splits |= {"c": ["x"], "d": ["y"]}
    await worker.herd.put_config("c", CONFIG)
    await worker.herd.put_config("d", CONFIG)
    await world.until(lambda: len(world.running) == 2)
    before = world.clock.monotonic_ms()
    worker.hosts.crash("c")
    await world.until(lambda: world.state("c", 0) is RunState.RESTARTING)
    status = worker.herd.statuses.task("c", 0)
    assert status is not None
    assert "signal 11" in status.trace
    await world.until(lambda: world.state("c", 0) is RunState.RUNNING and "c" in worker.hosts.watches)
    assert 1_000 <= world.clock.monotonic_ms() - before < 2_000
    assert worker.hosts.calls.count(("start", "d", 0, worker.hosts.tasks["d", 0].generation)) == 1


async def test_a_source_that_has_found_nothing_says_so(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.splits["c"] = []
    await worker.herd.put_config("c", CONFIG)
    await world.until(lambda: world.state("c") is RunState.RUNNING)
    status = worker.herd.statuses.connector("c")
    assert status is not None
    assert "nothing to read" in status.trace
    world.outer.splits["c"] = ["x"]
    worker.hosts.look("c")
    await world.until(lambda: world.state("c", 0) is RunState.RUNNING)
    status = worker.herd.statuses.connector("c")
    assert status is not None
    assert not status.trace


async def test_a_crash_that_is_heard_late_has_nothing_run_twice(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.splits["c"] = ["x"]
    await worker.herd.put_config("c", CONFIG)
    await world.until(lambda: world.state("c", 0) is RunState.RUNNING and "c" in worker.hosts.watches)
    worker.hosts.late_crash("c")
    await world.until(lambda: world.state("c", 0) is RunState.RESTARTING)
    await world.until(lambda: world.state("c", 0) is RunState.RUNNING and "c" in worker.hosts.watches)
    assert worker.tasks.failure is None


async def test_leaving_is_no_failure(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    await worker.worker.leave(60_000)
    await world.clock.sleep_ms(10_000)
    assert worker.tasks.failure is None


async def test_failed_tasks_are_restarted_when_somebody_says_so(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.splits["c"] = ["x", "y"]
    await worker.herd.put_config("c", CONFIG)
    await world.until(lambda: len(world.running) == 2)
    worker.hosts.report("c", 1, RunState.FAILED, "no rights", Fault.CONFIG)
    await world.until(lambda: world.state("c", 1) is RunState.FAILED)
    calls = len(worker.hosts.calls)
    await worker.herd.restart("c", connector=False, tasks=None, only_failed=True)
    await world.until(lambda: world.state("c", 1) is RunState.RUNNING)
    generation = worker.hosts.tasks["c", 1].generation
    assert worker.hosts.calls[calls:] == [("stop", "c", 1), ("start", "c", 1, generation)]
    await worker.herd.restart("c", tasks=None)
    await world.until(lambda: len(worker.hosts.calls) == calls + 8)
    assert ("unwatch", "c") in worker.hosts.calls


async def test_what_is_wrong_with_a_connector_is_in_its_status(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.errors["c"] = Fault.CONFIG, "path: there is no such directory"
    await worker.herd.put_config("c", CONFIG)
    await world.until(lambda: world.state("c") is RunState.FAILED)
    del world.outer.errors["c"]
    world.outer.splits["c"] = ["x"]
    await worker.herd.put_config("c", {**CONFIG, "path": "/there"})
    await world.until(lambda: world.state("c", 0) is RunState.RUNNING and world.state("c") is RunState.RUNNING)
    worker.hosts.broken.add("d")
    await worker.herd.put_config("d", CONFIG)
    await world.until(lambda: world.state("d") is RunState.RESTARTING)
    worker.hosts.broken.clear()
    await world.until(lambda: world.state("d") is RunState.RUNNING)


async def test_splits_that_come_later_make_tasks(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    await worker.herd.put_config("c", CONFIG)
    await world.until(lambda: world.state("c") is RunState.RUNNING)
    assert not world.running
    world.outer.splits["c"] = ["x"]
    worker.hosts.look("c")
    await world.until(lambda: world.running == {("c", 0): ["x"]})
    written = len(world.configs.rows)
    worker.hosts.look("c")
    await asyncio.sleep(5)
    assert len(world.configs.rows) == written, "what changes nothing is not written"


async def test_tasks_that_somebody_fences_get_a_higher_generation_ever_later(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.splits["c"] = ["x"]
    await worker.herd.put_config("c", CONFIG)
    times = []
    for _ in range(3):
        await world.until(lambda: world.state("c", 0) is RunState.RUNNING)
        generation, at = worker.hosts.tasks["c", 0].generation, world.clock.monotonic_ms()
        worker.hosts.fence("c", 0)
        await world.until(lambda: world.state("c", 0) is RunState.UNASSIGNED)
        await world.until(lambda: ("c", 0) in world.running)
        assert worker.hosts.tasks["c", 0].generation > generation
        times.append(world.clock.monotonic_ms() - at)
    assert 1_000 <= times[0] < 2_000 <= times[1] < 4_000 <= times[2] < 5_000


async def test_an_old_word_of_another_worker_is_said_over(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.splits["c"] = ["x"]
    await worker.herd.put_config("c", CONFIG)
    await world.until(lambda: world.state("c", 0) is RunState.RUNNING)
    rows = len(world.statuses.rows)
    world.statuses.append([Status("c", 0, RunState.FAILED, "late", "old:1", 1), Work("c", "source", 0, epoch=1)])
    await world.until(lambda: len(world.statuses.rows) == rows + 4)
    assert world.state("c", 0) is RunState.RUNNING
    assert worker.herd.statuses.task("c", 0) is not None
    assert world.running == {("c", 0): ["x"]}
    fresh = world.worker("b")
    await world.until(lambda: fresh.herd.is_ready)
    assert fresh.herd.statuses.work("c") == worker.herd.statuses.work("c")


async def test_who_stops_in_order_gives_its_work_to_others_at_once(world: World) -> None:
    first, second = world.worker("a"), world.worker("b")
    leader = await world.until_leader()
    world.outer.splits["c"] = ["x", "y"]
    await leader.herd.put_config("c", CONFIG)
    await world.until(lambda: len(first.running) == len(second.running) == 1)
    before = world.clock.monotonic_ms()
    await leader.stop()
    world.workers.remove(leader)
    (other,) = world.workers
    assert not leader.running
    await world.until(lambda: len(other.running) == 2 and other.worker.leading.leads)
    assert world.clock.monotonic_ms() - before < 1_000
    await other.herd.put_config("d", CONFIG)


async def test_a_task_that_is_slow_to_stop_is_nobody_elses_meanwhile(world: World) -> None:
    first = world.worker("a")
    await world.until_leader()
    world.outer.splits["c"] = ["x"]
    await first.herd.put_config("c", CONFIG)
    await world.until(lambda: ("c", 0) in first.running)
    first.hosts.slow_stop.clear()
    await first.herd.set_target("c", STOPPED)
    await asyncio.sleep(5)
    await first.herd.set_target("c", STARTED)
    await asyncio.sleep(5)
    assert world.running == {("c", 0): ["x"]}
    first.hosts.slow_stop.set()
    await world.until(lambda: world.state("c", 0) is RunState.RUNNING)


async def test_patches_and_what_is_refused(world: World) -> None:
    worker = world.worker("a")
    with pytest.raises(NotLeader):
        await worker.herd.put_config("c", CONFIG)
    await world.until_leader()
    await worker.herd.put_config("c", CONFIG)
    assert await worker.herd.patch_config("c", {"tasks.max": None, "path": "/x"}) == {
        "connector.class": "files",
        "path": "/x",
    }
    with pytest.raises(Conflict, match="already exists"):
        await worker.herd.put_config("c", CONFIG, only_new=True)
    for command in (
        worker.herd.patch_config("x", {}),
        worker.herd.set_target("x", PAUSED),
        worker.herd.restart("x"),
        worker.herd.reset_topics("x"),
        worker.herd.offsets("x"),
    ):
        with pytest.raises(NoSuchConnector):
            await command


async def test_more_changes_than_may_wait_are_refused_and_slow_ones_fail(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    worker.log.paused.clear()
    waiting = []
    for number in range(4):
        waiting.append(asyncio.ensure_future(worker.herd.put_config(f"c{number}", CONFIG)))
        await asyncio.sleep(0.1)
    with pytest.raises(Conflict, match="3 changes wait"):
        await worker.herd.put_config("more", CONFIG)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [NotWritten] * 4
    assert [result.unknown for result in results if isinstance(result, NotWritten)] == [True, False, False, False]
    worker.log.paused.set()
    await world.until(lambda: "c0" in worker.herd.state.connectors)
    await asyncio.sleep(5)
    assert list(worker.herd.state.connectors) == ["c0"], "who was told that it was not written may rely on it"


async def test_offsets_are_changed_only_while_it_is_stopped_and_above_all_tasks(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.splits["c"] = ["x"]
    await worker.herd.put_config("c", CONFIG)
    await world.until(lambda: ("c", 0) in world.running)
    generation = worker.hosts.tasks["c", 0].generation
    assert await worker.herd.offsets("c") == [ConnectorOffset({"of": "c"}, {"kind": "source"})]
    with pytest.raises(BadCommand, match="STOPPED"):
        await worker.herd.change_offsets("c", None)
    await worker.herd.set_target("c", STOPPED)
    await worker.herd.change_offsets("c", None)
    ((name, kind, above, offsets),) = worker.offsets.changes
    assert (name, kind, offsets) == ("c", "source", None)
    assert above > generation
    assert worker.herd.state.generation_max("c") == above


async def sink_with_positions(world: World) -> TestWorker:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.sinks["s"], world.outer.guarantee = 1, "positions"
    await worker.herd.put_config("s", CONFIG)
    await world.until(lambda: ("s", 0) in world.running)
    worker.offsets.groups["s"] = {("t", 0): 5, ("t", 1): 6}
    with pytest.raises(BadCommand, match="STOPPED"):
        await worker.herd.change_offsets("s", None)
    await worker.herd.set_target("s", STOPPED)
    return worker


def rewinds(worker: TestWorker) -> list[tuple[Any, ...]]:
    return [call[1:] for call in worker.hosts.calls if call[0] == "rewind"]


async def test_the_target_of_a_sink_gets_its_positions_as_the_group_has_them(world: World) -> None:
    worker = await sink_with_positions(world)
    await worker.herd.change_offsets("s", [of_sink(("t", 0), 2), of_sink(("t", 1), None), of_sink(("u", 0), 9_999)])
    assert rewinds(worker) == [({("t", 0): 2, ("t", 1): None, ("u", 0): 1_000}, False)], "beyond its end: the end"
    assert await worker.herd.offsets("s") == [of_sink(("t", 0), 2), of_sink(("u", 0), 1_000)]
    await worker.herd.change_offsets("s", None)
    assert rewinds(worker)[1:] == [({("t", 0): None, ("u", 0): None}, True)]
    assert await worker.herd.offsets("s") == []


@pytest.mark.parametrize("offsets", [None, [of_sink(("t", 0), 2), of_sink(("u", 0), 3), of_sink(("t", 1), None)]])
async def test_what_the_target_cannot_changes_nothing(world: World, offsets: Sequence[ConnectorOffset] | None) -> None:
    worker = await sink_with_positions(world)
    worker.hosts.unwound = InvalidConfig("it cannot go back")
    with pytest.raises(BadCommand, match="it cannot go back"):
        await worker.herd.change_offsets("s", offsets)
    assert await worker.herd.offsets("s") == [of_sink(("t", 0), 5), of_sink(("t", 1), 6)], "as before"
    worker.hosts.unwound = HostUnavailable("the target is away")
    with pytest.raises(NotWritten, match="the target is away") as caught:
        await worker.herd.change_offsets("s", offsets)
    assert caught.value.unknown


async def test_the_target_is_left_alone_where_the_group_is_not_free(world: World) -> None:
    worker = await sink_with_positions(world)
    worker.offsets.fails = NonEmptyGroup("s has members")
    with pytest.raises(Conflict, match="has members"):
        await worker.herd.change_offsets("s", None)
    assert rewinds(worker) == []


async def test_other_sinks_have_their_group_alone(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.sinks["s"] = 1
    await worker.herd.put_config("s", CONFIG)
    await world.until(lambda: ("s", 0) in world.running)
    await worker.herd.set_target("s", STOPPED)
    await worker.herd.change_offsets("s", [of_sink(("t", 0), 2)])
    assert rewinds(worker) == []
    assert await worker.herd.offsets("s") == [of_sink(("t", 0), 2)]


async def test_topics_are_remembered_and_reset(world: World) -> None:
    worker = world.worker("a")
    await world.until_leader()
    world.outer.splits["c"] = ["x"]
    await worker.herd.put_config("c", CONFIG)
    await world.until(lambda: ("c", 0) in world.running)
    worker.hosts._events.put_nowait(TopicSeen("c", 0, "orders"))
    await world.until(lambda: "orders" in worker.herd.statuses.topics("c"))
    assert isinstance(worker.herd.statuses.topics("c")["orders"], TopicUsed)
    await worker.herd.reset_topics("c")
    await world.until(lambda: not worker.herd.statuses.topics("c"))
