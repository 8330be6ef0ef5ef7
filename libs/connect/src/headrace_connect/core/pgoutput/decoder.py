"""
Decodes one message of pgoutput, protocol versions 1 to 4.

Stateless: the caller knows whether a stream block is open and which relations were described; ``changes.Assembler``
does. The formats are those of PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct, error
from typing import Final

from headrace_connect.core.pgoutput.errors import MessageDamaged
from headrace_connect.core.pgoutput.messages import (
    Begin,
    BeginPrepare,
    Column,
    Commit,
    CommitPrepared,
    Decoded,
    Delete,
    Insert,
    Message,
    Origin,
    Prepare,
    Relation,
    RelationDescribed,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TypeDescribed,
    Update,
)
from headrace_connect.core.pgoutput.reader import Protocol, Reader, Relations

_U32: Final = Struct(">I")
_NEW, _KEY = b"NK"


def _begin(reader: Reader) -> Decoded:
    return Begin(reader.u64(), reader.time(), reader.u32())


def _commit(reader: Reader) -> Decoded:
    reader.flags(0)
    return Commit(reader.u64(), reader.u64(), reader.time())


def _origin(reader: Reader) -> Decoded:
    return Origin(reader.u64(), reader.string())


def _relation(reader: Reader) -> Decoded:
    oid, schema, name = reader.u32(), reader.string() or "pg_catalog", reader.string()
    identity = chr(reader.expect(b"dnfi"))
    columns = tuple(_column(reader) for _ in range(reader.u16()))
    return RelationDescribed(Relation(oid, schema, name, identity, columns), reader.xid)


def _column(reader: Reader) -> Column:
    is_key = bool(reader.flags(1))
    return Column(reader.string(), reader.u32(), reader.i32(), is_key)


def _type(reader: Reader) -> Decoded:
    return TypeDescribed(reader.u32(), reader.string() or "pg_catalog", reader.string(), reader.xid)


def _insert(reader: Reader) -> Decoded:
    relation = reader.relation()
    reader.expect(b"N")
    return Insert(relation, reader.row(relation), reader.xid)


def _update(reader: Reader) -> Decoded:
    relation = reader.relation()
    kind = reader.expect(b"KON")
    old = None
    if kind != _NEW:
        old = reader.row(relation)
        reader.expect(b"N")
    return Update(relation, old, kind == _KEY, reader.row(relation), reader.xid)


def _delete(reader: Reader) -> Decoded:
    relation = reader.relation()
    kind = reader.expect(b"KO")
    return Delete(relation, reader.row(relation), kind == _KEY, reader.xid)


def _truncate(reader: Reader) -> Decoded:
    count, flags = reader.u32(), reader.flags(3)
    if count * 4 > len(reader.data) - reader.at:
        raise IndexError
    relations = tuple(reader.relation() for _ in range(count))
    return Truncate(relations, bool(flags & 1), bool(flags & 2), reader.xid)


def _message(reader: Reader) -> Decoded:
    transactional = bool(reader.flags(1))
    return Message(transactional, reader.u64(), reader.string(), reader.take(reader.u32()), reader.xid)


def _stream_start(reader: Reader) -> Decoded:
    return StreamStart(reader.u32(), reader.expect(b"\0\1") == 1)


def _stream_stop(_: Reader) -> Decoded:
    return StreamStop()


def _stream_commit(reader: Reader) -> Decoded:
    xid = reader.u32()
    reader.flags(0)
    return StreamCommit(xid, reader.u64(), reader.u64(), reader.time())


def _stream_abort(reader: Reader) -> Decoded:
    xid, sub_xid = reader.u32(), reader.u32()
    if not reader.protocol.parallel:
        return StreamAbort(xid, sub_xid, None, None)
    return StreamAbort(xid, sub_xid, reader.u64(), reader.time())


def _begin_prepare(reader: Reader) -> Decoded:
    return BeginPrepare(reader.u64(), reader.u64(), reader.time(), reader.u32(), reader.string())


def _prepare(reader: Reader) -> Decoded:
    reader.flags(0)
    return Prepare(reader.u64(), reader.u64(), reader.time(), reader.u32(), reader.string())


def _stream_prepare(reader: Reader) -> Decoded:
    reader.flags(0)
    return StreamPrepare(reader.u64(), reader.u64(), reader.time(), reader.u32(), reader.string())


def _commit_prepared(reader: Reader) -> Decoded:
    reader.flags(0)
    return CommitPrepared(reader.u64(), reader.u64(), reader.time(), reader.u32(), reader.string())


def _rollback_prepared(reader: Reader) -> Decoded:
    reader.flags(0)
    lsns, times = (reader.u64(), reader.u64()), (reader.time(), reader.time())
    return RollbackPrepared(*lsns, *times, reader.u32(), reader.string())


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    since: int
    """The first version of the protocol that has it."""
    read: Callable[[Reader], Decoded]
    in_stream: bool = False
    """It may stand in a stream block, and then begins with an xid."""


_KINDS: Final = {
    ord("B"): _Kind("Begin", 1, _begin),
    ord("C"): _Kind("Commit", 1, _commit),
    ord("O"): _Kind("Origin", 1, _origin),
    ord("R"): _Kind("Relation", 1, _relation, in_stream=True),
    ord("Y"): _Kind("Type", 1, _type, in_stream=True),
    ord("I"): _Kind("Insert", 1, _insert, in_stream=True),
    ord("U"): _Kind("Update", 1, _update, in_stream=True),
    ord("D"): _Kind("Delete", 1, _delete, in_stream=True),
    ord("T"): _Kind("Truncate", 1, _truncate, in_stream=True),
    ord("M"): _Kind("Message", 1, _message, in_stream=True),
    ord("S"): _Kind("Stream Start", 2, _stream_start),
    ord("E"): _Kind("Stream Stop", 2, _stream_stop),
    ord("c"): _Kind("Stream Commit", 2, _stream_commit),
    ord("A"): _Kind("Stream Abort", 2, _stream_abort),
    ord("b"): _Kind("Begin Prepare", 3, _begin_prepare),
    ord("P"): _Kind("Prepare", 3, _prepare),
    ord("K"): _Kind("Commit Prepared", 3, _commit_prepared),
    ord("r"): _Kind("Rollback Prepared", 3, _rollback_prepared),
    ord("p"): _Kind("Stream Prepare", 3, _stream_prepare),
}


def _kind_of(data: bytes, lsn: int, protocol: Protocol) -> _Kind:
    kind = _KINDS.get(data[0]) if data else None
    if kind is None:
        raise MessageDamaged(repr(data[:1]), lsn, "is of an unknown kind")
    if kind.since > protocol.version:
        raise MessageDamaged(
            kind.name, lsn, f"belongs to version {kind.since} of the protocol; version {protocol.version} was asked for"
        )
    return kind


def decode(data: bytes, lsn: int, protocol: Protocol, relations: Relations, *, in_stream: bool = False) -> Decoded:
    """
    Decode one message.

    Args:
        lsn: where it is in the WAL (``XLogData.lsn``), for errors.
        relations: those described so far, by oid.
        in_stream: it stands between Stream Start and Stream Stop.

    Raises:
        MessageDamaged: it is cut short, too long, unknown, or has an unknown byte.
        UnknownRelation: it refers to a relation that is not in ``relations``.
    """
    kind = _kind_of(data, lsn, protocol)
    reader = Reader(data, lsn, kind.name, relations, protocol)
    try:
        if in_stream and kind.in_stream:
            reader.xid = reader.u32()
        decoded = kind.read(reader)
    except (IndexError, ValueError, error) as cause:
        raise reader.damaged(f"is cut short after {len(data)} bytes") from cause
    if reader.at != len(data):
        raise reader.damaged(f"has {len(data) - reader.at} bytes too many")
    return decoded


def xid_of(data: bytes, lsn: int, protocol: Protocol) -> int | None:
    """
    Which transaction or sub-transaction a message of a stream block belongs to; None: it ends or begins a block.

    Raises:
        MessageDamaged: it cannot stand in a stream block.
    """
    kind = _kind_of(data, lsn, protocol)
    if not kind.in_stream:
        return None
    if len(data) < 5:
        raise MessageDamaged(kind.name, lsn, f"is cut short after {len(data)} bytes")
    (xid,) = _U32.unpack_from(data, 1)
    assert isinstance(xid, int)
    return xid
