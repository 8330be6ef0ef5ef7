"""
A Spark application that may be killed at any moment: ``application.py PLAN``.

PLAN is JSON, written by ``copying.py``: queries that copy rows, with partition and offset of their source, to sinks. It
ends with 0 when all rows are there, after it has read the sinks through Spark; with 3 when another application has its
queries; with 5 when Spark has torn a map of its session, which no query of that session survives. A query that fails is
started again, as often as the plan says.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

FENCED, GIVEN_UP, TORN = 3, 4, 5
OTHERS = ("FencedOwner", "ConcurrentModification", "CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries")
"""What is in the text of an error after which this application leaves its queries to another one."""
TORN_MAP = "IllegalStateException: Illegal size"
"""Queries of one Python source that are planned at the same moment write into one map of the session without a lock, in
Spark; rarely it is torn, and every later query of this session fails as it is serialized."""
LOOK_S = 0.1
Query = dict[str, Any]


def session(settings: dict[str, str]) -> SparkSession:
    """On this machine; a task is tried four times, as on a cluster."""
    builder = SparkSession.Builder().master("local[2,4]").appName("copies")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def start(spark: SparkSession, query: Query, *, available_now: bool) -> StreamingQuery:
    """From where its checkpoint says."""
    source = spark.readStream.format(query["source"]).options(**query["from"])
    if "schema" in query:
        source = source.schema(query["schema"])
    rows = source.load().select("partition", "offset", f.col("value").cast("string").alias("value"))
    if query["sink"] == "headrace":
        whence = f.concat_ws(":", "partition", "offset", "value").alias("value")
        rows = rows.select(f.col("partition").cast("string").alias("key"), whence)
    writer = rows.writeStream.format(query["sink"]).queryName(query["name"]).options(**query["to"])
    writer = writer.option("checkpointLocation", query["checkpoint"])
    return writer.trigger(**({"availableNow": True} if available_now else {"processingTime": "0 seconds"})).start()


def read(spark: SparkSession, query: Query) -> DataFrame:
    """What is in a sink for those who read it through Spark: ``partition:offset:value``."""
    if query["sink"] == "parquet":
        return spark.read.parquet(query["to"]["path"]).select(f.concat_ws(":", "partition", "offset", "value"))
    options = {**query["read"], "subscribe": query["to"]["topic"], "startingOffsets": "earliest"}
    options["kafka.isolation.level"] = "read_committed"
    return spark.read.format("headrace").options(**options).load().select(f.col("value").cast("string"))


class Application:
    """All queries of one plan."""

    def __init__(self, spark: SparkSession, plan: dict[str, Any]) -> None:
        self._spark, self._plan = spark, plan
        self._finish = None if plan["finish"] is None else Path(plan["finish"])
        self._running: dict[str, StreamingQuery] = {}
        self._queries: dict[str, Query] = {query["name"]: query for query in plan["queries"]}
        self._waiting = list(self._queries)
        self._failures = 0
        self._ready = False
        self._parent = os.getppid()

    def run(self) -> int:
        """Until all rows are there."""
        while self._running or self._waiting:
            time.sleep(LOOK_S)
            if os.getppid() != self._parent:
                return GIVEN_UP
            code = self._start_all()
            if code:
                return code
            for name, query in list(self._running.items()):
                code = self._look(name, query)
                if code:
                    return code
            if not self._ready and not self._waiting and all(query.lastProgress for query in self._running.values()):
                self._ready = True
                print("ready", flush=True)
        for query in self._plan["queries"]:
            found = read(self._spark, query).toArrow().column(0).to_pylist()
            Path(self._plan["seen"], query["name"]).write_text("\n".join(found))
        return 0

    def _start_all(self) -> int:
        """Those that are not running; that fails, too, when Spark's Python process that plans it is killed."""
        for name in list(self._waiting):
            try:
                self._running[name] = start(self._spark, self._queries[name], available_now=self._finish is None)
            except (Py4JJavaError, PySparkException) as error:
                return self._failed(name, str(error))
            self._waiting.remove(name)
        return 0

    def _look(self, name: str, query: StreamingQuery) -> int:
        try:
            if query.isActive:
                if self._finish is not None and self._finish.exists():
                    query.processAllAvailable()
                    query.stop()
                    del self._running[name]
                return 0
            query.awaitTermination()
            del self._running[name]
            return 0
        except StreamingQueryException as error:
            return self._failed(name, str(error))

    def _failed(self, name: str, error: str) -> int:
        self._failures += 1
        print(f"query failed: {name}: {error}", flush=True)
        if any(word in error for word in OTHERS):
            print(f"fenced: {name}", flush=True)
            return FENCED
        if TORN_MAP in error:
            print(f"the session is torn: {name}", flush=True)
            return TORN
        if self._failures > self._plan["restarts"]:
            return GIVEN_UP
        self._running.pop(name, None)
        if name not in self._waiting:
            self._waiting.append(name)
        return 0


def main(path: Path) -> int:
    """One life."""
    plan = json.loads(path.read_text())
    spark = session(plan["spark"])
    try:
        return Application(spark, plan).run()
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
