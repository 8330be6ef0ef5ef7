"""What holds of every kind of world: a seed repeats, in every process, and a mutant is gone after its run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lab.run import KINDS, main, play

ROOT = Path(__file__).parents[2]
SEED = 3


@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_is_one_history_in_every_process(kind: str) -> None:
    def history(hash_seed: str) -> str:
        program = f"from tests.lab.run import play; print(play({kind!r}, None, {SEED}))"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert history("1") == history("2")


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_replayed_with_its_story(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"KIND={kind}", f"SEED={SEED}"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["seed"] == SEED
    assert line["steps"] == play(kind, None, SEED).steps


def test_an_unknown_kind_is_wrong_usage() -> None:
    assert main(["KIND=nothing"]) == 2
    assert main(["MUTANT=nothing"]) == 2
