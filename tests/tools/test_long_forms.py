"""The long forms of the chaos tests, which no other test starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "form",
    [
        ["tests/chaos/replication/chaos_long.py"],
        ["tests/chaos/compaction/compaction_long.py"],
        ["-m", "tests.chaos.spark.spark_long"],
        ["-m", "tests.kubernetes.kubernetes_long"],
    ],
    ids=lambda form: form[-1],
)
def test_it_starts_as_make_starts_it(form: list[str]) -> None:
    assert f"$(PY) {' '.join(form)} " in (ROOT / "Makefile").read_text().replace("\\\n", "")
    asked = subprocess.run(
        [sys.executable, *form, "--help"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    assert "--seed" in asked.stdout
