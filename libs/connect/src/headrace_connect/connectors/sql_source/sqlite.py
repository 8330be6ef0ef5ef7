"""SQLite as a source. One transaction writes at a time, so numbers are committed in their order."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence, Set
from math import isfinite
from typing import Any, Final

import pyarrow as pa

from headrace_connect.connectors.sql.session import Result, TableFault
from headrace_connect.connectors.sql.sqlite import SqliteSession, faults
from headrace_connect.connectors.sql_source.database import BYTES_MAX, Column, Description, Listed, Page, Risks
from headrace_connect.connectors.sql_source.holding import Bound
from headrace_connect.connectors.sql_source.position import Value
from headrace_connect.connectors.sql_source.settings import SourceSettings
from headrace_connect.connectors.sql_source.sqlite_values import read_text, to_column
from headrace_connect.connectors.sql_source.statements import Order, Selection, Subject
from headrace_connect.core.json_text import dump
from headrace_connect.plugin import BadItem, RetriableError

_TABLES: Final = (
    "select name from sqlite_master where type in ({types}) and name not like 'sqlite\\_%' escape '\\' order by 1"
)
_INFO: Final = 'select name, type, "notnull", pk from pragma_table_xinfo(?) where hidden <> 1'
_INDEXED: Final = """
select i.name from pragma_index_list(?) l, pragma_index_info(l.name) i where i.seqno = 0 and not l.partial
"""
_NUMBER, _TEXT = "number", "text"
_CLASSES: Final = {"integer": _NUMBER, "real": _NUMBER, "text": _TEXT}
"""What values of a storage class are compared with."""


class Sqlite(SqliteSession):
    """Satisfies ``SourceDatabase``."""

    has_column_types = False

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings.url.path, settings.timeout_ms, creates=False)
        self._settings = settings

    def _prepare(self) -> None:
        self._live.text_factory = read_text
        self.execute("pragma query_only = on")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        """See ``Session``; of a file that was replaced there would never be anything new."""
        if self._has_moved:
            raise RetriableError(f"SQLite: another file is {self._path} by now, or none")
        return super().execute(statement, values)

    def find_tables(self, types: Set[str]) -> list[Listed]:
        """See ``SourceDatabase``."""
        listed = ", ".join(f"'{type_.lower()}'" for type_ in sorted(types))
        names = [str(row[0]) for row in self.execute(_TABLES.format(types=listed)).rows]
        return [Listed((name,), (name, f"main.{name}")) for name in names]

    def describe(self, subject: Subject) -> Description:
        """See ``SourceDatabase``."""
        names = [name for name, _ in self._find_declared(subject)]
        if subject.table is None:
            return Description(tuple(Column(name, "unknown", "either", None) for name in names))
        table = subject.table[-1]
        info = self.execute(_INFO, (table,)).rows
        kind, written = self.execute("select type, sql from sqlite_master where name = ?", (table,)).rows[0]
        keys = sorted((pk, name, type_, notnull) for name, type_, notnull, pk in info if pk)
        # Of all other primary keys SQLite lets columns be null.
        is_rowid = len(keys) == 1 and keys[0][2].upper() == "INTEGER"
        sound = is_rowid or all(notnull for *_, notnull in keys) or bool(re.search(r"(?i)without\s+rowid", written))
        columns = tuple(
            Column(
                name,
                type_ or "of no type",
                "either",
                None if kind == "view" else not (notnull or (pk and sound)),
            )
            for name, type_, notnull, pk in info
        )
        indexed = {row[0] for row in self.execute(_INDEXED, (table,)).rows}
        if is_rowid:
            indexed.add(keys[0][1])
        key = tuple(name for _, name, *_ in keys) if sound else ()
        return Description(columns, key, None if kind == "view" else frozenset(indexed))

    def has_nulls(self, selection: Selection) -> bool:
        """See ``SourceDatabase``."""
        return bool(self.execute(selection.nulls(self.quote)).rows)

    def find_bound(self, selection: Selection, by_time: bool) -> Bound | None:
        """
        See ``SourceDatabase``. Times that are text are compared with the clock; those that are numbers wait as long as
        rows with smaller ones may come: SQLite does not say what they count.

        Raises:
            TableFault: the column has values that cannot be compared.
        """
        name = selection.order.names[0]
        largest = self._first(selection.largest, selection)
        if largest is None:
            return None
        expression = selection.order.expressions(self.quote)[0]
        smallest = f"select typeof(min({expression})) from {selection.subject.source(self.quote)}"
        classes = {_CLASSES.get(str(self.execute(smallest).rows[0][0])), _class(largest)}
        if len(classes) > 1 or None in classes or (not by_time and not isinstance(largest, int)):
            wanted = "text or numbers" if by_time else "whole numbers"
            raise TableFault(f"the column {name} of {selection.subject.name} has other values than {wanted} alone")
        if not by_time or not self._settings.timestamp_delay_interval_ms:
            return Bound(largest)
        if not isinstance(largest, str):
            return Bound(largest, self._settings.timestamp_delay_interval_ms)
        form = "%Y-%m-%dT%H:%M:%f" if "T" in largest else "%Y-%m-%d %H:%M:%f"
        seconds = f"-{self._settings.timestamp_delay_interval_ms / 1_000:.3f} seconds"
        old = self._first(selection.largest, selection, f"{expression} <= strftime('{form}', 'now', '{seconds}')")
        return None if old is None else Bound(old)

    def find_running(self, subject: Subject, by_time: bool) -> frozenset[str]:
        """See ``SourceDatabase``; there is one writer, and what it does is seen as a whole."""
        return frozenset()

    def find_risks(self, subject: Subject, order: Order) -> Risks:
        """See ``SourceDatabase``."""
        if subject.table is None:
            return Risks()
        ((written,),) = self.execute("select sql from sqlite_master where name = ?", (subject.table[-1],)).rows
        if re.search(r"(?i)\bautoincrement\b", written or ""):
            return Risks()
        return Risks(
            warnings=(
                f"incrementing.column.name: {subject.name} is not declared AUTOINCREMENT: if its last row is deleted, "
                "the next one may get the same number, and is left out",
            )
        )

    def nth(self, selection: Selection, number: int) -> Any:
        """See ``SourceDatabase``."""
        values: list[Value] = []
        statement = selection.nth(self.quote, _place(values), number)
        rows = self.execute(statement, values).rows
        return rows[0][0] if rows else None

    def read(self, selection: Selection) -> Page:
        """See ``SourceDatabase``."""
        pages = self.stream(selection, None)
        page = next(pages)
        pages.close()
        return page

    def stream(self, selection: Selection, rows_max: int | None) -> Generator[Page, None, None]:
        """See ``SourceDatabase``."""
        self.begin()
        try:
            declared = self._find_declared(selection.subject)
            values: list[Value] = []
            statement = selection.statement(self.quote, _place(values))
            with faults():
                cursor = self._live.execute(statement, values)
                rows: list[Sequence[Any]] = []
                size, first = 0, True
                for row in cursor:
                    if rows and (size >= BYTES_MAX or len(rows) == rows_max):
                        yield _page(selection, declared, rows, cut=size >= BYTES_MAX)
                        rows, size, first = [], 0, False
                    rows.append(row)
                    size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
            if rows or first:
                yield _page(selection, declared, rows, cut=False)
        finally:
            self.rollback()

    def _find_declared(self, subject: Subject) -> list[tuple[str, str]]:
        """Names of the columns, and the types that they were declared with, if any."""
        with faults():
            names = [
                one[0] for one in self._live.execute(f"select * from {subject.source(self.quote)} limit 0").description
            ]
        if subject.table is None:
            return [(name, "") for name in names]
        return [(row[0], row[1]) for row in self.execute(_INFO, (subject.table[-1],)).rows]

    def _first(self, write: Any, selection: Selection, *also: str) -> Any:
        values: list[Value] = []
        return self.execute(write(self.quote, _place(values), *also), values).rows[0][0]


def _place(values: list[Value]) -> Any:
    """Puts values aside, in their order."""

    def place(value: Value) -> str:
        values.append(value)
        return "?"

    return place


def _class(value: object) -> str | None:
    if isinstance(value, str):
        return _TEXT
    return _NUMBER if isinstance(value, int | float) else None


def _page(
    selection: Selection, declared: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]], *, cut: bool
) -> Page:
    arrays: list[Any] = []
    problems: dict[int, str] = {}
    columns = list(zip(*rows, strict=True)) or [()] * len(declared)
    for (name, type_), values in zip(declared, columns, strict=False):
        array, wrong = to_column(type_, values)
        arrays.append(array)
        for row, reason in wrong.items():
            problems.setdefault(row, f"{selection.subject.name}.{name} {reason}")
    struct: Any = pa.StructArray.from_arrays(arrays, names=[name for name, _ in declared])
    bad: list[BadItem] = []
    if problems:
        bad = [_bad(selection, declared, rows[row], cause) for row, cause in sorted(problems.items())]
        struct = struct.take(pa.array([row for row in range(len(rows)) if row not in problems], pa.int64()))
    last = tuple(rows[-1][len(declared) :]) if rows else ()
    return Page(struct, bad, len(rows), last, cut)


def _bad(selection: Selection, declared: Sequence[tuple[str, str]], row: Sequence[Any], cause: str) -> BadItem:
    at = zip(selection.order.names, row[len(declared) :], strict=True)
    place = ", ".join(f"{name}={value}" for name, value in at)
    raw = {name: _plain(value) for (name, _), value in zip(declared, row, strict=False)}
    return BadItem(dump(raw).encode(), cause + (f", where {place}" if place else ""))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not isfinite(value) else value
