"""
Records of topics as records to write: which, with what key and value, and what they keep.

Expressions are Spark SQL over the columns ``key`` and ``value`` (text), ``topic``, ``partition``, ``offset``,
``timestamp``, ``headers``, and with a schema the fields of the value as ``json.FIELD``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from headrace_jobs.json_values import FIELDS, REASON, with_fields

KEEPS: Final = ("key", "headers", "partition", "timestamp", "position")
JSON: Final = "json"
SOURCE_TIMESTAMP: Final = "headrace.source.timestamp"
SOURCE_POSITION: Final = "headrace.source.position"
READABLE: Final = "readable"
"""Whether the value could be read; only where there is a schema."""
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_RAW_KEY, _RAW_VALUE = "_raw_key", "_raw_value"


@dataclass(frozen=True, slots=True)
class Copy:
    """What is copied."""

    filter: str | None = None
    """A condition; None: all."""
    select: str | None = None
    """Fields or expressions, separated by commas, that make the new value, a JSON object; None: the value as it is."""
    schema: StructType | None = None
    """Of the values, for ``json.FIELD``; None: they are not read."""
    keep: tuple[str, ...] = ("key", "headers")
    """Of ``KEEPS``. ``timestamp`` and ``position`` become headers: the sink sets the time and offset itself."""
    one_topic: bool = True
    """Whether all goes to one topic; else each record goes to the topic of its name."""


def copy_records(records: DataFrame, copy: Copy) -> DataFrame:
    """
    The records to write, with the columns that the connector's sink takes.

    Args:
        records: as the connector's source gives them, with ``headers`` if these are kept.
    """
    rows = _filter(_read(records, copy), copy)
    columns: list[Column] = [_value(copy).alias("value")]
    if "key" in copy.keep:
        columns.append(fn.col(_RAW_KEY).alias("key"))
    if "partition" in copy.keep:
        columns.append(fn.col("partition"))
    headers = _headers(copy)
    if headers is not None:
        columns.append(headers.alias("headers"))
    if not copy.one_topic:
        columns.append(fn.col("topic"))
    return rows.select(*columns)


def _read(records: DataFrame, copy: Copy) -> DataFrame:
    """All columns that expressions may name, beside the bytes as they were."""
    rows = records.withColumns(
        {
            _RAW_KEY: fn.col("key"),
            _RAW_VALUE: fn.col("value"),
            "key": fn.col("key").cast("string"),
            "value": fn.col("value").cast("string"),
        }
    )
    if copy.schema is None:
        return rows
    read = with_fields(rows, copy.schema, value=_RAW_VALUE)
    return read.withColumns({JSON: fn.col(FIELDS), READABLE: fn.col(REASON).isNull()}).drop(FIELDS, REASON)


def _filter(rows: DataFrame, copy: Copy) -> DataFrame:
    return rows if copy.filter is None else rows.where(fn.expr(copy.filter))


def _value(copy: Copy) -> Column:
    if copy.select is None:
        return fn.col(_RAW_VALUE)
    return fn.expr(f"to_json(struct({copy.select}))")


def _headers(copy: Copy) -> Column | None:
    added: list[Column] = []
    if "timestamp" in copy.keep:
        added.append(_header(SOURCE_TIMESTAMP, fn.unix_millis(fn.col("timestamp")).cast("string")))
    if "position" in copy.keep:
        added.append(_header(SOURCE_POSITION, fn.concat_ws("/", "topic", "partition", "offset")))
    kept = fn.coalesce(fn.col("headers"), fn.array().cast(_HEADERS)) if "headers" in copy.keep else None
    if not added:
        return kept
    new = fn.array(*added).cast(_HEADERS)
    return new if kept is None else fn.concat(kept, new)


def _header(name: str, text: Column) -> Column:
    return fn.struct(fn.lit(name).alias("key"), text.cast("binary").alias("value"))
