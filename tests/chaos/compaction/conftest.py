"""The modules of this folder, and those of replication, know each other by name; the load runs from the same files."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "replication"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
