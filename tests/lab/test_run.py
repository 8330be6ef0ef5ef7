"""What holds of every kind of world: a seed repeats, in every process, and a mutant is gone after its run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lab.run import KINDS, main

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
