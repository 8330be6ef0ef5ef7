"""The examples of docs/testing-programs.md are run as they stand, by pytest with the fixtures that it finds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "testing-programs.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
REAL = "headrace_cluster"
"""Needs processes; what is said of it is tested with the SDK."""


def run(directory: Path, *options: str) -> str:
    for number, block in enumerate(BLOCKS):
        if REAL not in block:
            (directory / f"test_block_{number}.py").write_text(block)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *options,
        str(directory),
    ]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_examples_do_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    assert f"{len([block for block in BLOCKS if REAL not in block])} passed" in run(tmp_path)


def test_the_fixture_needs_no_other_plugin(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert "1 passed" in run(tmp_path, "-p", "no:asyncio", "-k", "test_with_the_fixture")


def test_a_seed_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LAB_SEED", "4711")
    (tmp_path / "test_fails.py").write_text(
        "async def test_fails(headrace_lab):\n    async with headrace_lab() as cluster:\n        assert not cluster\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert "lab: seed 4711 repeats this" in done.stdout
