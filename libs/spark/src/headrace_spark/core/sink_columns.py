"""
What a DataFrame must look like to be written, and how its batches become the tables that the SDK sends, one per topic.

Columns are those of Spark's Kafka sink: ``value`` (required), ``key``, ``headers``, ``topic``, ``partition``; no others
are written. Called by the writers: ``check_sink_schema`` where a query is planned, ``tables_by_topic`` in the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace_common.core.errors import InvalidConfig, InvalidTopic, Rejected
from headrace_common.core.ids import check_topic_name
from headrace_spark.core.columns import HEADERS, SPARK_TYPES, FieldGiven, arrow_types

NO_PARTITION: Final = -1
"""The producer's partitioner chooses."""
_BYTES: Final = ("string", "binary")
_TYPES: Final = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    HEADERS: (SPARK_TYPES[HEADERS],),
}
_SENT: Final = ("value", "key", "partition", HEADERS)


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Which columns of a DataFrame are written, and where the rows go."""

    names: tuple[str, ...]
    """As in the DataFrame, by the order of ``sources``."""
    sources: tuple[str, ...]
    """Of ``value``, ``key``, ``partition``, ``headers``."""
    topic: str | None
    """Where all rows go; None: the column ``topic_column`` says."""
    topic_column: str | None = None


def check_sink_schema(given: Sequence[FieldGiven], topic: str | None) -> SinkColumns:
    """
    What of a DataFrame is written.

    Raises:
        InvalidConfig: all that is wrong with it.
    """
    wrong: list[str] = []
    found: dict[str, str] = {}
    for each in given:
        source = each.name.lower()
        if source not in _TYPES:
            continue
        if source in found:
            wrong.append(f"column {source} stands there twice")
        elif each.type_name.replace(" ", "").lower() not in _TYPES[source]:
            wrong.append(f"column {source} is of type {each.type_name[:100]}, it must be {' or '.join(_TYPES[source])}")
        found[source] = each.name
    if "value" not in found:
        wrong.append("a column 'value' of type string or binary is needed; name one so, as in selectExpr('… AS value')")
    if topic is None and "topic" not in found:
        wrong.append("nothing says where rows go; set the option 'topic', or add a column 'topic'")
    if wrong:
        raise InvalidConfig("; ".join(dict.fromkeys(wrong)))
    sources = tuple(source for source in _SENT if source in found)
    return SinkColumns(
        tuple(found[source] for source in sources), sources, topic, None if topic is not None else found["topic"]
    )


def tables_by_topic(batch: pa.RecordBatch, columns: SinkColumns) -> Iterator[tuple[str, pa.Table]]:
    """
    The rows for each topic, in their order, with the columns that ``Producer.send_table`` takes.

    Raises:
        Rejected: a row has no topic; nothing of the batch was given out.
        InvalidTopic: no topic can have this name.
    """
    if not len(batch):
        return
    arrays: list[Any] = [
        _cast(batch.column(name), source) for name, source in zip(columns.names, columns.sources, strict=True)
    ]
    table = pa.Table.from_arrays(arrays, names=list(columns.sources))
    if columns.topic is not None:
        yield columns.topic, table
        return
    assert columns.topic_column is not None, "checked when the query was planned"
    yield from _split(table, batch.column(columns.topic_column))


def _cast(column: Any, source: str) -> Any:
    kind = arrow_types()[source]
    if source == "partition":
        no_partition: Any = pc.fill_null(column.cast(kind), NO_PARTITION)
        return no_partition
    if source == HEADERS or column.type == kind:
        return column
    return column.cast(kind)


def _split(table: pa.Table, topics: Any) -> Iterator[tuple[str, pa.Table]]:
    if topics.null_count:
        raise Rejected(f"{topics.null_count} rows have no topic; fill the column 'topic', or set the option 'topic'")
    encoded = topics.dictionary_encode()
    names = [_name(name) for name in encoded.dictionary.to_pylist()]
    if len(names) == 1:
        yield names[0], table
        return
    codes = encoded.indices.to_numpy()
    order: Any = pa.array(np.argsort(codes, kind="stable"))
    grouped = table.take(order)
    first = 0
    for name, count in zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True):
        yield name, grouped.slice(first, count)
        first += count


def _name(given: str) -> str:
    try:
        return check_topic_name(given)
    except InvalidTopic as error:
        raise InvalidTopic(f"the column 'topic' names no topic: {error}") from None
