"""Worlds of Streams: sound ones find nothing, broken ones are found. ``make sim`` runs the many seeds."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest
from tests.lab.kind import seeds_for
from tests.lab.run import play as play_kind
from tests.lab.streams.disks import Disk
from tests.lab.streams.faults import COMMIT_STEPS, FIRST_STEPS, Faults
from tests.lab.streams.mutants import FOUND, MUTANTS
from tests.lab.streams.profile import FAULTS, OF_COMERS, OF_SLEEPERS, Profile
from tests.lab.streams.programs import BEGIN_MS, LATE, OUT, PROGRAMS, Copies, Moved, Windows, Words, compare
from tests.lab.streams.steps import STEPS
from tests.lab.streams.world import play

from headrace_streams.ports import Checkpoint

SOON_FOUND = ("early-outputs", "early-state", "not-restored")
SEEDS_PER_MUTANT = 24


@pytest.mark.parametrize("seed", range(4))
def test_some_seeds_find_nothing(seed: int) -> None:
    outcome = asyncio.run(play(seed))
    assert outcome.problems == [], "\n".join(outcome.story)
    assert outcome.counts["rows expected"] > 0


@pytest.mark.parametrize("mutant", SOON_FOUND)
def test_a_bug_is_found(mutant: str) -> None:
    """``make sim`` looks for all of them."""
    outcomes = (play_kind("streams", mutant, seed) for seed in seeds_for(mutant, FOUND, SEEDS_PER_MUTANT))
    found = next((outcome.problems[0] for outcome in outcomes if outcome.problems), None)
    assert found is not None, f"{SEEDS_PER_MUTANT} seeds do not find {mutant}"
    assert "TypeError" not in found, f"{mutant} does not fit the product any more: {found}"
    assert "AttributeError" not in found, f"{mutant} does not fit the product any more: {found}"


def test_every_mutant_and_every_step_fits_the_product() -> None:
    for make in MUTANTS.values():
        for one in make():
            with one:
                pass
    assert all(callable(getattr(owner, name)) for owner, name in STEPS.values())
    assert {*FIRST_STEPS, *COMMIT_STEPS} <= set(STEPS)


def test_every_fault_and_every_program_is_drawn() -> None:
    profiles = [Profile.drawn(Random(seed)) for seed in range(60)]
    faults = {fault for profile in profiles for fault in profile.faults}
    assert faults == {*FAULTS, *OF_SLEEPERS, *OF_COMERS}
    assert {profile.program for profile in profiles} == set(PROGRAMS)
    assert any(profile.markers_s for profile in profiles)
    assert all(callable(getattr(Faults, name)) for name in faults)


# --- the rules, by hand -------------------------------------------------------------------------------------------


def test_words_are_counted_over_all_partitions() -> None:
    expected = Words().expected([[(b"", {"words": ["a", "b"]})], [(b"", {"words": ["a"]})]])
    assert expected.state == Counter(a=2, b=1)
    assert expected.written == {(OUT, "a"): [1, 2], (OUT, "b"): [1]}


def test_windows_close_by_the_time_of_their_partition() -> None:
    rows = [(b"k", {"at": BEGIN_MS + after}) for after in (0, 9_000, 15_000, 1)]
    expected = Windows().expected([rows, [(b"l", {"at": BEGIN_MS})]])
    assert expected.written == {(OUT, "k"): [(BEGIN_MS, 2)], (LATE, "k"): [(BEGIN_MS, BEGIN_MS + 1)]}
    assert expected.state == Counter({("k", BEGIN_MS + 10_000): 1, ("l", BEGIN_MS): 1})


def test_the_last_rows_close_all_windows_of_the_program_that_moves_rows() -> None:
    program, random = Moved(), Random(0)
    lines = [program.line(random, 0) for _ in range(20)]
    last = program.last()
    expected = program.expected([[*lines, last], [last]])
    assert sum(count for rows in expected.written.values() for _, count in rows) == 20
    assert [key for key, _ in expected.state] == ["last"]


def test_rows_are_copied_in_the_order_of_their_keys() -> None:
    expected = Copies().expected([[(b"0-a", {"n": 2}), (b"0-b", {"n": 1}), (b"0-a", {"n": 3})], [(b"1-a", {"n": 4})]])
    assert expected.written == {(OUT, "0-a"): [2, 3], (OUT, "0-b"): [1], (OUT, "1-a"): [4]}
    assert not expected.state


def test_what_is_lost_doubled_or_out_of_order_is_told() -> None:
    expected = {(OUT, "a"): [1, 2], (OUT, "b"): [1]}
    assert compare(expected, expected) == []
    written = {(OUT, "a"): [2, 1], (OUT, "b"): [1, 1], (OUT, "c"): [1]}
    assert [text.partition(":")[0] for text in compare(expected, written)] == ["order", "doubled", "doubled"]
    assert [text.partition(":")[0] for text in compare(expected, {})] == ["lost", "lost", "lost"]
    assert [text.partition(":")[0] for text in compare(expected, written, repeats=True)] == ["doubled"], "of c"
    assert compare(expected, {(OUT, "a"): [1, 2, 1, 2], (OUT, "b"): [1]}, repeats=True) == []


def test_a_disk_that_crashes_has_the_first_of_its_commits() -> None:
    seen = set()
    for seed in range(40):
        disk = Disk()
        for number in range(3):
            disk.open("part", 0).write([(b"k", b"%d" % number)], Checkpoint("id", number, 0))
        disk.crash(Random(seed))
        store = disk.open("part", 0)
        checkpoint = store.checkpoint()
        assert store.rows() == ({} if checkpoint is None else {b"k": b"%d" % checkpoint.next_offset})
        seen.add(None if checkpoint is None else checkpoint.next_offset)
    assert seen == {None, 0, 1, 2}
