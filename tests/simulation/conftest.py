"""The simulation is a package of the repository's root, so that a failed seed can be replayed by hand."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
