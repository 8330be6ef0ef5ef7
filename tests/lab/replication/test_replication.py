"""Worlds of replication and compaction: sound seeds, bugs that are found, named scenarios. ``make sim`` has more."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

import pytest
from tests.lab.kind import Outcome, seeds_for
from tests.lab.replication.mutants import FOUND
from tests.lab.replication.profile import FAULTS, Profile
from tests.lab.replication.world import Kind, World, play_in
from tests.lab.run import play

from headrace_common.core.ids import NO_NODE, PartitionId
from headrace_common.core.image import Partition

SOON_FOUND = ("leo-counts", "early-shrink", "no-min-isr", "any-token", "fenced-markers")
WAIT_S = 20.0


@pytest.mark.parametrize(("kind", "first"), [("replication", 100), ("compaction", 200)])
def test_seeds_of_sound_code_find_nothing(kind: str, first: int) -> None:
    seen = Counter[str]()
    for seed in range(first, first + 6):
        outcome = play(kind, None, seed)
        assert outcome.problems == [], "\n".join(outcome.story)
        seen.update(outcome.counts)
    assert seen["batches acknowledged"] > 100
    assert sum(count for name, count in seen.items() if name.startswith("fault")) > 30


@pytest.mark.parametrize("mutant", SOON_FOUND)
def test_a_bug_is_found(mutant: str) -> None:
    assert any(play("replication", mutant, seed).problems for seed in seeds_for(mutant, FOUND, 12))
    assert play("replication", None, 0).problems == []  # it is gone after its run


def test_every_fault_of_a_profile_is_one_that_the_world_has() -> None:
    from tests.lab.replication.faults import Faults

    assert all(callable(getattr(Faults, name)) for name in FAULTS)


# --- scenarios ------------------------------------------------------------------------------------------------------


def run(script: Callable[[World], Awaitable[None]], seed: int = 1, **changes: object) -> Outcome:
    """A cluster of three to which nothing happens, but what ``script`` does."""
    quiet = Profile.drawn(Random(seed))
    quiet = replace(quiet, brokers=3, controllers=1, partitions=1, replicas=3, min_isr=2, acks_one=False)
    quiet = replace(quiet, writers=False, transactions=False, required=False)
    quiet = replace(quiet, flush_os=False, hiccup=(0.0, 0.0), image_slow_one_in=1_000_000)
    quiet = replace(quiet, store_s=0.001, silence_s=3.0, **changes)  # type: ignore[arg-type]  # as the test says
    return asyncio.run(play_in(seed, quiet, Random(seed), Kind(script=script)))


def now(world: World) -> Partition:
    return next(iter(world.ghost.partitions().values()))


def end(world: World) -> int:
    return world.ghost.truth(now(world).id).end


async def more(world: World) -> None:
    """Until something is acknowledged that was sent from now on, and all are in sync."""
    before = world.counts["batches acknowledged"]
    await world.until(lambda: world.counts["batches acknowledged"] > before + 10, WAIT_S, "acknowledged")
    await world.until(lambda: len(now(world).isr) == len(now(world).replicas), WAIT_S, "in sync")


def test_all_lose_their_power_at_once_and_what_was_acknowledged_is_there() -> None:
    async def script(world: World) -> None:
        await more(world)
        before = end(world)
        for broker in world.brokers:
            world.cluster.kill(broker, power=True)
        for broker in world.brokers:
            world.cluster.restart(broker)
        await more(world)
        assert end(world) > before

    assert run(script).problems == []


def test_a_leader_that_was_paused_through_an_election_acknowledges_nothing_of_its_own() -> None:
    async def script(world: World) -> None:
        await more(world)
        zombie = now(world).leader
        world.cluster.pause(zombie)
        await world.until(lambda: now(world).leader not in (zombie, NO_NODE), WAIT_S, "another leader")
        world.cluster.resume(zombie)
        await more(world)

    assert run(script).problems == []


def test_who_does_not_know_what_is_committed_leads_alone_and_is_written_again_once_one_returns() -> None:
    async def script(world: World) -> None:
        await more(world)
        leader, id = now(world).leader, now(world).id
        while (survivor := _find_ahead(world)) is None:
            await asyncio.sleep(0.0005)
        other = next(one for one in now(world).replicas if one not in (leader, survivor))
        world.cluster.kill(leader, power=True)
        world.cluster.kill(other, power=True)
        await world.until(lambda: now(world).isr == (survivor,) == (now(world).leader,), WAIT_S, "it leads alone")
        process = world.ghost.process_of(survivor)
        assert process is not None
        replica = process.replicas.get(id)
        assert replica is not None
        await world.until(lambda: replica.core.leading is not None, WAIT_S, "it knows that it leads")
        assert not replica.core.end_known
        before = world.counts["batches acknowledged"]
        world.cluster.restart(other)
        await world.until(lambda: world.counts["batches acknowledged"] > before + 10, WAIT_S, "acknowledged")

    assert run(script).problems == []


def _find_ahead(world: World) -> int | None:
    """A follower that has more than is committed."""
    for broker in now(world).isr:
        process = world.ghost.process_of(broker)
        replica = None if process is None else process.replicas.get(now(world).id)
        if broker != now(world).leader and replica is not None and replica.core.written_end > end(world):
            return broker
    return None


@pytest.mark.parametrize("how", ["wipe", "rot"])
def test_a_disk_that_lost_something_makes_no_leader(how: str) -> None:
    async def script(world: World) -> None:
        await more(world)
        broker = now(world).leader
        world.cluster.kill(broker)
        getattr(world.cluster.disk(broker), how)()
        world.cluster.restart(broker)
        await world.until(lambda: now(world).leader not in (broker, NO_NODE), WAIT_S, "another leader")
        await more(world)
        process = world.ghost.process_of(broker)
        assert process is not None
        replica = process.replicas.get(now(world).id)
        assert replica is not None
        assert replica.core.written_end >= end(world) - 10

    assert run(script).problems == []


def test_a_moved_partition_is_served_by_its_new_replicas_and_deleted_by_the_old() -> None:
    async def script(world: World) -> None:
        await more(world)
        id: PartitionId = now(world).id
        gone = now(world).replicas[0]
        target = [broker for broker in world.brokers if broker != gone]  # of three, two have it
        world.faults.move(id, target)
        await world.until(lambda: sorted(now(world).replicas) == target, WAIT_S, "moved")
        await world.until(lambda: _has_no_log(world, gone, id), WAIT_S, "deleted")
        await more(world)

    assert run(script, replicas=2, min_isr=1).problems == []


def _has_no_log(world: World, broker: int, id: PartitionId) -> bool:
    process = world.ghost.process_of(broker)
    return process is not None and process.replicas.get(id) is None
