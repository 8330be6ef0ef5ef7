"""The simulation of transactions itself: it repeats, it finds what is wrong. ``make sim`` runs the many seeds."""

from __future__ import annotations

import pytest
from tests.simulation.run import one_of_transactions
from tests.simulation.transactions.mutants import MUTANTS
from tests.simulation.transactions.world import FAULTS, World

SOON_FOUND = (
    "kafka-17754",
    "kip-890",
    "any-enrolment",
    "equal-markers",
    "stable-too-high",
    "early-answers",
    "prepared-times-out",
    "positions-of-aborted",
    "aborted-forgotten",
    "producers-forgotten",
    "zombie-writes",
    "equal-claims-raise",
    "low-claims-win",
)
SEEDS_PER_MUTANT = 20


@pytest.mark.parametrize("mode", ["both", "safety", "liveness"])
def test_a_seed_repeats_step_by_step(mode: str) -> None:
    def told() -> tuple[object, ...]:
        world = World(11, steps=1_500, mode=mode)
        result = world.run()
        logs = [
            [(b.base, b.producer, b.visible) for b in shown.batches] for shown in world.invariants.shown_of.values()
        ]
        return result.steps, result.anomaly, sorted(result.counts.items()), logs, world.history, world.schedule.story()

    assert told() == told()


def test_seeds_differ() -> None:
    assert World(1, steps=300).run().counts != World(2, steps=300).run().counts


@pytest.mark.parametrize("seed", range(12))
def test_some_seeds_find_nothing(seed: int) -> None:
    result = one_of_transactions((seed, "both", None))
    assert result.anomaly is None, f"{result.text}\n{result.story}"
    assert result.counts["transactions committed"] > 0


def test_every_fault_happens_and_every_way_to_end() -> None:
    results = [World(seed, mode="safety", steps=1_000).run() for seed in range(40, 110)]
    assert [result.text for result in results if result.anomaly is not None] == []
    seen = {name for result in results for name in result.counts}
    assert {f"fault {name}" for name in FAULTS} <= seen
    assert {
        f"ended by {cause}" for cause in ("client", "token", "unit", "fenced", "owner", "timeout", "operator")
    } <= seen
    assert {
        "truncations",
        "requests doubled",
        "shards lost",
        "units committed",
        "values transformed",
        "batches committed",
    } <= seen


@pytest.mark.parametrize("mutant", SOON_FOUND)
def test_a_bug_is_found(mutant: str) -> None:
    """``make sim`` looks for all of them."""
    jobs = ((seed, "both", mutant) for seed in range(SEEDS_PER_MUTANT))
    found = next((anomaly for job in jobs if (anomaly := one_of_transactions(job).anomaly) is not None), None)
    assert found is not None, f"{SEEDS_PER_MUTANT} seeds do not find {mutant}"
    assert not found.endswith("Error"), f"{mutant} does not fit the core any more: {found}"


def test_a_mutant_is_gone_after_its_run() -> None:
    assert set(SOON_FOUND) <= set(MUTANTS)
    one_of_transactions((0, "both", "kip-890"))
    assert one_of_transactions((0, "both", None)).anomaly is None
