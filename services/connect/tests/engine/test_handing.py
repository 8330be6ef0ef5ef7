"""Items that move from living workers: few connectors stand still at a time, and no wait is for good."""

from __future__ import annotations

import asyncio

from services.connect.tests.kit.world import TestWorker, World

from headrace_connect_worker.core.records import RunState, TargetState
from headrace_connect_worker.engine.handing import MOVE_MS_MAX, SIDE_BY_SIDE

CONFIG = {"connector.class": "files", "tasks.max": "1"}
COUNT = 9


async def three(world: World, count: int = COUNT) -> tuple[TestWorker, list[TestWorker]]:
    """One that does not lead, and the two others; they share connectors of a task each."""
    for name in "abc":
        world.worker(name)
    leader = await world.until_leader()
    for number in range(count):
        name = f"c{number}"
        world.outer.splits[name] = ["x"]
        await leader.herd.put_config(name, CONFIG)
    await world.until(lambda: len(world.running) == count)
    await world.until(lambda: all(world.state(f"c{n}", 0) is RunState.RUNNING for n in range(count)))
    one = next(worker for worker in world.workers if worker is not leader)
    return one, [worker for worker in world.workers if worker is not one]


async def test_who_leaves_hands_over_a_few_at_a_time(world: World) -> None:
    one, others = await three(world)
    had = len(one.running)
    assert had > SIDE_BY_SIDE
    for worker in others:
        worker.hosts.slow_start.clear()
    begun_ms = world.clock.monotonic_ms()
    leaving = asyncio.get_running_loop().create_task(one.worker.leave(60_000))
    await world.clock.sleep_ms(MOVE_MS_MAX / 2)
    assert len(one.running) == had - SIDE_BY_SIDE, "the rest goes on"
    for worker in others:
        worker.hosts.slow_start.set()
    await world.until(lambda: not one.running)
    assert len(world.running) >= COUNT - SIDE_BY_SIDE, "what left before runs elsewhere"
    await leaving
    assert world.clock.monotonic_ms() - begun_ms < MOVE_MS_MAX
    await world.until(lambda: len(world.running) == COUNT)
    assert not world.group.of(one.membership), "it is out of the group"
    await world.until(lambda: sum(len(worker.hosts.watches) for worker in others) == COUNT)


async def test_where_others_are_slow_the_rest_ends_at_once(world: World) -> None:
    one, others = await three(world)
    for worker in others:
        worker.hosts.slow_start.clear()
    begun_ms = world.clock.monotonic_ms()
    await one.worker.leave(60_000)
    took_ms = world.clock.monotonic_ms() - begun_ms
    assert MOVE_MS_MAX <= took_ms < MOVE_MS_MAX + 500
    assert not one.running
    for worker in others:
        worker.hosts.slow_start.set()
    await world.until(lambda: len(world.running) == COUNT)


async def test_half_the_time_is_left_for_tasks_to_end(world: World) -> None:
    one, others = await three(world)
    for worker in others:
        worker.hosts.slow_start.clear()
    one.hosts.slow_stop.clear()
    begun_ms = world.clock.monotonic_ms()
    leaving = asyncio.get_running_loop().create_task(one.worker.leave(1_000))
    await world.clock.sleep_ms(600)
    assert len([call for call in one.hosts.calls if call[0] == "stop"]) == len(one.running), "all were told"
    await leaving
    assert 1_000 <= world.clock.monotonic_ms() - begun_ms < 1_100
    one.hosts.slow_stop.set()
    for worker in others:
        worker.hosts.slow_start.set()


async def one_alone(world: World) -> TestWorker:
    worker = world.worker("a")
    await world.until_leader()
    for number in range(COUNT):
        world.outer.splits[f"c{number}"] = ["x"]
        await worker.herd.put_config(f"c{number}", CONFIG)
    await world.until(lambda: len(world.running) == COUNT)
    return worker


async def test_who_is_alone_ends_all_at_once(world: World) -> None:
    worker = await one_alone(world)
    begun_ms = world.clock.monotonic_ms()
    await worker.worker.leave(60_000)
    assert world.clock.monotonic_ms() - begun_ms < 100
    assert not worker.running


async def test_nobody_waits_for_connectors_that_are_to_stand_still(world: World) -> None:
    one, others = await three(world)
    for number in range(COUNT):
        await others[0].herd.set_target(f"c{number}", TargetState.STOPPED)
    await world.until(lambda: not world.running)
    begun_ms = world.clock.monotonic_ms()
    await one.worker.leave(60_000)
    assert world.clock.monotonic_ms() - begun_ms < MOVE_MS_MAX


async def test_what_a_newcomer_gets_moves_a_few_at_a_time(world: World) -> None:
    one = await one_alone(world)
    newcomer = world.worker("b")
    newcomer.hosts.slow_start.clear()
    await world.until(lambda: len(one.running) < COUNT)
    await world.clock.sleep_ms(MOVE_MS_MAX / 2)
    assert len(one.running) == COUNT - SIDE_BY_SIDE
    assert not newcomer.running
    newcomer.hosts.slow_start.set()
    await world.until(lambda: len(newcomer.running) == COUNT // 2)
    await world.until(lambda: len(world.running) == COUNT)
