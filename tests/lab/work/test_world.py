"""Work groups in the lab: seeds find nothing, bugs that are put back are found. ``make sim`` runs the many seeds."""

from __future__ import annotations

from random import Random

import pytest
from tests.lab.run import play
from tests.lab.work.faults import Faults
from tests.lab.work.profile import FAULTS, draw

SOON_FOUND = ("early-gift", "same-epochs", "left-forgotten")
SEEDS_PER_MUTANT = 8


@pytest.mark.parametrize("seed", range(4))
def test_some_seeds_find_nothing(seed: int) -> None:
    outcome = play("work", None, seed)
    assert outcome.problems == [], "\n".join([*outcome.problems, *outcome.story])
    assert outcome.counts["writes"] > 0


def test_every_fault_is_drawn() -> None:
    assert {fault for seed in range(60) for fault in draw(Random(seed)).faults} == set(FAULTS)
    assert all(callable(getattr(Faults, name)) for name in FAULTS)


@pytest.mark.parametrize("mutant", SOON_FOUND)
def test_a_bug_is_found(mutant: str) -> None:
    found = next((seed for seed in range(SEEDS_PER_MUTANT) if play("work", mutant, seed).problems), None)
    assert found is not None, f"{SEEDS_PER_MUTANT} seeds do not find {mutant}"
