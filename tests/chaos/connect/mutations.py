"""Processes with something left out of them (see ``mutants/sitecustomize.py``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.chaos.connect.mutants.sitecustomize import MUTANTS

FOLDER: Final = Path(__file__).with_name("mutants")


def variables_of(mutant: str) -> Mapping[str, str]:
    """What processes with a mutant have in their environment; empty for ``""``."""
    if not mutant:
        return {}
    assert mutant in MUTANTS, f"there are {sorted(MUTANTS)}"
    path = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"HEADRACE_MUTANT": mutant, "PYTHONPATH": os.pathsep.join(path)}
