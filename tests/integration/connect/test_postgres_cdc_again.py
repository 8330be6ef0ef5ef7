"""Tables that are read again at any time, beside their changes, with a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from tests.integration.connect.shop import Shop, brief, run, run_until_idle, started_shop

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import limit_s, pause_ms
from headrace_connect.connectors.postgres_cdc import PostgresSource
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.core.drift import SourceDrift
from headrace_connect.core.events import DRIFT, Event
from headrace_connect.plugin import Chunk, Position, Split
from headrace_connect.runtime.calling import Calls
from headrace_connect.runtime.failing import TaskFailed
from headrace_connect.runtime.source_task import SourceTask
from headrace_connect.testing.memory import MemoryLog

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
ROWS = 25


@pytest.fixture(scope="module")
def server() -> Iterator[Shop]:
    with started_shop() as shop:
        yield shop


@pytest.fixture
def shop(server: Shop) -> Shop:
    server.drop_slots()
    server.do("drop schema public cascade", "create schema public")
    for (name,) in server.rows("select pubname from pg_publication"):
        server.do(f'drop publication "{name}"')
    server.do(
        "create table a (id int primary key, n text)",
        "create table b (id int primary key, n text)",
        f"insert into a select g, 'old' from generate_series(1, {ROWS}) g",
        "insert into b values (1, 'b')",
    )
    return server


async def ask(settings: SourceSettings, *tables: str) -> list[str]:
    return list(await PostgresSource(settings).read_again(tables))


def reads(log: MemoryLog, topic: str) -> list[Any]:
    return [row for op, row in brief(log, topic) if op == "r"]


def test_while_it_runs_and_changes_come(shop: Shop) -> None:
    log, settings = MemoryLog(), shop.settings("p", "public.a public.b", incremental_snapshot_chunk_size=10)

    async def meanwhile(task: SourceTask) -> None:
        del task
        shop.do("update a set n = 'new' where id = 3")
        assert await ask(settings, "public.a") == ["public.a"]
        shop.do(f"insert into a values ({ROWS + 1}, 'later')", "delete from a where id = 4")
        while len(reads(log, "p.public.a")) < 2 * ROWS - 1:
            await pause_ms(5)

    asyncio.run(run(settings, log, meanwhile=meanwhile))
    again = reads(log, "p.public.a")[ROWS:]
    assert {row["id"]: row["n"] for row in again if row["id"] <= ROWS} == {
        id_: "new" if id_ == 3 else "old" for id_ in range(1, ROWS + 1) if id_ != 4
    }
    assert len(again) == len({row["id"] for row in again})
    assert len(reads(log, "p.public.b")) == 1
    before = len(log.records["p.public.a"])
    run_until_idle(settings, log)
    assert len(log.records["p.public.a"]) == before, "it was read once, not at each start"


def test_a_table_whose_rows_are_not_wanted_else_goes_on_where_it_stopped(shop: Shop) -> None:
    """Asked for while nothing runs; what reads it dies in the middle."""
    settings = shop.settings("p", "public.a public.b", incremental_snapshot_chunk_size=10, snapshot_mode="no_data")
    log = MemoryLog()
    run_until_idle(settings, log)
    assert not log.records
    asyncio.run(ask(settings, "public.a"))
    first, position = asyncio.run(read(settings, dict(log.positions["all"]), chunks=1))
    assert len(first) == 10
    assert {"wanted", "rows"} <= position.keys()
    rest, position = asyncio.run(read(settings, position, chunks=2))
    assert sorted([*first, *rest]) == list(range(1, ROWS + 1))
    assert "wanted" not in position


async def read(settings: SourceSettings, after: Position, chunks: int) -> tuple[list[int], Position]:
    """Ids of so many chunks with rows, and where reading goes on."""
    source, ids, count = PostgresSource(settings), list[int](), 0
    async with limit_s(60), aclosing(Calls(source).iterate(source.read, Split("all"), after)) as found:
        async for chunk, _ in found:
            after = chunk.position
            rows = values(chunk)
            ids += [row["after"]["id"] for row in rows]
            count += bool(rows)
            if count == chunks:
                break
    return ids, after


def values(chunk: Chunk) -> list[Any]:
    rows: Any = chunk.rows
    return list(rows) if isinstance(rows, list) else rows.to_pylist()


def test_it_is_told_when_rows_are_read_and_when_columns_change(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    monkeypatch.setattr(PostgresSource, "notify", staticmethod(told.append))
    log, settings = MemoryLog(), shop.settings("p", "public.a")
    run_until_idle(settings, log)
    asyncio.run(ask(settings, "public.a"))
    shop.do("update a set n = 'x' where id = 1", "alter table a add more int", "insert into a values (99, 'y', 1)")
    run_until_idle(settings, log)
    texts = [event.text for event in told]
    assert [text for text in texts if "rows" in text] == [
        "all rows of public.a are read",
        "all rows of public.a are read again",
        "all rows of public.a are read",
    ]
    drifts = [event.text for event in told if event.kind == DRIFT]
    assert drifts == ["the table public.a has more: more"], "rows that are read have the columns of changes"


def test_it_fails_where_columns_have_changed_while_it_did_not_run(shop: Shop) -> None:
    log, settings = MemoryLog(), shop.settings("p", "public.a", drift=SourceDrift.FAIL)
    run_until_idle(settings, log)
    shop.do("alter table a add more int", "insert into a values (99, 'y', 1)")
    with pytest.raises(TaskFailed, match=r"drift: the table public.a has other columns .*now id, more, n"):
        run_until_idle(settings, log)
    assert len(log.records["p.public.a"]) == ROWS
    run_until_idle(replace(settings, drift=SourceDrift.ADD), log)
    assert len(log.records["p.public.a"]) == ROWS + 1


def test_what_cannot_be_read_again(shop: Shop) -> None:
    settings = shop.settings("p", "public.a")
    with pytest.raises(InvalidConfig, match="no slot headrace_p yet"):
        asyncio.run(ask(settings, "public.a"))
    run_until_idle(settings, MemoryLog())
    with pytest.raises(InvalidConfig, match=r"public.aa is not captured.*is public.a meant"):
        asyncio.run(ask(settings, "public.aa"))
    with pytest.raises(InvalidConfig, match=r"public.b is not captured.*table.include.list"):
        asyncio.run(ask(settings, "public.b"))


def test_messages_of_others_are_not_for_it(shop: Shop) -> None:
    log, settings = MemoryLog(), shop.settings("p", "public.a")
    run_until_idle(settings, log)
    for content in ("no json", "[]", '{"slot": "other", "tables": ["public.a"]}'):
        shop.rows(f"select pg_logical_emit_message(false, 'headrace-read-again', '{content}')")
    run_until_idle(settings, log)
    assert len(reads(log, "p.public.a")) == ROWS
