"""Algorithms with a step taken out, each a bug that somebody once had: the lab must find them."""

from __future__ import annotations

from tests.lab.kind import Mutant

MUTANTS: dict[str, Mutant] = {}
RARE: frozenset[str] = frozenset()
"""Found too late for every change; the long form looks for them."""
