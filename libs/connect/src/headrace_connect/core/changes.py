"""
Changes of rows, in transactions, in the order of their commits; a large transaction in pieces.

``assembling.Assembler`` makes them from replication messages, and ``envelope`` makes records from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from headrace_connect.core.pgoutput.messages import (
    UNCHANGED,
    Column,
    Delete,
    Insert,
    Message,
    Relation,
    Row,
    Truncate,
    Update,
)

_MESSAGES_FROM: Final = 1 << 32
"""Oids of tables are below."""
_TEXT, _BYTES = 25, 17


class Op(StrEnum):
    """What a change did, with Debezium's letters."""

    READ = "r"
    INSERT = "c"
    UPDATE = "u"
    DELETE = "d"
    TRUNCATE = "t"
    MESSAGE = "m"


@dataclass(frozen=True, slots=True)
class Transaction:
    xid: int
    commit_lsn: int
    commit_time_us: int
    """Unix microseconds."""
    origin: str | None = None
    """The replication origin, where the transaction came from another server."""


@dataclass(slots=True)
class Change:
    op: Op
    lsn: int
    """Of the change itself, in the WAL."""
    index: int
    """Its place in the transaction, from 0."""
    relation: Relation
    """The table as it was then; of a message see ``messages_of``."""
    before: Row | None
    """As much as the table logs of the row before; None: nothing."""
    before_is_key: bool
    """``before`` has only the columns of the replica identity."""
    after: Row | None
    """Large values that did not change are UNCHANGED, unless ``before`` has them."""
    message: Message | None = None


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The last change that is safe: of which commit, and its place in it."""

    commit_lsn: int
    index: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Changes of one committed transaction; a large one comes in several pieces, one behind the other."""

    transaction: Transaction
    changes: Sequence[Change]
    end_lsn: int | None
    """Only in the last piece: what may be confirmed to the server when the piece is durable elsewhere."""

    def beyond(self, position: Position | None) -> Piece:
        """Without the changes up to ``position``: the server sends them again after a restart."""
        if position is None or self.transaction.commit_lsn > position.commit_lsn:
            return self
        if self.transaction.commit_lsn < position.commit_lsn:
            return Piece(self.transaction, (), self.end_lsn)
        left = [change for change in self.changes if change.index > position.index]
        return Piece(self.transaction, left, self.end_lsn)


@dataclass(frozen=True, slots=True)
class Signal:
    """A message outside of any transaction; it counts even if the transaction that wrote it is undone."""

    message: Message


@lru_cache(1_000)
def messages_of(prefix: str) -> Relation:
    """Messages of one prefix as if they were rows of a table, whose oid follows from the prefix."""
    oid = _MESSAGES_FROM + int.from_bytes(blake2b(prefix.encode(), digest_size=6).digest())
    columns = Column("prefix", _TEXT, -1, is_key=True), Column("content", _BYTES, -1, is_key=False)
    return Relation(oid, "", prefix, "d", columns)


def has_messages(relation: Relation) -> bool:
    """Whether it is one of ``messages_of``."""
    return relation.oid >= _MESSAGES_FROM


def row_of(message: Message) -> Row:
    """As a row of its relation, in the text form of types."""
    return [message.prefix.encode(), b"\\x" + message.content.hex().encode()]


def piece_of(message: Message, now_us: int) -> Piece:
    """
    A message outside of any transaction, as if it were one.

    Its LSN is the end of its record, where a commit may begin: it counts as committed within the record.
    """
    at = message.lsn - 1
    change = Change(Op.MESSAGE, message.lsn, 0, messages_of(message.prefix), None, False, None, message)
    return Piece(Transaction(0, at, now_us), [change], message.lsn)


class Cutter:
    """Numbers the changes of a transaction and cuts it into pieces."""

    def __init__(self, transaction: Transaction, changes_max: int, bytes_max: int) -> None:
        self.transaction = transaction
        self._changes_max = changes_max
        self._bytes_max = bytes_max
        self._changes: list[Change] = []
        self._bytes = 0
        self._index = 0

    def set_origin(self, name: str) -> None:
        self.transaction = replace(self.transaction, origin=name)

    def add(
        self, lsn: int, message: Insert | Update | Delete | Truncate | Message, size: int
    ) -> Iterator[Piece | Signal]:
        if isinstance(message, Truncate):
            for relation in message.relations:
                self._changes.append(Change(Op.TRUNCATE, lsn, self._index, relation, None, False, None))
                self._index += 1
        else:
            self._changes.append(_change(lsn, self._index, message))
            self._index += 1
        self._bytes += size
        if len(self._changes) < self._changes_max and self._bytes < self._bytes_max:
            return iter(())
        changes, self._changes, self._bytes = self._changes, [], 0
        return iter([Piece(self.transaction, changes, None)])

    def finish(self, end_lsn: int) -> Iterator[Piece | Signal]:
        return iter([Piece(self.transaction, self._changes, end_lsn)])


def _change(lsn: int, index: int, message: Insert | Update | Delete | Message) -> Change:
    match message:
        case Insert(relation, new):
            return Change(Op.INSERT, lsn, index, relation, None, False, new)
        case Update(relation, old, old_is_key, new):
            if old is not None and UNCHANGED in new:
                new = _fill(relation, old, old_is_key, new)
            return Change(Op.UPDATE, lsn, index, relation, old, old_is_key, new)
        case Delete(relation, old, old_is_key):
            return Change(Op.DELETE, lsn, index, relation, old, old_is_key, None)
        case Message():
            return Change(Op.MESSAGE, lsn, index, messages_of(message.prefix), None, False, None, message)


def _fill(relation: Relation, old: Row, old_is_key: bool, new: Row) -> Row:
    """Take values that did not change from the row before, where it has them."""
    return [
        before if after is UNCHANGED and (column.is_key or not old_is_key) else after
        for column, before, after in zip(relation.columns, old, new, strict=True)
    ]
