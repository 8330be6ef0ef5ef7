"""The simulation itself: it repeats, it finds what is wrong, and named scenarios. ``make sim`` runs the many seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from tests.simulation.brokers import Broker
from tests.simulation.compaction import COMPACTED_EVERY
from tests.simulation.mutants import MUTANTS, OF_COMPACTION
from tests.simulation.run import one
from tests.simulation.world import FAULTS, TOPIC, Profile, World

from headrace_common.core.ids import NO_NODE, NodeId, PartitionId
from headrace_common.core.image import Partition

FIRST = PartitionId(TOPIC, 0)
SOON_FOUND = (
    "kip-320",
    "leo-counts",
    "early-shrink",
    "late-expand",
    "expand-below-epoch-start",
    "no-min-isr",
    "kip-903",
    "any-token",
    "tokens-uncopied",
    "tokens-uncut",
    "tokens-unstored",
    "unstable-compaction",
    "stale-steps",
    "kafka-tombstones",
    "deletions-at-once",
)
SEEDS_PER_MUTANT = 60


def quiet(seed: int = 1, *, image_delay_ms: float = 5.0, replicas: int = 3, flush_os: bool = False) -> World:
    """A cluster of three that nothing happens to, but what a test does; it serves when this returns."""
    profile = Profile(
        brokers=3,
        partitions=1,
        replicas=replicas,
        min_isr=2,
        flush_os=flush_os,
        faults=("trim",),
        fault_every_ms=1e9,
        image_delay_ms=image_delay_ms,
        image_slow_one_in=1_000_000,
        steps=0,
        acks_one=False,
    )
    world = World(seed, profile=profile, mode="safety")
    world.network.slow_one_in = 1_000_000
    world.until(world.serves, 20_000, "start")
    return world


def now(world: World) -> Partition:
    return world.store.snapshot.partitions[FIRST]


def wait(world: World, condition: Callable[[], bool], ms_max: float = 20_000) -> None:
    world.until(condition, ms_max, "scenario")


def acknowledged(world: World) -> int:
    return sum(producer.acknowledged for producer in world.producers.values())


@pytest.mark.parametrize("mode", ["both", "safety", "liveness"])
def test_a_seed_repeats_step_by_step(mode: str) -> None:
    def told() -> tuple[object, ...]:
        world = World(11, steps=500, mode=mode)
        result = world.run()
        logs = tuple(tuple(log) for log in world.invariants.log.values())
        return result.steps, result.anomaly, sorted(result.counts.items()), logs, world.schedule.story()

    assert told() == told()


def test_seeds_differ() -> None:
    assert World(1, steps=300).run().counts != World(2, steps=300).run().counts


@pytest.mark.parametrize("seed", range(12))
def test_some_seeds_find_nothing(seed: int) -> None:
    result = one((seed, "both", None))
    assert result.anomaly is None, f"{result.text}\n{result.story}"
    assert result.counts["values acknowledged"] > 0


@pytest.mark.parametrize("seed", [10054, 11495])
def test_an_eligible_replica_keeps_its_place_when_its_trimmed_log_is_cut_at_its_start(seed: int) -> None:
    """It began anew below, as an ELR member: elected, it would have given offsets again."""
    assert one((seed, "both", None)).anomaly is None


@pytest.mark.parametrize("seed", [4815])
def test_a_move_that_is_replaced_keeps_the_copies_that_min_isr_counts_on(seed: int) -> None:
    """An in-sync copy was deleted, then the disk of the only other one was lost."""
    assert one((seed, "both", None)).anomaly is None


@pytest.mark.parametrize("seed", [692])
def test_what_producers_sent_before_a_trim_stays_known_when_the_end_is_cut(seed: int) -> None:
    """The snapshot of the trim stood behind the end that was left: a batch that followed was out of order."""
    assert one((seed, "both", None)).anomaly is None


@pytest.mark.parametrize("seed", [1059, 1681, 2395, 18, 972])
def test_schedules_that_the_model_got_wrong_once(seed: int) -> None:
    """
    An answer that overtook others of its stream; a registration that was repeated after its answer was lost; a writer
    that took the word of a leader that had not seen its fence for final; a request lost on a stream that went on.
    """
    assert one((seed, "both", None)).anomaly is None


def test_every_fault_happens() -> None:
    seen = {name for seed in range(40, 70) for name in one((seed, "safety", None)).counts}
    assert {f"fault {name}" for name in FAULTS} <= seen
    assert {"truncations", "leader changes", "isr changes", "batches given up", "stale terms refused"} <= seen
    assert {"fences", "values under a token", "writers fenced"} <= seen


def test_logs_are_compacted_while_all_that_happens() -> None:
    seen = Counter[str]()
    for seed in range(0, 20 * COMPACTED_EVERY, COMPACTED_EVERY):
        result = one((seed, "safety", None))
        assert result.anomaly is None, f"{result.text}\n{result.story}"
        seen += result.counts
    assert seen["compactions"] > 100
    assert seen["compaction steps"] > 2 * seen["compactions"]
    assert seen["steps outdated"] > 0
    assert seen["truncations"] > 0


@pytest.mark.parametrize("mutant", SOON_FOUND)
def test_a_bug_is_found(mutant: str) -> None:
    """``make sim`` looks for all of them."""
    each = COMPACTED_EVERY if mutant in OF_COMPACTION else 1
    seeds = range(0, SEEDS_PER_MUTANT * each, each)
    found = next((s for s in seeds if one((s, "both", mutant)).anomaly is not None), None)
    assert found is not None, f"{SEEDS_PER_MUTANT} seeds do not find {mutant}"


def test_a_mutant_is_gone_after_its_run() -> None:
    assert set(SOON_FOUND) <= set(MUTANTS)
    one((0, "both", "leo-counts"))
    assert one((0, "both", None)).anomaly is None


# --- scenarios ----------------------------------------------------------------------------------------------------


def test_high_watermark_known_late_two_die_one_returns_and_it_is_writable_again() -> None:
    """RF 3, min ISR 2: who leads alone does not know what is committed, and lets the one that returns join first."""
    world = quiet(seed=5)
    wait(world, lambda: acknowledged(world) > 5)
    old = world.brokers[now(world).leader]
    followers = [world.brokers[r] for r in now(world).replicas if r != old.id]

    def ahead() -> list[Broker]:
        return [f for f in followers if f.replicas[FIRST].core.written_end > world.invariants.end[FIRST]]

    wait(world, ahead)
    survivor = ahead()[0]
    other = next(f for f in followers if f is not survivor)
    old.crash(power=True)
    other.crash(power=True)
    core = survivor.replicas[FIRST].core
    wait(world, lambda: core.leading is not None and now(world).isr == (survivor.id,))
    assert not core.end_known
    before = acknowledged(world)
    world.restart_later(other, None)
    wait(world, lambda: len(now(world).isr) == 2)
    wait(world, lambda: acknowledged(world) > before + 5)
    world.last_look()


def test_all_lose_their_power_at_once_and_what_was_acknowledged_is_there() -> None:
    world = quiet(seed=3)
    wait(world, lambda: acknowledged(world) > 20)
    before, end = acknowledged(world), world.invariants.end[FIRST]
    for broker in world.brokers.values():
        broker.crash(power=True)
    for broker in world.brokers.values():
        world.restart_later(broker, None)
    wait(world, lambda: acknowledged(world) > before + 10)
    wait(world, world.serves)
    assert world.invariants.end[FIRST] > end
    world.last_look()


def test_a_leader_that_was_paused_through_an_election_acknowledges_nothing_of_its_own() -> None:
    world = quiet(seed=4)
    wait(world, lambda: acknowledged(world) > 10)
    zombie = world.brokers[now(world).leader]
    zombie.paused = True
    wait(world, lambda: now(world).leader not in (zombie.id, NO_NODE))
    wait(world, lambda: world.brokers[now(world).leader].replicas[FIRST].core.leading is not None)
    zombie.go_on()
    before = acknowledged(world)
    wait(world, lambda: acknowledged(world) > before + 20 and len(now(world).isr) == 3)
    world.last_look()


def test_a_new_disk_is_no_empty_log_that_leads() -> None:
    """The wiped broker was the leader; its emptiness must not win anything."""
    world = quiet(seed=5)
    wait(world, lambda: acknowledged(world) > 10)
    broker = world.brokers[now(world).leader]
    broker.crash(power=False)
    broker.disk, broker.wiped = type(broker.disk)(None), True
    world.restart_later(broker, None)
    wait(world, lambda: broker.up and len(now(world).isr) == 3 and broker.broker_epoch > 0)
    assert broker.replicas[FIRST].core.written_end >= world.invariants.end[FIRST]


def test_a_moved_partition_is_served_by_its_new_replicas_and_deleted_by_the_old() -> None:
    world = World(
        6,
        profile=Profile(
            brokers=5,
            partitions=1,
            replicas=3,
            min_isr=2,
            flush_os=False,
            faults=("trim",),
            fault_every_ms=1e9,
            image_delay_ms=5.0,
            image_slow_one_in=1_000_000,
            steps=0,
            acks_one=False,
        ),
        mode="safety",
    )
    world.until(world.serves, 20_000, "start")
    wait(world, lambda: acknowledged(world) > 10)
    gone = now(world).replicas[:2]
    target = tuple(b for b in world.brokers if b not in gone)
    active = next(c for c in world.controllers if c.term is not None)
    active.command("move", active.reassign(FIRST, target))
    wait(world, lambda: now(world).replicas == target and not now(world).removing)
    wait(world, lambda: all(FIRST not in world.brokers[NodeId(b)].replicas for b in gone))
    before = acknowledged(world)
    wait(world, lambda: acknowledged(world) > before + 10 and world.serves())
    world.last_look()
