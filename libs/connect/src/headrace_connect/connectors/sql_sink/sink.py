"""The sink ``sql-sink``: rows, positions and tokens in one transaction of a database."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.records import TopicPartition
from headrace_common.runtime.failpoints import failpoint
from headrace_connect.connectors.sql.session import RowFault, TableFault, TableName
from headrace_connect.connectors.sql_sink.connecting import connect_to
from headrace_connect.connectors.sql_sink.database import Write
from headrace_connect.connectors.sql_sink.envelopes import Part, parts_of
from headrace_connect.connectors.sql_sink.faults import told
from headrace_connect.connectors.sql_sink.positions import Positions
from headrace_connect.connectors.sql_sink.previewing import preview_rows
from headrace_connect.connectors.sql_sink.rows import Fitted, fit_rows, write_good
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.connectors.sql_sink.tables import Tables
from headrace_connect.connectors.sql_sink.verifying import SqlVerifier
from headrace_connect.plugin import Guarantee, PartitionTaken, RetriableError, Rows, RowsRefused, Sink, Verifier
from headrace_connect.settings import Problem, invalid

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    """A partition that is open."""

    epoch: int
    position: int | None


class SqlSink(Sink[SinkSettings]):
    """Inserts, upserts, updates and deletes rows, and makes and widens their tables."""

    guarantee = Guarantee.POSITIONS

    def __init__(self, settings: SinkSettings) -> None:
        super().__init__(settings)
        self._database = connect_to(settings)
        self._positions = Positions(self._database, settings.name)
        self._tables = Tables(self._database, settings)
        self._open: dict[TopicPartition, _Held] = {}
        self._written: set[TopicPartition] = set()
        """Since the last commit."""
        self._accepted: list[Write | TableName] = []
        """Since the last commit, where a transaction may have to end before: it is written again. A table is
        truncated."""
        self._lost: set[TopicPartition] = set()
        """What was written of them, or where they are, is not known any more; ``open`` comes next."""

    def check(self) -> Sequence[str]:
        """See ``Connector``; nothing of it stays."""
        try:
            self._database.connect()
            self._database.begin()
            self._positions.check_tables()
        except (RetriableError, TableFault, RowFault) as error:
            return [f"{error}; check connection.url, the user and its rights"]
        finally:
            self._database.close()
        return []

    def start(self) -> None:
        """See ``Connector``."""
        with self._transaction():
            self._database.connect()
            if not self._positions.has_tables() or not self._tables.has_dead_table():
                self._database.begin()
                self._database.lock_tables()
                self._positions.create_tables()
                self._tables.create_dead_table()
                self._database.commit()

    def stop(self) -> None:
        """See ``Connector``."""
        self._database.close()

    def open(self, partitions: Sequence[TopicPartition], epoch: int) -> Mapping[TopicPartition, int]:
        """See ``Sink``."""
        with self._transaction(partitions):
            self._drop()
            self._database.connect()
            self._database.begin()
            # In one order, or two instances may wait for each other.
            found = {partition: self._positions.take(partition, epoch) for partition in sorted(partitions, key=_order)}
            self._database.commit()
        self._open |= {partition: _Held(epoch, position) for partition, position in found.items()}
        self._lost -= set(partitions)
        return {partition: position for partition, position in found.items() if position is not None}

    def write(self, rows: Rows) -> None:
        """See ``Sink``. The target has accepted the rows when this returns."""
        partition = rows.source
        self._written.add(partition)
        with self._transaction():
            self._check_open([partition])
            self._database.begin()
            table = self.settings.table_of(rows.topic)
            fitted = [self._fit(table, part, partition) for part in parts_of(rows, self.settings.value_form)]
            self._refuse({one.start + row: reason for one in fitted for row, reason in one.wrong.items()})
            if self._database.locks_all or not self._database.in_transaction:
                self._database.commit()  # of tables that were made
                self._tell()
                self._database.begin()
                self._write_again()
            wrong: dict[int, str] = {}
            for one in fitted:
                wrong |= {one.start + row: reason for row, reason in self._apply_fitted(table, one).items()}
            self._refuse(wrong)
            if wrong:
                self._add_dead(rows, wrong)
            if self._database.locks_all:
                self._database.rollback()

    def _tell(self) -> None:
        for event in self._tables.take_changes():
            self.notify(event)

    def _fit(self, table: TableName, part: Part, partition: TopicPartition) -> Fitted:
        if part.truncates:
            return Fitted(part.start, self._check_truncation(part, partition), None, self.settings.truncate_enabled)
        try:
            return fit_rows(table, part, self._tables, self.settings)
        except RowFault as error:
            raise RowsRefused({}, f"the table cannot have the columns of all records: {error}") from error

    def _check_truncation(self, part: Part, partition: TopicPartition) -> dict[int, str]:
        """Refused where it is known that the topic has other partitions: which rows are behind it is not known then."""
        if not self.settings.truncate_enabled:
            _log.warning("%s was truncated; the rows stay in its table: truncate.enabled is false", part.rows.topic)
            return {}
        of = {one.partition for one in self._open if one.topic == partition.topic}
        if of == {0}:
            return {}
        reason = "a truncation in a topic of several partitions: which rows come before it is not known. Give it one"
        return dict.fromkeys(range(len(part.rows)), reason)

    def _apply_fitted(self, table: TableName, fitted: Fitted) -> dict[int, str]:
        """Write what can be written; all records that are refused."""
        if fitted.write is not None:
            size = self.settings.batch_size
            return fitted.wrong | write_good(fitted.write, fitted.wrong, self._add, self._database.savepoint, size)
        if fitted.truncates and not fitted.wrong and self._tables.has(table):
            self._database.truncate(table)
            self._keep(table)
        return fitted.wrong

    def _refuse(self, wrong: Mapping[int, str]) -> None:
        if wrong and not self.settings.dead_table:
            raise RowsRefused(wrong)

    def _add(self, write: Write) -> None:
        self._database.write(write)
        self._keep(write)

    def _add_dead(self, rows: Rows, wrong: Mapping[int, str]) -> None:
        try:
            self._add(self._tables.dead_rows(rows, wrong))
        except RowFault as error:
            raise TableFault(f"dead.table does not take what was refused: {error}") from error

    def _keep(self, one: Write | TableName) -> None:
        if self._database.locks_all or self._database.changes_end:
            self._accepted.append(one)

    def _write_again(self) -> None:
        """What was accepted since the last commit, in this transaction."""
        for one in self._accepted:
            if isinstance(one, Write):
                self._database.write(one)
            else:
                self._database.truncate(one)

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        """See ``Sink``."""
        with self._transaction(positions):
            self._check_open(positions)
            self._database.begin()
            if self._database.locks_all:
                self._write_again()
            for partition in sorted(positions, key=_order):
                held = self._open[partition]
                self._positions.move(partition, held.epoch, held.position, positions[partition])
            if token is not None:
                self._positions.add_token(token, positions)
            failpoint("connect.sql-sink.moved")
            self._database.commit()
            self._tell()
        self._written.clear()
        self._accepted.clear()
        for partition, position in positions.items():
            self._open[partition] = replace(self._open[partition], position=position)

    def settle(self, token: bytes) -> bool:
        """See ``Sink``."""
        with self._transaction():
            self._drop()
            self._database.connect()
            self._database.begin()
            done = self._positions.settle(token)
            self._database.commit()
        return done

    def rewind(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """See ``Sink``; all in one transaction."""
        with self._transaction():
            self._drop()
            self._database.connect()
            self._database.begin()
            for partition in sorted(positions, key=_order):
                self._positions.rewind(partition, positions[partition])
            failpoint("connect.sql-sink.rewound")
            self._database.commit()

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        """See ``Sink``."""
        if self._written & set(partitions):
            self._drop()
        for partition in partitions:
            self._open.pop(partition, None)
            self._lost.discard(partition)

    def preview(self, rows: Sequence[Rows]) -> Sequence[Mapping[str, Any]]:
        """See ``Sink``: really written, and rolled back."""
        self._check_undone("preview")
        return preview_rows(self.settings, rows)

    def verifier(self) -> Verifier:
        """See ``Sink``."""
        self._check_undone("verify")
        return SqlVerifier(self.settings)

    def _check_undone(self, what: str) -> None:
        """
        Raises:
            InvalidConfig: a table that is made for it would stay.
        """
        if self._database.changes_end:
            text = f"there is no {what} with MariaDB: tables that are made for it would stay. Leave it out"
            raise invalid([Problem("connection.url", f"connection.url: {text}")])

    def _check_open(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Raises:
            PartitionTaken: one is not open.
            RetriableError: what was written of one is lost, so ``open`` has to come first.
        """
        closed = [partition for partition in partitions if partition not in self._open]
        if closed:
            raise PartitionTaken(closed)
        if self._lost & set(partitions):
            raise RetriableError("what was written since the last commit is lost; the partitions are opened again")

    @contextmanager
    def _transaction(self, touched: Iterable[TopicPartition] = ()) -> Iterator[None]:
        """
        What fails in the block undoes the transaction. Of ``touched`` the position is not known then.

        Raises:
            RetriableError: the database is away or busy.
            InvalidConfig: the database, its tables or the settings have to be changed.
        """
        try:
            with told():
                yield
        except BaseException:
            self._lost |= set(touched)
            self._drop()
            raise

    def _drop(self) -> None:
        """Undo what was written since the last commit; whoever wrote it has to read it again."""
        self._lost |= self._written
        self._written.clear()
        self._accepted.clear()
        self._tables.forget()
        try:
            self._database.rollback()
        except (RetriableError, TableFault, RowFault):
            self._database.close()


def _order(partition: TopicPartition) -> tuple[str, int]:
    return partition.topic, partition.partition
