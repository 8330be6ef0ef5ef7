"""
Records of topics as rows of a lake: parsed fields, where each came from, and whether it could be read.

One table holds both kinds, apart by the partition column ``quality``: what could be read (``good``) and what could not
(``bad``, with the reason and the bytes as they were). So one sink commits both, and no record is in neither or in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import AtomicType, StructType

from headrace_common.core.errors import InvalidConfig
from headrace_jobs.event_time import check_time, event_time, utc_date
from headrace_jobs.json_values import FIELDS, REASON, check_fields, with_fields
from headrace_jobs.topic_to_lake.arrow_values import ROW, with_decoded_fields

QUALITY: Final = "quality"
GOOD: Final = "good"
BAD: Final = "bad"
EVENT_DATE: Final = "event_date"
TOPIC, PARTITION, OFFSET, TIMESTAMP = "_topic", "_partition", "_offset", "_timestamp"
KEY, VALUE, HEADERS = "_key", "_value", "_headers"
_RESERVED: Final = frozenset(
    {TOPIC, PARTITION, OFFSET, TIMESTAMP, KEY, VALUE, HEADERS, REASON, FIELDS, ROW, QUALITY, EVENT_DATE}
)
_PARTITIONABLE: Final = (EVENT_DATE, TOPIC, PARTITION)


@dataclass(frozen=True, slots=True)
class Lake:
    """What the rows of a lake look like."""

    schema: StructType
    """Of the values; fields that are not nullable must be there."""
    values: str = "json"
    """Or ``arrow``: each value is a stream of Arrow's IPC format."""
    partition_by: tuple[str, ...] = (EVENT_DATE,)
    """After ``quality``: ``event_date``, ``_topic``, ``_partition``, or fields."""
    time: str | None = None
    """The field that ``event_date`` is taken from; None: the record's timestamp."""
    time_unit: str = "ms"
    """Of the time, where it is a whole number."""
    timestamp_format: str | None = None
    """For fields of type timestamp in JSON; None: ISO 8601."""
    keep_value: bool = False
    """
    Whether good rows keep the bytes of their value too: fields that the schema does not name are only there. Of the
    rows of one Arrow value the first keeps them.
    """
    headers: bool = False
    """Whether rows keep the headers."""


def check_lake(lake: Lake) -> None:
    """
    Look at what no record can change.

    Raises:
        InvalidConfig: fields, partition columns or the time do not fit.
    """
    check_fields(lake.schema)
    fields = lake.schema.fieldNames()
    taken = [name for name in fields if name.lower() in _RESERVED]
    if taken:
        raise InvalidConfig(f"the fields {', '.join(taken)} have names of the lake's own columns; select others")
    if lake.time is not None:
        check_time(lake.schema, lake.time)
    if len(set(lake.partition_by)) != len(lake.partition_by):
        raise InvalidConfig("a column stands in --partition-by twice")
    for name in lake.partition_by:
        if name in _PARTITIONABLE:
            continue
        if name not in fields:
            raise InvalidConfig(
                f"--partition-by names {name!r}; it takes {', '.join((*_PARTITIONABLE, *fields))[:500]}"
            )
        if not isinstance(lake.schema[name].dataType, AtomicType):
            raise InvalidConfig(f"--partition-by names {name!r}, which is not of a simple type")
    if set(fields) <= set(lake.partition_by):
        raise InvalidConfig("--partition-by names all fields; one at least must stand in the files")


def rows(records: DataFrame, lake: Lake) -> DataFrame:
    """
    The rows of the lake, one per record (of Arrow: one per row of it; a bad record is one row).

    Args:
        records: as the connector's source gives them, with ``headers`` if the lake keeps them.
        lake: as ``check_lake`` has seen it.
    """
    if lake.values == "arrow":
        read = with_decoded_fields(records, lake.schema, headers=lake.headers)
    else:
        read = with_fields(records, lake.schema, timestamp_format=lake.timestamp_format)
    bad = fn.col(REASON).isNotNull()
    kept = fn.col("value") if lake.keep_value else fn.when(bad, fn.col("value"))
    columns = [fn.col(FIELDS)[name].alias(name) for name in lake.schema.fieldNames()]
    columns += [
        fn.col("topic").alias(TOPIC),
        fn.col("partition").alias(PARTITION),
        fn.col("offset").alias(OFFSET),
        *([fn.col(ROW)] if lake.values == "arrow" else []),
        fn.col("timestamp").alias(TIMESTAMP),
        fn.col("key").alias(KEY),
        *([fn.col("headers").alias(HEADERS)] if lake.headers else []),
        kept.alias(VALUE),
        fn.col(REASON),
        fn.when(bad, fn.lit(BAD)).otherwise(fn.lit(GOOD)).alias(QUALITY),
    ]
    if EVENT_DATE in lake.partition_by:
        columns.append(utc_date(_time(lake)).alias(EVENT_DATE))
    return read.select(*columns)


def partition_columns(lake: Lake) -> list[str]:
    """The directories of the lake, from the outside in."""
    return [QUALITY, *lake.partition_by]


def _time(lake: Lake) -> Column:
    if lake.time is None:
        return fn.col("timestamp")
    kind = check_time(lake.schema, lake.time)
    return fn.coalesce(event_time(fn.col(FIELDS)[lake.time], kind, lake.time_unit), fn.col("timestamp"))
