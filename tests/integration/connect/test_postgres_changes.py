"""What a real server sends of what was done to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.integration.connect.replication import SESSION, Replication, replicating
from tests.integration.transactions.postgres import started_postgres

from headrace_connect.core.changes import Change, Op, Piece, Position, Signal
from headrace_connect.core.envelope import Envelope, Form
from headrace_connect.core.pgoutput import Protocol
from headrace_connect.core.pgoutput.messages import UNCHANGED, Relation
from headrace_connect.core.snapshot import Visible
from headrace_connect.core.values import Columns, ValueModes

pytestmark = pytest.mark.integration
LARGE = "x" * 300_000


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with started_postgres(
        wal_level="logical", logical_decoding_work_mem="64kB", max_prepared_transactions="5", wal_sender_timeout="0"
    ) as address:
        with psycopg.connect(address, autocommit=True) as database:
            database.execute("CREATE DATABASE changes ENCODING 'UTF8' TEMPLATE template0")
        address = address.replace("dbname=postgres", "dbname=changes")
        with psycopg.connect(address, autocommit=True) as database:
            database.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        yield address


class Server:
    """A slot, and a session that does something and then writes a mark."""

    def __init__(self, address: str, slot: str, *, two_phase: bool = False) -> None:
        self.address = address
        self.slot = slot
        self.database = psycopg.connect(address, autocommit=True, options=SESSION)
        self.marks = 0
        self.do(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', twophase => {two_phase})")

    def do(self, *statements: str) -> None:
        for statement in statements:
            self.database.execute(statement.encode())

    def mark(self) -> str:
        self.marks += 1
        self.do(f"SELECT pg_logical_emit_message(false, 'test', '{self.slot} {self.marks}')")
        return f"{self.slot} {self.marks}"

    def wait_until_free(self) -> None:
        """The server notices after a moment that a connection has ended."""
        asked = "SELECT active, pg_sleep(0.01) FROM pg_replication_slots WHERE slot_name = %s"
        for _ in range(1_000):
            row = self.database.execute(asked, [self.slot]).fetchone()
            assert row is not None
            if not row[0]:
                return
        raise AssertionError(f"the slot {self.slot} is still read")

    def close(self) -> None:
        self.do(f"SELECT pg_drop_replication_slot('{self.slot}')")
        self.database.close()


@pytest.fixture
def server(address: str, request: pytest.FixtureRequest) -> Iterator[Server]:
    name = re.sub(r"\W", "_", request.node.name)[-40:]
    server = Server(address, f"s_{name}", two_phase="two_phase" in name)
    yield server
    server.wait_until_free()
    server.close()


def read(
    server: Server, version: int = 1, options: str = "", **limits: int
) -> tuple[list[Piece | Signal], Replication]:
    mark = server.mark()
    with replicating(server.address, server.slot, Protocol(version), options, **limits) as replication:
        found = replication.read_to(mark)
    server.wait_until_free()
    return found, replication


def changes(items: Sequence[Piece | Signal]) -> list[Change]:
    return [change for item in items if isinstance(item, Piece) for change in item.changes]


def brief(items: Sequence[Piece | Signal]) -> list[tuple[str, str, Any, Any]]:
    return [(change.op.value, change.relation.name, change.before, change.after) for change in changes(items)]


def test_each_kind_of_change(server: Server) -> None:
    server.do(
        "CREATE TABLE a (id int PRIMARY KEY, n text, large text)",
        "ALTER TABLE a ALTER large SET STORAGE EXTERNAL",
        "CREATE TABLE whole (id int, n text)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        f"INSERT INTO a VALUES (1, 'one', '{LARGE}'), (2, NULL, '')",
        "UPDATE a SET n = 'eins' WHERE id = 1",
        "UPDATE a SET id = 3 WHERE id = 1",
        "BEGIN",
        "DELETE FROM a WHERE id = 3",
        "SELECT pg_logical_emit_message(true, 'outbox', 'hello')",
        "INSERT INTO whole VALUES (1, 'w')",
        "UPDATE whole SET n = 'v'",
        "DELETE FROM whole",
        "COMMIT",
        "BEGIN",
        "INSERT INTO a VALUES (9, 'never', '')",
        "ROLLBACK",
        "TRUNCATE a, whole",
        "ALTER TABLE a ADD more int DEFAULT 5, DROP n",
        "INSERT INTO a VALUES (4, 'l')",
    )
    found, _ = read(server)
    large = LARGE.encode()
    assert brief(found) == [
        ("c", "a", None, [b"1", b"one", large]),
        ("c", "a", None, [b"2", None, b""]),
        ("u", "a", None, [b"1", b"eins", UNCHANGED]),
        ("u", "a", [b"1", None, None], [b"3", b"eins", UNCHANGED]),
        ("d", "a", [b"3", None, None], None),
        ("m", "outbox", None, None),
        ("c", "whole", None, [b"1", b"w"]),
        ("u", "whole", [b"1", b"w"], [b"1", b"v"]),
        ("d", "whole", [b"1", b"v"], None),
        ("t", "a", None, None),
        ("t", "whole", None, None),
        ("c", "a", None, [b"4", b"l", b"5"]),
    ]
    pieces = [item for item in found if isinstance(item, Piece) and item.changes]
    assert [len(piece.changes) for piece in pieces] == [2, 1, 1, 5, 2, 1]
    assert all([change.index for change in piece.changes] == list(range(len(piece.changes))) for piece in pieces)
    commits = [piece.transaction.commit_lsn for piece in pieces]
    assert commits == sorted(set(commits))
    (message,) = [change.message for change in changes(found) if change.message]
    assert (message.prefix, message.content, message.transactional) == ("outbox", b"hello", True)
    relations = [change.relation for change in changes(found) if change.relation and change.relation.name == "a"]
    assert [column.name for column in relations[0].columns] == ["id", "n", "large"]
    assert [column.name for column in relations[-1].columns] == ["id", "large", "more"]
    assert [column.is_key for column in relations[0].columns] == [True, False, False]


def test_a_large_transaction_is_streamed_and_a_savepoint_that_was_undone_is_not_in_it(server: Server) -> None:
    server.do("CREATE TABLE s (id int PRIMARY KEY, n text)", "CREATE TABLE t (id int PRIMARY KEY)")
    rows = "INSERT INTO s SELECT n, repeat('x', 100) FROM generate_series({}, {}) n"
    with psycopg.connect(server.address) as other:
        server.do("BEGIN", rows.format(1, 2_000), "SAVEPOINT a", rows.format(2_001, 4_000))
        other.execute("INSERT INTO t VALUES (1)")
        other.commit()
        server.do("ROLLBACK TO a", "SAVEPOINT b", "ALTER TABLE s ADD more int", rows.format(4_001, 5_000), "RELEASE b")
        server.do("DELETE FROM s WHERE id = 1", "COMMIT", "BEGIN", rows.format(6_001, 9_000), "ROLLBACK")
        server.do("INSERT INTO s VALUES (10000, '', 7)")
    found, replication = read(server, 2, ", streaming 'on'", memory_bytes_max=200_000, piece_changes_max=700)
    assert replication.kinds >= {b"S", b"E", b"c", b"A"}
    assert replication.spool.appended > 1
    assert not replication.spool.blocks
    by_table: dict[str, list[Change]] = {}
    for change in changes(found):
        assert change.relation is not None
        by_table.setdefault(change.relation.name, []).append(change)
    assert [change.after for change in by_table["t"]] == [[b"1"]]
    inserted = [change.after for change in by_table["s"] if change.after is not None]
    assert [int(row[0] or b"") for row in inserted if isinstance(row[0], bytes)] == [
        *range(1, 2_001), *range(4_001, 5_001), 10_000,
    ]  # fmt: skip
    assert inserted[-1] == [b"10000", b"", b"7"]
    assert [change.before for change in by_table["s"] if change.op is Op.DELETE] == [[b"1", None, None]]
    large = [item for item in found if isinstance(item, Piece) and item.transaction.xid == found_xid(found, "s")]
    assert [change.index for piece in large for change in piece.changes] == list(range(3_001))
    assert [piece.end_lsn is not None for piece in large] == [False] * (len(large) - 1) + [True]
    assert all(len(piece.changes) <= 700 for piece in large)
    order = [item.transaction.commit_lsn for item in found if isinstance(item, Piece)]
    assert order == sorted(order)
    server.do("DROP TABLE s, t")


def found_xid(items: Sequence[Piece | Signal], table: str) -> int:
    """Of the first transaction that changed a table."""
    return next(
        item.transaction.xid
        for item in items
        if isinstance(item, Piece)
        for change in item.changes
        if change.relation and change.relation.name == table
    )


def test_two_phase_commit(server: Server) -> None:
    rows = "INSERT INTO p SELECT n, repeat('x', 100) FROM generate_series({}, {}) n"
    server.do("CREATE TABLE p (id int PRIMARY KEY, n text)")
    server.do("BEGIN", "INSERT INTO p VALUES (1)", "PREPARE TRANSACTION 'one'")
    server.do("BEGIN", "INSERT INTO p VALUES (2)", "PREPARE TRANSACTION 'two'")
    server.do("BEGIN", rows.format(100, 2_099), "PREPARE TRANSACTION 'large'")
    server.do("INSERT INTO p VALUES (3)", "COMMIT PREPARED 'large'", "ROLLBACK PREPARED 'two'")
    mark = server.mark()
    with replicating(server.address, server.slot, Protocol(3), ", streaming 'on', two_phase 'on'") as replication:
        first = replication.read_to(mark)
        held = replication.assembler.held_lsn
        server.do("COMMIT PREPARED 'one'")
        second = replication.read_to(server.mark())
    assert replication.kinds >= {b"b", b"P", b"K", b"r", b"p"}
    assert [change.after[0] for change in changes(first) if change.after] == [
        b"3",
        *(b"%d" % n for n in range(100, 2_100)),
    ]
    assert held is not None
    assert all(held < piece.transaction.commit_lsn for piece in first if isinstance(piece, Piece) and piece.changes)
    assert [change.after for change in changes(second)] == [[b"1", None]]
    assert replication.assembler.held_lsn is None
    server.do("DROP TABLE p")


def test_after_a_restart_what_is_safe_is_left_out_and_what_is_confirmed_is_not_sent(server: Server) -> None:
    server.do("CREATE TABLE r (id int PRIMARY KEY)")
    server.do("INSERT INTO r VALUES (1), (2), (3)", "INSERT INTO r VALUES (4)")
    found, _ = read(server)
    first, last = (piece for piece in found if isinstance(piece, Piece) and piece.changes)
    position = Position(first.transaction.commit_lsn, 1)
    again, _ = read(server)
    left = [item.beyond(position) for item in again if isinstance(item, Piece)]
    assert [change.after for change in changes(left)] == [[b"3"], [b"4"]]
    assert first.end_lsn is not None
    mark = server.mark()
    with replicating(server.address, server.slot, Protocol(1), "") as replication:
        replication.read_to(mark)
        replication.confirm(first.end_lsn)
        confirmed = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s"
        replication.read_to(server.mark())
        for _ in range(1_000):
            row = server.database.execute(confirmed, [server.slot]).fetchone()
            assert row is not None
            if row[0] >= first.end_lsn:
                break
    server.wait_until_free()
    rest, _ = read(server)
    assert [change.after for change in changes(rest)] == [change.after for change in last.changes]
    server.do("DROP TABLE r")


TYPES = [
    ("bool", "true", True),
    ("int2", "-32768", -32768),
    ("int4", "2147483647", 2**31 - 1),
    ("int8", "-9223372036854775808", -(2**63)),
    ("float4", "0.1", 0.10000000149011612),
    ("float8", "'-Infinity'", float("-inf")),
    ("float8", "1e-300", 1e-300),
    ("numeric(38,10)", "-1234567890123456789012345678.0123456789", Decimal("-1234567890123456789012345678.0123456789")),
    ("numeric(5,-2)", "1234567", Decimal(1234600)),
    ("numeric(3,5)", "0.00123", Decimal("0.00123")),
    ("numeric", "'NaN'", "NaN"),
    ("numeric", "1e100", "1" + "0" * 100),
    ("money", "-1234.5", Decimal("-1234.50")),
    ("text", "'ä☀'", "ä☀"),
    ("char(4)", "'a'", "a   "),
    ("date", "'2024-02-29'", date(2024, 2, 29)),
    ("time", "'23:59:59.000001'", time(23, 59, 59, 1)),
    ("time(3)", "'23:59:59.001'", time(23, 59, 59, 1_000)),
    ("timetz", "'10:00:00+05:30'", "10:00:00+05:30"),
    ("timestamp", "'2024-02-29 12:00:00.000001'", datetime.fromisoformat("2024-02-29 12:00:00.000001")),
    ("timestamp(0)", "'2024-02-29 12:00:00.4'", datetime.fromisoformat("2024-02-29 12:00:00")),
    ("timestamptz", "'2024-02-29 12:00:00+05:30'", datetime.fromisoformat("2024-02-29 06:30:00+00:00")),
    ("interval", "'1 mon -1 day 0.1 s'", "1 mon -1 days +00:00:00.1"),
    ("bit(1)", "B'1'", True),
    ("bit(5)", "B'00101'", "00101"),
    ("varbit", "B'1'", "1"),
    ("bytea", r"'\x00ff'", b"\0\xff"),
    ("json", """'{"a": 1.0}'""", '{"a": 1.0}'),
    ("jsonb", """'{"a": 1.0}'""", '{"a": 1.0}'),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("inet", "'10.0.0.1/8'", "10.0.0.1/8"),
    ("int4range", "'[1,3)'", "[1,3)"),
    ("datemultirange", "'{[2024-01-01,2024-01-03)}'", "{[2024-01-01,2024-01-03)}"),
    ("mood", "'happy \"\"'", 'happy ""'),
    ("positive", "5", 5),
    ("mood[]", "ARRAY['sad']::mood[]", "{sad}"),
    ("int4[]", "'{1,NULL,3}'", [1, None, 3]),
    ("text[]", """ARRAY['a,b', 'c"\\', NULL, 'NULL', '', ' ']""", ["a,b", 'c"\\', None, "NULL", "", " "]),
    ("numeric(5,2)[]", "'{1.5}'", [Decimal("1.50")]),
    ("timestamptz[]", "'{2024-02-29 12:00:00+00}'", [datetime.fromisoformat("2024-02-29 12:00:00+00:00")]),
    ("bytea[]", r"ARRAY['\x00'::bytea]", [b"\0"]),
    ("point", "'(1,2)'", "(1,2)"),
]  # fmt: skip


def table_of(found: Sequence[Piece | Signal]) -> tuple[Relation, list[Change]]:
    last = [change for change in changes(found) if change.op is Op.INSERT]
    relation = last[-1].relation
    assert relation is not None
    return relation, [change for change in last if change.relation == relation]


def test_values_of_each_type(server: Server) -> None:
    server.do("CREATE TYPE mood AS ENUM ('sad', 'happy \"\"')", "CREATE DOMAIN positive AS int CHECK (value > 0)")
    columns = ", ".join(f"c{n} {type_}" for n, (type_, _, _) in enumerate(TYPES))
    server.do(f"CREATE TABLE v ({columns})")
    server.do(f"INSERT INTO v VALUES ({', '.join(text for _, text, _ in TYPES)})", "INSERT INTO v DEFAULT VALUES")
    found, replication = read(server)
    relation, inserted = table_of(found)
    rows, problems = Columns(relation, ValueModes(), replication.assembler.types).convert(
        [change.after for change in inserted]
    )
    assert not problems
    first, second = rows.to_pylist()
    assert list(zip(TYPES, first.values(), strict=True)) == [(type_, type_[2]) for type_ in TYPES]
    assert set(second.values()) == {None}
    server.do("DROP TABLE v", "DROP DOMAIN positive", "DROP TYPE mood")


def test_moments_far_away_are_what_the_server_says_that_they_are(server: Server) -> None:
    server.do("CREATE TABLE far (at timestamp, zoned timestamptz, day date)")
    moments = ["4714-11-24 00:00:00 BC", "0001-12-31 23:59:59.999999 BC", "0001-01-01", "9999-12-31 23:59:59.999999",
               "10000-01-01", "294246-01-01 00:00:00.000001", "1969-12-31 23:59:59.999999", "2000-02-29"]  # fmt: skip
    for moment in moments:
        server.do(f"INSERT INTO far VALUES ('{moment}', '{moment}', '{moment}')")
    server.do(
        "INSERT INTO far VALUES (NULL, NULL, '5874897-12-31'), ('infinity', '-infinity', NULL)",
        "INSERT INTO far VALUES (NULL, NULL, '-infinity')",
    )
    exact = "(extract(epoch FROM {}) * 1000000)::bigint"
    asked = f"{exact.format('at')}, {exact.format('zoned')}, day - '1970-01-01'::date"
    said = server.database.execute(f"SELECT {asked} FROM far LIMIT {len(moments)}".encode()).fetchall()
    found, _ = read(server)
    relation, inserted = table_of(found)
    rows, problems = Columns(relation, ValueModes(), {}).convert([change.after for change in inserted])
    at, zoned, day = rows.flatten()
    numbers = zip(
        at.view(pa.int64()).to_pylist(),
        zoned.view(pa.int64()).to_pylist(),
        day.view(pa.int32()).to_pylist(),
        strict=True,
    )
    *numbers_of, last, _, _ = list(numbers)
    assert numbers_of == said
    assert last == (None, None, 2_147_483_493 - 2_440_588)
    assert sorted(problems) == [len(moments) + 1, len(moments) + 2]
    server.do("DROP TABLE far")


def test_records_of_real_changes(server: Server) -> None:
    server.do("CREATE TABLE e (id int PRIMARY KEY, n text)", "INSERT INTO e VALUES (1, 'a')", "UPDATE e SET id = 2")
    server.do("DELETE FROM e")
    found, replication = read(server)
    records = []
    for piece in found:
        if isinstance(piece, Piece) and piece.changes:
            relation = piece.changes[0].relation
            assert relation is not None
            envelope = Envelope(relation, Form("shop", "postgres"), ValueModes(), replication.assembler.types)
            wrapped = envelope.wrap(piece.changes, piece.transaction, 0)
            assert wrapped.keys is not None
            assert not wrapped.refused
            records += list(zip(wrapped.keys.to_pylist(), wrapped.values.to_pylist(), strict=True))
    assert [(key["id"], value and (value["op"], value["after"])) for key, value in records] == [
        (1, ("c", {"id": 1, "n": "a"})),
        (1, ("d", None)),
        (1, None),
        (2, ("c", {"id": 2, "n": "a"})),
        (2, ("d", None)),
        (2, None),
    ]
    lsns = [value["source"]["lsn"] for _, value in records if value]
    assert lsns == sorted(lsns)
    server.do("DROP TABLE e")


def waits(server: Server, session: psycopg.Connection[Any]) -> bool:
    """Whether commits of the session wait for a standby: they do when the checkpointer, too, has read the setting."""
    connection = session.pgconn
    connection.send_query(b"SELECT pg_sleep(0.01), pg_logical_emit_message(true, 'probe', '')")
    asked = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
    waited = False
    while connection.is_busy():
        waited = waited or server.database.execute(asked, [session.info.backend_pid]).fetchone() is not None
        connection.consume_input()
    while connection.get_result() is not None:
        pass
    return waited


def test_a_commit_that_nobody_sees_yet_is_in_the_stream_and_not_in_a_snapshot(server: Server) -> None:
    server.do("CREATE TABLE h (id int PRIMARY KEY)")
    with psycopg.connect(server.address, autocommit=True) as hanging:
        server.do("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
        server.do("SET synchronous_commit = local")
        while not waits(server, hanging):
            pass
        hanging.pgconn.send_query(b"INSERT INTO h VALUES (1)")
        of_h: set[int] = set()
        while not of_h:
            pieces = [item for item in read(server)[0] if isinstance(item, Piece)]
            of_h = {piece.transaction.xid for piece in pieces if "h" in (one.relation.name for one in piece.changes)}
        (xid,) = of_h
        row = server.database.execute("SELECT pg_current_snapshot()::text, (SELECT count(*) FROM h)").fetchone()
        assert row is not None
        visible, count = row
        server.do("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        assert count == 0
        assert not Visible.parse(visible).sees(xid)
        while hanging.pgconn.get_result() is not None:
            pass
        row = server.database.execute("SELECT pg_current_snapshot()::text, (SELECT count(*) FROM h)").fetchone()
        assert row is not None
        assert row[1] == 1
        assert Visible.parse(row[0]).sees(xid)
    server.do("DROP TABLE h")
