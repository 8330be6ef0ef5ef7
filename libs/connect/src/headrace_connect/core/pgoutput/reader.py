"""Reads the parts of which messages are made: numbers, names, rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from headrace_connect.core.pgoutput.errors import MessageDamaged, UnknownRelation
from headrace_connect.core.pgoutput.frames import EPOCH_US
from headrace_connect.core.pgoutput.messages import UNCHANGED, Binary, Relation, Row

Relations = Mapping[int, Relation]


@dataclass(frozen=True, slots=True)
class Protocol:
    """How the replication was started."""

    version: int
    """``proto_version``: 1; 2 from PostgreSQL 14 (streaming), 3 from 15 (two-phase commit), 4 from 16 (parallel)."""
    parallel: bool = False
    """``streaming = parallel``: Stream Abort says where and when."""


_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_I32: Final = Struct(">i")
_U64: Final = Struct(">Q")
_I64: Final = Struct(">q")
_TEXT, _NULL, _UNCHANGED, _BINARY = b"tnub"


class Reader:
    """Reads a message from its second byte on. What is cut short raises IndexError, ValueError or struct.error."""

    __slots__ = ("at", "data", "lsn", "name", "protocol", "relations", "xid")

    def __init__(self, data: bytes, lsn: int, name: str, relations: Relations, protocol: Protocol) -> None:
        self.data = data
        self.at = 1
        self.lsn = lsn
        self.name = name
        self.relations = relations
        self.protocol = protocol
        self.xid: int | None = None

    def damaged(self, cause: str) -> MessageDamaged:
        return MessageDamaged(self.name, self.lsn, cause)

    def _unpack(self, of: Struct) -> int:
        (number,) = of.unpack_from(self.data, self.at)
        self.at += of.size
        assert isinstance(number, int)
        return number

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def u16(self) -> int:
        return self._unpack(_U16)

    def u32(self) -> int:
        return self._unpack(_U32)

    def i32(self) -> int:
        return self._unpack(_I32)

    def u64(self) -> int:
        return self._unpack(_U64)

    def time(self) -> int:
        return self._unpack(_I64) + EPOCH_US

    def string(self) -> str:
        end = self.data.index(0, self.at)
        raw, self.at = self.data[self.at : end], end + 1
        try:
            return raw.decode()
        except UnicodeDecodeError as cause:
            raise self.damaged(f"has a name that is not UTF-8: {raw!r}") from cause

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise IndexError
        raw, self.at = self.data[self.at : end], end
        return raw

    def flags(self, known: int) -> int:
        flags = self.byte()
        if flags & ~known:
            raise self.damaged(f"has unknown flags {flags:#x}")
        return flags

    def relation(self) -> Relation:
        oid = self.u32()
        relation = self.relations.get(oid)
        if relation is None:
            raise UnknownRelation(self.name, self.lsn, oid)
        return relation

    def row(self, relation: Relation) -> Row:
        data, at = self.data, self.at
        (count,) = _U16.unpack_from(data, at)
        if count != len(relation.columns):
            raise self.damaged(f"has {count} values; {relation} has {len(relation.columns)} columns")
        at += 2
        size, u32 = len(data), _U32.unpack_from
        row: Row = []
        for _ in range(count):
            kind = data[at]
            at += 1
            if kind in (_TEXT, _BINARY):
                start = at + 4
                at = start + u32(data, at)[0]
                if at > size:
                    raise IndexError
                row.append(data[start:at] if kind == _TEXT else Binary(data[start:at]))
            elif kind == _NULL:
                row.append(None)
            elif kind == _UNCHANGED:
                row.append(UNCHANGED)
            else:
                raise self.damaged(f"has a value of unknown kind {bytes([kind])!r} in {relation}")
        self.at = at
        return row

    def expect(self, kinds: bytes) -> int:
        kind = self.byte()
        if kind not in kinds:
            raise self.damaged(f"has {bytes([kind])!r} where one of {kinds!r} belongs")
        return kind
