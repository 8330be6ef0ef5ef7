"""Chunks beside a stream of changes: step by step, and against a database that does what it likes meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.connect.tests.postgres.fake_database import Commit, FakeDatabase, State, Transaction

from headrace_connect.core.snapshot import (
    ChunkRead,
    DropChunk,
    Edge,
    Effect,
    EmitChunk,
    Key,
    Mark,
    MarkSeen,
    ReadChunk,
    ReadSnapshot,
    SnapshotRead,
    Snapshots,
    Streamed,
    TableAdded,
    TableRemoved,
    Visible,
    WriteMark,
    widen,
)

T = "public.orders"
ALL = Visible(100, 100, frozenset())
"""Sees all below 100."""


def low(chunk: str) -> Mark:
    return Mark(chunk, Edge.LOW)


def high(chunk: str) -> Mark:
    return Mark(chunk, Edge.HIGH)


def key(*numbers: int) -> list[Key]:
    return [(b"%d" % number,) for number in numbers]


def chunk(id_: str, after: Key | None = None, table: str = T) -> list[Effect]:
    return [WriteMark(low(id_)), ReadChunk(id_, table, after, 10)]


def reading(after: Key | None = None, **limits: int) -> Snapshots:
    """The first chunk is asked for."""
    snapshots = Snapshots("g", chunk_rows=10, **limits)
    assert snapshots.handle(TableAdded(T, after)) == [ReadSnapshot(1, False)]
    assert snapshots.handle(SnapshotRead(1, 100, ALL)) == chunk("g-1", after)
    return snapshots


def test_a_chunk_is_read_between_its_marks_and_then_the_next_one() -> None:
    snapshots = reading()
    assert snapshots.handle(MarkSeen(low("g-1"))) == []
    assert snapshots.handle(ChunkRead("g-1", ALL, key(1, 2), False)) == [WriteMark(high("g-1"))]
    assert snapshots.handle(MarkSeen(high("g-1"))) == [
        EmitChunk("g-1", T, [0, 1], (b"2",), False),
        *chunk("g-2", (b"2",)),
    ]
    snapshots.handle(ChunkRead("g-2", ALL, [], True))
    snapshots.handle(MarkSeen(low("g-2")))
    assert not snapshots.idle
    assert snapshots.handle(MarkSeen(high("g-2"))) == [EmitChunk("g-2", T, [], (b"2",), True)]
    assert snapshots.idle


def test_rows_that_changed_between_the_marks_are_dropped_in_favour_of_the_change() -> None:
    snapshots = reading()
    snapshots.handle(Streamed(40, {T: key(1)}))
    snapshots.handle(MarkSeen(low("g-1")))
    snapshots.handle(Streamed(41, {T: key(2), "public.other": key(3)}))
    snapshots.handle(ChunkRead("g-1", ALL, key(1, 2, 3, 4), True))
    snapshots.handle(Streamed(42, {T: key(4)}))
    assert snapshots.handle(MarkSeen(high("g-1"))) == [EmitChunk("g-1", T, [0, 2], (b"4",), True)]


def test_rows_of_a_commit_that_the_chunk_does_not_see_are_dropped_until_one_sees_it() -> None:
    snapshots = reading()
    hidden = Visible(50, 101, frozenset({50}))
    snapshots.handle(Streamed(50, {T: key(1, 7)}))
    snapshots.handle(MarkSeen(low("g-1")))
    snapshots.handle(ChunkRead("g-1", hidden, key(1, 2), False))
    emitted = snapshots.handle(MarkSeen(high("g-1")))
    assert emitted == [EmitChunk("g-1", T, [1], (b"2",), False), *chunk("g-2", (b"2",))]
    snapshots.handle(MarkSeen(low("g-2")))
    snapshots.handle(ChunkRead("g-2", hidden, key(7, 8), False))
    assert snapshots.handle(MarkSeen(high("g-2")))[0] == EmitChunk("g-2", T, [1], (b"8",), False)
    snapshots.handle(MarkSeen(low("g-3")))
    snapshots.handle(ChunkRead("g-3", ALL, key(7), True))
    assert snapshots.handle(MarkSeen(high("g-3")))[0] == EmitChunk("g-3", T, [0], (b"7",), True)


def test_the_first_chunk_waits_for_what_may_have_committed_before_anyone_watched() -> None:
    snapshots = Snapshots("g", chunk_rows=10)
    snapshots.handle(TableAdded(T))
    hidden = Visible(50, 70, frozenset({50, 60}))
    assert snapshots.handle(SnapshotRead(1, 72, hidden)) == [ReadSnapshot(2, True)]
    assert snapshots.waits_for == {T: {50, 60, 70, 71}}
    snapshots.handle(Streamed(60, {T: key(1)}))
    assert snapshots.handle(SnapshotRead(2, 80, Visible(50, 76, frozenset({50, 60, 73})))) == [ReadSnapshot(3, True)]
    assert snapshots.waits_for == {T: {50}}
    assert snapshots.handle(SnapshotRead(3, 80, Visible(60, 76, frozenset({60, 73})))) == chunk("g-1")
    snapshots.handle(MarkSeen(low("g-1")))
    snapshots.handle(ChunkRead("g-1", Visible(60, 76, frozenset({60})), key(1, 2), True))
    assert snapshots.handle(MarkSeen(high("g-1"))) == [EmitChunk("g-1", T, [1], (b"2",), True)]


def test_what_came_in_the_stream_before_the_first_snapshot_is_not_waited_for() -> None:
    snapshots = Snapshots("g", chunk_rows=10)
    snapshots.handle(TableAdded(T))
    snapshots.handle(Streamed(50, {T: key(1)}))
    assert snapshots.handle(SnapshotRead(1, 60, Visible(50, 60, frozenset({50})))) == chunk("g-1")


def test_a_snapshot_that_was_asked_for_before_a_table_was_added_says_nothing_of_it() -> None:
    snapshots = Snapshots("g", chunk_rows=10, parallel_max=2)
    snapshots.handle(TableAdded(T))
    assert snapshots.handle(TableAdded("public.b")) == []
    assert snapshots.handle(SnapshotRead(1, 100, ALL)) == [*chunk("g-1"), ReadSnapshot(2, True)]
    assert snapshots.handle(SnapshotRead(2, 100, ALL)) == chunk("g-2", table="public.b")


def test_a_truncation_and_more_keys_than_can_be_remembered_have_the_chunk_read_again() -> None:
    for keys in (None, key(1, 2, 3)):
        snapshots = reading(keys_max=2)
        snapshots.handle(MarkSeen(low("g-1")))
        snapshots.handle(Streamed(100, {T: keys}))
        snapshots.handle(ChunkRead("g-1", ALL, key(1, 2), True))
        assert snapshots.handle(MarkSeen(high("g-1"))) == [DropChunk("g-1"), ReadSnapshot(2, False)]
        assert snapshots.handle(SnapshotRead(2, 101, ALL)) == [ReadSnapshot(3, True)]
        assert snapshots.handle(SnapshotRead(3, 101, Visible(101, 101, frozenset()))) == chunk("g-2")


def test_tables_take_turns_and_their_keys_are_their_own() -> None:
    snapshots = reading()
    assert snapshots.handle(TableAdded("public.b")) == [ReadSnapshot(2, False)]
    assert snapshots.handle(SnapshotRead(2, 100, ALL)) == []
    snapshots.handle(MarkSeen(low("g-1")))
    snapshots.handle(Streamed(100, {"public.b": key(1)}))
    snapshots.handle(ChunkRead("g-1", ALL, key(1), True))
    finished = snapshots.handle(MarkSeen(high("g-1")))
    assert finished == [EmitChunk("g-1", T, [0], (b"1",), True), *chunk("g-2", table="public.b")]
    snapshots.handle(MarkSeen(low("g-2")))
    snapshots.handle(ChunkRead("g-2", ALL, key(1), True))
    assert snapshots.handle(MarkSeen(high("g-2"))) == [EmitChunk("g-2", "public.b", [], (b"1",), True)]


def test_a_chunk_counts_with_its_own_snapshot_even_if_another_table_has_a_newer_one() -> None:
    snapshots = reading(parallel_max=2)
    snapshots.handle(TableAdded("public.b"))
    snapshots.handle(SnapshotRead(2, 100, ALL))
    snapshots.handle(Streamed(100, {T: key(1)}))
    snapshots.handle(MarkSeen(low("g-1")))
    snapshots.handle(ChunkRead("g-2", Visible(101, 101, frozenset()), [], True))
    snapshots.handle(ChunkRead("g-1", ALL, key(1, 2), True))
    assert snapshots.handle(MarkSeen(high("g-1"))) == [EmitChunk("g-1", T, [1], (b"2",), True)]


def test_a_table_goes_on_where_it_was_and_one_that_is_added_again_begins_anew() -> None:
    snapshots = reading(after=(b"5",))
    assert snapshots.handle(TableAdded(T)) == [DropChunk("g-1"), ReadSnapshot(2, False)]
    assert snapshots.handle(SnapshotRead(2, 100, ALL)) == chunk("g-2")
    assert snapshots.handle(ChunkRead("g-1", ALL, key(6), True)) == [DropChunk("g-1")]
    assert snapshots.handle(MarkSeen(high("g-1"))) == []
    assert snapshots.handle(TableRemoved(T)) == [DropChunk("g-2")]
    assert snapshots.idle
    assert snapshots.handle(TableRemoved(T)) == []


def test_a_chunk_whose_low_mark_did_not_come_is_read_again() -> None:
    snapshots = reading()
    snapshots.handle(ChunkRead("g-1", ALL, key(1), True))
    assert snapshots.handle(MarkSeen(high("g-1"))) == [DropChunk("g-1"), *chunk("g-2")]


def test_marks_are_read_back_and_messages_of_others_are_none() -> None:
    assert Mark.decode(low("g-1").encode()) == low("g-1")
    assert Mark.decode(high("a b").encode()) == high("a b")
    assert Mark.decode(b"") is Mark.decode(b"\xff") is Mark.decode(b"middle g-1") is None


@pytest.mark.parametrize(
    ("text", "sees", "not_yet"),
    [
        ("10:20:10,14", [9, 11, 19, 2**32 - 1], [10, 14, 20, 21]),
        ("10:10:", [9], [10]),
        (f"{2**32 - 2}:{2**32 + 3}:{2**32 - 2},{2**32 + 1}", [2**32 - 3, 2**32 - 1, 0, 2], [2**32 - 2, 1, 3]),
    ],
)
def test_what_a_snapshot_sees(text: str, sees: list[int], not_yet: list[int]) -> None:
    visible = Visible.parse(text)
    assert [xid for xid in [*sees, *not_yet] if visible.sees(xid)] == sees


@settings(deadline=None)
@given(st.integers(2**32, 2**50), st.integers(-(2**31), 2**31 - 1))
def test_a_short_xid_is_the_nearest_long_one(near: int, distance: int) -> None:
    assert widen((near + distance) & 0xFFFF_FFFF, near) == near + distance


@dataclass
class Durable:
    """What a commit of the connector has made safe."""

    outputs: int = 0
    wal: int = 0
    after: Key | None = None
    wanted: bool = False


@dataclass
class Connector:
    """The loop around ``Snapshots`` that the connector has, each step by itself."""

    database: FakeDatabase
    chunk_rows: int
    keys_max: int
    generation: int = 0
    outputs: list[tuple[int, str, State | Commit]] = field(default_factory=list)
    """Each with its place in the WAL."""
    durable: Durable = field(default_factory=Durable)
    rows: dict[str, list[tuple[Key, int]]] = field(default_factory=dict)
    todo: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """After a crash as well: what is not durable is lost, and the stream goes on from there."""
        self.generation += 1
        self.snapshots = Snapshots(f"g{self.generation}", chunk_rows=self.chunk_rows, keys_max=self.keys_max)
        del self.outputs[self.durable.outputs :]
        self.rows, self.todo = {}, []
        self.now = Durable(self.durable.outputs, self.durable.wal, self.durable.after, self.durable.wanted)
        if self.now.wanted:
            self.todo += self.snapshots.handle(TableAdded(T, self.now.after))

    def add(self) -> None:
        self.now.wanted, self.now.after = True, None
        self.todo += self.snapshots.handle(TableAdded(T))

    def commit(self) -> None:
        self.durable = Durable(len(self.outputs), self.now.wal, self.now.after, self.now.wanted)

    def follow(self) -> None:
        """One entry of the WAL."""
        if self.now.wal == len(self.database.wal):
            return
        entry = self.database.wal[self.now.wal]
        self.now.wal += 1
        if isinstance(entry, Mark):
            self.todo += self.snapshots.handle(MarkSeen(entry))
        else:
            self.todo += self.snapshots.handle(Streamed(entry.xid & 0xFFFF_FFFF, {T: entry.keys()}))
            self.outputs.append((self.now.wal, "change", entry))
        while self.todo and isinstance(self.todo[0], EmitChunk | DropChunk):
            self.emit(self.todo.pop(0))

    def emit(self, effect: Effect) -> None:
        if isinstance(effect, DropChunk):
            self.rows.pop(effect.chunk, None)
        elif isinstance(effect, EmitChunk):
            rows = self.rows.pop(effect.chunk)
            self.outputs.append((self.now.wal, "read", dict(rows[place] for place in effect.places)))
            self.now.after, self.now.wanted = effect.after, not effect.done

    def act(self) -> None:
        """One effect."""
        if not self.todo or (isinstance(self.todo[0], ReadChunk) and self.database.locked):
            return
        match self.todo.pop(0):
            case WriteMark(mark):
                self.database.wal.append(mark)
            case ReadSnapshot(number):
                transaction = self.database.begin()
                self.database.end(transaction)
                self.todo += self.snapshots.handle(SnapshotRead(number, transaction.xid, self.database.visible()))
            case ReadChunk(id_, _, after, limit):
                visible = self.database.visible()
                rows = sorted(self.database.read(visible).items())
                read = [row for row in rows if after is None or row[0] > after][:limit]
                self.rows[id_] = read
                keys = [key for key, _ in read]
                self.todo += self.snapshots.handle(ChunkRead(id_, visible, keys, len(read) < limit))
            case effect:
                self.emit(effect)


def check(connector: Connector) -> None:
    """Replayed, the output is the table; each row was, where it stands, as the stream had left it."""
    state: State = {}
    for at, _, output in connector.outputs:
        if isinstance(output, Commit):
            output.apply(state)
        else:
            then = connector.database.state(at)
            assert {key: then.get(key) for key in output} == output
            state |= output
    assert state == connector.database.state(len(connector.database.wal))
    commits = [entry for entry in connector.database.wal if isinstance(entry, Commit)]
    assert [output for _, kind, output in connector.outputs if kind == "change"] == commits


KEYS = [(b"%d" % number,) for number in range(6)]
changes = st.tuples(st.just("change"), st.integers(0, 2), st.sampled_from(KEYS), st.sampled_from([*KEYS, None]))
actions = st.one_of(
    *[changes] * 5,
    *(st.tuples(st.just(what), st.integers(0, 2)) for what in ("commit", "commit", "commit", "end", "truncate")),
    *(st.tuples(st.just(what), st.integers(1, 3)) for what in ("follow", "act", "act", "both", "both", "both")),
    st.sampled_from([("safe",), ("restart",), ("add",)]),
)


def play(database: FakeDatabase, connector: Connector, steps: list[tuple[object, ...]]) -> None:
    open_: dict[int, Transaction] = {}
    for value, (what, *args) in enumerate(steps):
        match what, args:
            case "change", [int(at), before, after]:
                if at not in open_:
                    open_[at] = database.begin()
                database.change(open_[at], (before, after, value))  # type: ignore[arg-type]
            case "truncate", [int(at)] if at not in open_:
                open_[at] = database.begin()
                database.truncate(open_[at])
            case "commit", [int(at)] if at in open_:
                database.commit(open_[at])
            case "end", [int(at)] if at in open_:
                database.end(open_.pop(at))
            case "follow" | "act" | "both", [int(times)]:
                for _ in range(times):
                    if what != "follow":
                        connector.act()
                    if what != "act":
                        connector.follow()
            case "safe", _:
                connector.commit()
            case "restart", _:
                connector.start()
            case "add", _:
                connector.add()
    for transaction in open_.values():
        database.end(transaction)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(actions, min_size=30, max_size=150),
    st.sets(st.sampled_from(KEYS), min_size=3),
    st.integers(1, 3),
    st.sampled_from([0, 3, 1_000, 1_000]),
    st.sampled_from([2**32 + 10, 2**33 - 5]),
)
def test_any_history_beside_any_chunks_gives_the_table(
    steps: list[tuple[object, ...]], rows: set[Key], chunk_rows: int, keys_max: int, first_xid: int
) -> None:
    database = FakeDatabase(dict.fromkeys(rows, -1), first_xid)
    connector = Connector(database, chunk_rows, keys_max)
    connector.add()
    connector.commit()
    play(database, connector, steps)
    for _ in range(1_000):
        if connector.snapshots.idle and connector.now.wal == len(database.wal):
            break
        connector.follow()
        connector.act()
    assert connector.snapshots.idle
    check(connector)
