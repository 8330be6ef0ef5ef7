"""
The same program on Spark: ``from headrace_streams.spark import start``.

For what the columns of a program say (filters, computed columns, windows with ``emit="final"``, joins of streams); what
Spark would do otherwise is refused. Needs the packages ``headrace-streams[spark]`` here and where Spark's tasks run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace_streams.dsl.app import App

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def compile(app: App, spark: SparkSession, options: Mapping[str, str] | None = None) -> DataFrame:
    """
    What a program writes, as a streaming DataFrame with the columns ``topic``, ``key`` and ``value``.

    Args:
        options: for reading, of ``format("headrace")``, such as ``kafka.bootstrap.servers``, ``maxOffsetsPerTrigger``.

    Raises:
        NotAllowed: Spark cannot do all of it with the same result; tells each step that it cannot, and where it is.
    """
    from headrace_streams.spark.subset import steps_of

    steps = steps_of(app)
    from headrace_streams.spark.frames import Frames, check_session, grace_of

    check_session(spark)
    return Frames(spark, options or {}, stream=True, grace_ms=grace_of(steps)).written(steps)


def start(
    app: App,
    spark: SparkSession,
    checkpoint: str,
    *,
    options: Mapping[str, str] | None = None,
    available_now: bool = False,
) -> StreamingQuery:
    """
    Start a program as one query, exactly once into its topics; it goes on where its checkpoint is, at first with the
    first record.

    Args:
        checkpoint: a directory that all of Spark reaches.
        options: for reading and writing, as for ``compile``; the address of the cluster is for both.
        available_now: do what is there, and end.

    Raises:
        NotAllowed: as ``compile``.
    """
    given = dict(options or {})
    cluster = {name: value for name, value in given.items() if name.lower().endswith("bootstrap.servers")}
    writer = compile(app, spark, given).writeStream.queryName(app.name).format("headrace").options(**cluster)
    if available_now:
        writer = writer.trigger(availableNow=True)
    return writer.option("checkpointLocation", checkpoint).outputMode("append").start()
