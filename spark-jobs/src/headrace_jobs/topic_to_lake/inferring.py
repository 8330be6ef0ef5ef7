"""A schema from what a topic holds, for the first run of a lake. Called by ``job``."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headrace_common.core.errors import InvalidConfig
from headrace_jobs.running import table

SAMPLE: Final = 10_000
"""Records of JSON that are looked at."""
ARROW_SAMPLE: Final = 100
"""Records of Arrow, of which the first that can be read says the schema."""


def infer_schema(spark: SparkSession, options: dict[str, str], values: str) -> StructType:
    """
    The schema of the oldest records.

    Raises:
        InvalidConfig: there are none that could be read.
    """
    records = table(spark, options).select("value").where(fn.col("value").isNotNull())
    schema = of_arrow(records.limit(ARROW_SAMPLE)) if values == "arrow" else of_json(spark, records.limit(SAMPLE))
    if not schema.fields:
        raise InvalidConfig(f"no record could be read as {values}, so there is no schema to infer; give --schema")
    return schema


def of_json(spark: SparkSession, records: DataFrame) -> StructType:
    """Fields of any of the objects, with a type that holds all of their values."""
    texts = records.select(fn.col("value").cast("string"))
    return spark.read.option("mode", "DROPMALFORMED").json(texts).schema


def of_arrow(records: DataFrame) -> StructType:
    """The schema of the first value that is a stream of Arrow; none: no fields."""
    for record in records.collect():
        try:
            with pa.ipc.open_stream(bytes(record.value)) as stream:
                return from_arrow_schema(stream.schema)
        except (pa.ArrowException, OSError):
            continue
    return StructType([])
