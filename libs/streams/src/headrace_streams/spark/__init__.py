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

    from headrace.records import TopicPartition


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


def backfill(
    app: App,
    spark: SparkSession,
    *,
    until: Mapping[TopicPartition, int] | None = None,
    bootstrap_servers: str | None = None,
    options: Mapping[str, str] | None = None,
) -> None:
    """
    Compute the history of an app that has not begun, and give it to the app: closed windows as records of its topics,
    open ones and aggregates by key as its state, and the positions behind what was read. The app then goes on there.

    All of that is one transaction: if this fails, run it again. What is written passes through this process.

    Args:
        until: where history ends, in each partition that the app reads; where the topics end now if not told.
        bootstrap_servers: the cluster; found as every client finds it if not told.
        options: for reading, of ``format("headrace")``.

    Raises:
        NotAllowed: Spark cannot compute it with the same result; tells each step that it cannot, and where it is.
        Rejected: the app has begun already.
        NonEmptyGroup: it runs.
    """
    from headrace_streams.spark.subset import steps_of
    from headrace_streams.upkeep import fill, ground

    steps = steps_of(app, history=True)
    from headrace_streams.spark.frames import check_session
    from headrace_streams.spark.history import HistoryFrames

    check_session(spark)
    found = ground(app, until, bootstrap_servers)
    reading = dict(options or {})
    if bootstrap_servers is not None:
        reading["kafka.bootstrap.servers"] = bootstrap_servers
    fill(app, HistoryFrames(spark, reading, found).read(steps), bootstrap_servers)
