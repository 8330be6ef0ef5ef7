"""Applications that are broken on purpose, and what the judge must find then (see ``mutants/sitecustomize.py``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.testing import TestCluster

from .copying import EXACT, Copying
from .scenarios import POINTS, Report, begun

FOLDER: Final = Path(__file__).with_name("mutants")
FOUND: Final[Mapping[str, str]] = {
    "fresh-owner": "double-output",
    "sequence-ignored": "double-output",
    "commit-in-tasks": "double-output",
    "goes-back": "double-output",
}
"""Mutant → the anomaly that must be found."""


def broken(cluster: TestCluster, directory: Path, seed: int, mutant: str) -> Report:
    """All is killed between the unit and Spark's log, once."""
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    copying = Copying(cluster, directory / f"mutant-{mutant}", per_batch=300)
    copying.write(1_500)
    copying.add(EXACT)
    with begun(copying, f"mutant-{mutant}", seed, PYTHONPATH=path, HEADRACE_MUTANT=mutant) as run:
        run.weather.await_work()
        run.weather.await_hit(copying.failpoints, POINTS[-1], "stop")
        run.lives.kill()
        run.lives.finish()
        run.judge()
    return run.report
