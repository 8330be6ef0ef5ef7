"""The target's tables: what columns they have, made and widened as fields come, and fields fitted to them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from headrace_connect.connectors.sql.session import RowFault, TableFault, TableName, show_table
from headrace_connect.connectors.sql_sink.database import Database, Write
from headrace_connect.connectors.sql_sink.fitting import fit
from headrace_connect.connectors.sql_sink.kinds import TEXT, Column, Kind, kind_for, wider
from headrace_connect.connectors.sql_sink.plan import Plan
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.core.drift import Drift
from headrace_connect.core.events import DRIFT, Event
from headrace_connect.plugin import Rows

Array: TypeAlias = "pa.Array[Any]"
_DEAD: Final = ("connector", "topic", "partition", "position", "reason", "record_key", "record_value")


class Tables:
    """Knows tables until the transaction is undone."""

    def __init__(self, database: Database, settings: SinkSettings) -> None:
        self._database = database
        self._settings = settings
        self._known: dict[TableName, dict[str, Column]] = {}
        self._changes: list[Event] = []
        self._told: set[tuple[TableName, str]] = set()
        """Columns that are not there, of which that was told."""
        self._full: set[TableName] = set()
        """Tables that could not have all columns that some records say; they get those with values alone."""

    def take_changes(self) -> list[Event]:
        """What was changed, or found to be other than the fields, since this was asked; when it is committed."""
        changes, self._changes = self._changes, []
        return changes

    def _note(self, table: TableName, text: str, **detail: str) -> None:
        self._changes.append(
            Event(DRIFT, f"the table {show_table(table)}: {text}", {"table": show_table(table), **detail})
        )

    @property
    def _evolves(self) -> bool:
        return self._settings.drifts is Drift.ADD

    def forget(self) -> None:
        """What was made may be gone; where each change of a table is committed at once, it is still to be told."""
        self._known = {}
        if not self._database.changes_end:
            self._changes = []
            self._told = set()

    def has(self, table: TableName) -> bool:
        """Whether it is there."""
        return bool(self._known.get(table) or self._find(table))

    def fit(self, table: TableName, plan: Plan) -> tuple[dict[str, Array], dict[int, str]]:
        """
        The columns as the table takes them, and the rows that it cannot take. No columns: there is nothing to delete.

        Raises:
            TableFault: there is no table, or it lacks a column of the key.
            RowFault: the table cannot have all columns that there are values for.
        """
        self._check_names(list(table))
        columns = self._columns(table, plan)
        if not columns:
            return {}, {}
        fitted: dict[str, Array] = {}
        wrong: dict[int, str] = {}
        for name, values in plan.columns.items():
            column = columns.get(name)
            if column is None:
                if name in plan.keys:
                    raise TableFault(f"the table {show_table(table)} has no column {name!r}, which is part of the key")
                reason = self._no_column(table, name, values)
                if reason is not None:
                    wrong |= {row: reason for row in _rows_with_values(values) if row not in wrong}
                continue
            fitted[name], misfits = self._fit_column(table, column, values)
            for row, reason in misfits.items():
                wrong.setdefault(row, f"field {name!r}: {reason}")
        if not fitted:
            wrong |= dict.fromkeys(
                range(len(plan.deletes)), f"no field of the record is a column of {show_table(table)}"
            )
        return fitted, wrong

    def _fit_column(self, table: TableName, column: Column, values: Array) -> tuple[Array, dict[int, str]]:
        kind: Kind | None = self._database.kind_of(column, values.type)
        assert kind is not None
        fitted, wrong = fit(values, kind)
        if wrong and self._settings.drifts is Drift.FAIL:
            reason = next(iter(wrong.values()))
            raise TableFault(f"the column {column.name!r} of {show_table(table)}: {reason}, and drift is fail")
        if wrong and self._evolves and self._database.can_widen(column):
            best, found = kind, (fitted, wrong)
            while found[1] and (kind := wider(kind)) is not None:
                bounded = self._database.kind_of(replace(column, kind=kind), values.type)
                tried = fit(values, bounded)
                if len(tried[1]) < len(found[1]):
                    best, found = bounded, tried
            if best != self._database.kind_of(column, values.type):
                self._database.lock_tables()
                self._database.widen(table, column.name, best)
                self._known[table][column.name] = replace(column, kind=best)
                wide = self._database.type_name(best, key=False)
                self._note(table, f"the column {column.name!r} is {wide} now", column=column.name, type=wide)
                fitted, wrong = found
        return fitted, wrong | self._database.find_unfit(fitted)

    def _columns(self, table: TableName, plan: Plan) -> Mapping[str, Column]:
        """Of the table as it is, after making what is to be made."""
        known = self._known.get(table)
        if known is None or (self._evolves and self._missing(table, known, plan)):
            known = self._known[table] = self._find(table)
        if not known and all(plan.deletes.to_pylist()):
            return {}
        if not known:
            if not self._settings.auto_create:
                raise TableFault(f"there is no table {show_table(table)}; make it, or set auto.create=true")
            self._change(table, plan)
        elif self._evolves and self._missing(table, known, plan):
            self._change(table, plan)
        return self._known[table]

    def _find(self, table: TableName) -> dict[str, Column]:
        return {column.name: column for column in self._database.find_columns(table)}

    def _missing(self, table: TableName, known: Mapping[str, Column], plan: Plan) -> list[Column]:
        """Columns to be made; a field that has only nulls may have no type yet."""
        full = table in self._full
        return [
            Column(name, kind_for(values.type), name in plan.keys)
            for name, values in plan.columns.items()
            if name not in known
            and not pa.types.is_null(values.type)
            and not (full and values.null_count == len(values))
        ]

    def _change(self, table: TableName, plan: Plan) -> None:
        self._database.lock_tables()
        known = self._find(table)  # another task may have been first
        missing = self._missing(table, known, plan)
        self._check_names([*table, *(column.name for column in missing)])
        name = ".".join(map(self._database.quote, table))
        if known:
            self._make(table, *self._additions(name, missing))
            for column in missing:
                type_ = self._database.type_name(column.kind, column.key)
                self._note(table, f"has a column {column.name!r} more, {type_}", column=column.name, type=type_)
        elif missing:
            keys = [self._database.quote(column.name) for column in missing if column.key]
            parts = [self._declare(column) for column in missing]
            parts += [f"primary key ({', '.join(keys)})"] if keys else []
            self._make(table, f"create table {name} ({', '.join(parts)}){self._database.table_options}")
        self._known[table] = self._find(table)

    def _additions(self, name: str, columns: list[Column]) -> list[str]:
        """Statements; where each would be committed, all columns are in one."""
        added = [f"add column {self._declare(column)}" for column in columns]
        parts = [", ".join(added)] if added and self._database.adds_many else added
        return [f"alter table {name} {part}" for part in parts]

    def _make(self, table: TableName, *statements: str) -> None:
        try:
            for statement in statements:
                self._database.execute(statement)
        except RowFault:
            self._full.add(table)
            raise

    def _declare(self, column: Column) -> str:
        type_ = self._database.type_name(column.kind, column.key)
        return f"{self._database.quote(column.name)} {type_}" + (" not null" if column.key else "")

    def _check_names(self, names: list[str]) -> None:
        """
        Raises:
            TableFault: a name is too long, or two are the same to the database.
        """
        for name in names:
            if len(name.encode()) > self._database.name_bytes_max or not name:
                raise TableFault(
                    f"{name!r} cannot be a name of a table or column here, of 1 to {self._database.name_bytes_max} "
                    "bytes; set table.name.format, or rename the field with the transform ReplaceField"
                )

    def _no_column(self, table: TableName, name: str, values: Array) -> str | None:
        """
        What is wrong with records that have a value for it; None: it is left out.

        Raises:
            TableFault: ``drift`` is ``fail``, and there is one.
        """
        if values.null_count == len(values):
            return None
        drifts = self._settings.drifts
        if (table, name) not in self._told:
            self._told.add((table, name))
            left = "the field is left out" if drifts is Drift.IGNORE else "records with the field are refused"
            self._note(table, f"has no column {name!r}, and drift is {drifts}: {left}", column=name)
        if drifts is Drift.IGNORE:
            return None
        reason = (
            f"the table {show_table(table)} has no column {name!r}; make it, set auto.evolve=true, or leave the field "
            "out with fields.whitelist"
        )
        if self._settings.drifts is Drift.FAIL:
            raise TableFault(f"{reason}. drift is fail")
        return reason

    def has_dead_table(self) -> bool:
        """Whether there is a table of refused rows, if there should be one."""
        name = self._settings.dead_table
        return not name or bool(self._database.find_columns((name,)))

    def create_dead_table(self) -> None:
        """Make the table of refused rows, if there should be one."""
        if not self.has_dead_table():
            name = self._database.quote(self._settings.dead_table)
            text, key = (self._database.type_name(TEXT, key=is_key) for is_key in (False, True))
            self._database.execute(
                f'create table {name} (connector {key} not null, topic {key} not null, "partition" integer not null, '
                f"position bigint not null, reason {text} not null, record_key {text}, record_value {text}, "
                f'primary key (connector, topic, "partition", position)){self._database.table_options}'
            )

    def dead_rows(self, rows: Rows, wrong: Mapping[int, str]) -> Write:
        """Refused rows as rows of the table for them; keys and values as JSON."""
        records = sorted(wrong.items())
        chosen = [row for row, _ in records]
        columns: dict[str, Array] = {
            "connector": pa.array([self._settings.name] * len(records)),
            "topic": pa.array([rows.source.topic] * len(records)),
            "partition": pa.array([rows.partition] * len(records), pa.int32()),
            "position": rows.offsets.take(pa.array(chosen, pa.int64())),
            "reason": pa.array([_without_nul(reason) for _, reason in records]),
            "record_key": pa.array([_dump(rows.keys[row]) for row in chosen], pa.string()),
            "record_value": pa.array([_dump(rows.values[row]) for row in chosen], pa.string()),
        }
        no_deletes = pa.array([False] * len(records))
        return Write((self._settings.dead_table,), columns, (), no_deletes, "insert")


def _rows_with_values(values: Array) -> list[int]:
    return [row for row, valid in enumerate(values.is_valid().to_pylist()) if valid]


def _without_nul(text: str) -> str:
    return text.replace("\0", "\\0")


def _dump(value: pa.Scalar[Any]) -> str | None:
    """As JSON; NUL is escaped there."""
    try:
        plain = value.as_py()
    except (ValueError, OverflowError):
        plain = str(value)
    return None if plain is None else json.dumps(plain, ensure_ascii=False, default=_plain)


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
