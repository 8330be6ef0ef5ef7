"""
Records of topics to counts, sums, minima, maxima and averages over windows of event time, as records to write.

A record counts in each window that holds its event time. Records behind the watermark, which follows the newest event
time, may be left out; the metrics under ``METRICS`` count what is not aggregated, and what may not be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import NumericType, StructType

from headrace_common.core.errors import InvalidConfig
from headrace_jobs.event_time import check_time, event_time
from headrace_jobs.json_values import FIELDS, REASON, check_fields, with_fields

METRICS: Final = "values"
UNREADABLE, WITHOUT_TIME, AHEAD, BEHIND = "unreadable", "without_time", "ahead", "behind"
COUNT: Final = "count"
START, END = "window_start", "window_end"
_TIME, _WINDOW = "_time", "_window"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_JSON: Final = {"timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "ignoreNullFields": "false"}


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One number per window and group."""

    kind: str
    """Of ``KINDS``."""
    field: str | None = None
    """None with ``count``: records; with it, records where the field is not null."""

    @property
    def name(self) -> str:
        return self.kind if self.field is None else f"{self.kind}_{self.field}"


KINDS: Final = {
    COUNT: fn.count,
    "sum": fn.try_sum,
    "min": fn.min,
    "max": fn.max,
    "avg": fn.try_avg,
}
"""A sum too large for its type is null; it does not end the query."""


@dataclass(frozen=True, slots=True)
class Windows:
    """What is computed."""

    schema: StructType
    size: str
    """Of a window, as in ``1 hour``."""
    watermark: str
    """How much later than the newest a record may come and still count for sure."""
    aggregates: tuple[Aggregate, ...] = (Aggregate(COUNT),)
    keys: tuple[str, ...] = ()
    """Fields that make the groups."""
    time: str | None = None
    """The field with the event time; None: the record's timestamp."""
    time_unit: str = "ms"
    slide: str | None = None
    """How far apart windows begin; None: one behind the other."""
    ahead_max: str = "1 hour"
    """Event times later than this after the record's timestamp are left out: one would move the watermark for all."""
    key_with_window: bool = False
    """Whether the key of a result holds its window's start, so that compaction keeps one result per window."""


def aggregates_of(text: str) -> tuple[Aggregate, ...]:
    """
    Read a list as ``count, sum:delay``.

    Raises:
        InvalidConfig: an aggregate is unknown, lacks a field, or stands there twice.
    """
    found: list[Aggregate] = []
    for part in text.split(","):
        kind, _, field = (each.strip() for each in part.partition(":"))
        if kind not in KINDS or (not field and kind != COUNT):
            raise InvalidConfig(
                f"--aggregates takes count, or one of {', '.join(KINDS)} with a field, as in 'sum:delay'; "
                f"not {part.strip()[:50]!r}"
            )
        found.append(Aggregate(kind, field or None))
    if len(set(found)) != len(found):
        raise InvalidConfig("an aggregate stands in --aggregates twice")
    return tuple(found)


def check_windows(windows: Windows) -> None:
    """
    Look at what no record can change.

    Raises:
        InvalidConfig: a key, the time or the field of an aggregate does not fit the schema.
    """
    check_fields(windows.schema)
    fields = windows.schema.fieldNames()
    if windows.time is not None:
        check_time(windows.schema, windows.time)
    for name in (*windows.keys, *(each.field for each in windows.aggregates if each.field)):
        if name not in fields:
            raise InvalidConfig(f"the schema has no field {name!r}; fields: {', '.join(fields)[:500]}")
    for each in windows.aggregates:
        if each.kind not in ("sum", "avg") or each.field is None:
            continue
        if not isinstance(windows.schema[each.field].dataType, NumericType):
            raise InvalidConfig(f"{each.kind} needs a number, and field {each.field!r} is none; change the schema")
    results = [START, END, *windows.keys, *(each.name for each in windows.aggregates)]
    if len({name.lower() for name in results}) != len(results):
        raise InvalidConfig(f"two columns of the result have one name: {', '.join(results)[:500]}")


def aggregate(records: DataFrame, windows: Windows) -> DataFrame:
    """
    One record per window and group: ``key`` and ``value``, the latter a JSON object.

    Args:
        records: as the connector's source gives them.
        windows: as ``check_windows`` has seen it.
    """
    rows = _add_time(records, windows)
    ahead = fn.col(_TIME) > fn.col("timestamp") + _interval(windows.ahead_max)
    counted = rows.observe(
        METRICS,
        _sum_of(fn.col(REASON).isNotNull(), UNREADABLE),
        _sum_of(fn.col(REASON).isNull() & fn.col(_TIME).isNull(), WITHOUT_TIME),
        _sum_of(ahead, AHEAD),
        _sum_of(fn.col(_TIME) < fn.col("timestamp") - _interval(windows.watermark), BEHIND),
    )
    kept = counted.where(fn.col(REASON).isNull() & fn.col(_TIME).isNotNull() & ~ahead)
    groups = kept.withWatermark(_TIME, windows.watermark).groupBy(
        fn.window(fn.col(_TIME), windows.size, windows.slide).alias(_WINDOW),
        *(fn.col(FIELDS)[name].alias(name) for name in windows.keys),
    )
    return _results(groups.agg(*(_aggregate(each) for each in windows.aggregates)), windows)


def _add_time(records: DataFrame, windows: Windows) -> DataFrame:
    read = with_fields(records, windows.schema)
    if windows.time is None:
        return read.withColumn(_TIME, fn.col("timestamp"))
    kind = check_time(windows.schema, windows.time)
    return read.withColumn(_TIME, event_time(fn.col(FIELDS)[windows.time], kind, windows.time_unit))


def _results(found: DataFrame, windows: Windows) -> DataFrame:
    times = [fn.col(_WINDOW)["start"].alias(START), fn.col(_WINDOW)["end"].alias(END)]
    keys = [fn.col(name) for name in windows.keys]
    value = fn.struct(*times, *keys, *(fn.col(each.name) for each in windows.aggregates))
    return found.select(_key(windows, times[0], keys).alias("key"), fn.to_json(value, _JSON).alias("value"))


def _key(windows: Windows, start: Column, keys: list[Column]) -> Column:
    if windows.key_with_window:
        return fn.to_json(fn.struct(start, *keys), _JSON)
    if not keys:
        return fn.lit(None).cast("string")
    return keys[0].cast("string") if len(keys) == 1 else fn.to_json(fn.struct(*keys), _JSON)


def _aggregate(each: Aggregate) -> Column:
    counted = fn.lit(1) if each.field is None else fn.col(FIELDS)[each.field]
    return KINDS[each.kind](counted).alias(each.name)


def _sum_of(condition: Column, name: str) -> Column:
    return fn.coalesce(fn.count_if(condition), fn.lit(0)).alias(name)


def _interval(text: str) -> Column:
    return fn.expr(f"INTERVAL '{text}'")
