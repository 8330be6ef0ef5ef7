"""Events of connectors: told once, seen by all workers, and lost before anything waits for them."""

from __future__ import annotations

import pytest
from services.connect.tests.kit.world import World

from headrace_common.core.errors import NetworkFailed
from headrace_connect.core.errors import Fault
from headrace_connect.core.host_messages import Told
from headrace_connect_worker.core.records import RunState
from headrace_connect_worker.engine import events
from headrace_connect_worker.rpc.views import Views

CONFIG = {"connector.class": "x", "topic": "t"}


async def begun(world: World) -> None:
    for name in "ab":
        world.worker(name)
    world.outer.splits["s"] = ["0"]
    await (await world.until_leader()).herd.put_config("s", CONFIG)
    await world.until(lambda: world.running)


async def test_what_a_connector_tells_is_seen_at_all_workers(world: World) -> None:
    await begun(world)
    [holder] = [worker for worker in world.workers if worker.running]
    holder.hosts._events.put_nowait(Told("s", 0, "drift", "a column", {"table": "orders"}))
    for worker in world.workers:
        await world.until(lambda worker=worker: worker.herd.events("s", 10, "drift"))
        [event] = worker.herd.events("s", 10, "drift")
        assert (event.text, event.task, event.detail) == ("a column", 0, {"table": "orders"})
        assert event.worker_id == f"{holder.name}:8083"
        assert not worker.herd.events("other", 10)


async def test_a_failure_is_told_once_and_that_it_works_again(world: World) -> None:
    await begun(world)
    [holder] = [worker for worker in world.workers if worker.running]

    def kinds() -> list[str]:
        return [event.kind for event in holder.herd.events("s", 100)]

    for trace in ("first\nat x", "second"):
        holder.hosts.report("s", 0, RunState.RESTARTING, trace, Fault.WORLD)
    holder.hosts.report("s", 0, RunState.RUNNING)
    holder.hosts.report("s", 0, RunState.RUNNING)
    holder.hosts.report("s", 0, RunState.FAILED, "for good", Fault.CONFIG)
    await world.until(lambda: kinds()[-1:] == ["failed"])
    assert kinds() == ["restarting", "running", "failed"]
    assert [event.text for event in holder.herd.events("s", 100)] == ["first", "it works again", "for good"]


async def test_while_they_cannot_be_written_the_newest_wait(world: World) -> None:
    worker = world.worker("a")
    world.events.fails = NetworkFailed("away")
    for number in range(events.WAITING_MAX + 300):
        worker.worker.events.put("s", None, "drift", str(number))
        if number == 50:
            await world.clock.sleep_ms(500)
    await world.clock.sleep_ms(5_000)
    world.events.fails = None
    await world.until(lambda: worker.herd.events("s", 1) and worker.herd.events("s", 1)[0].text == "1299")
    texts = [event.text for event in world.events.events]
    assert texts == [str(number) for number in range(300, 1_300)]


async def test_what_comes_while_a_write_fails_displaces_the_oldest_of_it(world: World) -> None:
    worker = world.worker("a")
    world.events.paused.clear()
    world.events.fails = NetworkFailed("away")
    for number in range(events.BATCH_MAX):
        worker.worker.events.put("s", None, "drift", str(number))
    await world.clock.sleep_ms(100)
    for number in range(events.BATCH_MAX, events.WAITING_MAX + 50):
        worker.worker.events.put("s", None, "drift", str(number))
    world.events.paused.set()
    await world.clock.sleep_ms(100)
    world.events.fails = None
    await world.until(lambda: len(world.events.events) >= events.WAITING_MAX)
    assert [event.text for event in world.events.events] == [str(number) for number in range(50, 1_050)]


async def test_a_connector_that_gets_fewer_tasks_than_it_could_use_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a rescan finds more; told once, and in its status while it lasts."""
    monkeypatch.setattr("headrace_connect_worker.core.changes.TASKS_MAX", 3)
    worker = world.worker("a")
    world.outer.splits["s"], world.outer.splits["t"] = ["0", "1"], ["0"]
    herd = (await world.until_leader()).herd
    for name in "st":
        await herd.put_config(name, CONFIG | {"tasks.max": "9"})
    await world.until(lambda: len(world.running) == 3)
    await world.clock.sleep_ms(100)
    assert not herd.events("s", 10, "limited")
    assert "trace" not in Views(herd.state, herd.statuses).status("s")["connector"]
    world.outer.splits["s"] = ["0", "1", "2", "3"]
    worker.hosts.look("s")
    await world.until(lambda: worker.herd.events("s", 10, "limited"))
    await world.clock.sleep_ms(5_000)
    [event] = worker.herd.events("s", 10)
    assert (event.kind, event.task) == ("limited", None)
    assert event.text.startswith("4 tasks are wanted; 2 are there")
    assert Views(herd.state, herd.statuses).status("s")["connector"]["trace"] == event.text
    assert len(world.running) == 3
    await herd.delete("t")
    await world.until(lambda: len(herd.state.connectors["s"].tasks.shares) == 3)
    assert not herd.events("t", 10)
