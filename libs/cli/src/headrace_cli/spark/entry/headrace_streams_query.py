"""
What ``headrace streams spark`` gives to spark-submit: starts a program of ``headrace.streams`` as one query.

``spark-submit headrace_streams_query.py PROGRAM CHECKPOINT always|available-now`` with the cluster in
``HEADRACE_BOOTSTRAP``.
"""

from __future__ import annotations

import os
import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headrace_common.core.errors import HeadraceError
from headrace_streams.program import load
from headrace_streams.spark import start


def main(program: str, checkpoint: str, trigger: str) -> int:
    """Run until it is interrupted, or has done what was there; the number is the exit code."""
    spark = SparkSession.builder.getOrCreate()
    options = {"kafka.bootstrap.servers": os.environ["HEADRACE_BOOTSTRAP"]}
    try:
        query = start(load(program), spark, checkpoint, options=options, available_now=trigger == "available-now")
    except HeadraceError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    except StreamingQueryException as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
