"""
Parquet files. A file's name begins with its offsets and has an id, so nobody ever writes a file again; commits say
which files count. Two holders of a partition may both write files, and one of them makes the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pyarrow import dataset, parquet

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.entropy import new_uuid
from headrace_common.runtime.failpoints import failpoint
from headrace_connect.connectors.lake_sink.added import OFFSET
from headrace_connect.connectors.lake_sink.commits import DataFile, Entry, Slot
from headrace_connect.connectors.lake_sink.fitting import refit
from headrace_connect.connectors.lake_sink.lake import Array, Move, Part, Span
from headrace_connect.connectors.lake_sink.reading import open_dataset, open_files
from headrace_connect.connectors.lake_sink.records import Records, directory_of, encode, token_name
from headrace_connect.connectors.places import Place, find_place
from headrace_connect.core.kinds import Kind
from headrace_connect.plugin import PartitionTaken, RetriableError

DIRECTORIES_MAX: Final = 1_000
"""Of one commit, where a table is partitioned."""
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


class ParquetLake:
    """Satisfies ``Lake``."""

    widens = True

    def __init__(self, url: str, partition_by: Sequence[str]) -> None:
        self._url = url
        self._partition_by = tuple(partition_by)
        self._place: Place | None = None
        self._slots: dict[TopicPartition, Slot] = {}
        """Where the next commit of each open partition goes."""
        self._doubts: dict[TopicPartition, Slot] = {}
        """Commits of which nobody knows whether they took place, or will."""
        self._schemas: dict[str, tuple[int, pa.Schema | None]] = {}
        self._sets: dict[str, dataset.Dataset] = {}
        """Tables that were read."""

    def start(self) -> None:
        """See ``Lake``."""
        self.connect()
        self._records.probe()

    def connect(self) -> None:
        """Only that: a store that would overwrite commits is not found out."""
        self._place = find_place(self._url)

    def check(self) -> Sequence[str]:
        """See ``Lake``; makes a small file and deletes it."""
        try:
            self.start()
            self._live.write("_headrace/check", b"")
            self._live.delete("_headrace/check")
        except (RetriableError, InvalidConfig) as error:
            return [f"{error}; check that path is right, and that it may be read and written"]
        return []

    def open(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """See ``Lake``."""
        found: dict[TopicPartition, int] = {}
        for partition in partitions:
            position, slot = self._records.locate(partition)
            if self._doubts.get(partition) == slot:  # it may come to be there yet
                self._records.take(partition, slot, Entry(new_uuid(), None))
                position, slot = self._records.locate(partition)
            self._doubts.pop(partition, None)
            self._slots[partition] = slot
            if position is not None:
                found[partition] = position
        return found

    def rewind(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """
        See ``Lake``: ahead only, by a commit without rows. Each partition by itself.

        Raises:
            InvalidConfig: a commit that is there would have to go.
        """
        ahead: dict[TopicPartition, int] = {}
        for partition, wanted in positions.items():
            position, self._slots[partition] = self._records.locate(partition)
            if (wanted or 0) < (position or 0):
                raise InvalidConfig(
                    f"path: the lake has {partition.topic}-{partition.partition} up to offset {position}, and cannot "
                    f"go back to {'the beginning' if wanted is None else wanted}: with format=parquet the files of "
                    "commits are the positions, so data would have to be removed. Write the records again under "
                    "another path, or use format=delta or iceberg"
                )
            if wanted is not None and wanted > (position or 0):
                ahead[partition] = wanted
        try:
            for partition in sorted(ahead, key=directory_of):
                self._take(partition, Entry(new_uuid(), ahead[partition]), decided=True)
        except PartitionTaken as error:
            raise RetriableError(f"{self._url}: somebody else commits to it at this moment") from error
        finally:
            self.close(list(positions))

    def find_position(self, partition: TopicPartition) -> int | None:
        """See ``Lake``."""
        return self._records.find_position(partition)

    def read(self, span: Span) -> pa.Table:
        """See ``Lake``."""
        if span.table not in self._sets:
            self._sets[span.table] = open_dataset(self._url, span.table)
        return self._sets[span.table].to_table(filter=span.filter)

    def replace(self, span: Span, rows: pa.Table) -> None:
        """
        See ``Lake``: each commit of the range gets other files, in one step each. The old ones are deleted then; who
        reads them meanwhile begins anew.
        """
        partition = TopicPartition(span.of, span.partition)
        schema = self.schema(span.table)
        assert schema is not None, "it was read"
        directory = directory_of(partition)
        _, merged = self._records.merged(
            directory, [name.rpartition("/")[2] for name in self._live.list_directory(directory)]
        )
        if span.first < merged.end:
            raise InvalidConfig(
                f"{span.table}: files below offset {merged.end} of {span.of}-{span.partition} are merged, and what is "
                "merged is not repaired: write to another path"
            )
        for name, slot, entry in list(self._records.entries(partition)):
            assert entry.end is not None, "it counts"
            first, end = max(slot.first, span.first), min(entry.end, span.end)
            if first >= end:
                continue
            old = [file for file in entry.files if file.table == span.table]
            others = [file for file in entry.files if file.table != span.table]
            parts = [self._rows(old, span).filter(~replace(span, first=first, end=end).filter)] if old else []
            parts.append(rows.filter(replace(span, first=first, end=end).filter))
            whole = pa.concat_tables([refit(part, schema) for part in parts]).sort_by(OFFSET)
            part = Part(span.table, slot.first, entry.end, whole)
            files = tuple(self._write(partition, part, schema)) if len(whole) else ()
            self._records.change(name, Entry(entry.id, entry.end, (*others, *files), entry.token))
            for file in old:
                self._live.delete(file.path)
        self._sets.pop(span.table, None)

    def _rows(self, files: Sequence[DataFile], span: Span) -> pa.Table:
        return open_files(self._url, span.table, [file.path for file in files]).to_table()

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        """See ``Lake``."""
        for partition in partitions:
            self._slots.pop(partition, None)
            self._doubts.pop(partition, None)

    def reload(self) -> None:
        """See ``Lake``."""
        self._schemas.clear()

    def schema(self, table: str) -> pa.Schema | None:
        """See ``Lake``."""
        if table not in self._schemas:
            self._schemas[table] = self._records.schema(table)
        return self._schemas[table][1]

    def normal(self, kind: Kind) -> Kind:
        """See ``Lake``: files have almost all types of Arrow."""
        return kind

    def find_unstorable(self, kind: Kind) -> str | None:
        """See ``Lake``."""
        return _find_unstorable(kind)

    def find_unfit(self, values: Array) -> Mapping[int, str]:
        """See ``Lake``."""
        return {}

    def commit(
        self, moves: Mapping[TopicPartition, Move], schemas: Mapping[str, pa.Schema], token: bytes | None
    ) -> None:
        """See ``Lake``."""
        used = "" if token is None else token_name(token)
        entries = {
            partition: Entry(new_uuid(), moves[partition].end, tuple(files), used)
            for partition, files in self.stage(moves, schemas).items()
        }
        failpoint("connect.lake.files")
        for partition in sorted(entries, key=directory_of):
            self._take(partition, entries[partition], decided=not used)
        failpoint("connect.lake.commits")
        if used and not self._records.use(used):
            raise PartitionTaken(moves)
        for partition, entry in entries.items():
            assert entry.end is not None, "it is not void"
            self._doubts.pop(partition, None)
            self._slots[partition] = Slot(entry.end)

    def stage(
        self, moves: Mapping[TopicPartition, Move], schemas: Mapping[str, pa.Schema]
    ) -> dict[TopicPartition, list[DataFile]]:
        """
        Files with the rows, durable, which no commit names yet.

        Raises:
            RetriableError: the place is away, or a table's columns have changed meanwhile.
        """
        self._grow(schemas)
        return {
            partition: [file for part in move.parts for file in self._write(partition, part, schemas[part.table])]
            for partition, move in moves.items()
        }

    def name(self, partition: TopicPartition, end: int, files: Sequence[DataFile]) -> None:
        """
        Commit files that others have staged; durable when it returns.

        Args:
            partition: an open one.
            end: its next position.
            files: with all its rows from its position on, below ``end``.

        Raises:
            PartitionTaken: another commit is there; these files are deleted.
        """
        self._take(partition, Entry(new_uuid(), end, tuple(files)), decided=True)

    def _take(self, partition: TopicPartition, entry: Entry, *, decided: bool) -> None:
        """
        Raises:
            PartitionTaken: another commit is there; the files of this one are deleted.
        """
        slot = self._slots[partition]
        self._doubts[partition] = slot
        if self._records.take(partition, slot, entry):
            if decided:
                assert entry.end is not None, "it is not void"
                self._slots[partition] = Slot(entry.end)
                del self._doubts[partition]
            return
        for file in entry.files:
            self._live.delete(file.path)
        raise PartitionTaken([partition])

    def settle(self, token: bytes) -> bool:
        """See ``Lake``."""
        return self._records.settle(token_name(token))

    def _grow(self, schemas: Mapping[str, pa.Schema]) -> None:
        for table, schema in schemas.items():
            known = self.schema(table)
            if known is not None and known.equals(schema, check_metadata=True):
                continue
            number = self._schemas[table][0] + 1
            if self._records.add_schema(table, number, schema):
                self._schemas[table] = number, schema
                continue
            self._schemas[table] = self._records.schema(table)
            if self._schemas[table][1] != schema:
                raise RetriableError(f"the columns of {table} have changed meanwhile; the rows are fitted again")

    def _write(self, partition: TopicPartition, part: Part, schema: pa.Schema) -> Iterator[DataFile]:
        rows = refit(part.rows, schema)
        for directory, some in split_rows(rows, self._partition_by):
            name = f"{part.first:020}-{part.end:020}-{new_uuid()}.parquet"
            path = "/".join([encode(part.table), str(partition.partition), *directory, name])
            data = to_parquet(some)
            self._live.write(path, data, whole=False)
            yield DataFile(path, part.table, len(some), len(data))

    @property
    def _records(self) -> Records:
        return Records(self._live)

    @property
    def _live(self) -> Place:
        assert self._place is not None, "start comes first"
        return self._place


def to_parquet(rows: pa.Table) -> bytes:
    """A file of rows in the order of their offsets."""
    return join_parquet(rows.schema, [rows])


def join_parquet(schema: pa.Schema, parts: Iterable[pa.Table]) -> bytes:
    """
    A file of rows in the order of their offsets, with a group of rows for each part. Columns without a type, which have
    nulls alone, are left out.
    """
    names = [field.name for field in schema if not pa.types.is_null(field.type)]
    typed = pa.schema([schema.field(name) for name in names]).with_metadata(schema.metadata)
    sorting = parquet.SortingColumn.from_ordering(typed, [(OFFSET, "ascending")]) if OFFSET in names else None
    data = pa.BufferOutputStream()
    with parquet.ParquetWriter(
        data, typed, compression="zstd", sorting_columns=sorting, write_page_index=True
    ) as writer:
        for part in parts:
            writer.write_table(part.select(names))
    return data.getvalue().to_pybytes()


def split_rows(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[list[str], pa.Table]]:
    """
    Rows by the values of columns, without these columns; each part keeps its order. Before each: its directories.

    Raises:
        InvalidConfig: there are too many values.
    """
    if not names:
        yield [], rows
        return
    codes: Any = np.zeros(len(rows), np.int64)
    for name in names:
        column: Any = rows.column(name).combine_chunks()
        own = column.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
        codes = codes * (int(own.max(initial=0)) + 1) + own
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order])) + 1
    if len(bounds) >= DIRECTORIES_MAX:
        raise InvalidConfig(
            f"partition.by has {len(bounds) + 1} different values within one commit, more than {DIRECTORIES_MAX}; "
            "choose an expression with fewer"
        )
    for indices in np.split(order, bounds):
        some = rows.take(indices)
        directories = [f"{quote(name, safe='')}={_value(some.column(name)[0])}" for name in names]
        yield directories, some.drop_columns(list(names))


def _value(scalar: Any) -> str:
    if not scalar.is_valid:
        return _NULL
    text = scalar.cast(pa.string()).as_py()
    return quote(text, safe="") if text else _NULL


@lru_cache(maxsize=10_000)
def _find_unstorable(kind: Kind) -> str | None:
    try:
        parquet.write_table(pa.table({"x": pa.array([], kind)}), pa.BufferOutputStream())
    except (pa.ArrowException, NotImplementedError) as error:
        return f"Parquet has no form of {kind}: {error}"
    return None
