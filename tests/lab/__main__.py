"""``python -m tests.lab KIND=replication SEEDS=200``; see ``run``."""

import sys

from tests.lab.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
