"""``python -m tests.simulation SEEDS=1000``; see ``run``."""

import sys

from tests.simulation.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
