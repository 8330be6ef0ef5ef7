"""The chaos of storage uses the processes and images of the broker's own storage tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "services" / "broker" / "tests" / "adapters"))
