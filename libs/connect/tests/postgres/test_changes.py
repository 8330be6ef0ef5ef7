"""Transactions from messages: streamed ones, undone parts, prepared ones, pieces, and what is held where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.connect.tests.postgres.encoder import encode
from libs.connect.tests.postgres.fake_spool import FakeSpool

from headrace_connect.core.assembling import Assembler
from headrace_connect.core.changes import Change, Op, Piece, Position, Signal, Transaction, messages_of
from headrace_connect.core.pgoutput import MessageDamaged, Protocol, UnknownRelation
from headrace_connect.core.pgoutput.frames import EPOCH_US
from headrace_connect.core.pgoutput.messages import (
    UNCHANGED,
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

T = EPOCH_US + 5
KEYED = Relation(1, "public", "orders", "d", (Column("id", 23, -1, True), Column("text", 25, -1, False)))
FULL = Relation(2, "public", "full", "f", (Column("id", 23, -1, True), Column("text", 25, -1, True)))
WIDER = Relation(1, "public", "orders", "d", (*KEYED.columns, Column("more", 25, -1, False)))


class Server:
    """Feeds an assembler; each message has an LSN of its own."""

    def __init__(self, **limits: int) -> None:
        self.spool = FakeSpool()
        self.assembler = Assembler(Protocol(4), self.spool, **limits)
        self.lsn = 0
        self.out: list[Piece | Signal] = []

    def send(self, *messages: Decoded) -> list[Piece | Signal]:
        out: list[Piece | Signal] = []
        for message in messages:
            self.lsn += 1
            out += self.assembler.handle(self.lsn, encode(message))
        self.out += out
        return out

    def pieces(self) -> list[Piece]:
        return [piece for piece in self.out if isinstance(piece, Piece)]


def row(number: int, text: bytes = b"x") -> list[bytes]:
    return [b"%d" % number, text]


def insert(number: int, xid: int | None = None) -> Insert:
    return Insert(KEYED, list(row(number)), xid)


def ids(pieces: Sequence[Piece | Signal]) -> list[list[int]]:
    """The ids of the rows of each piece."""
    return [[int(change.after[0]) for change in piece.changes] for piece in pieces]


def test_a_transaction_is_told_at_its_commit_with_all_that_is_known_of_it() -> None:
    server = Server()
    hello = Message(True, 6, "outbox", b"hello", None)
    begun = server.send(
        TypeDescribed(99, "public", "mood", None),
        RelationDescribed(KEYED, None),
        Begin(50, T, 7),
        Origin(3, "other"),
        insert(1),
        Update(KEYED, None, False, [b"1", UNCHANGED], None),
        Update(KEYED, [b"1", None], True, [b"2", UNCHANGED], None),
        hello,
        Delete(KEYED, [b"2", None], True, None),
        Truncate((KEYED, KEYED), False, False, None),
    )
    assert not begun
    assert not server.assembler.at_boundary
    assert server.send(Commit(50, 60, T)) == [
        Piece(
            Transaction(7, 50, T, "other"),
            [
                Change(Op.INSERT, 5, 0, KEYED, None, False, [b"1", b"x"]),
                Change(Op.UPDATE, 6, 1, KEYED, None, False, [b"1", UNCHANGED]),
                Change(Op.UPDATE, 7, 2, KEYED, [b"1", None], True, [b"2", UNCHANGED]),
                Change(Op.MESSAGE, 8, 3, messages_of("outbox"), None, False, None, hello),
                Change(Op.DELETE, 9, 4, KEYED, [b"2", None], True, None),
                Change(Op.TRUNCATE, 10, 5, KEYED, None, False, None),
                Change(Op.TRUNCATE, 10, 6, KEYED, None, False, None),
            ],
            60,
        )
    ]
    assert server.assembler.at_boundary
    assert server.assembler.types == {99: ("public", "mood")}


def test_a_value_that_did_not_change_is_taken_from_the_row_before_where_it_is_there() -> None:
    server = Server()
    key = Relation(3, "public", "k", "d", (Column("id", 25, -1, True), Column("text", 25, -1, False)))
    server.send(
        RelationDescribed(FULL, None),
        RelationDescribed(key, None),
        Begin(50, T, 7),
        Update(FULL, [b"1", b"large"], False, [b"1", UNCHANGED], None),
        Update(key, [b"large", None], True, [UNCHANGED, UNCHANGED], None),
        Commit(50, 60, T),
    )
    assert [change.after for change in server.pieces()[0].changes] == [[b"1", b"large"], [b"large", UNCHANGED]]


def test_streamed_transactions_come_in_the_order_of_their_commits_without_what_was_undone() -> None:
    server = Server()
    server.send(
        StreamStart(7, True),
        RelationDescribed(KEYED, 7),
        insert(1, 7),
        insert(2, 71),
        StreamStop(),
        StreamStart(8, True),
        RelationDescribed(KEYED, 8),
        insert(3, 8),
        StreamStop(),
        StreamStart(7, False),
        insert(4, 72),
        insert(5, 71),
        StreamStop(),
        StreamStart(9, True),
        StreamStop(),
    )
    server.send(StreamAbort(7, 71, None, None), StreamAbort(9, 9, None, None), StreamCommit(8, 50, 60, T))
    server.send(StreamCommit(7, 70, 80, T))
    assert ids(server.pieces()) == [[3], [1, 4]]
    assert [piece.transaction for piece in server.pieces()] == [Transaction(8, 50, T), Transaction(7, 70, T)]
    assert [change.index for change in server.pieces()[1].changes] == [0, 1]


def test_a_table_counts_as_its_own_transaction_sees_it() -> None:
    server = Server()
    wide = Insert(WIDER, [b"2", b"x", b"y"], 7)
    server.send(RelationDescribed(KEYED, None), StreamStart(7, True), RelationDescribed(WIDER, 7), wide, StreamStop())
    server.send(Begin(40, T, 6), insert(1), Commit(40, 41, T), StreamCommit(7, 50, 60, T))
    server.send(Begin(70, T, 9), Insert(WIDER, [b"3", b"x", b"y"], None), Commit(70, 71, T))
    assert [piece.changes[0].relation for piece in server.pieces()] == [KEYED, WIDER, WIDER]


def test_a_relation_that_was_described_in_an_open_transaction_counts_for_no_other() -> None:
    server = Server()
    server.send(StreamStart(7, True), RelationDescribed(KEYED, 7), StreamStop(), Begin(50, T, 8))
    with pytest.raises(UnknownRelation):
        server.send(insert(1))
    other = Server()
    other.send(RelationDescribed(KEYED, None), StreamStart(7, True), insert(1, 7), StreamStop())
    with pytest.raises(UnknownRelation, match="Insert at LSN 0/3"):
        other.send(StreamCommit(7, 50, 60, T))


def test_prepared_transactions_wait_for_their_second_phase_and_hold_the_lsn_that_may_be_confirmed() -> None:
    server = Server()
    server.send(RelationDescribed(KEYED, None))
    server.send(BeginPrepare(50, 60, T, 7, "a"), insert(1), Prepare(50, 60, T, 7, "a"))
    server.send(StreamStart(8, True), RelationDescribed(KEYED, 8), insert(2, 8), StreamStop())
    server.send(StreamPrepare(70, 80, T, 8, "b"))
    server.send(BeginPrepare(81, 82, T, 9, "c"), insert(3), Prepare(81, 82, T, 9, "c"))
    assert server.assembler.held_lsn == 50
    assert server.assembler.at_boundary
    server.send(CommitPrepared(90, 91, T, 7, "a"))
    assert server.assembler.held_lsn == 70
    server.send(RollbackPrepared(82, 93, T, T, 9, "c"), CommitPrepared(94, 95, T, 8, "b"))
    assert server.assembler.held_lsn is None
    assert [(piece.transaction.commit_lsn, ids([piece]), piece.end_lsn) for piece in server.pieces()] == [
        (90, [[1]], 91),
        (94, [[2]], 95),
    ]


def test_a_large_transaction_comes_in_pieces_and_only_the_last_can_be_confirmed() -> None:
    server = Server(piece_changes_max=2)
    server.send(RelationDescribed(KEYED, None), Begin(50, T, 7), *(insert(n) for n in range(5)), Commit(50, 60, T))
    assert ids(server.pieces()) == [[0, 1], [2, 3], [4]]
    assert [piece.end_lsn for piece in server.pieces()] == [None, None, 60]
    assert [change.index for piece in server.pieces() for change in piece.changes] == [0, 1, 2, 3, 4]
    large = Server(piece_bytes_max=1_000)
    rows = [Insert(KEYED, list(row(n, b"x" * 600)), None) for n in range(3)]
    large.send(RelationDescribed(KEYED, None), Begin(50, T, 7), *rows, Commit(50, 60, T))
    assert ids(large.pieces()) == [[0, 1], [2]]


def test_what_is_larger_than_memory_waits_in_the_spool_the_largest_first() -> None:
    server = Server(memory_bytes_max=1_000)
    server.send(StreamStart(7, True), RelationDescribed(KEYED, 7), insert(1, 7), StreamStop())
    server.send(StreamStart(8, True), RelationDescribed(KEYED, 8), *(insert(n, 80 + n % 2) for n in range(6)))
    assert server.spool.blocks.keys() == {8}
    server.send(StreamStop(), StreamAbort(8, 81, None, None), StreamCommit(8, 50, 60, T), StreamCommit(7, 70, 80, T))
    assert ids(server.pieces()) == [[0, 2, 4], [1]]
    assert not server.spool.blocks
    server.send(StreamStart(9, True), *(insert(n, 9) for n in range(9)), StreamStop(), StreamAbort(9, 9, None, None))
    assert not server.spool.blocks


def test_a_message_outside_of_transactions_is_told_at_once() -> None:
    server = Server()
    mark = Message(False, 9, "headrace", b"low", None)
    assert server.send(mark) == [Signal(mark)]
    server.send(StreamStart(7, True), StreamStop())
    assert server.send(mark) == [Signal(mark)]


def test_after_a_restart_what_is_safe_is_left_out() -> None:
    piece = Piece(Transaction(7, 50, T), [Change(Op.INSERT, 1, n, KEYED, None, False, []) for n in range(4)], 60)
    assert piece.beyond(None) == piece.beyond(Position(49, 9)) == piece
    assert piece.beyond(Position(51, 0)) == Piece(piece.transaction, (), 60)
    assert [change.index for change in piece.beyond(Position(50, 1)).changes] == [2, 3]
    assert piece.beyond(Position(50, -1)) == piece


@pytest.mark.parametrize(
    ("messages", "cause"),
    [
        ([insert(1)], "Insert at LSN 0/2 stands outside"),
        ([Truncate((), False, False, None)], "Truncate at LSN 0/2 stands outside"),
        ([Message(True, 1, "", b"", None)], "none has begun"),
        ([Commit(1, 2, T)], "Commit at LSN 0/2 stands outside"),
        ([Origin(1, "o")], "stands outside"),
        ([Begin(5, T, 1), Begin(6, T, 1)], "before the transaction or block before it has ended"),
        ([Begin(5, T, 1), Commit(6, 7, T)], "ends another transaction"),
        ([Begin(5, T, 1), Commit(5, 7, T), Begin(5, T, 2)], "committed before the last one"),
        ([Begin(5, T, 1), StreamStart(7, True)], "before the transaction or block"),
        ([StreamStart(7, False)], "is not the first"),
        ([StreamStart(7, True), StreamStop(), StreamStart(7, True)], "comes twice"),
        ([StreamStart(7, True), StreamStart(8, True)], "before the transaction or block"),
        ([StreamStart(7, True), Begin(5, T, 1)], "before the transaction or block"),
        ([StreamStart(7, True), StreamCommit(7, 5, 6, T)], "before the transaction or block"),
        ([StreamStop()], "has not begun"),
        ([StreamCommit(7, 5, 6, T)], "of which nothing came before"),
        ([StreamAbort(7, 7, None, None)], "of which nothing came before"),
        ([CommitPrepared(5, 6, T, 7, "a")], "Commit Prepared at LSN 0/2 belongs to transaction 7, of which nothing"),
        ([BeginPrepare(5, 6, T, 7, "a"), Prepare(5, 6, T, 8, "a")], "has not begun"),
        ([BeginPrepare(5, 6, T, 7, "a"), Begin(5, T, 7), Prepare(5, 6, T, 7, "a"), CommitPrepared(7, 8, T, 7, "a")],
         "Begin at LSN 0/3 stands inside a prepared transaction"),
    ],
)  # fmt: skip
def test_messages_out_of_order_are_refused(messages: list[Decoded], cause: str) -> None:
    server = Server()
    server.send(RelationDescribed(KEYED, None))
    with pytest.raises(MessageDamaged, match=cause):
        server.send(*messages)


@dataclass
class Client:
    """An open transaction; numbers with the xid of the sub-transaction that wrote them."""

    xid: int
    streamed: bool
    kept: list[tuple[int, int]] = field(default_factory=list)
    unsent: list[tuple[int, int]] = field(default_factory=list)
    began: bool = False
    undone: int = 0
    """How many: a sub-transaction that was undone never comes again."""

    def sub(self, number: int) -> int:
        return self.xid + (self.undone * 4 + number if number else 0)

    def undo(self, xid: int) -> None:
        self.undone += 1
        self.kept = [(of, number) for of, number in self.kept if of != xid]
        self.unsent = [(of, number) for of, number in self.unsent if of != xid]


class Clients:
    """Transactions beside each other, as a server streams them."""

    def __init__(self, server: Server, streamed: Sequence[bool]) -> None:
        self.server = server
        self.open = [Client(1_000_000 * (n + 1), streams) for n, streams in enumerate(streamed)]
        self.committed: list[tuple[int, list[int]]] = []
        self.lsn = 0

    def step(self, at: int, step: str, sub: int, number: int) -> None:
        client = self.open[at]
        match step:
            case "change":
                client.kept.append((client.sub(sub), number))
                client.unsent.append((client.sub(sub), number))
            case "block" if client.streamed:
                self.send_block(client)
            case "undo" if sub:
                xid = client.sub(sub)
                client.undo(xid)
                if client.began:
                    self.server.send(StreamAbort(client.xid, xid, None, None))
            case "commit" | "abort":
                self.lsn += 10
                self.end(client, step == "commit")
                self.open[at] = Client(client.xid + 1_000, client.streamed)

    def send_block(self, client: Client) -> None:
        described = [] if client.began else [RelationDescribed(KEYED, client.xid)]
        rows = [insert(number, xid) for xid, number in client.unsent]
        self.server.send(StreamStart(client.xid, not client.began), *described, *rows, StreamStop())
        client.began, client.unsent = True, []

    def end(self, client: Client, commit: bool) -> None:
        numbers = [number for _, number in client.kept]
        if commit:
            self.committed.append((self.lsn, numbers))
        if client.began:
            self.send_block(client)
            abort = StreamAbort(client.xid, client.xid, None, None)
            self.server.send(StreamCommit(client.xid, self.lsn, self.lsn + 1, T) if commit else abort)
        elif commit:
            rows = [insert(number) for number in numbers]
            self.server.send(Begin(self.lsn, T, client.xid), *rows, Commit(self.lsn, self.lsn + 1, T))


actions = st.sampled_from(["change", "change", "change", "block", "undo", "commit", "abort"])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), actions, st.integers(0, 3)), min_size=20, max_size=80),
    st.tuples(*[st.sampled_from([True, True, False])] * 3),
    st.integers(1, 3_000),
    st.integers(1, 4),
)
def test_any_history_gives_what_was_committed_in_the_order_of_commits(
    steps: list[tuple[int, str, int]], streamed: tuple[bool, ...], memory: int, piece: int
) -> None:
    server = Server(memory_bytes_max=memory, piece_changes_max=piece)
    server.send(RelationDescribed(KEYED, None))
    clients = Clients(server, streamed)
    for number, (at, step, sub) in enumerate([*steps, (0, "commit", 0), (1, "commit", 0), (2, "abort", 0)]):
        clients.step(at, step, sub, number)
        assert sum(len(data) for open_ in server.assembler._open.values() for _, data in open_.messages) <= memory
    found: dict[int, list[int]] = {}
    for told in server.pieces():
        assert len(told.changes) <= piece
        found.setdefault(told.transaction.commit_lsn, []).extend(ids([told])[0])
    assert list(found.items()) == clients.committed
    assert not server.spool.blocks
    assert server.assembler._bytes == 0
