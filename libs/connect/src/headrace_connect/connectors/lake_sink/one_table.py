"""
A lake that is one table of a format with transactions: positions and tokens are numbers in the table itself, changed by
the commit that adds the rows. The formats say how a table is read, and how it is changed only if nobody else has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, Generic, TypeVar

import pyarrow as pa

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.failpoints import failpoint
from headrace_connect.connectors.lake_sink.fitting import refit
from headrace_connect.connectors.lake_sink.lake import Array, Move, Span
from headrace_connect.connectors.lake_sink.records import Records, token_name
from headrace_connect.connectors.lake_sink.table_types import find_unstorable, normal
from headrace_connect.connectors.places import find_place
from headrace_connect.core.kinds import Kind
from headrace_connect.plugin import PartitionTaken, RetriableError

Table = TypeVar("Table")
_USED, _GIVEN_UP = 1, 0
_FORGOTTEN: Final = -1
"""In the place of a position: numbers stay in a table."""
TRIES_MAX: Final = 20
"""Of a commit, while others commit to the table."""


class Conflict(RetriableError):
    """Somebody else has changed the same; nothing of the commit took place."""


class OneTable(ABC, Generic[Table]):
    """Satisfies ``Lake``; all partitions write one table."""

    widens = False

    def __init__(self, url: str, connector: str, table: str, added: pa.Schema, *, declares: bool) -> None:
        """
        Args:
            added: columns that each row has, whatever is in it.
            declares: whether a table can be made of these alone.
        """
        self._url = url
        self._connector = connector
        self._name = table
        self._added = added
        self._declares = declares and len(added) > 0
        self._schema: pa.Schema | None = None
        """As the sink was told; the table's own may have changed since."""
        self._floating: dict[TopicPartition, int] = {}
        """Positions that moved before there was a table."""
        self._started: Records | None = None
        self._kept: Table | None = None
        """As it was when it was read first."""

    # --- what a format does ---------------------------------------------------------------------------------------

    @abstractmethod
    def _refresh(self) -> Table | None:
        """The table as it is now; None: there is none."""

    @abstractmethod
    def _create(self, schema: pa.Schema) -> None:
        """Make the table without rows, unless somebody has made it."""

    @abstractmethod
    def _columns(self, table: Table) -> pa.Schema:
        """Its columns."""

    @abstractmethod
    def _number(self, table: Table, key: str) -> int | None:
        """A number in the table; None: there is none."""

    @abstractmethod
    def _commit(self, table: Table, rows: pa.Table | None, numbers: Mapping[str, int]) -> None:
        """
        Add rows, with columns that are new, and set numbers, only if since ``table`` nobody has set one of them.

        Raises:
            Conflict: somebody has; nothing took place.
            RetriableError: nobody knows.
        """

    @abstractmethod
    def _read(self, table: Table, span: Span) -> pa.Table:
        """Rows of a range."""

    @abstractmethod
    def _replace(self, table: Table, span: Span, rows: pa.Table, numbers: Mapping[str, int]) -> None:
        """As ``_commit``, with the rows in the place of those of a range."""

    @abstractmethod
    def _sync(self) -> None:
        """What the table has now stays there, whatever fails."""

    # --- the lake -------------------------------------------------------------------------------------------------

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
        self.close(partitions)
        table = self._refresh()
        if table is None:
            return {}
        self._sync()
        found = {partition: self._position(table, partition) for partition in partitions}
        return {partition: position for partition, position in found.items() if position is not None}

    def rewind(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """See ``Lake``; all in one commit. What others commit at the same moment comes before it, or fails."""
        table = self._refresh()
        for _ in range(TRIES_MAX):
            wanted = {one: position for one, position in positions.items() if self._knows(table, one, position)}
            if not wanted:
                return
            table = self._made(None) if table is None else table
            try:
                self._commit(
                    table,
                    None,
                    {self._key(one): _FORGOTTEN if position is None else position for one, position in wanted.items()},
                )
            except Conflict:
                table = self._refresh()
            else:
                self._sync()
                return
        raise RetriableError(f"{self._name}: others commit all the time")

    def _knows(self, table: Table | None, partition: TopicPartition, wanted: int | None) -> bool:
        """Whether the table has something to say of a partition, or is to have it."""
        return wanted is not None or (table is not None and self._number(table, self._key(partition)) is not None)

    def _position(self, table: Table, partition: TopicPartition) -> int | None:
        found = self._number(table, self._key(partition))
        return None if found == _FORGOTTEN else found

    def find_position(self, partition: TopicPartition) -> int | None:
        """See ``Lake``."""
        table = self._seen()
        return None if table is None else self._position(table, partition)

    def read(self, span: Span) -> pa.Table:
        """See ``Lake``."""
        table = self._seen()
        assert table is not None, "it has a position"
        return self._read(table, span)

    def replace(self, span: Span, rows: pa.Table) -> None:
        """See ``Lake``."""
        table = self._refresh()
        assert table is not None, "it has a position"
        partition = TopicPartition(span.of, span.partition)
        key, position = self._key(partition), self._position(table, partition)
        assert position is not None, "it has a position"
        plain = rows.cast(pa.schema([field.remove_metadata() for field in rows.schema]))
        self._replace(table, span, plain, {key: position})
        self._sync()
        self._kept = None

    def _seen(self) -> Table | None:
        """The table as it was when this was asked first."""
        if self._kept is None:
            self._kept = self._refresh()
        return self._kept

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
            found = self._refresh()
            self._schema = None if found is None else self._columns(found)
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

    def find_unfit(self, values: Array) -> Mapping[int, str]:
        """See ``Lake``."""
        return {}

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
            table = self._made(schema)
        elif schema is not None and self._columns(table) != self._schema:
            raise RetriableError(f"the columns of {self._name} have changed meanwhile; the rows are fitted again")
        for partition, move in moves.items():
            position = self._position(table, partition)
            if (self._floating.get(partition) if position is None else position) != move.start:
                raise PartitionTaken([partition])
        numbers = {self._key(partition): move.end for partition, move in moves.items()}
        if token is not None:
            if self._is_decided(table, token):
                raise PartitionTaken(moves)
            numbers[self._token(token)] = _USED
        parts = [part for move in moves.values() for part in move.parts]
        rows = None
        if parts and schema is not None:
            rows = pa.concat_tables([refit(part.rows, schema) for part in parts])
            rows = rows.cast(pa.schema([field.remove_metadata() for field in rows.schema]))
        failpoint("connect.lake.files")
        self._commit_behind_others(table, rows, numbers)
        failpoint("connect.lake.commits")
        self._sync()
        if self._schema is not None:
            self.reload()
            self.schema(self._name)

    def _commit_behind_others(self, table: Table, rows: pa.Table | None, numbers: Mapping[str, int]) -> None:
        """Commit, again while others commit who have not changed the same."""
        before = {key: self._number(table, key) for key in numbers}, self._columns(table)
        for _ in range(TRIES_MAX):
            try:
                self._commit(table, rows, numbers)
            except Conflict:
                found = self._refresh()
                if (
                    found is None
                    or ({key: self._number(found, key) for key in numbers}, self._columns(found)) != before
                ):
                    raise
                table = found
            else:
                return
        raise RetriableError(f"{self._name}: others commit all the time")

    def settle(self, token: bytes) -> bool:
        """See ``Lake``."""
        table = self._refresh()
        if table is None:
            self._records.settle(token_name(token))
            table = self._refresh()  # whoever makes it from now on sees that
        for _ in range(TRIES_MAX):
            if table is None:
                return False
            verdict = self._number(table, self._token(token))
            if verdict is not None:
                self._sync()
                return verdict == _USED
            try:
                self._commit(table, None, {self._token(token): _GIVEN_UP})
            except Conflict:
                pass
            table = self._refresh()
        raise RetriableError(f"{self._name}: others commit all the time")

    def _is_decided(self, table: Table, token: bytes) -> bool:
        """Whether somebody has given the token up, perhaps before there was a table."""
        decided = self._number(table, self._token(token)) is not None
        return decided or self._records.verdict(token_name(token)) is not None

    def _made(self, schema: pa.Schema | None) -> Table:
        if schema is None and not self._declares:
            raise InvalidConfig(
                f"no record could be written so far, so nothing says what the columns of {self._name} are; make the "
                "table, or correct the records"
            )
        wanted = self._added if schema is None else schema
        self._create(pa.schema([field.remove_metadata() for field in wanted]))
        table = self._refresh()
        assert table is not None, "it was made"
        return table

    def _key(self, partition: TopicPartition) -> str:
        return f"headrace/{self._connector}/{partition.topic}/{partition.partition}"

    def _token(self, token: bytes) -> str:
        return f"headrace/token/{token_name(token)}"

    @property
    def _records(self) -> Records:
        assert self._started is not None, "start comes first"
        return self._started
