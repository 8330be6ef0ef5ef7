"""Tables that each worker has whole, and streams that are joined with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace_streams.core.errors import Origin, RowFailed, cause_of
from headrace_streams.core.formats.keys import encode_keys
from headrace_streams.core.operators.columns import DropNullKeys
from headrace_streams.core.operators.ends import Source
from headrace_streams.core.operators.table_joins import JoinTable
from headrace_streams.core.operators.table_rows import TableRows
from headrace_streams.core.operators.tables import Found, Keep, Matched, View
from headrace_streams.core.rows import KEY, ROW, Column, Numbers, numbers


class GlobalRows(View):
    """The latest record of each key of a topic, in memory: no part of a commit."""

    def __init__(self, source: Source, schema: pa.Schema, what: str, *, skips: bool) -> None:
        """
        Args:
            what: the table, for messages.
            skips: records that cannot be read are left out.
        """
        self._source = source
        self._keep = Keep(TableRows(schema, what))
        self._keyed = DropNullKeys()
        self._what = what
        self._skips = skips
        self.failed = 0
        """Records that were left out."""

    def apply(self, topic: str, partition: int, raw: pa.Table) -> None:
        """
        Records of a partition, in the order of their offsets.

        Raises:
            RowFailed: one cannot be read.
        """

        def failed(rows: pa.Table, error: BaseException) -> None:
            if not self._skips:
                offset = raw["offset"][int(numbers(rows[ROW])[0])].as_py()
                cause = cause_of(error)[:500]
                raise RowFailed(self._what, Origin(topic, partition, offset), cause) from error
            self.failed += rows.num_rows

        for emitted in self._source.feed(raw, 0, failed):
            for keyed in self._keyed.feed(emitted.rows, 0, failed):
                list(self._keep.feed(keyed.rows, 0, failed))

    def lookup(self, keys: Sequence[bytes]) -> Found:
        """The rows of these different keys."""
        return self._keep.lookup(keys)

    def find(self, keys: Column) -> Matched:
        """What each of these keys has, which may be null and may be alike."""
        return self._keep.find(keys)


class JoinGlobal(JoinTable):
    """Rows of a stream with those of a table that is here whole, as it is when they are processed."""

    def __init__(self, table: View, on: str, columns: Mapping[str, str], *, left: bool) -> None:
        """
        Args:
            on: the column that has the key; empty: the key of the row.
        """
        super().__init__(table, columns, left=left)
        self._on = on

    def _looked_up(self, rows: pa.Table) -> pa.ChunkedArray[Any]:
        return rows[self._on or KEY]

    def _find(self, rows: pa.Table) -> tuple[pa.Table, Numbers]:
        matched = self._table.find(encode_keys([rows[self._on]]) if self._on else rows[KEY])
        return matched.rows, matched.places
