"""
A Delta table. Each commit carries ``txn(headrace/CONNECTOR/TOPIC/PARTITION, next offset)``: who reads the table's log
reads the positions, and of two commits that have the same application one fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    TableNotFoundError,
)

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.failpoints import failpoint
from headrace_connect.connectors.lake_sink.fitting import refit
from headrace_connect.connectors.lake_sink.lake import Move
from headrace_connect.connectors.lake_sink.records import Records, encode, token_name
from headrace_connect.connectors.lake_sink.table_types import find_unstorable, normal
from headrace_connect.connectors.places import find_place, storage_options
from headrace_connect.core.kinds import Kind
from headrace_connect.plugin import PartitionTaken, RetriableError

_USED, _GIVEN_UP = 1, 0
_TRIES_MAX: Final = 20
"""Of a commit, while others commit to the table."""


class DeltaLake:
    """Satisfies ``Lake``; all partitions write one table."""

    widens = False

    def __init__(self, url: str, connector: str, table: str, partition_by: Sequence[str], added: pa.Schema) -> None:
        """
        Args:
            added: columns that each row has, whatever is in it.
        """
        self._url = url
        self._connector = connector
        self._name = table
        self._partition_by = list(partition_by)
        self._added = added
        self._location, self._options = storage_options(url, encode(table))
        self._table: DeltaTable | None = None
        self._schema: pa.Schema | None = None
        """As the sink was told; the table's own may have changed since."""
        self._floating: dict[TopicPartition, int] = {}
        """Positions that moved before there was a table."""
        self._started: Records | None = None

    def start(self) -> None:
        """See ``Lake``."""
        self._started = Records(find_place(self._url))
        self._records.probe()

    def check(self) -> Sequence[str]:
        """See ``Lake``; makes a small file and deletes it."""
        try:
            self.start()
            self._refresh()
        except (RetriableError, InvalidConfig) as error:
            return [f"{error}; check that path is right, and that it may be read and written"]
        return []

    def open(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See ``Lake``. A commit that is still on its way fails if another one of the same partition is first."""
        for partition in partitions:
            self._floating.pop(partition, None)
        table = self._refresh()
        if table is None:
            return {}
        self._sync()
        found = {partition: table.transaction_version(self._application(partition)) for partition in partitions}
        return {partition: position for partition, position in found.items() if position is not None}

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        """See ``Lake``."""
        for partition in partitions:
            self._floating.pop(partition, None)

    def schema(self, table: str) -> pa.Schema | None:
        """See ``Lake``."""
        if table != self._name:
            raise InvalidConfig(
                f"a record goes to the table {table!r}, and all of a connector go to {self._name!r}, which has the "
                "positions; set table to one name, or make a connector for each topic"
            )
        if self._schema is None:
            self._schema = self._columns(self._refresh())
        return self._schema

    def reload(self) -> None:
        """See ``Lake``."""
        self._schema = None

    def find_unstorable(self, kind: Kind) -> str | None:
        """See ``Lake``."""
        return find_unstorable(kind)

    def normal(self, kind: Kind) -> Kind:
        """See ``Lake``."""
        return normal(kind)

    def commit(
        self, moves: Mapping[TopicPartition, Move], schemas: Mapping[str, pa.Schema], token: bytes | None
    ) -> None:
        """See ``Lake``."""
        schema = schemas.get(self._name)
        table = self._refresh()
        if table is None and schema is None and token is None:
            self._floating |= {partition: move.end for partition, move in moves.items()}
            return
        if table is None:
            table = self._create(schema)
        elif schema is not None and self._columns(table) != self._schema:
            raise RetriableError(f"the columns of {self._name} have changed meanwhile; the rows are fitted again")
        for partition, move in moves.items():
            known_position = table.transaction_version(self._application(partition))
            if known_position is None:
                known_position = self._floating.get(partition)
            if known_position != move.start:
                raise PartitionTaken([partition])
        transactions = [Transaction(self._application(partition), move.end) for partition, move in moves.items()]
        if token is not None:
            transactions.append(self._use(table, token, moves))
        parts = [part for move in moves.values() for part in move.parts]
        failpoint("connect.lake.files")
        with _faults(self._location):
            if parts and schema is not None:
                rows = pa.concat_tables([refit(part.rows, schema) for part in parts])
                properties = _properties(transactions)
                plain = pa.schema([field.remove_metadata() for field in rows.schema])
                write_deltalake(
                    table,
                    rows.cast(plain),
                    mode="append",
                    schema_mode="merge",
                    commit_properties=properties,
                )
                self._schema = self._columns(table)
            else:
                self._commit_alone(table, transactions)
        failpoint("connect.lake.commits")
        self._sync()

    def _use(self, table: DeltaTable, token: bytes, moves: Mapping[TopicPartition, Move]) -> Transaction:
        """
        Raises:
            PartitionTaken: the token was given up, perhaps before there was a table.
        """
        application = f"headrace/token/{token_name(token)}"
        decided = table.transaction_version(application) is not None
        if decided or self._records.verdict(token_name(token)) is not None:
            raise PartitionTaken(moves)
        return Transaction(application, _USED)

    def settle(self, token: bytes) -> bool:
        """See ``Lake``."""
        table = self._refresh()
        if table is None:
            self._records.settle(token_name(token))
            table = self._refresh()  # whoever makes it from now on sees that
        application = f"headrace/token/{token_name(token)}"
        for _ in range(_TRIES_MAX):
            if table is None:
                return False
            verdict = table.transaction_version(application)
            if verdict is not None:
                self._sync()
                return verdict == _USED
            try:
                self._commit_alone(table, [Transaction(application, _GIVEN_UP)])
            except CommitFailedError:
                pass
            except (OSError, DeltaError) as error:
                raise RetriableError(f"{self._location}: {error}") from error
            table = self._refresh()
        raise RetriableError(f"{self._location}: others commit all the time")

    def _commit_alone(self, table: DeltaTable, transactions: Sequence[Transaction]) -> None:
        table.create_write_transaction(
            [], "append", table.schema(), self._partition_by, commit_properties=_properties(transactions)
        )

    def _create(self, schema: pa.Schema | None) -> DeltaTable:
        """The table without rows; whoever else makes it at the same time makes the same."""
        if schema is None and (self._partition_by or not len(self._added)):
            raise InvalidConfig(
                f"no record could be written so far, so nothing says what the columns of {self._location} are; make "
                "the table, or correct the records"
            )
        with _faults(self._location):
            DeltaTable.create(
                self._location,
                (self._added if schema is None else schema).remove_metadata(),
                mode="ignore",
                partition_by=self._partition_by,
                storage_options=self._options,
            )
        table = self._refresh()
        assert table is not None, "it was made"
        return table

    def _refresh(self) -> DeltaTable | None:
        """The table as it is now; None: there is none."""
        with _faults(self._location):
            if self._table is None:
                try:
                    self._table = DeltaTable(self._location, storage_options=self._options)
                except (TableNotFoundError, FileNotFoundError) as error:
                    if self._records.has_any(f"{encode(self._name)}/_delta_log"):  # it cannot be read now
                        raise RetriableError(f"{self._location}: {error}") from error
                    return None
            else:
                self._table.update_incremental()
        return self._table

    def _columns(self, table: DeltaTable | None) -> pa.Schema | None:
        return None if table is None else _to_pyarrow(table.schema().to_arrow())

    @property
    def _records(self) -> Records:
        assert self._started is not None, "start comes first"
        return self._started

    def _application(self, partition: TopicPartition) -> str:
        return f"headrace/{self._connector}/{partition.topic}/{partition.partition}"

    def _sync(self) -> None:
        """deltalake does not wait for a disk."""
        if "://" not in self._location:
            os.sync()


def _to_pyarrow(schema: Any) -> pa.Schema:
    """Of any library that has Arrow's C interface."""
    return pa.schema(schema)


def _properties(transactions: Sequence[Transaction]) -> CommitProperties:
    return CommitProperties(app_transactions=list(transactions), max_commit_retries=_TRIES_MAX)


@contextmanager
def _faults(location: str) -> Iterator[None]:
    try:
        yield
    except DeltaProtocolError as error:
        raise InvalidConfig(f"{location}: {error}") from error
    except (DeltaError, OSError) as error:
        raise RetriableError(f"{location}: {error}") from error
