"""The source ``postgres-cdc`` with a real PostgreSQL: each change once, in order, and what goes wrong."""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from tests.integration.connect.shop import Shop, brief, copy_records, records, run, run_until_idle, started_shop

from headrace_common.runtime.clock import pause_ms
from headrace_connect.connectors.postgres_cdc import PostgresSource, copying, table_rows
from headrace_connect.connectors.postgres_cdc.copying import Copier
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.core.errors import Fault
from headrace_connect.core.snapshot import Event, ReadChunk
from headrace_connect.plugin import Split
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.configuring import find_config_problems
from headrace_connect.runtime.failing import TaskFailed
from headrace_connect.runtime.source_task import SourceTask
from headrace_connect.testing.memory import MemoryLog

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "postgres-cdc.md"
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server() -> Iterator[Shop]:
    with started_shop(logical_decoding_work_mem="64kB") as shop:
        yield shop


@pytest.fixture
def shop(server: Shop) -> Shop:
    server.drop_slots()
    server.do("drop schema public cascade", "create schema public", "grant usage on schema public to public")
    for (name,) in server.rows("select pubname from pg_publication"):
        server.do(f'drop publication "{name}"')
    return server


def table_of(log: MemoryLog, topic: str, key: str = "id") -> dict[Any, Any]:
    """What a topic says that its table has."""
    state: dict[Any, Any] = {}
    for of, value in records(log, topic):
        if value is None or value["op"] == "d":
            state.pop(of[key], None)
        else:
            state[of[key]] = value["after"]
    return state


def read_table(shop: Shop, table: str) -> dict[Any, Any]:
    return {row[0]: {"id": row[0], "n": row[1]} for row in shop.rows(f"select id, n from {table}")}


def failure(shop: Shop, log: MemoryLog, tables: str = "public.*", **settings: Any) -> str:
    with pytest.raises(TaskFailed) as failed:
        run_until_idle(shop.settings("p", tables, **settings), log)
    assert failed.value.fault is Fault.CONFIG
    return str(failed.value)


def test_rows_of_a_key_whose_columns_stand_in_another_order_are_read_once(shop: Shop) -> None:
    shop.do(
        "create table a (day int, id text, n int, primary key (id, day))",
        "insert into a select g % 5, 'of ' || g % 7, g from generate_series(1, 35) g",
    )
    log = MemoryLog()
    run_until_idle(shop.settings("p", "public.a", incremental_snapshot_chunk_size=4), log)
    rows = [after for _, after in brief(log, "p.public.a")]
    assert [row["n"] for row in rows] == [n for (n,) in shop.rows("select n from a order by id, day")]


def test_rows_and_then_changes_in_the_order_of_commits(shop: Shop) -> None:
    shop.do(
        "create table a (id int primary key, n text)",
        "create table b (id int primary key, n text)",
        "create table other (id int primary key)",
        "insert into a select g, 'old' from generate_series(1, 25) g",
    )
    log, settings = MemoryLog(), shop.settings("p", "public.a public.b", incremental_snapshot_chunk_size=10)
    run_until_idle(settings, log)
    assert brief(log, "p.public.a") == [("r", {"id": id_, "n": "old"}) for id_ in range(1, 26)]
    with psycopg.connect(shop.conninfo) as late:
        late.execute("insert into a values (100, 'late')")
        shop.do(
            "begin",
            "insert into a values (30, 'x')",
            "insert into b values (1, 'b')",
            "insert into other values (1)",
            "update a set n = 'y' where id = 30",
            "commit",
            "begin",
            "delete from a where id < 30",
            "rollback",
            "update a set id = 31 where id = 30",
        )
        late.commit()
    shop.do("alter table a add more int default 5", "insert into a values (40, 'm', 6)", "truncate a")
    before = len(log.records["p.public.a"])
    run_until_idle(replace(settings, truncate_handling_mode="include"), log)
    assert brief(log, "p.public.a")[before:] == [
        ("c", {"id": 30, "n": "x"}),
        ("u", {"id": 30, "n": "y"}),
        ("d", {"id": 30, "n": None}),
        (None, {"id": 30}),
        ("c", {"id": 31, "n": "y"}),
        ("c", {"id": 100, "n": "late"}),
        ("c", {"id": 40, "n": "m", "more": 6}),
        ("t", None),
    ]
    assert brief(log, "p.public.b") == [("c", {"id": 1, "n": "b"})]
    assert sorted(log.records) == ["p.public.a", "p.public.b"]
    run_until_idle(settings, log)
    assert len(log.records["p.public.a"]) == before + 8


