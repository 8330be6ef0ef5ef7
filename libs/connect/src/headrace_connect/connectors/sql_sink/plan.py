"""What is to be written of some records: the columns, the key, which rows are deletes, which are wrong before all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace_connect.connectors.sql_sink.kinds import is_bytes, is_text
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.plugin import Rows

Array: TypeAlias = "pa.Array[Any]"


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Columns to be written; all have one value for each record."""

    columns: dict[str, Array]
    keys: tuple[str, ...]
    """Those of ``columns`` that are the key; empty: there is none."""
    deletes: Array
    """Booleans: the record deletes the row of its key."""
    wrong: dict[int, str]


class NoSuchKey(ValueError):
    """The settings name a key that records do not have."""


def plan_rows(rows: Rows, settings: SinkSettings) -> Plan:
    """
    Raises:
        NoSuchKey: see there.
    """
    deletes = rows.values.is_null()
    keys = _key_columns(rows, settings)
    fields = _by_name(rows.table)
    if settings.fields_whitelist:
        fields = {name: field for name, field in fields.items() if name in settings.fields_whitelist}
    wrong = _unavailable(fields, settings.unavailable_value_placeholder)
    if not settings.delete_enabled and deletes.true_count:
        reason = "the record has no value; delete.enabled says that it deletes a row"
        wrong |= {row: reason for row, delete in enumerate(deletes.to_pylist()) if delete}
    if settings.pk_mode in ("record_key", "record_value"):
        for name, column in keys.items():
            for row in _true_rows(column.is_null()) if column.null_count else ():
                wrong.setdefault(row, f"the field {name!r} of the key is null")
    return Plan(keys | {n: f for n, f in fields.items() if n not in keys}, tuple(keys), deletes, wrong)


def _unavailable(fields: dict[str, Array], placeholder: str) -> dict[int, str]:
    """Rows in which something else stands for a value that the source did not have."""
    wrong: dict[int, str] = {}
    for name, column in fields.items() if placeholder else ():
        if not (is_text(column.type) or is_bytes(column.type)):
            continue
        reason = (
            f"the field {name!r} has {placeholder!r}: the update did not touch this large value, and its database did "
            "not say it. Set REPLICA IDENTITY FULL for the table there"
        )
        found = pc.equal(column, pa.scalar(placeholder.encode(), pa.binary()).cast(column.type))
        for row in _true_rows(found) if pc.any(found).as_py() else ():
            wrong.setdefault(row, reason)
    return wrong


def _key_columns(rows: Rows, settings: SinkSettings) -> dict[str, Array]:
    match settings.pk_mode:
        case "none":
            return {}
        case "kafka":
            topic, partition, offset = settings.kafka_key
            count = len(rows)
            return {
                topic: pa.array([rows.original_topic or rows.topic] * count, pa.string()),
                partition: pa.array([rows.partition] * count, pa.int32()),
                offset: rows.offsets,
            }
        case "record_key":
            found = _by_name(rows.key_table)
            if not pa.types.is_struct(rows.keys.type):
                if len(settings.pk_fields) != 1:
                    raise NoSuchKey(
                        f"the keys of topic {rows.topic} have no fields; pk.fields must be one name for them"
                    )
                return {settings.pk_fields[0]: rows.keys}
            return _choose(found, settings.pk_fields, f"the keys of topic {rows.topic}")
        case "record_value":
            return _choose(_by_name(rows.table), settings.pk_fields, f"the values of topic {rows.topic}")


def _choose(fields: dict[str, Array], names: tuple[str, ...], where: str) -> dict[str, Array]:
    missing = [name for name in names if name not in fields]
    if missing:
        raise NoSuchKey(f"{where} have no field {missing[0]!r}, which pk.fields has; they have {', '.join(fields)}")
    return {name: fields[name] for name in names or fields}


def _by_name(table: pa.Table) -> dict[str, Array]:
    return {name: _combine(table.column(name)) for name in table.column_names}


def _combine(column: pa.ChunkedArray[Any]) -> Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _true_rows(mask: Array) -> list[int]:
    return [row for row, is_true in enumerate(mask.to_pylist()) if is_true]
