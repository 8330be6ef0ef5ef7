"""
When something happened, from a field of a record: timestamps, dates, or numbers since 1970. Called by transforms.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    DataType,
    DateType,
    IntegralType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace_common.core.errors import InvalidConfig
from headrace_jobs.arguments import TIME_UNITS

_DAY_SECONDS: Final = 86_400
_YEAR_1: Final = -62_135_596_800
_YEAR_10000: Final = 253_402_300_800
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}
_OF_NUMBER: Final = {"s": fn.timestamp_seconds, "ms": fn.timestamp_millis, "us": fn.timestamp_micros}


def check_time(schema: StructType, name: str) -> DataType:
    """
    The type of the field that holds the time.

    Raises:
        InvalidConfig: there is no such field, or it cannot hold a time.
    """
    if name not in schema.fieldNames():
        raise InvalidConfig(f"there is no field {name!r} for the time; fields: {', '.join(schema.fieldNames())[:500]}")
    kind = schema[name].dataType
    if not isinstance(kind, (DateType, TimestampType, TimestampNTZType, IntegralType)):
        raise InvalidConfig(
            f"field {name!r} is of type {kind.simpleString()[:100]} and no time; declare it timestamp, date, or a "
            "whole number with --time-unit"
        )
    return kind


def event_time(field: Column, kind: DataType, unit: str) -> Column:
    """A field as timestamp, ``unit`` being that of whole numbers; null where it lies outside the years 1 to 9999."""
    assert unit in TIME_UNITS, "argparse lets no other through"
    if not isinstance(kind, IntegralType):
        time = field.cast("timestamp")
        return fn.when(fn.unix_seconds(time).between(_YEAR_1, _YEAR_10000 - 1), time)
    number = field.cast("bigint")
    per_second = _PER_SECOND[unit]
    return _OF_NUMBER[unit](fn.when(number.between(_YEAR_1 * per_second, _YEAR_10000 * per_second - 1), number))


def utc_date(time: Column) -> Column:
    """The date in UTC, whatever the session's time zone is: a replayed batch must land where it landed before."""
    return fn.date_from_unix_date(fn.floor(fn.unix_seconds(time) / fn.lit(_DAY_SECONDS)).cast("int"))
