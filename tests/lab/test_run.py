"""What holds of every kind of world: a seed repeats, in every process, and a mutant is gone after its run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest
from tests.lab import run
from tests.lab.kind import Outcome
from tests.lab.run import KINDS, find_mutants, main

ROOT = Path(__file__).parents[2]
SEED = 3


@pytest.mark.timeout(300)
def test_one_seed_is_one_history_in_every_process_and_is_told_with_its_story() -> None:
    """All kinds in one process each time: it takes longer to start one than to play most seeds."""
    replays = f"[main([f'KIND={{kind}}', 'SEED={SEED}']) for kind in KINDS]"
    program = f"import sys; from tests.lab.run import KINDS, main; sys.exit(max({replays}))"

    def history(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    told = history("1")
    assert told == history("2")
    for kind in KINDS:
        story, line = re.findall(
            rf"^{kind}, seed {SEED}: (.*?)\n--- replay: .*?\n(.*?)\n", told, re.DOTALL | re.MULTILINE
        )[0]
        assert story.count("\n") > 1, "what befell it"
        assert json.loads(line)["seed"] == SEED
        assert json.loads(line)["steps"] > 1_000


def test_an_unknown_kind_is_wrong_usage() -> None:
    assert main(["KIND=nothing"]) == 2
    assert main(["MUTANT=nothing"]) == 2


@pytest.fixture(name="pool")
def _pool() -> Iterator[ThreadPool]:
    with ThreadPool(1) as pool:
        yield pool


def played(monkeypatch: pytest.MonkeyPatch, finding: Collection[int]) -> list[int]:
    """Seeds as they are played; some find what is looked for."""
    seeds: list[int] = []

    def play(kind: str, mutant: str | None, seed: int) -> Outcome:
        seeds.append(seed)
        return Outcome(["lost: it"] if seed in finding else [], [], 0, 0.0)

    monkeypatch.setattr(run, "play", play)
    return seeds


def test_a_seed_that_found_a_bug_before_is_played_first(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPool, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = played(monkeypatch, [7, 70])
    assert find_mutants(pool, "groups", ["old-reports"], 0, 100, {"old-reports": 70}) == {
        "old-reports": {"seeds": 1, "by": "lost: it"}
    }
    assert seeds[0] == 70
    assert capsys.readouterr().err == ""


def test_one_that_finds_it_no_more_is_told_and_the_others_are_played_from_the_first_on(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPool, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = played(monkeypatch, [3])
    assert find_mutants(pool, "groups", ["old-reports"], 0, 100, {"old-reports": 70}) == {
        "old-reports": {"seeds": 5, "by": "lost: it"}
    }
    assert seeds[:5] == [70, 0, 1, 2, 3]
    assert "groups: seed 3 finds old-reports, after 4 others: see FOUND" in capsys.readouterr().err


def test_a_bug_that_no_seed_finds_is_missed_whatever_found_it_before(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPool
) -> None:
    seeds = played(monkeypatch, [])
    assert find_mutants(pool, "groups", ["old-reports"], 0, 4, {"old-reports": 70}) == {"old-reports": None}
    assert seeds == [70, 0, 1, 2, 3]


def test_how_many_seeds_a_bug_takes_is_counted_from_the_first_on(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[object] = []

    def seen(*arguments: object) -> dict[str, object]:
        known.append(arguments[-1])
        return {"failed": {}, "mutants": {}}

    monkeypatch.setattr(run, "run", seen)
    for asked in ([], ["MUTANTS=all"], ["MUTANT=old-reports"]):
        assert main(["KIND=groups", *asked]) == 0
    assert known == [KINDS["groups"].found, {}, {}]


def test_what_found_a_bug_before_is_noted_of_bugs_that_are_looked_for() -> None:
    for kind in KINDS.values():
        assert set(kind.found) <= set(kind.mutants) - set(kind.rare)
