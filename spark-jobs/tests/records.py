"""Records as the connector's source gives them, for tests of transforms."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
TIME = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def record(value: bytes | None, offset: int = 0, **other: Any) -> tuple[Any, ...]:
    """One record; what is not named is as dull as can be."""
    return (
        other.get("key"),
        value,
        other.get("topic", "t"),
        other.get("partition", 0),
        offset,
        other.get("timestamp", TIME),
        0,
        other.get("headers"),
    )


def records(spark: SparkSession, rows: Iterable[tuple[Any, ...]]) -> DataFrame:
    """A table of records; Arrow, as that needs no Python worker."""
    columns = list(zip(*rows, strict=True))
    return spark.createDataFrame(
        pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    )


def values(spark: SparkSession, given: Iterable[bytes | None]) -> DataFrame:
    """A table of records with these values, at offsets from 0."""
    return records(spark, (record(value, offset) for offset, value in enumerate(given)))
