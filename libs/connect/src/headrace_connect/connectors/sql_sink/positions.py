"""
Positions and tokens in the target, changed in the transaction that writes the rows.

A position belongs to an epoch: who opens a partition raises it, and who has an older one changes nothing any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.records import TopicPartition
from headrace_connect.connectors.sql.session import RowFault
from headrace_connect.connectors.sql_sink.database import Database
from headrace_connect.connectors.sql_sink.kinds import TEXT
from headrace_connect.plugin import PartitionTaken

POSITIONS: Final = "headrace_positions"
TOKENS: Final = "headrace_tokens"
_TRIED: Final = "headrace_check"
_WHERE: Final = 'where connector = ? and topic = ? and "partition" = ?'


class Positions:
    """Of one connector. Statements belong to the transaction that is open."""

    def __init__(self, database: Database, connector: str) -> None:
        self._database = database
        self._connector = connector

    def has_tables(self) -> bool:
        """Whether both tables are there."""
        return all(self._database.find_columns((name,)) for name in (POSITIONS, TOKENS))

    def create_tables(self) -> None:
        """Make the two tables, if they are not there."""
        if not self._database.find_columns((POSITIONS,)):
            text = self._database.type_name(TEXT, key=True)
            self._database.execute(
                f'create table {POSITIONS} (connector {text} not null, topic {text} not null, "partition" integer '
                'not null, position bigint, epoch bigint not null, primary key (connector, topic, "partition"))'
                + self._database.table_options
            )
        if not self._database.find_columns((TOKENS,)):
            self._database.execute(
                f"create table {TOKENS} (token {self._database.bytes_type} primary key, done integer not null)"
                + self._database.table_options
            )

    def check_tables(self) -> None:
        """
        Make the two tables and undo it, or one like them that is dropped: whether that can be done. There is a
        transaction, and behind it none.
        """
        if not self._database.changes_end:
            self.create_tables()
        elif not self.has_tables():
            self._database.lock_tables()
            self._database.execute(f"create or replace table {_TRIED} (epoch bigint){self._database.table_options}")
            self._database.execute(f"drop table {_TRIED}")
        self._database.rollback()

    def take(self, partition: TopicPartition, epoch: int) -> int | None:
        """
        Raise the epoch of a partition; the position that is there, None: there is none.

        Whatever transaction is about to change it is over when this returns: the row is locked.

        Raises:
            PartitionTaken: the epoch there is higher.
        """
        key = (self._connector, partition.topic, partition.partition)
        self._add(key, epoch)
        changed = self._database.execute(
            f"update {POSITIONS} set epoch = ? {_WHERE} and epoch <= ?", (epoch, *key, epoch)
        )
        if changed.count != 1:
            raise PartitionTaken([partition])
        ((position,),) = self._database.execute(
            f"select position from {POSITIONS} {_WHERE}{self._database.locking}", key
        ).rows
        return None if position is None else int(position)

    def find(self, partition: TopicPartition) -> int | None:
        """The position that is there; None: there is none."""
        key = (self._connector, partition.topic, partition.partition)
        rows = self._database.execute(f"select position from {POSITIONS} {_WHERE}", key).rows
        return None if not rows or rows[0][0] is None else int(rows[0][0])

    def lock(self, partition: TopicPartition) -> int | None:
        """The same; nobody changes it before the transaction is over."""
        key = (self._connector, partition.topic, partition.partition)
        self._database.execute(f"update {POSITIONS} set epoch = epoch {_WHERE}", key)
        return self.find(partition)

    def move(self, partition: TopicPartition, epoch: int, start: int | None, end: int) -> None:
        """
        Change a position from ``start`` to ``end``.

        Raises:
            PartitionTaken: there is another epoch, or another position.
        """
        key = (self._connector, partition.topic, partition.partition)
        where, values = ("position is null", ()) if start is None else ("position = ?", (start,))
        changed = self._database.execute(
            f"update {POSITIONS} set position = ? {_WHERE} and epoch = ? and {where}", (end, *key, epoch, *values)
        )
        if changed.count != 1:
            raise PartitionTaken([partition])

    def rewind(self, partition: TopicPartition, position: int | None) -> None:
        """Set a position, None: there is none, under an epoch of its own: holders of before have another one."""
        key = (self._connector, partition.topic, partition.partition)
        if position is not None:
            self._add(key, 0)
        self._database.execute(f"update {POSITIONS} set position = ?, epoch = epoch + 1 {_WHERE}", (position, *key))

    def _add(self, key: tuple[str, str, int], epoch: int) -> None:
        self._database.execute(
            f'insert into {POSITIONS} (connector, topic, "partition", position, epoch) values (?, ?, ?, null, ?) '
            + self._database.or_nothing(("connector", "topic", '"partition"')),
            (*key, epoch),
        )

    def add_token(self, token: bytes, partitions: Mapping[TopicPartition, int]) -> None:
        """
        Raises:
            PartitionTaken: somebody has settled it: the transaction that it belongs to is given up.
        """
        try:
            with self._database.savepoint():
                self._database.execute(f"insert into {TOKENS} (token, done) values (?, 1)", (token,))
        except RowFault as error:
            raise PartitionTaken(partitions) from error

    def settle(self, token: bytes) -> bool:
        """Whether it was committed; if not, it cannot be any more when the transaction is over."""
        self._database.execute(
            f"insert into {TOKENS} (token, done) values (?, 0) {self._database.or_nothing(('token',))}", (token,)
        )
        statement = f"select done from {TOKENS} where token = ?{self._database.locking}"
        ((done,),) = self._database.execute(statement, (token,)).rows
        return bool(int(done))
