"""
A streaming query from its start to its end, and what it did. Called by each job's ``job``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace_jobs.arguments import Trigger
from headrace_jobs.session import JobFailed, reason

LOOK_SECONDS: Final = 5
"""How often a running query is asked for its progress; Spark keeps its last 100 micro-batches."""
_LOG: Final = logging.getLogger("headrace_jobs")


@dataclass(slots=True)
class Done:
    """What a query did in this run."""

    batches: int = 0
    rows: int = 0
    """That were read."""
    late_groups: int = 0
    """Groups of rows that came behind the watermark and were left out, as Spark's state counts them."""
    observed: dict[str, int] = field(default_factory=dict)
    """Sums of the metrics that the job observes."""

    def add(self, progress: dict[str, Any]) -> None:
        """Count one micro-batch, as Spark's progress report describes it."""
        self.batches += 1
        self.rows += int(progress.get("numInputRows") or 0)
        self.late_groups += sum(
            int(state.get("numRowsDroppedByWatermark") or 0) for state in progress.get("stateOperators") or ()
        )
        for metrics in (progress.get("observedMetrics") or {}).values():
            for name, value in metrics.items():
                if isinstance(value, int):
                    self.observed[name] = self.observed.get(name, 0) + value

    def summary(self) -> dict[str, int]:
        """For people and schedulers."""
        return {"batches": self.batches, "rows": self.rows, "late_groups": self.late_groups, **self.observed}


def start(rows: DataFrame, trigger: Trigger, shape: Callable[[DataStreamWriter], DataStreamWriter]) -> StreamingQuery:
    """Begin a query; ``shape`` says where its rows go, and where its checkpoint is."""
    writer = shape(rows.writeStream)
    if trigger.interval is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=trigger.interval).start()


def wait_for_end(query: StreamingQuery, *, look_seconds: int = LOOK_SECONDS) -> Done:
    """
    Wait until the query ends, logging its micro-batches.

    Raises:
        JobFailed: the query failed.
    """
    done = Done()
    last = -1
    ended = False
    try:
        while not ended:
            ended = bool(query.awaitTermination(look_seconds))
            last = _look(query, last, done)
    except StreamingQueryException as error:
        raise JobFailed(reason(error)) from error
    finally:
        if not ended:
            query.stop()
    return done


def _look(query: StreamingQuery, last: int, done: Done) -> int:
    for progress in query.recentProgress:
        report = json.loads(progress.json)
        batch = int(report["batchId"])
        if batch <= last or "durationMs" not in report or "addBatch" not in report["durationMs"]:
            continue
        last = batch
        done.add(report)
        _LOG.info("batch %d: %d rows in %s ms", batch, report.get("numInputRows", 0), report.get("batchDuration"))
    return last


def stream(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """Topics as an unbounded table."""
    return spark.readStream.format("headrace").options(**options).load()


def table(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """What topics hold now."""
    return spark.read.format("headrace").options(**options).load()
