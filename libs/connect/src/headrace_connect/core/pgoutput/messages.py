"""
The messages of pgoutput, decoded.

LSNs are numbers. Times are Unix microseconds. ``xid`` of a change is the transaction, or the sub-transaction, that made
it; None where the message does not say it, because all between Begin and Commit is of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal


class Unchanged(Enum):
    """Not a value."""

    UNCHANGED = "unchanged"
    """A large value that an update did not touch: the server does not send it."""

    def __repr__(self) -> str:
        return self.name


UNCHANGED: Final = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class Binary:
    """A value in the binary form of its type."""

    data: bytes


Value = bytes | None | Literal[Unchanged.UNCHANGED] | Binary
"""Bytes: the text form of the type, in the encoding of the connection (UTF-8). None: null."""
Row = list[Value]
"""A value per column of the relation, in its order."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type_oid: int
    type_modifier: int
    """-1: none. What it means depends on the type: the length of varchar, precision and scale of numeric."""
    is_key: bool
    """Part of the replica identity."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it was when the changes that follow were made. Generated columns may be missing."""

    oid: int
    schema: str
    name: str
    identity: str
    """Which columns tell rows apart: d (primary key), i (a unique index), f (all), n (nothing)."""
    columns: tuple[Column, ...]

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(slots=True)
class Begin:
    commit_lsn: int
    commit_time_us: int
    xid: int


@dataclass(slots=True)
class Commit:
    commit_lsn: int
    end_lsn: int
    """The first byte behind the transaction: what to confirm when it is durable elsewhere."""
    commit_time_us: int


@dataclass(slots=True)
class Origin:
    """The transaction was replicated to this server from another one."""

    lsn: int
    """Of the commit, on the server of origin."""
    name: str


@dataclass(slots=True)
class RelationDescribed:
    relation: Relation
    xid: int | None


@dataclass(slots=True)
class TypeDescribed:
    """The name of a type that is not built in, before a relation that uses it."""

    oid: int
    schema: str
    name: str
    xid: int | None


@dataclass(slots=True)
class Insert:
    relation: Relation
    new: Row
    xid: int | None


@dataclass(slots=True)
class Update:
    relation: Relation
    old: Row | None
    """None: the identity did not change, and the table does not log whole rows."""
    old_is_key: bool
    """Of ``old`` only the columns of the identity are there; the others are null, whatever they were."""
    new: Row
    xid: int | None


@dataclass(slots=True)
class Delete:
    relation: Relation
    old: Row
    old_is_key: bool
    xid: int | None


@dataclass(slots=True)
class Truncate:
    relations: tuple[Relation, ...]
    cascade: bool
    restart_identity: bool
    xid: int | None


@dataclass(slots=True)
class Message:
    """What ``pg_logical_emit_message`` wrote."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes
    xid: int | None


@dataclass(slots=True)
class StreamStart:
    """A block of a transaction that is still open."""

    xid: int
    first: bool


@dataclass(slots=True)
class StreamStop:
    pass


@dataclass(slots=True)
class StreamCommit:
    xid: int
    commit_lsn: int
    end_lsn: int
    commit_time_us: int


@dataclass(slots=True)
class StreamAbort:
    xid: int
    sub_xid: int
    """Equal to ``xid`` if all of the transaction is undone."""
    lsn: int | None
    """From version 4 with ``streaming = parallel``."""
    time_us: int | None


@dataclass(slots=True)
class BeginPrepare:
    prepare_lsn: int
    end_lsn: int
    prepare_time_us: int
    xid: int
    gid: str


@dataclass(slots=True)
class Prepare:
    prepare_lsn: int
    end_lsn: int
    prepare_time_us: int
    xid: int
    gid: str


@dataclass(slots=True)
class StreamPrepare:
    prepare_lsn: int
    end_lsn: int
    prepare_time_us: int
    xid: int
    gid: str


@dataclass(slots=True)
class CommitPrepared:
    commit_lsn: int
    end_lsn: int
    commit_time_us: int
    xid: int
    gid: str


@dataclass(slots=True)
class RollbackPrepared:
    prepare_end_lsn: int
    end_lsn: int
    prepare_time_us: int
    rollback_time_us: int
    xid: int
    gid: str


Decoded = (
    Begin
    | Commit
    | Origin
    | RelationDescribed
    | TypeDescribed
    | Insert
    | Update
    | Delete
    | Truncate
    | Message
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | StreamPrepare
    | CommitPrepared
    | RollbackPrepared
)
