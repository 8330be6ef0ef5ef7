"""Brokers that are broken on purpose, and what the judge must find then (see ``mutants/sitecustomize.py``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from chaos_cluster import RACKS
from compaction_faults import CALM
from compaction_run import Plan

FOLDER: Final = Path(__file__).with_name("mutants")
FOUND: Final[Mapping[str, frozenset[str]]] = {
    "deletions-at-once": frozenset({"lost-tombstone"}),
    "aborted-count": frozenset({"lost-final", "poll-skip"}),
    "newest-goes": frozenset({"lost-final", "poll-skip"}),
    "no-lag": frozenset({"poll-skip"}),
    "impatient-retention": frozenset({"lost-below-start"}),
}
"""Mutant → anomalies of which one at least must be found."""


def plan_of(mutant: str) -> Plan:
    """A calm run with all brokers broken so."""
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    start = ("env", f"PYTHONPATH={path}", f"HEADRACE_MUTANT={mutant}")
    return replace(
        CALM, name=f"mutant-{mutant}", steady_seconds=15, launchers={f"broker-{number}": start for number in RACKS}
    )
