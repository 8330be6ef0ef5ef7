"""
What topics hold, as small tables: sizes and ages per partition, gaps in offsets, duplicates, shares of keys.

All take the rows of ``project``: what is needed of each record, and not its value.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

TOPIC_PARTITION: Final = ("topic", "partition")
BOUNDS: Final = "topic string, partition int, log_start bigint, log_end bigint, start_after bigint, compacted boolean"
"""The schema of what the cluster says: the offsets before the records were read, and the log start afterwards."""
RETENTION, MARKERS, COMPACTION, UNEXPLAINED = "retention", "markers", "compaction", "unexplained"


def project(records: DataFrame, id_field: str | None = None) -> DataFrame:
    """
    What is needed of each record: position, time, key, sizes, and ``identity``, by which records are the same.

    Args:
        records: as the connector's source gives them.
        id_field: a JSON path without ``$.``, as in ``order.id``; records without it have no identity. None: records
            with equal key, timestamp, length and hash of the value are the same.
    """
    return records.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        fn.coalesce(fn.octet_length("key"), fn.lit(0)).alias("key_bytes"),
        fn.octet_length("value").alias("value_bytes"),
        _identity(id_field).alias("identity"),
    )


def _identity(id_field: str | None) -> Column:
    if id_field is not None:
        return fn.get_json_object(fn.col("value").cast("string"), f"$.{id_field}")
    parts = ("key", "timestamp", "value")
    known = fn.concat_ws("/", *(fn.hex(fn.xxhash64(fn.lit(seed), *parts)) for seed in (0, 1)))
    return fn.concat_ws("/", known, fn.octet_length("value").cast("string"))


def partitions(rows: DataFrame, bounds: DataFrame) -> DataFrame:
    """
    One row per partition, with what the cluster says of it, whether or not it holds records.

    Args:
        rows: as ``project`` gives them.
        bounds: of the schema ``BOUNDS``.
    """
    size = fn.col("key_bytes") + fn.coalesce(fn.col("value_bytes"), fn.lit(0))
    found = rows.groupBy(*TOPIC_PARTITION).agg(
        fn.count(fn.lit(1)).alias("records"),
        fn.count_if(fn.col("value_bytes").isNull()).alias("tombstones"),
        fn.count_if(fn.col("key").isNull()).alias("without_key"),
        fn.min("offset").alias("first_offset"),
        fn.max("offset").alias("last_offset"),
        fn.min("timestamp").alias("oldest"),
        fn.max("timestamp").alias("newest"),
        fn.sum(size).alias("bytes"),
        fn.min(size).alias("bytes_min"),
        fn.avg(size).alias("bytes_avg"),
        fn.max(size).alias("bytes_max"),
    )
    records = fn.coalesce(fn.col("records"), fn.lit(0))
    total = fn.sum("records").over(Window.partitionBy("topic"))
    counted = ("records", "tombstones", "without_key", "bytes")
    return (
        bounds.join(found, list(TOPIC_PARTITION), "left")
        .withColumns({name: fn.coalesce(fn.col(name), fn.lit(0)).cast("bigint") for name in counted})
        .withColumn("missing", fn.col("log_end") - fn.col("log_start") - records)
        .withColumn("share", fn.when(total > 0, fn.col("records") / total).otherwise(fn.lit(0.0)))
    )


def gaps(rows: DataFrame, bounds: DataFrame, *, markers_max: int) -> DataFrame:
    """
    Runs of offsets between log start and log end that no record has, and what may explain each.

    Explained: ``retention``, the log start has passed it meanwhile; ``markers``, it is as short as what ends of
    transactions take; ``compaction``, the topic is compacted.

    Args:
        rows: as ``project`` gives them, of the partitions of ``bounds``, or more.
        bounds: of the schema ``BOUNDS``.
        markers_max: the longest run that is taken for ends of transactions.
    """
    edges = bounds.select(
        *TOPIC_PARTITION, fn.explode(fn.array(fn.col("log_start") - 1, fn.col("log_end"))).alias("offset")
    )
    held = rows.select(*TOPIC_PARTITION, "offset").join(bounds.select(*TOPIC_PARTITION), list(TOPIC_PARTITION), "semi")
    after = Window.partitionBy(*TOPIC_PARTITION).orderBy("offset")
    runs = (
        held.union(edges)
        .withColumn("end", fn.lead("offset").over(after))
        .where(fn.col("end") > fn.col("offset") + 1)
        .select(*TOPIC_PARTITION, (fn.col("offset") + 1).alias("start"), "end")
        .withColumn("missing", fn.col("end") - fn.col("start"))
    )
    said = runs.join(fn.broadcast(bounds), list(TOPIC_PARTITION))
    cause = (
        fn.when(fn.col("end") <= fn.col("start_after"), fn.lit(RETENTION))
        .when(fn.col("missing") <= markers_max, fn.lit(MARKERS))
        .when(fn.col("compacted"), fn.lit(COMPACTION))
        .otherwise(fn.lit(UNEXPLAINED))
    )
    return said.select(*TOPIC_PARTITION, "start", "end", "missing", cause.alias("cause"))


def duplicates(rows: DataFrame) -> DataFrame:
    """Identities that more than one record of a topic has: how many, and the first and last place."""
    place = fn.struct("timestamp", "partition", "offset")
    return (
        rows.where(fn.col("identity").isNotNull())
        .groupBy("topic", "identity")
        .agg(
            fn.count(fn.lit(1)).alias("records"),
            fn.min(place).alias("first"),
            fn.max(place).alias("last"),
        )
        .where(fn.col("records") > 1)
    )


def keys(rows: DataFrame, *, top: int) -> DataFrame:
    """The ``top`` keys of each topic by records, with their share of the topic's records. Null is a key."""
    by_key = rows.groupBy("topic", "key").agg(
        fn.count(fn.lit(1)).alias("records"),
        fn.sum(fn.col("key_bytes") + fn.coalesce(fn.col("value_bytes"), fn.lit(0))).alias("bytes"),
    )
    order = Window.partitionBy("topic").orderBy(fn.desc("records"), fn.col("key").asc_nulls_first())
    topic = Window.partitionBy("topic")
    return (
        by_key.withColumns(
            {
                "rank": fn.row_number().over(order),
                "share": fn.col("records") / fn.sum("records").over(topic),
                "keys": fn.count(fn.lit(1)).over(topic),
            }
        )
        .where(fn.col("rank") <= top)
        .select("topic", "rank", "key", "records", "bytes", "share", "keys")
    )
