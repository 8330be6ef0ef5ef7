"""What a database does, that Debezium's connector and ours tell of."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "shop"
LAST: Final = "last"
"""The table whose only row is the end."""
TABLES: Final = (
    "create type mood as enum ('glad', 'sad')",
    "create table kinds (id int primary key, small smallint, big bigint, r real, d double precision, "
    "price numeric(10,2), free numeric, flag boolean, note text, code varchar(10), fixed char(5), raw bytea, "
    "day date, clock time, clock_ms time(3), moment timestamp, moment_ms timestamp(3), instant timestamptz, "
    "span interval, uid uuid, doc jsonb, old json, page xml, tags text[], numbers int[], flags boolean[], mood mood, "
    "addr inet, bits bit(3), one bit(1), away timetz, needed int not null default 7)",
    "create table pair (a int, b text, n int, primary key (b, a))",
    "create table whole (id int primary key, n int)",
    "alter table whole replica identity full",
    "create table keyless (n int)",
    "alter table keyless replica identity full",
    f"create table {LAST} (id int primary key)",
)
CHANGES: Final = (
    "insert into kinds values (1, -2, 9007199254740993, 0.1, 0.1, 12.30, 1e20, true, 'ä€', 'abc', 'ab', '\\x00ff', "
    "'2024-02-29', '13:14:15.123456', '13:14:15.123', '2024-02-29 13:14:15.123456', '2024-02-29 13:14:15.123', "
    "'2024-02-29 13:14:15.123456+02', '1 day 02:03:04', '0b1c6f3e-0000-4000-8000-000000000001', "
    "'{\"a\": [1, null]}', '{\"b\":  1}', '<a>1</a>', '{a,NULL,\"b c\"}', '{1,NULL,3}', '{t,f}', 'sad', '10.0.0.1/8', "
    "b'101', b'1', '13:14:15+02')",
    "insert into kinds (id) values (2)",
    "update kinds set small = 5 where id = 1",
    "update kinds set id = 3 where id = 2",
    "delete from kinds where id = 3",
    "insert into kinds (id, note) values (4, repeat('x', 3000) || md5('1') || (select string_agg(md5(g::text), '') "
    "from generate_series(1, 500) g))",
    "update kinds set small = 6 where id = 4",
    "insert into pair values (1, 'x', 1), (2, 'y', 2)",
    "update pair set n = 3 where a = 1",
    "update pair set b = 'z' where a = 2",
    "delete from pair",
    "insert into whole values (1, 1)",
    "update whole set n = 2",
    "delete from whole",
    "insert into keyless values (1)",
    "update keyless set n = 2",
    "delete from keyless",
    "truncate whole",
    f"insert into {LAST} values (1)",
)
"""Each is a transaction."""
_MICROSECONDS: Final = ".123456"
VARIANTS: Final[dict[str, dict[str, str]]] = {
    "as it is": {},
    "text and milliseconds": {
        "decimal.handling.mode": "string",
        "time.precision.mode": "connect",
        "binary.handling.mode": "base64",
        "tombstones.on.delete": "false",
    },
    "doubles and hex": {
        "decimal.handling.mode": "double",
        "time.precision.mode": "adaptive_time_microseconds",
        "binary.handling.mode": "hex",
        "provide.transaction.metadata": "true",
    },
}
"""Settings that both have."""


def changes_of(variant: str) -> list[str]:
    """Where times have milliseconds, Debezium cuts what is finer, and ours refuses it: there is none."""
    cuts = VARIANTS[variant].get("time.precision.mode") == "connect"
    return [change.replace(_MICROSECONDS, ".123") if cuts else change for change in CHANGES]
