"""Writes records to see what becomes of them, in a transaction that is rolled back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace_connect.connectors.sql.session import TableName, show_table
from headrace_connect.connectors.sql_sink.connecting import connect_to_compare
from headrace_connect.connectors.sql_sink.database import Database
from headrace_connect.connectors.sql_sink.envelopes import Part, parts_of
from headrace_connect.connectors.sql_sink.faults import told
from headrace_connect.connectors.sql_sink.rows import fit_rows, write_good
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.connectors.sql_sink.tables import Tables
from headrace_connect.plugin import Rows


def preview_rows(settings: SinkSettings, rows: Sequence[Rows]) -> list[Mapping[str, Any]]:
    """
    Of each record: its table, what would be done there, the row as the table takes it, or why it is refused. Tables are
    made and widened for it as they would be. What triggers do outside of the transaction stays done.

    Raises:
        RetriableError: the database is away or busy.
        InvalidConfig: the database, its tables or the settings have to be changed.
    """
    database = connect_to_compare(settings)
    tables = Tables(database, settings)
    shown: list[Mapping[str, Any]] = []
    try:
        with told():
            database.connect()
            database.begin()
            for some in rows:
                table = settings.table_of(some.topic)
                for part in parts_of(some, settings.value_form):
                    shown += _write(database, tables, settings, table, part)
            database.rollback()
    finally:
        database.close()
    return shown


def _write(
    database: Database, tables: Tables, settings: SinkSettings, table: TableName, part: Part
) -> Iterator[Mapping[str, Any]]:
    rows = part.rows
    where = {"topic": rows.source.topic, "partition": rows.partition}
    offsets, name = rows.offsets.to_pylist(), show_table(table)
    if part.truncates:
        truncates = settings.truncate_enabled
        if truncates and tables.has(table):
            database.truncate(table)
        for offset in offsets:
            yield {**where, "offset": offset, "table": name, "action": "truncate" if truncates else "none"}
        return
    fitted = fit_rows(table, part, tables, settings)
    wrong, written = dict(fitted.wrong), list[Mapping[str, Any]]()
    if fitted.write is not None:
        wrong |= write_good(fitted.write, fitted.wrong, database.write, database.savepoint, settings.batch_size)
        columns = {column: values.to_pylist() for column, values in fitted.write.columns.items()}
        written = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    deletes = rows.values.is_null().to_pylist()
    for row, offset in enumerate(offsets):
        record = {
            **where,
            "offset": offset,
            "table": name,
            "action": "delete" if deletes[row] else settings.insert_mode,
        }
        if row in wrong:
            yield {**record, "action": "refused", "error": wrong[row]}
        elif written:
            keys = fitted.write.keys if fitted.write is not None and deletes[row] else written[row].keys()
            yield {**record, "row": {key: written[row][key] for key in keys}}
        else:
            yield record
