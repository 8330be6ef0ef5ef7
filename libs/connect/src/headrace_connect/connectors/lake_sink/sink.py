"""The sink ``lake-sink``: rows are kept until a commit, which writes them with their positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.records import TopicPartition
from headrace_connect.connectors.lake_sink.added import schema_of, with_added, with_computed
from headrace_connect.connectors.lake_sink.fitting import Fitted, Rules, fit, refit
from headrace_connect.connectors.lake_sink.lake import Lake, Move, Part
from headrace_connect.connectors.lake_sink.parquet import ParquetLake
from headrace_connect.connectors.lake_sink.settings import SinkSettings
from headrace_connect.connectors.lake_sink.verifying import LakeVerifier
from headrace_connect.core.events import DRIFT, Event
from headrace_connect.plugin import Guarantee, PartitionTaken, RetriableError, Rows, RowsRefused, Sink, Verifier
from headrace_connect.settings import Problem, invalid


@dataclass(slots=True)
class _Kept:
    """Rows of a partition for a table that are not committed."""

    first: int
    end: int
    tables: list[pa.Table]


class LakeSink(Sink[SinkSettings]):
    """Appends each record as a row of a table."""

    guarantee = Guarantee.POSITIONS
    commit_drained = False

    def __init__(self, settings: SinkSettings, lake: Lake | None = None) -> None:
        """
        Args:
            lake: where rows go; None: the one of the settings.
        """
        super().__init__(settings)
        self.commit_interval_ms = settings.flush_interval_ms
        self.commit_rows = settings.flush_rows
        self.commit_bytes = settings.flush_bytes
        self._computed = settings.partition_columns
        self._lake = lake_of(settings, list(self._computed)) if lake is None else lake
        self._rules = Rules(
            settings.drift, self._lake.widens, self._lake.find_unstorable, self._lake.normal, self._lake.find_unfit
        )
        self._held: dict[TopicPartition, int | None] = {}
        """The position of each open partition."""
        self._kept: dict[TopicPartition, dict[str, _Kept]] = {}
        self._schemas: dict[str, pa.Schema] = {}
        """Of the tables, with what the rows that are kept add to them."""
        self._drifts: list[Event] = []
        """Of what is kept."""
        self._lost: set[TopicPartition] = set()
        """Where they are is not known any more; ``open`` comes next."""

    def check(self) -> Sequence[str]:
        """See ``Connector``; tries to write."""
        return self._lake.check()

    def start(self) -> None:
        """See ``Connector``."""
        self._lake.start()

    def open(self, partitions: Sequence[TopicPartition], epoch: int) -> Mapping[TopicPartition, int]:
        """See ``Sink``. The epoch is not needed: the next commit decides between two holders."""
        self._drop(partitions)
        found = self._lake.open(partitions)
        for partition in partitions:
            self._held[partition] = found.get(partition)
        self._lost -= set(partitions)
        return found

    def write(self, rows: Rows) -> None:
        """See ``Sink``; a record without a value is refused."""
        partition = rows.source
        self._check_open([partition])
        if rows.values.null_count:
            nulls: list[Any] = rows.values.is_null().to_pylist()
            reason = "the record has no value; a transform Filter with the predicate RecordIsTombstone leaves it out"
            raise RowsRefused({row: reason for row, is_null in enumerate(nulls) if is_null})
        table = self.settings.table_of(rows.topic)
        given = with_computed(with_added(rows, self.settings.added_columns), self._computed)
        fitted = self._fit(table, given)
        if fitted.wrong:
            raise RowsRefused(fitted.wrong)
        self._note(table, fitted.schema)
        self._schemas[table] = fitted.schema
        first = int(rows.offsets[0].as_py())
        kept = self._kept.setdefault(partition, {}).setdefault(table, _Kept(first, first, []))
        kept.end = rows.next_offset
        kept.tables.append(fitted.rows)

    def _note(self, table: str, schema: pa.Schema) -> None:
        known = self._schemas[table] if table in self._schemas else self._lake.schema(table)
        if known is None or schema is known:
            return
        types = {field.name: field.type for field in known}
        for field in schema:
            if field.type != types.get(field.name):
                is_new = field.name not in types
                text = (
                    f"has a column {field.name!r} more, {field.type}"
                    if is_new
                    else (f"the column {field.name!r} is {field.type} now, and was {types[field.name]}")
                )
                detail = {"table": table, "column": field.name, "type": str(field.type)}
                self._drifts.append(Event(DRIFT, f"the table {table}: {text}", detail))

    def _fit(self, table: str, given: pa.Table) -> Fitted:
        known = self._schemas[table] if table in self._schemas else self._lake.schema(table)
        fitted = fit(given, known, self._rules)
        kept = [kept for tables in self._kept.values() for name, kept in tables.items() if name == table]
        if known is None or fitted.schema.equals(known) or not kept or fitted.wrong:
            return fitted
        try:
            grown = [[refit(rows, fitted.schema) for rows in one.tables] for one in kept]
        except pa.ArrowException:  # what is kept would be rounded
            return fit(given, known, replace(self._rules, widens=False))
        for one, tables in zip(kept, grown, strict=True):
            one.tables = tables
        return fitted

    def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        """See ``Sink``."""
        self._check_open(positions)
        moves = {
            partition: Move(self._held[partition], end, self._parts(partition))
            for partition, end in positions.items()
            if end != self._held[partition]
        }
        schemas = {part.table: self._schemas[part.table] for move in moves.values() for part in move.parts}
        try:
            if moves or token is not None:
                self._lake.commit(moves, schemas, token)
        except BaseException:
            self._lost |= set(positions)
            raise
        drifts = self._drifts if moves else []
        self._drop(list(positions))
        self._held |= positions
        for event in drifts:
            self.notify(event)

    def _parts(self, partition: TopicPartition) -> list[Part]:
        return [
            Part(
                table,
                kept.first,
                kept.end,
                pa.concat_tables([refit(rows, self._schemas[table]) for rows in kept.tables]),
            )
            for table, kept in self._kept.get(partition, {}).items()
        ]

    def verifier(self) -> Verifier:
        """See ``Sink``."""
        return LakeVerifier(self.settings, self._lake, self._rules, self._computed)

    def settle(self, token: bytes) -> bool:
        """See ``Sink``."""
        return self._lake.settle(token)

    def rewind(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """See ``Sink``. There are no epochs: a holder of before can only go on from a position that counts."""
        self._lake.rewind(positions)

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        """See ``Sink``."""
        self._drop(partitions)
        self._lake.close(partitions)
        for partition in partitions:
            self._held.pop(partition, None)
            self._lost.discard(partition)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._kept.pop(partition, None)
        if not self._kept:
            self._drifts = []
            self._schemas.clear()
            self._lake.reload()

    def _check_open(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Raises:
            PartitionTaken: one is not open.
            RetriableError: what was written of one is lost, so ``open`` has to come first.
        """
        closed = [partition for partition in partitions if partition not in self._held]
        if closed:
            raise PartitionTaken(closed)
        if self._lost & set(partitions):
            raise RetriableError("what was written since the last commit is lost; the partitions are opened again")


def lake_of(settings: SinkSettings, partition_by: Sequence[str]) -> Lake:
    """
    The lake of the settings; nothing is asked of it yet.

    Raises:
        InvalidConfig: what it needs is not installed.
    """
    if settings.format == "parquet":
        return ParquetLake(settings.path, partition_by)
    given = (settings.path, settings.name, settings.only_table, partition_by, schema_of(settings.added_columns))
    try:
        if settings.format == "delta":
            from headrace_connect.connectors.lake_sink.delta import DeltaLake

            return DeltaLake(*given)
        from headrace_connect.connectors.lake_sink.iceberg import IcebergLake

        return IcebergLake(*given, settings.catalog)
    except ImportError as error:
        message = f"format={settings.format} needs a library: pip install 'headrace-connect[lake]' ({error})"
        raise invalid([Problem("format", message)]) from error
