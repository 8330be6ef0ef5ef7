"""Transactions become groups of a table each, with positions that a restart goes on from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from headrace_connect.connectors.postgres_cdc.collecting import Collector, Group
from headrace_connect.connectors.postgres_cdc.keys import keys_of
from headrace_connect.connectors.postgres_cdc.position import Place
from headrace_connect.core.changes import Change, Op, Piece, Position, Transaction, messages_of, piece_of
from headrace_connect.core.pgoutput.messages import UNCHANGED, Column, Message, Relation, Row

START = Place("7", 0)
Said = tuple[int, int, int, int]
"""Of a change: table, commit, index, and how many columns its table had."""


def relation(oid: int, columns: int = 2) -> Relation:
    made = tuple(Column(f"c{number}", 25, -1, number == 0) for number in range(columns))
    return Relation(oid, "public", f"t{oid}", "d", made)


def piece(commit: int, tables: Sequence[int], *, first: int = 0, ends: bool = True, columns: int = 2) -> Piece:
    changes = [
        Change(Op.INSERT, commit - 50, first + at, relation(oid, columns), None, False, [b"1"])
        for at, oid in enumerate(tables)
    ]
    return Piece(Transaction(commit, commit, 0), changes, commit + 10 if ends else None)


def open_up(items: Iterator[tuple[Group, Place]]) -> list[tuple[list[Said], Place]]:
    return [(say(iter([item]))[0], item[1]) for item in items]


def say(groups: Iterator[tuple[Group, Place]]) -> tuple[list[Said], list[Place]]:
    said: list[Said] = []
    places: list[Place] = []
    for group, place in groups:
        said += [
            (group.relation.oid, of.commit_lsn, change.index, len(group.relation.columns))
            for change, of in zip(group.changes, group.transactions, strict=True)
        ]
        places.append(place)
    return said, places


def test_changes_of_many_transactions_are_one_group_for_each_table() -> None:
    collector = Collector(START, lambda relation: relation.oid != 9, 100)
    for commit, tables in ((100, [1, 2, 1]), (200, [2, 9])):
        assert not list(collector.add(piece(commit, tables)))
    said, places = say(collector.flush())
    assert said == [(1, 100, 0, 2), (1, 100, 2, 2), (2, 100, 1, 2), (2, 200, 0, 2)]
    assert places == [Place("7", 0, ahead={1: Position(100, 2)}), Place("7", 210)]
    assert collector.is_empty
    assert not list(collector.flush())


def test_what_nobody_wants_moves_the_place() -> None:
    collector = Collector(START, lambda _: False, 100)
    list(collector.add(piece(100, [1, 1])))
    assert collector.is_empty
    assert not list(collector.flush())
    assert collector.place == Place("7", 110)
    collector.skip_to(50)
    assert collector.place == Place("7", 110)
    collector.skip_to(500)
    assert collector.place == Place("7", 500)


def test_a_piece_ends_within_its_transaction() -> None:
    collector = Collector(START, lambda _: True, 2)
    list(collector.add(piece(100, [1, 2], ends=False)))
    assert collector.is_full
    _, places = say(collector.flush())
    assert places == [Place("7", 0, ahead={1: Position(100, 0)}), Place("7", 100, 1)]
    list(collector.add(piece(100, [1], first=2)))
    assert say(collector.flush()) == ([(1, 100, 2, 2)], [Place("7", 110)])


def test_a_table_that_has_changed_is_a_group_of_its_own_in_order() -> None:
    collector = Collector(START, lambda _: True, 100)
    for commit, columns in ((100, 2), (200, 3), (300, 2)):
        list(collector.add(piece(commit, [1, 1], columns=columns)))
    said, places = say(collector.flush())
    assert [(commit, columns) for _, commit, _, columns in said] == [
        (c, n) for c, n in ((100, 2), (200, 3), (300, 2)) for _ in "ab"
    ]
    assert [place.ahead for place in places] == [{1: Position(100, 1)}, {1: Position(200, 1)}, {}]


def test_positions_name_only_so_many_tables() -> None:
    collector = Collector(START, lambda _: True, 1_000, tables_max=4)
    said, places = say(collector.add(piece(100, range(1, 11))))
    rest, more = say(collector.flush())
    assert [index for _, _, index, _ in said + rest] == list(range(10))
    assert max(len(place.ahead) for place in places + more) <= 3
    assert (places[3], more[-1]) == (Place("7", 100, 3), Place("7", 110))


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=6), min_size=1, max_size=6),
    st.data(),
)
def test_any_position_goes_on_exactly_behind_its_chunk(transactions: list[list[int]], data: st.DataObject) -> None:
    """Cut into pieces and groups in any way, stopped at any of them, and again from there, cut otherwise."""
    everything = [
        (oid, 100 * number, index, 2)
        for number, tables in enumerate(transactions, 1)
        for index, oid in enumerate(tables)
    ]
    wanted = sorted(change for change in everything if change[0] != 4)
    place, done = START, list[Said]()
    for _ in range(3):
        collector = Collector(place, lambda relation: relation.oid != 4, 100, data.draw(st.integers(1, 3)))
        given: list[tuple[list[Said], Place]] = []
        for number, tables in enumerate(transactions, 1):
            cut = data.draw(st.integers(0, len(tables) - 1))
            pieces = [piece(100 * number, tables[cut:], first=cut)]
            if cut:
                pieces.insert(0, piece(100 * number, tables[:cut], ends=False))
            for one in pieces:
                given += open_up(collector.add(one))
                if data.draw(st.booleans()):
                    given += open_up(collector.flush())
        given += open_up(collector.flush())
        stop = data.draw(st.integers(0, len(given)))
        for said, at in given[:stop]:
            done += said
            place = Place.from_json(at.to_json())
    final = Collector(place, lambda relation: relation.oid != 4, 100)
    for number, tables in enumerate(transactions, 1):
        list(final.add(piece(100 * number, tables)))
    done += say(final.flush())[0]
    assert sorted(done) == wanted, "each once"
    for oid in (1, 2, 3):
        own = [change[1:3] for change in done if change[0] == oid]
        assert own == sorted(own), "in order of commits"


def test_a_message_beside_transactions_is_there_once_and_hides_no_commit_that_begins_where_it_ends() -> None:
    """Its LSN is the end of its record: the next record, which may be a commit, begins there."""
    message = piece_of(Message(False, 200, "outbox", b"x", None), 0)
    sent = [piece(100, [1]), message, piece(200, [1, 1])]
    whole = Collector(START, lambda _: True, 100)
    given = [item for one in sent for item in [*whole.add(one), *whole.flush()]]
    assert [(group.relation.name, len(group.changes)) for group, _ in given] == [("t1", 1), ("outbox", 1), ("t1", 2)]
    assert given[1][1] == Place("7", 200)
    for stop in range(4):
        place = given[stop - 1][1] if stop else START
        again = Collector(Place.from_json(place.to_json()), lambda _: True, 100)
        left = [group for one in sent for group, _ in [*again.add(one), *again.flush()]]
        assert sum(len(group.changes) for group in left) == [4, 3, 2, 0][stop]


def test_messages_of_each_prefix_are_a_group() -> None:
    prefixes = ("a", "b", "a", "c")
    changes = [
        Change(Op.MESSAGE, 90, at, messages_of(prefix), None, False, None, Message(True, 90, prefix, b"", None))
        for at, prefix in enumerate(prefixes)
    ]
    collector = Collector(START, lambda relation: relation.name != "c", 100)
    list(collector.add(Piece(Transaction(1, 100, 0), changes, 110)))
    given = list(collector.flush())
    assert [(group.relation.name, [change.index for change in group.changes]) for group, _ in given] == [
        ("a", [0, 2]),
        ("b", [1]),
    ]
    assert len({messages_of(f"prefix {n}").oid for n in range(1_000)}) == 1_000
    assert Place.from_json(given[0][1].to_json()) == given[0][1]


def change(op: Op, before: Row | None, after: Row | None, columns: int = 2) -> Change:
    return Change(op, 0, 0, relation(1, columns), before, True, after)


def test_which_rows_changes_belong_to() -> None:
    key = {1: ["c0"]}
    assert keys_of([change(Op.INSERT, None, [b"1", b"x"])], key) == {"1": {(b"1",)}}
    moved = change(Op.UPDATE, [b"1", None], [b"2", UNCHANGED])
    assert keys_of([moved, change(Op.DELETE, [b"3", None], None)], key) == {"1": {(b"1",), (b"2",), (b"3",)}}
    assert keys_of([moved], {2: ["c0"]}) == {}
    for unknown in (
        change(Op.TRUNCATE, None, None),
        change(Op.UPDATE, None, [UNCHANGED, b"x"]),
        change(Op.INSERT, None, [], columns=0),
    ):
        assert keys_of([moved, unknown, moved], key) == {"1": None}
    assert keys_of([moved], {1: []}) == {"1": None}, "rows of a table without a key"
