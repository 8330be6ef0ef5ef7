"""
What ``headrace job run`` gives to spark-submit: begins the job that its first argument names.

It has a directory of its own, because Spark puts the directory of what it runs first on the path of the driver.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points


def main() -> int | None:
    """Run the job with what stands behind its name; its number is the exit code."""
    name = sys.argv.pop(1)
    [job] = entry_points(group="headrace.jobs", name=name)
    try:
        code: int | None = job.load()(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