def change_after_chunks(patch: pytest.MonkeyPatch, change: Callable[[int], None]) -> None:
    """Behind each reading of a chunk, before its high mark."""
    do, chunks = Copier.do, [0]

    async def wrapped(self: Copier, effect: Any) -> Event | None:
        event = await do(self, effect)
        if isinstance(effect, ReadChunk):
            chunks[0] += 1
            change(chunks[0])
        return event

    patch.setattr(Copier, "do", wrapped)


def test_keys_that_change_while_their_chunk_is_read(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.do(
        "create table a (id int primary key, n text)", "insert into a select g, 'old' from generate_series(1, 40) g"
    )

    def change(chunk: int) -> None:
        first = 10 * chunk - 9
        if chunk <= 4:
            shop.do(
                f"update a set n = 'new' where id = {first}",
                f"delete from a where id = {first + 1}",
                f"update a set id = {first + 100} where id = {first + 2}",
                f"update a set id = {first + 200} where id = {first + 12}",
            )

    change_after_chunks(monkeypatch, change)
    log = MemoryLog()
    run_until_idle(shop.settings("p", "public.a", incremental_snapshot_chunk_size=10), log)
    assert table_of(log, "p.public.a") == read_table(shop, "a")
    reads = [row["id"] for op, row in brief(log, "p.public.a") if op == "r"]
    assert not {1, 2, 3} & {*reads}, "the change counts, not what was read before it"
    assert len(reads) == len(set(reads))


def test_a_table_without_a_key_is_read_at_once_and_again_when_it_changes(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.do(
        "create table log (n text)",
        "alter table log replica identity full",
        "insert into log values ('x'), ('x'), ('y')",
    )
    change_after_chunks(monkeypatch, lambda chunk: shop.do("insert into log values ('z')") if chunk < 3 else None)
    log = MemoryLog()
    settings = shop.settings("p", "public.log")
    run_until_idle(settings, log)
    assert brief(log, "p.public.log") == [
        *[("c", {"n": "z"})] * 2,
        *[("r", {"n": text}) for text in ("x", "x", "y", "z", "z")],
    ]
    shop.do("delete from log where n = 'y'")
    run_until_idle(settings, log)
    assert brief(log, "p.public.log")[7:] == [("d", {"n": "y"})]
    shop.drop_slots()
    message = failure(shop, MemoryLog(), snapshot_unkeyed_rows_max=3)
    assert "public.log has no primary key, so its rows are read at once, and it has more than 3 rows" in message


def test_a_large_transaction_in_pieces_and_one_that_is_undone(shop: Shop) -> None:
    shop.do("create table a (id int primary key, n text)", "create table b (id int primary key)")
    log, settings = MemoryLog(), shop.settings("p", "public.*", max_batch_size=700)
    run_until_idle(settings, log)
    rows = "insert into a select g, repeat('x', 100) from generate_series({}, {}) g"
    shop.do("begin", rows.format(1, 2_000), "savepoint s", rows.format(2_001, 3_000), "rollback to s")
    with psycopg.connect(shop.conninfo) as other:
        other.execute("insert into b values (1)")
    shop.do(
        "insert into b values (2)", rows.format(3_001, 4_000), "commit", "begin", rows.format(5_000, 7_000), "rollback"
    )
    run_until_idle(settings, log)
    ids = [row["id"] for _, row in brief(log, "p.public.a")]
    assert ids == [*range(1, 2_001), *range(3_001, 4_001)]
    assert [row["id"] for _, row in brief(log, "p.public.b")] == [1, 2]


def test_a_slot_that_is_gone(shop: Shop) -> None:
    shop.do("create table a (id int primary key, n text)", "insert into a values (1, 'x')")
    log, settings = MemoryLog(), shop.settings("p", "public.a")
    run_until_idle(settings, log)
    shop.drop_slots()
    shop.do("insert into a values (2, 'y')")
    assert "there is no slot headrace_p any more" in failure(shop, log)
    shop.do("select pg_create_logical_replication_slot('headrace_p', 'pgoutput')")
    assert "somebody else has read or made it" in failure(shop, log), "changes before it are lost all the same"
    run_until_idle(replace(settings, on_slot_lost="resnapshot"), log)
    assert table_of(log, "p.public.a") == read_table(shop, "a")
    assert [op for op, _ in brief(log, "p.public.a")] == ["r", "r", "r"]
    shop.do("insert into a values (3, 'z')")
    run_until_idle(settings, log)
    assert brief(log, "p.public.a")[3:] == [("c", {"id": 3, "n": "z"})]


def test_a_slot_that_was_invalidated(shop: Shop) -> None:
    shop.do("create table a (id int primary key, n text)", "insert into a values (1, 'x')")
    log, settings = MemoryLog(), shop.settings("p", "public.a")
    run_until_idle(settings, log)
    shop.do("alter system set max_slot_wal_keep_size = '1MB'", "select pg_reload_conf()")
    try:
        while not shop.rows("select 1 from pg_replication_slots where wal_status = 'lost'"):
            shop.do("insert into a select coalesce(max(id), 0) + 1 from a", "select pg_switch_wal()", "checkpoint")
        assert "the server has removed WAL" in failure(shop, log)
    finally:
        shop.do("alter system reset max_slot_wal_keep_size", "select pg_reload_conf()")
    run_until_idle(replace(settings, on_slot_lost="resnapshot"), log)
    assert table_of(log, "p.public.a") == read_table(shop, "a")


def test_a_publication_that_was_made_anew(shop: Shop) -> None:
    shop.do("create table a (id int primary key, n text)")
    log, settings = MemoryLog(), shop.settings("p", "public.a")
    run_until_idle(settings, log)
    shop.do("drop publication headrace_p", "insert into a values (1, 'x')", "create publication headrace_p for table a")
    assert "if it is there now, drop the slot" in failure(shop, log)


def test_a_slot_of_another_program(shop: Shop) -> None:
    shop.do("create table a (id int primary key)")
    log, settings = MemoryLog(), shop.settings("p", "public.a")
    other = PostgresSource(replace(settings, name="other"))

    async def steal() -> None:
        async def until_it_fails(_: SourceTask) -> None:
            calls = Calls(other)
            (position,) = log.positions.values()  # the newest: behind an older one, changes would be lost
            chunks = calls.iterate(other.read, Split("all"), position)
            with pytest.raises(Exception, match=r"is read by headrace-connect .* of the server"):
                await anext(aiter(chunks))
            await calls.stop()

        await run(settings, log, meanwhile=until_it_fails)

    asyncio.run(steal())


def test_wal_does_not_pile_up_behind_tables_that_are_not_captured(shop: Shop) -> None:
    shop.do("create table a (id int primary key)", "create table other (id int)")
    log, settings = MemoryLog(), shop.settings("p", "public.a", heartbeat_interval_ms=100)

    async def wait(task: SourceTask) -> None:
        for _ in range(2):
            shop.do("insert into other select generate_series(1, 1000)", "select pg_logical_emit_message(true, '', '')")
            ((end,),) = shop.rows("select pg_current_wal_flush_lsn()::text")
            behind = f"select 1 from pg_replication_slots where confirmed_flush_lsn < '{end}'"
            while shop.rows(behind):
                await pause_ms(5)

    asyncio.run(run(settings, log, meanwhile=wait))


def test_a_table_that_is_made_later(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "LOOK_MS", 50)
    shop.do("create table a (id int primary key, n text)")
    log, settings = MemoryLog(), shop.settings("p", "public.*", heartbeat_interval_ms=100)

    async def make(task: SourceTask) -> None:
        shop.do("create table b (id int primary key, n text)", "insert into b values (1, 'x'), (2, 'y')")
        shop.do("create table unfit (id int)")
        while len(log.records["p.public.b"]) < 2:
            await pause_ms(5)
        shop.do("update b set n = 'z' where id = 1", "update unfit set id = 2")

    asyncio.run(run(settings, log, meanwhile=make))
    run_until_idle(settings, log)
    assert brief(log, "p.public.b") == [
        ("r", {"id": 1, "n": "x"}),
        ("r", {"id": 2, "n": "y"}),
        ("u", {"id": 1, "n": "z"}),
    ]


def check(shop: Shop, tables: str, **settings: Any) -> list[str]:
    return list(asyncio.run(_check(PostgresSource(shop.settings("p", tables, **settings)))))


async def _check(source: PostgresSource) -> Any:
    return await source.check()


def test_what_validate_says(shop: Shop) -> None:
    shop.do(
        "create table orders (id int primary key)",
        "create table log (n text)",
        "drop role if exists poor",
        "create role poor login",
    )
    assert check(shop, "public.orders") == []
    poor = check(shop, "public.orders", database_user="poor")
    assert [line.partition(":")[0] for line in poor] == [
        "database.user",
        "database.user",
        "publication.autocreate.mode",
        "database.user",
    ]
    for typed in (
        'ALTER ROLE "poor" REPLICATION',
        'GRANT CREATE ON DATABASE "shop" TO "poor"',
        'CREATE PUBLICATION "headrace_p" FOR TABLE "public"."orders"',
        'GRANT SELECT ON "public"."orders" TO "poor"',
    ):
        assert typed in "\n".join(poor)
    (missing,) = check(shop, "public.orderz public.orders")
    assert missing == "table.include.list: there is no table public.orderz; is public.orders meant?"
    (unfit,) = check(shop, "public.*")
    assert 'ALTER TABLE "public"."log" REPLICA IDENTITY FULL' in unfit
    (unpublished,) = check(shop, "public.orders", publication_autocreate_mode="disabled")
    assert unpublished.startswith("publication.name: there is no publication")
    (open_,) = check(shop, "public.orders", database_hostname="127.0.0.1", database_sslmode="require")
    assert "SSL" in open_
    (away,) = check(shop, "public.orders", database_port=1)
    assert away.startswith("database.hostname: ")
    assert "public.log has no primary key" in failure(shop, MemoryLog())
    assert not shop.rows("select 1 from pg_publication"), "nothing is made where something is wrong"


def test_the_quick_start_of_the_page(shop: Shop) -> None:
    sql, text = re.findall(r"```(?:sql|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL)[:2]
    shop.do("create table orders (id int primary key)", "create table customers (id int primary key)")
    shop.do("insert into orders values (1)", "drop role if exists headrace_shop")
    statements = [line for line in sql.replace("ROLE headrace", "ROLE headrace_shop").splitlines() if line]
    assert statements.pop(0) == "ALTER SYSTEM SET wal_level = logical;"
    shop.do(*(line.replace("TO headrace;", "TO headrace_shop;") for line in statements))
    given = yaml.safe_load(text)
    assert find_config_problems({key: str(value) for key, value in given.items()}) == ()
    tables = given["table.include.list"].replace(", ", " ")
    settings = shop.settings(given["topic.prefix"], tables, database_user="headrace_shop")
    assert asyncio.run(_check(PostgresSource(settings))) == []
    log = MemoryLog()
    run_until_idle(settings, log)
    assert brief(log, "shop.public.orders") == [("r", {"id": 1})]
    shop.drop_slots()
    shop.do("drop owned by headrace_shop", "drop role headrace_shop")


def test_preview_leaves_nothing_behind(shop: Shop) -> None:
    shop.do("create table a (id int primary key, n text)", "insert into a values (1, 'x')")

    async def first() -> Any:
        source = PostgresSource(shop.settings("p", "public.a"))
        return [chunk async for chunk, _ in Calls(source).iterate(source.preview, Split("all"))]

    rows, end = asyncio.run(first())
    assert rows.rows.to_pylist()[0]["after"] == {"id": 1, "n": "x"}
    assert rows.topic == "p.public.a"
    assert end.drained
    assert not shop.rows("select 1 from pg_replication_slots")
    assert not shop.rows("select 1 from pg_publication")


def test_wide_rows_are_read_a_few_at_a_time(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(copying, "FETCH_ROWS", 3)
    shop.do("create table a (id int primary key, n text)")
    shop.do("insert into a select g, repeat('x', 2000) from generate_series(1, 20) g")
    chunks: list[int] = []
    change_after_chunks(monkeypatch, chunks.append)
    log = MemoryLog()
    run_until_idle(shop.settings("p", "public.a"), log)
    assert [row["id"] for _, row in brief(log, "p.public.a")] == list(range(1, 21))
    assert len(chunks) == 4, "six rows each"


def hangs(shop: Shop, session: psycopg.Connection, statement: str) -> bool:
    """Whether its commit waits for a standby; what this session did before has ended."""
    while session.pgconn.get_result() is not None:
        pass
    session.pgconn.send_query(statement.encode())
    while not shop.rows("select 1 from pg_stat_activity where wait_event = 'SyncRep'"):
        session.pgconn.consume_input()
        if not session.pgconn.is_busy():
            return False
    return True


def test_a_commit_that_nobody_sees_yet(shop: Shop) -> None:
    shop.do(
        "create table a (id int primary key, n text)",
        "create table probe (n int)",
        "insert into a values (1, 'x')",
        "create publication headrace_p for table a",
        "select pg_create_logical_replication_slot('headrace_p', 'pgoutput')",
    )
    with psycopg.connect(shop.conninfo, autocommit=True) as hanging:
        shop.do("alter system set synchronous_standby_names = 'nobody'", "select pg_reload_conf()")
        try:
            while not hangs(shop, hanging, "insert into probe values (1)"):
                pass  # commits begin to wait when the checkpointer has read the setting
            hanging.cancel()
            assert hangs(shop, hanging, "insert into a values (2, 'hidden')")
            log = MemoryLog()
            run_until_idle(shop.settings("p", "public.a"), log)
        finally:
            shop.do("set synchronous_commit = local", "alter system reset synchronous_standby_names")
            shop.do("select pg_reload_conf()")
        while hanging.pgconn.get_result() is not None:
            pass
    assert sorted(brief(log, "p.public.a"), key=str) == [
        ("c", {"id": 2, "n": "hidden"}),
        ("r", {"id": 1, "n": "x"}),
    ]


def test_connections_that_are_cut(shop: Shop) -> None:
    shop.do("create table a (id int primary key, n text)")
    log, settings = MemoryLog(), shop.settings("p", "public.a")

    async def cut(task: SourceTask) -> None:
        for number in range(3):
            ours = "application_name like 'headrace-connect%'"
            shop.do(f"select pg_terminate_backend(pid) from pg_stat_activity where {ours}")
            shop.do(f"insert into a values ({number}, 'x')")
            while len(log.records["p.public.a"]) <= number:
                await pause_ms(5)

    asyncio.run(run(settings, log, meanwhile=cut))
    assert [row["id"] for _, row in brief(log, "p.public.a")] == [0, 1, 2]


def test_partitions_columns_filters_and_types_are_the_same_in_rows_and_changes(shop: Shop) -> None:
    shop.do(
        "create domain cents as numeric(10, 2)",
        "create type mood as enum ('sad', 'glad')",
        "create table part (id int, at timestamptz, price cents, mood mood, secret text, tags text[], b bytea, "
        "d float8, primary key (id, at)) partition by range (at)",
        "create table part_1 partition of part for values from ('2024-01-01') to ('2025-01-01')",
        "create table own (id int not null, code text not null, n text)",
        "create unique index own_code on own (code)",
        "alter table own replica identity using index own_code",
        "create publication mine for table part (id, at, price, mood, tags, b, d) where (id < 100), own "
        "with (publish_via_partition_root = true)",
    )
    row = r"""({}, '2024-05-01 12:00+02', 1.50, 'glad', 's', '{{"a,b",NULL}}', '\x00ff', 0.1)"""
    shop.do(f"insert into part values {row.format(1)}, {row.format(200)}", "insert into own values (1, 'ä', 'x')")
    more = {"publication_name": "mine", "publication_autocreate_mode": "disabled", "value_form": "flat"}
    log, settings = MemoryLog(), shop.settings("p", "public.*", **more)
    run_until_idle(settings, log)
    shop.do(f"insert into part values {row.format(2)}, {row.format(201)}", "delete from own")
    run_until_idle(settings, log)
    (read_key, read), (key, change) = records(log, "p.public.part")
    assert (read_key["id"], key["id"]) == (1, 2)
    assert {**read, "id": 2} == change
    assert set(read) == {"id", "at", "price", "mood", "tags", "b", "d"}
    assert {name: type(value) for name, value in read_key.items()} == {name: type(value) for name, value in key.items()}
    assert records(log, "p.public.own") == [({"code": "ä"}, {"id": 1, "code": "ä", "n": "x"}), ({"code": "ä"}, None)]


LARGE = "(select string_agg(md5(g::text), '') from generate_series(1, 300) g)"
CODES = "(select array_agg((random() * 1e9)::int) from generate_series(1, 3000) g)"


def make_large(shop: Shop) -> None:
    shop.do(
        "create table a (id int primary key, n int, doc text, codes int[])",
        f"insert into a select g, 0, {LARGE}, {CODES} from generate_series(1, 4) g",
    )


def touch(shop: Shop) -> None:
    shop.do(
        "update a set n = 1",
        "delete from a where id = 2",
        "update a set id = 5 where id = 3",
        "update a set doc = 'small' where id = 4",
    )


def large_of(log: MemoryLog) -> list[tuple[str, int, str, str]]:
    """Of each record behind the first rows: op, key, and what its large values are."""
    told: list[tuple[str, int, str, str]] = []
    for op, row in brief(log, "p.public.a")[4:]:
        if op is not None and op != "d":
            doc = {PLACEHOLDER: "placeholder", "small": "small"}.get(row["doc"], "whole")
            told.append((op, row["id"], doc, "placeholder" if row["codes"] == [*PLACEHOLDER.encode()] else "whole"))
    return told


PLACEHOLDER = "__debezium_unavailable_value"


def test_large_values_that_an_update_did_not_touch(shop: Shop) -> None:
    make_large(shop)
    log, settings = MemoryLog(), shop.settings("p", "public.a")
    run_until_idle(settings, log)
    touch(shop)
    run_until_idle(settings, log)
    untouched = ("placeholder", "placeholder")
    assert large_of(log) == [
        *[("u", id_, *untouched) for id_ in (1, 2, 3, 4)],
        ("c", 5, *untouched),
        ("u", 4, "small", "placeholder"),
    ]


def test_large_values_are_read_from_the_table(shop: Shop) -> None:
    make_large(shop)
    log, settings = MemoryLog(), shop.settings("p", "public.a", reselect_unavailable_values=True)
    run_until_idle(settings, log)
    touch(shop)
    run_until_idle(settings, log)
    gone = ("placeholder", "placeholder")
    assert large_of(log) == [
        ("u", 1, "whole", "whole"),
        ("u", 2, *gone),
        ("u", 3, *gone),
        ("u", 4, "small", "whole"),
        ("c", 5, "whole", "whole"),
        ("u", 4, "small", "whole"),
    ]
    in_database = {
        id_: {"id": id_, "n": 1, "doc": doc, "codes": codes}
        for id_, doc, codes in shop.rows("select id, doc, codes from a")
    }
    assert table_of(log, "p.public.a") == in_database
    shop.do("update a set n = 2 where id = 1", "delete from a where id = 1")
    message = failure_of(replace(settings, reselect_error_handling_mode="fail"), log)
    assert "public.a.doc: the update did not touch this large value" in message


def failure_of(settings: Any, log: MemoryLog) -> str:
    with pytest.raises(TaskFailed) as failed:
        run_until_idle(settings, log)
    return str(failed.value)


def test_who_may_not_read_a_table_cannot_read_large_values(shop: Shop) -> None:
    shop.do("create table a (id int primary key)", "drop role if exists blind", "create role blind login replication")
    shop.do("create publication headrace_p for table a")
    given: dict[str, Any] = {"snapshot_mode": "no_data", "database_user": "blind"}
    assert check(shop, "public.a", **given) == []
    (said,) = check(shop, "public.a", **given, reselect_unavailable_values=True)
    assert 'GRANT SELECT ON "public"."a" TO "blind"' in said


def test_messages_in_transactions_and_outside(shop: Shop) -> None:
    shop.do("create table a (id int primary key)", "create table filler (n int)")
    given: dict[str, Any] = {"message_prefix_include_list": ("outbox.*",), "message_topic": "events.${prefix}"}
    log, settings = MemoryLog(), shop.settings("p", "public.a", **given)
    run_until_idle(settings, log)
    emit = "select pg_logical_emit_message({}, '{}', '{}')"
    for number in range(3):
        shop.do(
            "begin",
            f"insert into a values ({number})",
            emit.format("true", "outbox.orders", f"in {number}"),
            emit.format("true", "other", "no"),
            emit.format("false", "outbox.audit", f"beside {number}"),
            "commit",
            emit.format("false", "outbox.orders", f"out {number}"),
            "begin",
            emit.format("true", "outbox.orders", "undone"),
            emit.format("false", "outbox.audit", f"all the same {number}"),
            "rollback",
            "insert into filler values (1)",  # without a commit, the server flushes messages a moment later
        )
        run_until_idle(settings, log)

    def contents(topic: str) -> list[str]:
        return [b64decode(value["message"]["content"]).decode() for _, value in records(log, topic)]

    assert contents("events.outbox.orders") == [f"{where} {n}" for n in range(3) for where in ("in", "out")]
    assert contents("events.outbox.audit") == [f"{what} {n}" for n in range(3) for what in ("beside", "all the same")]
    assert [row["id"] for _, row in brief(log, "p.public.a")] == [0, 1, 2]
    assert sorted(log.records) == ["events.outbox.audit", "events.outbox.orders", "p.public.a"]
    assert records(log, "events.outbox.audit")[0][0] == {"prefix": "outbox.audit"}


def test_the_outbox_of_the_page(shop: Shop) -> None:
    (text,) = [one for one in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "name: outbox" in one]
    given = {key: str(value) for key, value in yaml.safe_load(text).items()}
    converters = {key: value for key, value in given.items() if key.startswith(("transforms", "value.converter"))}
    more: dict[str, Any] = {"message_prefix_include_list": (given["message.prefix.include.list"],)}
    settings = shop.settings(
        given["topic.prefix"],
        given["table.include.list"],
        snapshot_mode=given["snapshot.mode"],
        message_topic=given["message.topic"],
        value_form=given["value.form"],
        **more,
    )
    shop.do("create table nothing (id int primary key)")
    log = MemoryLog()
    asyncio.run(run(settings, log, converters=converters))
    shop.do("""select pg_logical_emit_message(true, 'order.paid', '{"id": 7}')""")
    asyncio.run(run(settings, log, converters=converters))
    (record,) = log.records["events.order.paid"]
    assert record["value"] == b'{"id": 7}'
    assert list(log.records) == ["events.order.paid"]


def test_a_statement_that_is_executed_again_and_again(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.do("create table a (id int primary key)", "create table beats (n int)", "insert into beats values (0)")
    query = "update beats set n = n + 1"
    log, settings = MemoryLog(), shop.settings("p", "public.a", heartbeat_interval_ms=100, heartbeat_action_query=query)

    async def wait(task: SourceTask) -> None:
        def reached(count: int) -> bool:
            return shop.rows("select n from beats")[0][0] >= count

        while not reached(3):
            await pause_ms(5)
        ours = "select pid from pg_stat_activity where application_name = 'headrace-connect'"
        before = shop.rows(ours)
        with psycopg.connect(shop.conninfo) as other:
            other.execute("lock table beats in access exclusive mode")
            while "heartbeat.action.query is left out" not in caplog.text:
                await pause_ms(5)
            other.rollback()
        while not reached(5):
            await pause_ms(5)
        assert shop.rows(ours) == before, "reading has gone on"

    asyncio.run(run(settings, log, meanwhile=wait))
    wrong = failure(shop, log, "public.a", heartbeat_action_query="update beatz set n = 1")
    assert "heartbeat.action.query: " in wrong
    assert "beatz" in wrong


SCHEMAS = {f"{side}.converter.schemas.enable": "true" for side in ("key", "value")}


@pytest.mark.parametrize("reselect", [False, True])
def test_a_table_and_its_copy_are_equal(shop: Shop, reselect: bool) -> None:
    """With large values that changes do not touch, truncations, deletes and rows that come again."""
    columns = "id int primary key, n int, doc text, codes {}, price numeric(50, 2), raw bytea, at timestamptz"
    shop.do(
        "drop schema if exists copy cascade",
        "create schema copy",
        f"create table a ({columns.format('int[]')})",
        f"create table copy.a ({columns.format('jsonb')})",
    )
    given: dict[str, Any] = {"truncate_handling_mode": "include", "reselect_unavailable_values": reselect}
    log, settings = MemoryLog(), shop.settings("p", "public.a", **given)

    def insert(first: int, last: int) -> str:
        values = f"g, 0, {LARGE}, {CODES}, 1.5, {LARGE}::bytea, '2024-01-01 00:00:00.5+02'"
        return f"insert into a select {values} from generate_series({first}, {last}) g"

    shop.do(insert(1, 6))
    asyncio.run(run(settings, log, converters=SCHEMAS))
    shop.do(
        "update a set n = n + 1",
        "update a set doc = 'short', at = null where id = 2",
        "delete from a where id = 3",
        "truncate a",
        insert(4, 12),
        "update a set n = id",
        "update a set raw = null where id > 9",
        "delete from a where id = 5",
        "begin",
        insert(5, 5),
        "update a set n = n * 2, price = -1 where id % 2 = 1",
        "update a set codes = '{7,NULL}' where id = 7",
        "commit",
        "update a set n = 0 where id = 7",
    )
    asyncio.run(run(settings, log, converters=SCHEMAS))
    sink = SinkSettings(
        "copy",
        shop.url,
        value_form="debezium",
        insert_mode="upsert",
        pk_mode="record_key",
        delete_enabled=True,
        truncate_enabled=True,
        table_name_format="copy.a",
    )
    copy_records(log, "p.public.a", sink, [1, 4, 9, 2], SCHEMAS)
    read = "select id, n, doc, to_jsonb(codes), price, raw, at from {} order by id"
    assert shop.rows(read.format("copy.a")) == shop.rows(read.format("a"))
    assert len(shop.rows("select 1 from copy.a")) == 9
    shop.do("drop schema copy cascade")
