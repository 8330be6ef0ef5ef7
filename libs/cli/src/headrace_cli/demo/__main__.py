"""``python -m headrace_cli.demo`` is ``headrace demo``."""

import sys

from headrace_cli.__main__ import main

if __name__ == "__main__":
    sys.argv.insert(1, "demo")
    main()
