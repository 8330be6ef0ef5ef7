"""
The Spark program of the demo: topic ``flights`` by carrier, into another topic.

``spark-submit flights_by_carrier.py FROM TO`` with the cluster in ``HEADRACE_BOOTSTRAP``. One record per carrier: the
key is its code, the value JSON with the sums that the demo's consumer makes too.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

ROW = "carrier string, dep_delay int, arr_delay int"
SUMS = ("departures", "departure_delays", "departure_delay_sum", "arrival_delays", "arrival_delay_sum")


def by_carrier(records: DataFrame) -> DataFrame:
    """Records of the topic to one row per carrier: ``key`` and ``value``."""
    rows = records.select(f.from_json(f.col("value").cast("string"), ROW).alias("row")).select("row.*")
    sums = rows.groupBy("carrier").agg(
        f.count("*").alias("departures"),
        f.count("dep_delay").alias("departure_delays"),
        f.coalesce(f.sum("dep_delay"), f.lit(0)).alias("departure_delay_sum"),
        f.count("arr_delay").alias("arrival_delays"),
        f.coalesce(f.sum("arr_delay"), f.lit(0)).alias("arrival_delay_sum"),
    )
    return sums.select(f.col("carrier").alias("key"), f.to_json(f.struct("carrier", *SUMS)).alias("value"))


def main(source: str, target: str, bootstrap: str) -> None:
    """Read all that is there, and write the result exactly once."""
    spark = SparkSession.builder.getOrCreate()
    topic = spark.read.format("headrace").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source)
    result = by_carrier(topic.load()).coalesce(1)
    result.write.format("headrace").option("kafka.bootstrap.servers", bootstrap).option("topic", target).mode(
        "append"
    ).save()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], os.environ["HEADRACE_BOOTSTRAP"])
