"""Writes the messages of pgoutput: the other side of the decoder."""

from __future__ import annotations

from struct import pack

from headrace_connect.core.pgoutput.frames import EPOCH_US
from headrace_connect.core.pgoutput.messages import (
    UNCHANGED,
    Begin,
    BeginPrepare,
    Binary,
    Commit,
    CommitPrepared,
    Decoded,
    Delete,
    Insert,
    Message,
    Origin,
    Prepare,
    RelationDescribed,
    RollbackPrepared,
    Row,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TypeDescribed,
    Update,
)


def _time(unix_us: int) -> bytes:
    return pack(">q", unix_us - EPOCH_US)


def _string(text: str) -> bytes:
    return text.encode() + b"\0"


def _row(row: Row) -> bytes:
    out = pack(">H", len(row))
    for value in row:
        match value:
            case None:
                out += b"n"
            case Binary(data):
                out += b"b" + pack(">I", len(data)) + data
            case bytes():
                out += b"t" + pack(">I", len(value)) + value
            case _:
                assert value is UNCHANGED
                out += b"u"
    return out


def _old(row: Row | None, is_key: bool) -> bytes:
    return b"" if row is None else (b"K" if is_key else b"O") + _row(row)


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else pack(">I", xid)


def encode(message: Decoded) -> bytes:
    match message:
        case Begin(lsn, time, xid):
            return b"B" + pack(">Q", lsn) + _time(time) + pack(">I", xid)
        case Commit(lsn, end, time):
            return b"C\0" + pack(">QQ", lsn, end) + _time(time)
        case Origin(lsn, name):
            return b"O" + pack(">Q", lsn) + _string(name)
        case RelationDescribed(relation, xid):
            schema = "" if relation.schema == "pg_catalog" else relation.schema
            head = b"R" + _xid(xid) + pack(">I", relation.oid) + _string(schema) + _string(relation.name)
            columns = b"".join(
                pack(">B", column.is_key) + _string(column.name) + pack(">Ii", column.type_oid, column.type_modifier)
                for column in relation.columns
            )
            return head + relation.identity.encode() + pack(">H", len(relation.columns)) + columns
        case TypeDescribed(oid, schema, name, xid):
            return (
                b"Y" + _xid(xid) + pack(">I", oid) + _string("" if schema == "pg_catalog" else schema) + _string(name)
            )
        case Insert(relation, new, xid):
            return b"I" + _xid(xid) + pack(">I", relation.oid) + b"N" + _row(new)
        case Update(relation, old, old_is_key, new, xid):
            return b"U" + _xid(xid) + pack(">I", relation.oid) + _old(old, old_is_key) + b"N" + _row(new)
        case Delete(relation, old, old_is_key, xid):
            return b"D" + _xid(xid) + pack(">I", relation.oid) + _old(old, old_is_key)
        case Truncate(relations, cascade, restart, xid):
            oids = b"".join(pack(">I", relation.oid) for relation in relations)
            return b"T" + _xid(xid) + pack(">IB", len(relations), cascade | restart << 1) + oids
        case Message(transactional, lsn, prefix, content, xid):
            head = b"M" + _xid(xid) + pack(">BQ", transactional, lsn)
            return head + _string(prefix) + pack(">I", len(content)) + content
        case StreamStart(xid, first):
            return b"S" + pack(">IB", xid, first)
        case StreamStop():
            return b"E"
        case StreamCommit(xid, lsn, end, time):
            return b"c" + pack(">IBQQ", xid, 0, lsn, end) + _time(time)
        case StreamAbort(xid, sub_xid, lsn, time):
            return b"A" + pack(">II", xid, sub_xid) + (b"" if lsn is None else pack(">Q", lsn) + _time(time or 0))
        case BeginPrepare(lsn, end, time, xid, gid):
            return b"b" + pack(">QQ", lsn, end) + _time(time) + pack(">I", xid) + _string(gid)
        case Prepare(lsn, end, time, xid, gid):
            return b"P\0" + pack(">QQ", lsn, end) + _time(time) + pack(">I", xid) + _string(gid)
        case StreamPrepare(lsn, end, time, xid, gid):
            return b"p\0" + pack(">QQ", lsn, end) + _time(time) + pack(">I", xid) + _string(gid)
        case CommitPrepared(lsn, end, time, xid, gid):
            return b"K\0" + pack(">QQ", lsn, end) + _time(time) + pack(">I", xid) + _string(gid)
        case RollbackPrepared(lsn, end, prepared, time, xid, gid):
            return b"r\0" + pack(">QQ", lsn, end) + _time(prepared) + _time(time) + pack(">I", xid) + _string(gid)
