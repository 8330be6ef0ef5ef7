"""
A Delta table. Numbers are ``txn`` actions: of two commits with one application, the second fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink.lake import Span
from headrace_connect.connectors.lake_sink.one_table import TRIES_MAX, Conflict, OneTable
from headrace_connect.connectors.lake_sink.records import encode
from headrace_connect.connectors.places import storage_options
from headrace_connect.plugin import RetriableError

Changed = TypeVar("Changed")


class DeltaLake(OneTable[DeltaTable]):
    """Satisfies ``Lake``."""

    def __init__(self, url: str, connector: str, table: str, partition_by: Sequence[str], added: pa.Schema) -> None:
        super().__init__(url, connector, table, added, declares=not partition_by)
        self._partition_by = list(partition_by)
        self._location, self._options = storage_options(url, encode(table))
        self._table: DeltaTable | None = None

    def _refresh(self) -> DeltaTable | None:
        with _faults(self._location):
            if self._table is not None:
                self._table.update_incremental()
                return self._table
            try:
                self._table = DeltaTable(self._location, storage_options=self._options)
            except (TableNotFoundError, FileNotFoundError) as error:
                if self._records.has_any(f"{encode(self._name)}/_delta_log"):  # it cannot be read now
                    raise RetriableError(f"{self._location}: {error}") from error
            return self._table

    def _create(self, schema: pa.Schema) -> None:
        """Without rows: deltalake does not look for conflicts with the first commit of a table."""
        with _faults(self._location):
            DeltaTable.create(
                self._location,
                schema,
                mode="ignore",
                partition_by=self._partition_by,
                storage_options=self._options,
            )

    def _columns(self, table: DeltaTable) -> pa.Schema:
        given: Any = table.schema().to_arrow()  # of another library, by Arrow's C interface
        return pa.schema(given)

    def _number(self, table: DeltaTable, key: str) -> int | None:
        return table.transaction_version(key)

    def _commit(self, table: DeltaTable, rows: pa.Table | None, numbers: Mapping[str, int]) -> None:
        transactions = [Transaction(key, number) for key, number in numbers.items()]
        properties = CommitProperties(app_transactions=transactions, max_commit_retries=TRIES_MAX)
        with _faults(self._location):
            if rows is None:
                table.create_write_transaction(
                    [], "append", table.schema(), self._partition_by, commit_properties=properties
                )
            else:
                write_deltalake(table, rows, mode="append", schema_mode="merge", commit_properties=properties)

    def _read(self, table: DeltaTable, span: Span) -> pa.Table:
        with _faults(self._location):
            return table.to_pyarrow_dataset().to_table(filter=span.filter)

    def _replace(self, table: DeltaTable, span: Span, rows: pa.Table, numbers: Mapping[str, int]) -> None:
        transactions = [Transaction(key, number) for key, number in numbers.items()]
        properties = CommitProperties(app_transactions=transactions, max_commit_retries=TRIES_MAX)
        with _faults(self._location):
            write_deltalake(table, rows, mode="overwrite", predicate=span.where, commit_properties=properties)

    def change_files(self, change: Callable[[DeltaTable], Changed]) -> Changed:
        """
        Replace files without a change of rows or positions; what ``change`` says.

        Raises:
            Conflict: others have replaced the same.
            InvalidConfig: there is no such table.
        """
        table = self._refresh()
        if table is None:
            raise InvalidConfig(f"there is no table {self._name} at {self._location}")
        with _faults(self._location):
            done = change(table)
        self._sync()
        return done

    def _sync(self) -> None:
        """deltalake does not wait for a disk."""
        if "://" not in self._location:
            os.sync()


@contextmanager
def _faults(location: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise Conflict(f"{location}: {error}") from error
    except DeltaProtocolError as error:
        raise InvalidConfig(f"{location}: {error}") from error
    except (DeltaError, OSError) as error:
        raise RetriableError(f"{location}: {error}") from error
