"""The databases of the storm: a shop that changes all the time, and another server with a copy and a log of it."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg
from tests.chaos.transactions.storm import SEED
from tests.integration.connect.shop import Shop

ROWS: Final = 500
"""Of the table before all."""
PAUSE_S: Final = 0.05
BAD: Final = 97
"""The log takes no version that this divides: such rows are dead letters."""
COLUMNS_MAX: Final = 8
_LOCK_MS: Final = 2_000
Change = tuple[Any, ...]
"""A key, and the version that it got."""


class Databases:
    """The shop on one server, its copy and its log on another one; processes of both can be killed."""

    def __init__(self, shop: Shop, target: str, chance: random.Random) -> None:
        self.shop = shop
        self.target = target
        self.columns: list[str] = []
        """That were added."""
        self._chance = chance
        shop.do(
            "create sequence versions",
            "create table orders (id bigint primary key, version bigint not null default nextval('versions'), "
            "note text not null default repeat('x', (random() * 200)::int))",
            "create table audit (n bigserial primary key, id bigint, version bigint)",
            "create function audit() returns trigger language plpgsql as "
            "$$ begin insert into audit (id, version) values (new.id, new.version); return null; end $$",
            f"insert into orders (id) select generate_series(1, {ROWS})",
            "create trigger audit after insert or update on orders for each row execute function audit()",
        )
        with psycopg.connect(self.target, autocommit=True) as session:
            session.execute("create table copy (id bigint primary key, version bigint, note text)")
            session.execute(
                b"create table log (n bigserial primary key, id bigint, version bigint check (version %% %d <> 0), "
                b"note text)" % BAD
            )

    def kill_shop(self) -> None:
        """With -9, one process of the shop's server."""
        self._kill(self.shop.conninfo)

    def kill_target(self) -> None:
        """The same, of the other one."""
        self._kill(self.target)

    def _kill(self, where: str) -> None:
        """One that serves a connector: the server ends all others, and recovers from its WAL."""
        with suppress(psycopg.Error), psycopg.connect(where, autocommit=True) as session:
            rows = session.execute(
                "select pid from pg_stat_activity where backend_type in ('walsender', 'client backend') "
                "and pid <> pg_backend_pid()"
            ).fetchall()
            if rows:
                os.kill(self._chance.choice(rows)[0], signal.SIGKILL)

    def add_column(self) -> None:
        """To the table, if it has not enough of them."""
        if len(self.columns) == COLUMNS_MAX:
            return
        name = f"extra{len(self.columns)}"
        with suppress(psycopg.Error), psycopg.connect(self.shop.conninfo, autocommit=True) as session:
            session.execute(b"set lock_timeout = %d" % _LOCK_MS)
            session.execute(b"alter table orders add column if not exists %s bigint" % name.encode())
            self.columns.append(name)

    def lose_slot(self) -> None:
        """The slot is dropped while it is read: what comes until there is another one, no stream has."""
        with suppress(psycopg.Error), psycopg.connect(self.shop.conninfo, autocommit=True) as session:
            session.execute("select pg_terminate_backend(active_pid) from pg_replication_slots where active")
            session.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active")

    def rows(self, where: str, statement: bytes) -> list[tuple[Any, ...]]:
        """The answer; empty while the server recovers."""
        try:
            with psycopg.connect(where, autocommit=True) as session:
                return session.execute(statement).fetchall()
        except psycopg.OperationalError:
            return []

    def is_equal(self) -> bool:
        """Whether the copy has what the shop has; a column that is null everywhere need not be there."""
        text = b"select id, jsonb_strip_nulls(to_jsonb(t)) from %s as t order by id"
        ours = self.rows(self.shop.conninfo, text % b"orders")
        return bool(ours) and ours == self.rows(self.target, text % b"copy")

    def logged(self) -> list[Change]:
        """Keys and versions, in the order in which they were written."""
        return self.rows(self.target, b"select id, version from log order by n")

    def count_logged(self) -> int:
        """How many they are; 0 while the server recovers."""
        return next((count for (count,) in self.rows(self.target, b"select count(*) from log")), 0)

    def audited(self) -> list[Change]:
        """Keys and versions of all changes, in the order of commits."""
        return self.rows(self.shop.conninfo, b"select id, version from audit order by n")


class Shopping(threading.Thread):
    """Transactions of all sizes until it is told to end; each change of a row has a version of its own."""

    def __init__(self, databases: Databases, sizes: Sequence[int], *, deletes: bool = True) -> None:
        """
        Args:
            sizes: changes of a transaction, one as often as the other.
            deletes: whether rows vanish, or change their keys.
        """
        super().__init__(daemon=True)
        self._databases, self._chance = databases, random.Random(SEED)
        self._sizes = sizes
        self._weights = (3, 5, 1, 1) if deletes else (3, 5, 0, 0)
        self._ending = threading.Event()
        self.committed = 0

    def end(self) -> None:
        """Returns when the last transaction has ended."""
        self._ending.set()
        if self.ident is not None:
            self.join(60)
        assert not self.is_alive(), "the last transaction has ended"

    def run(self) -> None:
        """Whatever the database does: a transaction that fails is followed by another."""
        while not self._ending.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._databases.shop.conninfo) as session:
                while not self._ending.wait(self._chance.uniform(0, 2 * PAUSE_S)):
                    for _ in range(self._chance.choice(self._sizes)):
                        session.execute(*self._change())
                    session.commit()
                    self.committed += 1
            self._ending.wait(PAUSE_S)

    def _change(self) -> tuple[bytes, list[int]]:
        one, other = self._chance.sample(range(1, 4 * ROWS), 2)
        match self._chance.choices(("insert", "update", "delete", "key"), self._weights)[0]:
            case "insert":
                return b"insert into orders (id) values (%s) on conflict do nothing", [one]
            case "update":
                extra = [f", {name} = {other}" for name in self._databases.columns if self._chance.random() < 0.2]
                text = f"update orders set version = nextval('versions'){''.join(extra)} where id = %s"
                return text.encode(), [one]
            case "delete":
                return b"delete from orders where id = %s", [one]
        moved = b"""update orders set id = %s, version = nextval('versions')
            where id = %s and not exists (select 1 from orders where id = %s)"""
        return moved, [other, one, other]
