"""
``make spark-chaos``: all runs one after the other, then applications that are broken on purpose; a line of JSON for
each, and one for all at the end.

``python -m tests.chaos.spark.spark_long [--seed N] [--only NAME ...] [--directory DIR] [--keep]``. Sound runs leave no
directory. Fails when a run found something, and when a broken application was not found.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from headrace.testing import TestCluster

from ..transactions.storm import hurt_cluster
from .flavours import FLAVOURS
from .mutations import FOUND, broken
from .scenarios import SCENARIOS, Report, short

Scenario = Callable[[TestCluster, Path, int], Report]
MUTANTS: dict[str, Scenario] = {f"mutant-{name}": partial(broken, mutant=name) for name in FOUND}
RUNS: dict[str, Scenario] = {"short": short, **SCENARIOS, **FLAVOURS, **MUTANTS}


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description="Spark applications under all faults, with figures.")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="*", default=[], help=", ".join(RUNS))
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the directories of sound runs too")
    arguments = parser.parse_args()
    where = arguments.directory or Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    faults, repeated, bad = Counter[str](), 0, list[str]()
    for name in arguments.only or RUNS:
        with hurt_cluster(where / f"{name}.cluster", tls=False) as cluster:
            report = RUNS[name](cluster, where, arguments.seed)
        good = right(name, report)
        print(report.text(), flush=True)
        faults.update(report.faults)
        repeated += report.repeated
        if not good:
            bad.append(name)
        elif not arguments.keep:
            shutil.rmtree(report.directory)
            shutil.rmtree(where / f"{name}.cluster")
    print(json.dumps({"seed": arguments.seed, "faults": faults, "repeated": repeated, "bad": bad}))
    return int(bool(bad))


def right(name: str, report: Report) -> bool:
    """It found what it should: nothing, or what is broken."""
    wanted = FOUND.get(name.removeprefix("mutant-"))
    return report.sound if wanted is None else any(wanted in found for found in report.anomalies.values())


if __name__ == "__main__":
    sys.exit(main())
