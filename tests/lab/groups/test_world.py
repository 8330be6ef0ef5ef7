"""Groups in the lab: seeds find nothing, and bugs that are put back are found. ``make sim`` runs the many seeds."""

from __future__ import annotations

from random import Random

import pytest
from tests.lab.groups.faults import Faults
from tests.lab.groups.mutants import FOUND, MUTANTS, RARE
from tests.lab.groups.profile import FAULTS, PROTOCOLS, draw
from tests.lab.kind import seeds_for
from tests.lab.run import play

SOON_FOUND = ("early-answers", "early-gift", "stranger-commits", "any-epoch")
SEEDS_PER_MUTANT = 8


@pytest.mark.parametrize("seed", range(6))
def test_some_seeds_find_nothing(seed: int) -> None:
    outcome = play("groups", None, seed)
    assert outcome.problems == [], "\n".join([*outcome.problems, *outcome.story])
    assert outcome.counts["commits answered"] > 0
    assert outcome.counts["calm moves"] == 1


def test_every_fault_and_every_protocol_is_drawn() -> None:
    profiles = [draw(Random(seed)) for seed in range(60)]
    assert {fault for profile in profiles for fault in profile.faults} == set(FAULTS)
    assert {(group.protocol, group.assignors) for profile in profiles for group in profile.groups} == set(PROTOCOLS)
    assert all(callable(getattr(Faults, name)) for name in FAULTS)


@pytest.mark.parametrize("mutant", SOON_FOUND)
def test_a_bug_is_found(mutant: str) -> None:
    found = next(
        (seed for seed in seeds_for(mutant, FOUND, SEEDS_PER_MUTANT) if play("groups", mutant, seed).problems), None
    )
    assert found is not None, f"{SEEDS_PER_MUTANT} seeds do not find {mutant}"


def test_a_mutant_is_gone_after_its_run() -> None:
    assert set(SOON_FOUND) <= set(MUTANTS) - RARE
    assert play("groups", "early-answers", 0).problems
    assert play("groups", None, 0).problems == []
