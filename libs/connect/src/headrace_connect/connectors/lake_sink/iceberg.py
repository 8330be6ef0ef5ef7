"""
An Iceberg table. Numbers are properties of the table. Each commit makes a snapshot, with rows or without, because a
catalog refuses one that does not follow the snapshot that it was made from; properties alone it would just overwrite.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    TableAlreadyExistsError,
    WaitingForLockException,
)
from pyiceberg.table import Table, TableProperties
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.lake_sink.lake import Array, Span
from headrace_connect.connectors.lake_sink.one_table import Conflict, OneTable
from headrace_connect.connectors.lake_sink.table_types import find_beyond_calendar, normal
from headrace_connect.plugin import RetriableError

NO_RETRIES: Final = {TableProperties.COMMIT_NUM_RETRIES: "0"}
"""pyiceberg tries a stale commit again on top of what others have committed, and so writes rows twice."""
_WAREHOUSE: Final = "warehouse"
_NO_URI: Final = "URI missing"
"""pyiceberg goes on with options and variables of its own."""


class IcebergLake(OneTable[Table]):
    """Satisfies ``Lake``."""

    def __init__(
        self,
        url: str,
        connector: str,
        table: str,
        partition_by: Sequence[str],
        added: pa.Schema,
        catalog: Mapping[str, str],
    ) -> None:
        super().__init__(url, connector, table, added, declares=not partition_by)
        self._partition_by = list(partition_by)
        parts = tuple(table.split("."))
        self._identifier = parts if len(parts) > 1 else ("default", *parts)
        warehouse = url if "://" in url else f"file://{os.path.abspath(url)}"
        self._properties = {_WAREHOUSE: warehouse, **catalog}
        self._catalog: Catalog | None = None

    def find_unfit(self, values: Array) -> Mapping[int, str]:
        """See ``Lake``: pyiceberg makes Python's dates of the least and the largest."""
        return find_beyond_calendar(values)

    def _refresh(self) -> Table | None:
        with _faults(self._name):
            try:
                table = self._live.load_table(self._identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            if table.properties.get(TableProperties.COMMIT_NUM_RETRIES) != "0":
                with table.transaction() as transaction:
                    transaction.set_properties(NO_RETRIES)
                table = self._live.load_table(self._identifier)
            return table

    def _create(self, schema: pa.Schema) -> None:
        with _faults(self._name):
            self._live.create_namespace_if_not_exists(self._identifier[:-1])
            try:
                made = self._live.create_table_transaction(self._identifier, schema, properties=NO_RETRIES)
                with made as transaction, transaction.update_spec() as spec:
                    for name in self._partition_by:
                        spec.add_identity(name)
            except TableAlreadyExistsError:
                return

    def _columns(self, table: Table) -> pa.Schema:
        return pa.schema([(field.name, normal(field.type)) for field in table.schema().as_arrow()])

    def _number(self, table: Table, key: str) -> int | None:
        found = table.properties.get(key)
        return None if found is None else int(found)

    def _commit(self, table: Table, rows: pa.Table | None, numbers: Mapping[str, int]) -> None:
        columns = self._columns(table)
        given = columns.empty_table() if rows is None else rows
        with _faults(self._name):
            transaction = table.transaction()
            if given.schema.names != columns.names or given.schema != columns:
                with transaction.update_schema() as update:
                    update.union_by_name(given.schema)
            transaction.append(given)
            transaction.set_properties({key: str(number) for key, number in numbers.items()})
            transaction.commit_transaction()

    def _replace(self, table: Table, span: Span, rows: pa.Table, numbers: Mapping[str, int]) -> None:
        with _faults(self._name):
            transaction = table.transaction()
            transaction.overwrite(rows, overwrite_filter=span.where)
            transaction.set_properties({key: str(number) for key, number in numbers.items()})
            transaction.commit_transaction()

    def _read(self, table: Table, span: Span) -> pa.Table:
        with _faults(self._name):
            return table.scan(row_filter=span.where).to_arrow()

    def _sync(self) -> None:
        """pyiceberg does not wait for a disk."""
        if self._properties[_WAREHOUSE].startswith("file:"):
            os.sync()

    @property
    def _live(self) -> Catalog:
        if self._catalog is None:
            try:
                self._catalog = load_catalog("headrace", **self._properties)
            except ArgumentError as error:
                raise InvalidConfig(f"catalog.uri: {error}") from error
            except (ValueError, NotInstalledError, ImportError) as error:
                if str(error).startswith(_NO_URI):
                    raise InvalidConfig("catalog.uri is missing; it says where the catalog is") from error
                raise InvalidConfig(f"catalog.*: {error}") from error
        return self._catalog


@contextmanager
def _faults(table: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedException as error:
        raise Conflict(f"{table}: {error}") from error
    except (RESTError, WaitingForLockException, SQLAlchemyError, OSError) as error:
        raise RetriableError(f"{table}: {error}") from error
