"""
``python -m bench.spark [--no-peer] [--only NAME,…] [--quick] [--runs N]``: the Spark connector beside Spark's own Kafka
source and sink on a real Kafka, its Parquet reader and its rate source, in one session. ``make bench-spark`` calls it.

Prints a table and, as its last line, the figures as JSON; writes bench/results-spark.json; ``--quick`` writes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import sizes, spark_queries, spark_tables
from bench.kafka_side import PeerMissing
from bench.rows import Row, save, summary, table
from bench.spark_side import Bench, running

RESULTS = Path(__file__).parent / "results-spark.json"
SUITES: dict[str, Callable[[Bench], list[Row]]] = {
    "read": spark_tables.reading,
    "parquet": spark_tables.to_parquet,
    "large": spark_tables.large,
    "sink": spark_tables.writing,
    "micro-batch": spark_queries.micro_batches,
    "idle": spark_queries.idle,
}


def main() -> int:
    """Run the suites asked for; an exception of one ends all, and leaves what the ones before it found."""
    parser = argparse.ArgumentParser(prog="bench.spark", description=__doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"some of: {', '.join(SUITES)}")
    parser.add_argument("--no-peer", action="store_true", help="without a real Kafka (no Maven needed)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that they run; writes no file")
    parser.add_argument("--runs", type=int, default=3)
    a = parser.parse_args()
    if wrong := [name for name in a.only or () if name not in SUITES]:
        parser.error(f"no benchmark is called {wrong[0]}; there are: {', '.join(SUITES)}")
    if a.quick:
        sizes.shrink()
    results: list[Row] = []
    try:
        with running(a.runs, peer=not a.no_peer) as bench:
            for name in a.only or SUITES:
                start = time.monotonic()
                print(f"… {name} (load {os.getloadavg()[0]:.1f})", end="", file=sys.stderr, flush=True)
                results += SUITES[name](bench)
                print(f" {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
                if not a.quick:
                    save(results, RESULTS)
    except PeerMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    finally:
        print(table(results))
        print(summary("spark", results), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
