"""
From replication messages to transactions of row changes, in commit order.

The server sends small transactions whole when they commit, and large ones in blocks while they are open (streaming).
``Assembler`` keeps the blocks until it knows how the transaction ends: in memory, and in a spool once all of them
together are larger than a limit. The connector ``postgres-cdc`` feeds it, one per replication connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, Protocol

from headrace_connect.core import pgoutput
from headrace_connect.core.changes import Cutter, Piece, Signal, Transaction
from headrace_connect.core.pgoutput import MessageDamaged, decode, xid_of
from headrace_connect.core.pgoutput.messages import (
    Begin,
    BeginPrepare,
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

MESSAGE_BYTES: Final = 100
"""What a message costs in memory beside its own bytes, roughly."""
_ENTRY: Final = Struct(">QI")


class Spool(Protocol):
    """Where blocks of large open transactions wait. What it holds need not survive the process."""

    def append(self, xid: int, block: bytes) -> None:
        """
        Add a block to those of a transaction.

        Raises:
            OSError: the disk is full or damaged. The task ends; the server sends everything again.
        """

    def read(self, xid: int) -> Iterator[bytes]:
        """The blocks of a transaction, in order."""

    def drop(self, xid: int) -> None:
        """Forget a transaction; nothing happens if it has no blocks."""


@dataclass(slots=True)
class _Open:
    """A transaction whose end is not known: messages as they came."""

    xid: int
    in_stream: bool
    """Its messages have xids."""
    relations: dict[int, Relation]
    """Those described before its first message, which count for it."""
    messages: list[tuple[int, bytes]] = field(default_factory=list)
    size: int = 0
    """Of ``messages``, bytes in memory."""
    spooled: bool = False
    undone: set[int] = field(default_factory=set)
    """Sub-transactions that were undone, of which blocks may be in the spool."""
    origin: str | None = None
    prepare_lsn: int | None = None
    """Set: it is prepared, and waits for COMMIT PREPARED."""

    def add(self, lsn: int, data: bytes) -> int:
        self.messages.append((lsn, data))
        size = len(data) + MESSAGE_BYTES
        self.size += size
        return size


class Assembler:
    """
    Messages in, transactions out; nothing of a transaction that did not commit. Memory: ``memory_bytes_max`` for open
    transactions, and one piece.
    """

    def __init__(
        self,
        protocol: pgoutput.Protocol,
        spool: Spool,
        *,
        memory_bytes_max: int = 64 * 2**20,
        piece_changes_max: int = 10_000,
        piece_bytes_max: int = 8 * 2**20,
    ) -> None:
        self._protocol = protocol
        self._spool = spool
        self._memory_bytes_max = memory_bytes_max
        self._piece_changes_max = piece_changes_max
        self._piece_bytes_max = piece_bytes_max
        self._relations: dict[int, Relation] = {}
        self._open: dict[int, _Open] = {}
        self._bytes = 0
        self._block: _Open | None = None
        self._preparing: _Open | None = None
        self._current: Cutter | None = None
        self._commit_lsn = 0
        self.types: dict[int, tuple[str, str]] = {}
        """Schema and name of types that are not built in, by oid, as far as the server described them."""

    @property
    def held_lsn(self) -> int | None:
        """What must not be confirmed yet beyond this: prepared transactions are sent only once. None: nothing."""
        held = [open_.prepare_lsn for open_ in self._open.values() if open_.prepare_lsn is not None]
        return min(held, default=None)

    @property
    def at_boundary(self) -> bool:
        """Between two transactions: a keepalive's LSN may be confirmed, as far as ``held_lsn`` allows."""
        return self._current is None and self._preparing is None and self._block is None

    def handle(self, lsn: int, data: bytes) -> Iterator[Piece | Signal]:
        """
        Take a message and return what it completes. The result must be read to its end before the next call.

        Args:
            lsn: ``XLogData.lsn``.
            data: ``XLogData.payload``.

        Raises:
            MessageDamaged: it does not follow the protocol. The assembler is of no use afterwards.
        """
        if self._block is not None:
            xid = xid_of(data, lsn, self._protocol)
            if xid is not None:
                return self._keep(self._block, lsn, data)
        message = decode(data, lsn, self._protocol, self._relations)
        if self._preparing is not None and not isinstance(message, Prepare):
            self._learn(message, self._relations)
            return self._keep(self._preparing, lsn, data)
        if self._current is not None and isinstance(message, Insert | Update | Delete):
            return self._current.add(lsn, message, len(data))
        return self._control(lsn, message)

    def _learn(self, message: Decoded, relations: dict[int, Relation]) -> None:
        match message:
            case RelationDescribed(relation):
                relations[relation.oid] = relation
            case TypeDescribed(oid, schema, name):
                self.types[oid] = (schema, name)

    def _control(self, lsn: int, message: Decoded) -> Iterator[Piece | Signal]:  # what is not a row
        match message:
            case RelationDescribed() | TypeDescribed():
                self._learn(message, self._relations)
            case Begin(commit_lsn, time, xid):
                self._expect_boundary(lsn, "Begin")
                self._current = self._cutter(Transaction(xid, commit_lsn, time), lsn, "Begin")
            case Commit(commit_lsn, end_lsn):
                current = self._within(lsn, "Commit")
                if commit_lsn != current.transaction.commit_lsn:
                    raise MessageDamaged("Commit", lsn, "ends another transaction than the one that began")
                self._current = None
                return current.finish(end_lsn)
            case Origin(_, name):
                self._set_origin(lsn, name)
            case Truncate():
                return self._within(lsn, "Truncate").add(lsn, message, 0)
            case Message():
                if self._current is None and message.transactional:
                    raise MessageDamaged("Message", lsn, "belongs to a transaction, and none has begun")
                if message.transactional:
                    return self._within(lsn, "Message").add(lsn, message, len(message.content))
                return iter([Signal(message)])
            case Insert() | Update() | Delete():
                self._within(lsn, type(message).__name__)
            case _:
                return self._two_phase(lsn, message)
        return iter(())

    def _two_phase(self, lsn: int, message: Decoded) -> Iterator[Piece | Signal]:
        """Streamed and prepared transactions."""
        match message:
            case StreamStart(xid, first):
                self._expect_boundary(lsn, "Stream Start")
                if first == (xid in self._open):
                    raise MessageDamaged("Stream Start", lsn, f"of transaction {xid} comes twice or is not the first")
                self._block = self._open.setdefault(xid, _Open(xid, True, {}))
            case StreamStop():
                if self._block is None:
                    raise MessageDamaged("Stream Stop", lsn, "ends a block that has not begun")
                self._block = None
            case StreamAbort(xid, sub_xid):
                self._undo(self._find(lsn, "Stream Abort", xid), sub_xid)
            case StreamCommit(xid, commit_lsn, end_lsn, time):
                return self._replay(self._find(lsn, "Stream Commit", xid), lsn, commit_lsn, end_lsn, time)
            case BeginPrepare(_, _, _, xid):
                self._expect_boundary(lsn, "Begin Prepare")
                if xid in self._open:
                    raise MessageDamaged("Begin Prepare", lsn, f"of transaction {xid} comes twice")
                self._preparing = self._open[xid] = _Open(xid, False, dict(self._relations))
            case Prepare(prepare_lsn, _, _, xid):
                if self._preparing is None or self._preparing.xid != xid:
                    raise MessageDamaged("Prepare", lsn, f"ends transaction {xid}, which has not begun")
                self._preparing.prepare_lsn, self._preparing = prepare_lsn, None
            case StreamPrepare(prepare_lsn, _, _, xid):
                self._find(lsn, "Stream Prepare", xid).prepare_lsn = prepare_lsn
            case CommitPrepared(commit_lsn, end_lsn, time, xid):
                return self._replay(self._find(lsn, "Commit Prepared", xid), lsn, commit_lsn, end_lsn, time)
            case RollbackPrepared(_, _, _, _, xid):
                self._forget(self._find(lsn, "Rollback Prepared", xid))
        return iter(())

    def _expect_boundary(self, lsn: int, name: str) -> None:
        if not self.at_boundary:
            raise MessageDamaged(name, lsn, "comes before the transaction or block before it has ended")

    def _within(self, lsn: int, name: str) -> Cutter:
        if self._current is None:
            raise MessageDamaged(name, lsn, "stands outside of a transaction")
        return self._current

    def _find(self, lsn: int, name: str, xid: int) -> _Open:
        self._expect_boundary(lsn, name)
        if xid not in self._open:
            raise MessageDamaged(name, lsn, f"belongs to transaction {xid}, of which nothing came before")
        return self._open[xid]

    def _set_origin(self, lsn: int, name: str) -> None:
        if self._block is not None:
            self._block.origin = name
        else:
            self._within(lsn, "Origin").set_origin(name)

    def _cutter(self, transaction: Transaction, lsn: int, name: str) -> Cutter:
        if transaction.commit_lsn <= self._commit_lsn:
            raise MessageDamaged(name, lsn, "belongs to a transaction that committed before the last one")
        self._commit_lsn = transaction.commit_lsn
        return Cutter(transaction, self._piece_changes_max, self._piece_bytes_max)

    def _keep(self, open_: _Open, lsn: int, data: bytes) -> Iterator[Piece | Signal]:
        self._bytes += open_.add(lsn, data)
        if self._bytes > self._memory_bytes_max:
            self._spill(max(self._open.values(), key=lambda candidate: candidate.size))
        return iter(())

    def _spill(self, open_: _Open) -> None:
        self._spool.append(open_.xid, b"".join(_ENTRY.pack(lsn, len(data)) + data for lsn, data in open_.messages))
        self._bytes -= open_.size
        open_.messages, open_.size, open_.spooled = [], 0, True

    def _undo(self, open_: _Open, sub_xid: int) -> None:
        if sub_xid == open_.xid:
            self._forget(open_)
            return
        left = [(lsn, data) for lsn, data in open_.messages if xid_of(data, lsn, self._protocol) != sub_xid]
        self._bytes -= open_.size
        open_.messages, open_.size = left, sum(len(data) + MESSAGE_BYTES for _, data in left)
        self._bytes += open_.size
        if open_.spooled:
            open_.undone.add(sub_xid)

    def _forget(self, open_: _Open) -> None:
        del self._open[open_.xid]
        self._bytes -= open_.size
        if open_.spooled:
            self._spool.drop(open_.xid)

    def _replay(self, open_: _Open, lsn: int, commit_lsn: int, end_lsn: int, time_us: int) -> Iterator[Piece | Signal]:
        """Decode what was kept of a transaction, now that it is committed."""
        cutter = self._cutter(
            Transaction(open_.xid, commit_lsn, time_us, open_.origin),
            lsn,
            "Stream Commit" if open_.in_stream else "Commit Prepared",
        )
        relations = open_.relations
        for at, data in self._messages(open_):
            if open_.undone and xid_of(data, at, self._protocol) in open_.undone:
                continue
            message = decode(data, at, self._protocol, relations, in_stream=open_.in_stream)
            match message:
                case RelationDescribed() | TypeDescribed():
                    self._learn(message, relations)
                case Origin(_, name):
                    cutter.set_origin(name)
                case Insert() | Update() | Delete() | Truncate() | Message():
                    yield from cutter.add(at, message, len(data))
                case _:
                    raise MessageDamaged(type(message).__name__, at, "stands inside a prepared transaction")
        if open_.in_stream:
            self._relations.update(relations)
        self._forget(open_)
        yield from cutter.finish(end_lsn)

    def _messages(self, open_: _Open) -> Iterable[tuple[int, bytes]]:
        if open_.spooled:
            for block in self._spool.read(open_.xid):
                at = 0
                while at < len(block):
                    lsn, size = _ENTRY.unpack_from(block, at)
                    at += _ENTRY.size + size
                    yield lsn, block[at - size : at]
        yield from open_.messages
