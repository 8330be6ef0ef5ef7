"""The simulation of groups itself: it repeats, it finds what is wrong. ``make sim`` runs the many seeds."""

from __future__ import annotations

import pytest
from tests.simulation.groups.mutants import MUTANTS
from tests.simulation.groups.world import FAULTS, PROTOCOLS, World
from tests.simulation.run import one_of_groups

SOON_FOUND = ("early-answers", "zombie-writes", "early-gift", "stranger-commits", "no-append-order", "epochs-anew")
SEEDS_PER_MUTANT = 12


@pytest.mark.parametrize("mode", ["both", "safety", "liveness"])
def test_a_seed_repeats_step_by_step(mode: str) -> None:
    def told() -> tuple[object, ...]:
        world = World(11, steps=800, mode=mode)
        result = world.run()
        logs = tuple(tuple(e.rows for e in log.entries) for log in world.brokers.logs.values())
        rows = tuple(one.row for log in logs for entry in log for one in entry)
        return result.steps, result.anomaly, sorted(result.counts.items()), rows, world.schedule.story()

    assert told() == told()


def test_seeds_differ() -> None:
    assert World(1, steps=300).run().counts != World(2, steps=300).run().counts


@pytest.mark.parametrize("seed", range(10))
def test_some_seeds_find_nothing(seed: int) -> None:
    result = one_of_groups((seed, "both", None))
    assert result.anomaly is None, f"{result.text}\n{result.story}"
    assert result.counts["commits answered"] > 0


@pytest.mark.parametrize("seed", [1009])
def test_a_late_wake_of_a_coordinator_that_ends_a_session_and_a_round(seed: int) -> None:
    """It crashed on the member that the round had removed already."""
    assert one_of_groups((seed, "both", None)).anomaly is None


def test_every_fault_and_every_protocol_happens() -> None:
    worlds = [World(seed, mode="safety", steps=700) for seed in range(40, 75)]
    assert {(g.protocol, g.assignors) for w in worlds for g in w.profile.groups} == set(PROTOCOLS)
    seen = {name for world in worlds for name in world.run().counts}
    assert {f"fault {name}" for name in FAULTS} <= seen
    assert {"shards lost", "appends tried again", "late copies refused", "partitions lost"} <= seen


@pytest.mark.parametrize("mutant", SOON_FOUND)
def test_a_bug_is_found(mutant: str) -> None:
    """``make sim`` looks for all of them."""
    found = next((s for s in range(SEEDS_PER_MUTANT) if one_of_groups((s, "both", mutant)).anomaly is not None), None)
    assert found is not None, f"{SEEDS_PER_MUTANT} seeds do not find {mutant}"


def test_a_mutant_is_gone_after_its_run() -> None:
    assert set(SOON_FOUND) <= set(MUTANTS)
    one_of_groups((0, "both", "early-gift"))
    assert one_of_groups((0, "both", None)).anomaly is None
