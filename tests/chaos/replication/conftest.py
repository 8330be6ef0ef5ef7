"""The modules of this folder know each other by name; the load runs as a process of its own from the same files."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
