"""Benchmarks are a package of the repository, not of a member."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
