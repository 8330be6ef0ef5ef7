"""The source ``sql-source``: each table is a split, and its position is the last row that was read."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from headrace_connect.connectors.sql.session import RowFault, TableFault, needs_driver
from headrace_connect.connectors.sql_source.database import Listed, ManyRows, SourceDatabase
from headrace_connect.connectors.sql_source.planning import find_null_problem, find_warnings, has_unsure, plan_order
from headrace_connect.connectors.sql_source.position import Place
from headrace_connect.connectors.sql_source.reader import Reading, read_all, read_new, read_whole
from headrace_connect.connectors.sql_source.settings import SourceSettings
from headrace_connect.connectors.sql_source.statements import Order, Selection, Subject
from headrace_connect.plugin import Chunk, Position, RetriableError, Source, Split
from headrace_connect.settings import Problem, invalid, near

_log: Final = logging.getLogger(__name__)
_TABLE: Final = "table"
_QUERY: Final = "query"
_PLAIN: Final = re.compile(r"[\w.$ -]+")
"""A pattern that is a name."""


class SqlSource(Source[SourceSettings]):
    """Rows of tables or of a query, from PostgreSQL, MariaDB and SQLite."""

    monotonic_s: Callable[[], float] = staticmethod(time.monotonic)
    sleep_s: Callable[[float], None] = staticmethod(time.sleep)

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings)
        self._database = connect_to(settings)
        self._others: set[SourceDatabase] = set()
        """Connections of their own, for what has to be read as it is at one moment."""

    def check(self) -> Sequence[str]:
        """See ``Connector``."""
        try:
            self._database.connect()
            subjects, problems = self._find_subjects()
            for subject in subjects:
                problems += self._check(subject)
        except (RetriableError, TableFault, RowFault) as error:
            message = str(error)
            keyed = re.match(r"[a-z]+(\.[a-z]+)+: ", message)
            return [message if keyed else f"connection.url: {message}; check the address, the user and its rights"]
        finally:
            self._database.close()
        return problems

    def start(self) -> None:
        """See ``Connector``."""
        with self._faults():
            self._database.connect()

    def stop(self) -> None:
        """See ``Connector``."""
        for database in (self._database, *self._others):
            database.close()

    def splits(self) -> Sequence[Split]:
        """Each table that is there and matches; or the query."""
        with self._faults():
            self._database.connect()
            subjects, problems = self._find_subjects()
        for problem in problems:
            _log.warning("%s", problem)
        return [Split(one.name, {_TABLE: list(one.table)} if one.table is not None else {}) for one in subjects]

    def read(self, split: Split, after: Position | None) -> Generator[Chunk, None, None]:
        """
        See ``Source``.

        Raises:
            InvalidConfig: the table cannot be read so, or ``after`` is no position of it.
        """
        table = split.detail.get(_TABLE)
        subject = Subject(None, self.settings.query) if table is None else Subject(tuple(table))
        with self._faults():
            self._database.connect()
            order, problems = self._plan(subject)
            if problems:
                raise invalid(problems)
            try:
                place = Place.from_json(after, subject.name, order.names)
            except ValueError as wrong:
                raise invalid([Problem("", str(wrong))]) from wrong
            yield from self._read(subject, order, place)

    def _read(self, subject: Subject, order: Order, place: Place) -> Iterator[Chunk]:
        settings = self.settings
        topic = settings.topic_prefix + (subject.table[-1] if subject.table is not None else "")
        bulk = settings.mode == "bulk"
        database = connect_to(settings) if bulk and not order.columns else self._database
        reading = Reading(
            database,
            subject,
            order,
            settings.mode.startswith("timestamp"),
            topic,
            settings.batch_max_rows,
            self.monotonic_s,
            self.sleep_s,
            settings.drift,
            self.notify,
        )
        if database is self._database:
            yield from read_all(reading, place) if bulk else read_new(reading, place)
            return
        self._others.add(database)
        try:
            yield from read_whole(reading, place)
        finally:
            self._others.discard(database)
            database.close()

    def _plan(self, subject: Subject) -> tuple[Order, list[Problem]]:
        settings = self.settings
        description = self._database.describe(subject)
        order, problems = plan_order(subject, description, settings)
        asks = settings.mode != "bulk" and settings.validate_non_null and has_unsure(description, order)
        if asks and not problems and self._database.has_nulls(Selection(subject, order)):
            problems.append(find_null_problem(subject, order, settings))
        for warning in find_warnings(subject, description, order, settings):
            _log.warning("%s", warning)
        return order, problems

    def _check(self, subject: Subject) -> list[str]:
        """What is wrong with one table or query."""
        try:
            order, problems = self._plan(subject)
            if problems or self.settings.mode != "incrementing":
                return [problem.message for problem in problems]
            risks = self._database.find_risks(subject, order)
        except (TableFault, RowFault) as error:
            return [f"{_QUERY if subject.table is None else 'table.include.list'}: {error}"]
        for warning in risks.warnings:
            _log.warning("%s", warning)
        return list(risks.problems)

    def _find_subjects(self) -> tuple[list[Subject], list[str]]:
        """What is to be read, and which tables are not there."""
        settings = self.settings
        if settings.query:
            return [Subject(None, settings.query)], []
        listed = self._database.find_tables(frozenset(settings.table_types))
        chosen = [one for one in listed if _matches(one, settings.tables or (".*",))]
        chosen = [one for one in chosen if not _matches(one, settings.table_exclude_list)]
        problems = [
            _missing(pattern, listed)
            for pattern in settings.tables
            if not any(_matches(one, (pattern,)) for one in listed)
        ]
        if not chosen and not problems:
            problems.append("table.include.list: there are no tables")
        subjects = [Subject(one.table) for one in chosen]
        names = [one.table[-1] for one in chosen]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            problems.append(
                f"table.include.list: two schemas have a table {twice}, whose rows would be in one topic: choose one "
                "of them, and read the other one with a connector and topic.prefix of its own"
            )
        return subjects, problems

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """
        Raises:
            InvalidConfig: the database, its tables or the settings have to be changed.
        """
        try:
            yield
        except (TableFault, RowFault, ManyRows) as error:
            raise invalid([Problem("", str(error))]) from error


def connect_to(settings: SourceSettings) -> SourceDatabase:
    """
    The database of the settings; nothing is asked of it yet.

    Raises:
        InvalidConfig: its driver is not installed.
    """
    if settings.url.scheme == "sqlite":
        from headrace_connect.connectors.sql_source.sqlite import Sqlite

        return Sqlite(settings)
    if settings.url.scheme == "mariadb":
        with needs_driver("MariaDB", "mariadb"):
            from headrace_connect.connectors.sql_source.mariadb import Mariadb
        return Mariadb(settings)
    with needs_driver("PostgreSQL", "postgres"):
        from headrace_connect.connectors.sql_source.postgres import Postgres
    return Postgres(settings)


def _matches(listed: Listed, patterns: Sequence[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns for name in listed.names)


def _missing(pattern: str, listed: Sequence[Listed]) -> str:
    if not _PLAIN.fullmatch(pattern):
        return f"table.include.list: no table matches {pattern}"
    known = [name for one in listed for name in one.names]
    return f"table.include.list: there is no table {pattern}{near(pattern, known)}"
