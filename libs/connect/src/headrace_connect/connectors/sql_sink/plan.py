"""What is to be written of some records: the columns, the key, which rows are deletes, which are wrong before all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.core.values.placeholders import find_placeholders
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
    absent: dict[str, Array]
    """By column, booleans: the record does not say its value, which is null there. Not of all columns."""


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
    absent = _find_absent(fields | keys, settings.unavailable_value_placeholder)
    wrong = _wrong_of(absent, keys, settings)
    absent = {name: mask for name, mask in absent.items() if not (name in keys or settings.insert_mode == "insert")}
    if not settings.delete_enabled and deletes.true_count:
        reason = "the record has no value; delete.enabled says that it deletes a row"
        wrong |= {row: reason for row, delete in enumerate(deletes.to_pylist()) if delete}
    if settings.pk_mode == "record_key" and rows.keys.null_count:
        reason = "the record has no key, and pk.mode=record_key needs one"
        wrong |= dict.fromkeys(_true_rows(rows.keys.is_null()), reason)
    if settings.pk_mode in ("record_key", "record_value"):
        for name, column in keys.items():
            for row in _true_rows(column.is_null()) if column.null_count else ():
                wrong.setdefault(row, f"the field {name!r} of the key is null")
    columns = keys | {name: field for name, field in fields.items() if name not in keys}
    columns |= {name: _without(columns[name], mask) for name, mask in absent.items()}
    return Plan(columns, tuple(keys), deletes, wrong, absent)


def _find_absent(columns: dict[str, Array], placeholder: str) -> dict[str, Array]:
    """By column, where something else stands for a value that the source did not have."""
    if not placeholder:
        return {}
    found = {name: find_placeholders(column, placeholder) for name, column in columns.items()}
    return {name: mask for name, mask in found.items() if mask is not None}


def _wrong_of(absent: dict[str, Array], keys: dict[str, Array], settings: SinkSettings) -> dict[int, str]:
    """Rows that cannot be written without these values: there is no key, or no row that has them."""
    wrong: dict[int, str] = {}
    for name, mask in absent.items():
        if name not in keys and settings.insert_mode != "insert":
            continue
        where = "of the key " if name in keys else ""
        reason = (
            f"the field {name!r} {where}has {settings.unavailable_value_placeholder!r}: the update did not touch this "
            "large value, and its database did not say it. Use insert.mode=upsert, which leaves the column as it is, "
            "or set REPLICA IDENTITY FULL for the table there"
        )
        for row in _true_rows(mask):
            wrong.setdefault(row, reason)
    return wrong


def _without(column: Array, mask: Array) -> Array:
    """With nulls where ``mask`` is true."""
    return column.take(pa.array([None if absent else row for row, absent in enumerate(mask.to_pylist())], pa.int64()))


def _key_columns(rows: Rows, settings: SinkSettings) -> dict[str, Array]:
    match settings.pk_mode:
        case "none":
            return {}
        case "kafka":
            topic, partition, offset = settings.kafka_key
            count = len(rows)
            return {
                topic: pa.array([rows.source.topic] * count, pa.string()),
                partition: pa.array([rows.partition] * count, pa.int32()),
                offset: rows.offsets,
            }
        case "record_key":
            found = _by_name(rows.key_table)
            if pa.types.is_null(rows.keys.type):
                return dict.fromkeys(settings.pk_fields, rows.keys)  # no record has a key: all are wrong
            if not pa.types.is_struct(rows.keys.type):
                if len(settings.pk_fields) != 1:
                    raise NoSuchKey(
                        f"the keys of topic {rows.topic} have no fields; pk.fields must be one name for them"
                    )
                return {settings.pk_fields[0]: rows.keys}
            return _choose(found, settings.pk_fields, f"the keys of topic {rows.topic}")
        case "record_value":
            if pa.types.is_null(rows.values.type):
                return dict.fromkeys(settings.pk_fields, rows.values)  # no record has a value
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
