"""
A shop database under load, through ``postgres-cdc``, a topic and two sinks, into another database: a copy of its
table by upsert, and a log without a key. Workers and their hosts, brokers, coordinators, the controller and the
database are killed and stopped meanwhile. In the end the copy is equal row by row, and each change is in the log once,
in order.

``make chaos-connect`` is 10 minutes of it; CONNECT_SECONDS=15 a short one; CHAOS_SEED names the faults.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
import pytest
from libs.common.tests.kit.ports import free_port
from tests.chaos.transactions.storm import (
    BROKER_1,
    BROKER_2,
    BROKER_3,
    COORDINATOR_1,
    COORDINATOR_2,
    SEED,
    STOPS,
    Crew,
    Storm,
    hurt_cluster,
    make_topic,
    nothing_hangs,
    report,
    until,
)
from tests.integration.connect.shop import Shop, started_shop

from headrace.testing import TestCluster

SECONDS: Final = float(os.environ.get("CONNECT_SECONDS", "0"))
LONG: Final = SECONDS > 60
SLOTS: Final = 3 if LONG else 2
SETTLE_S: Final = 200.0
AWAKE_S: Final = 5.0
"""So long a worker that was replaced in its sleep goes on, until it is killed."""
ROWS: Final = 500
"""Of the table before all."""
SIZES: Final = (1, 1, 1, 5, 50, 2_000 if LONG else 300)
"""Changes of a transaction."""
PAUSE_S: Final = 0.05
TOPIC: Final = "shop.public.orders"
SCHEMAS: Final = {
    "key.converter": "json",
    "key.converter.schemas.enable": "true",
    "value.converter": "json",
    "value.converter.schemas.enable": "true",
}
FAULTS: Final = {
    "kill worker": 3,
    "replace worker": 2,
    "kill host": 4,
    "kill database": 1,
    **dict.fromkeys((COORDINATOR_1, COORDINATOR_2, BROKER_1, BROKER_2, BROKER_3, *STOPS), 1),
    "kill controller-1": 1,
}

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(SECONDS + 900),
    pytest.mark.skipif(not SECONDS, reason="only make chaos-connect has the minutes"),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with hurt_cluster(tmp_path / "data") as started:
        yield started


class Shopping(threading.Thread):
    """Transactions of all sizes until it is told to end; each change of a row has a version of its own."""

    def __init__(self, conninfo: str) -> None:
        super().__init__(daemon=True)
        self._conninfo, self._chance = conninfo, random.Random(SEED)
        self._ending = threading.Event()
        self.committed = 0

    def end(self) -> None:
        """Returns when the last transaction has ended."""
        self._ending.set()
        self.join(60)
        assert not self.is_alive(), "the last transaction has ended"

    def run(self) -> None:
        """Whatever the database does: a transaction that fails is followed by another."""
        while not self._ending.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._conninfo) as session:
                while not self._ending.wait(self._chance.uniform(0, 2 * PAUSE_S)):
                    for _ in range(self._chance.choice(SIZES)):
                        session.execute(*self._change())
                    session.commit()
                    self.committed += 1
            self._ending.wait(PAUSE_S)

    def _change(self) -> tuple[bytes, list[int]]:
        one, other = self._chance.sample(range(1, 4 * ROWS), 2)
        match self._chance.choices(("insert", "update", "delete", "key"), (3, 5, 1, 1))[0]:
            case "insert":
                return b"insert into orders (id) values (%s) on conflict do nothing", [one]
            case "update":
                return b"update orders set version = nextval('versions') where id = %s", [one]
            case "delete":
                return b"delete from orders where id = %s", [one]
        moved = b"""update orders set id = %s, version = nextval('versions')
            where id = %s and not exists (select 1 from orders where id = %s)"""
        return moved, [other, one, other]


class Databases:
    """The shop, its copy on the same server, and a process of that server that can be killed."""

    def __init__(self, shop: Shop, chance: random.Random) -> None:
        self.shop = shop
        self.target = shop.conninfo.replace("dbname=shop", "dbname=target")
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
            "create database target encoding 'UTF8' template template0",
        )
        with psycopg.connect(self.target, autocommit=True) as session:
            session.execute("create table copy (id bigint primary key, version bigint, note text)")
            session.execute("create table log (n bigserial primary key, id bigint, version bigint, note text)")

    def kill(self) -> None:
        """With -9, one process that serves a connector: the server ends all others, and recovers from its WAL."""
        with suppress(psycopg.Error), psycopg.connect(self.shop.conninfo, autocommit=True) as session:
            rows = session.execute(
                "select pid from pg_stat_activity where backend_type in ('walsender', 'client backend') "
                "and pid <> pg_backend_pid()"
            ).fetchall()
            if rows:
                os.kill(self._chance.choice(rows)[0], signal.SIGKILL)

    def rows(self, where: str, statement: bytes) -> list[tuple[Any, ...]]:
        """The answer; empty while the server recovers."""
        try:
            with psycopg.connect(where, autocommit=True) as session:
                return session.execute(statement).fetchall()
        except psycopg.OperationalError:
            return []

    def is_equal(self) -> bool:
        """Whether the copy has what the shop has."""
        ours = self.rows(self.shop.conninfo, b"select id, version, note from orders order by id")
        return bool(ours) and ours == self.rows(self.target, b"select id, version, note from copy order by id")

    def logged(self) -> list[tuple[Any, ...]]:
        """Keys and versions, in the order in which they were written."""
        return self.rows(self.target, b"select id, version from log order by n")


class Workers(Crew):
    """Workers of one Connect cluster; one that was replaced in its sleep wakes, and is killed some seconds later."""

    def __init__(self, cluster: TestCluster, directory: Path) -> None:
        super().__init__(directory, self._command, SLOTS)
        self._bootstrap = ",".join(cluster.bootstrap_servers)
        self._ports: dict[str, int] = {}
        self._awake: dict[str, float] = {}
        self.refused = ""
        """What was last said to a request that may be sent again."""

    def _command(self, slot: int, number: int) -> list[str]:
        port = self._ports[f"worker-{slot}-{number}"] = free_port()
        listen = f"127.0.0.1:{port}"
        more = ["--task-stop-ms-max", "5000", "--drain-ms-max", "1000"]
        command = ["-m", "headrace_connect_worker", "--bootstrap-servers", self._bootstrap, "--group-id", "storm"]
        return [*command, "--http-listen", listen, *more]

    def tend(self) -> None:
        """Those that woke, too."""
        now = time.monotonic()
        for worker in self.sleeping:
            if worker.wakes_at == float("inf") and now >= self._awake.setdefault(worker.name, now + AWAKE_S):
                self._kill_hosts(worker.process.pid)
                worker.process.kill()
        super().tend()

    def kill_host(self, chance: random.Random) -> None:
        """With -9, one process with a connector."""
        hosts = [pid for worker in self.working.values() for pid in children_of(worker.process.pid)]
        if hosts:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(hosts), signal.SIGKILL)

    def end(self) -> None:
        """Hosts end when they miss their worker."""
        hosts = [pid for worker in (*self.working.values(), *self.sleeping) for pid in children_of(worker.process.pid)]
        super().end()
        until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in hosts), "hosts end with their workers")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Some worker's answer; None: it gives none now, or refuses for now."""
        for worker in self.working.values():
            try:
                answer = httpx.request(
                    method, f"http://127.0.0.1:{self._ports[worker.name]}{path}", json=body, timeout=60
                )
            except httpx.TransportError:
                continue
            if answer.status_code in (409, 500, 503):
                self.refused = answer.text
                return None
            assert answer.is_success or answer.status_code == 404, (
                f"{method} {path}: {answer.status_code} {answer.text}"
            )
            return answer.json() or True
        return None

    def statuses(self) -> dict[str, Any]:
        """Of all connectors."""
        return {name: self.ask("GET", f"/connectors/{name}/status") for name in ("shop", "copy", "log")}

    def _kill_hosts(self, pid: int) -> None:
        """A worker that is killed in its sleep leaves hosts that stand still, too, if they were stopped with it."""
        for host in children_of(pid):
            with suppress(ProcessLookupError):
                os.kill(host, signal.SIGCONT)


def children_of(pid: int) -> list[int]:
    """Processes that it has started, and that are there."""
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def connectors(shop: Shop, target: str) -> dict[str, dict[str, str]]:
    """The source, the copy and the log."""
    where = dict(part.split("=", 1) for part in target.split())
    url = f"postgresql://{where['host']}:{where['port']}/{where['dbname']}"
    sink = {
        "connector.class": "sql-sink",
        "topics": TOPIC,
        "connection.url": url,
        "connection.user": where["user"],
        **SCHEMAS,
    }
    changes = {"value.form": "flat", "offset.flush.interval.ms": "200", "max.batch.size": "500", **SCHEMAS}
    return {
        "shop": shop.config("shop", "public.orders", **changes),
        "copy": {
            **sink,
            "insert.mode": "upsert",
            "pk.mode": "record_key",
            "delete.enabled": "true",
            "table.name.format": "copy",
        },
        "log": {
            **sink,
            "table.name.format": "log",
            "transforms": "rows",
            "transforms.rows.type": "Filter",
            "transforms.rows.predicate": "deletes",
            "predicates": "deletes",
            "predicates.deletes.type": "RecordIsTombstone",
        },
    }


def test_a_database_is_copied_through_a_storm(cluster: TestCluster, tmp_path: Path) -> None:
    make_topic(cluster, TOPIC, 1)
    chance = random.Random(SEED)
    with started_shop() as shop:
        databases = Databases(shop, chance)
        crew = Workers(cluster, tmp_path)
        storm = Storm(cluster, crew, random.Random(SEED), dict(FAULTS), pauses=(0.5, 3.0))
        storm.changes = {"kill host": lambda: crew.kill_host(chance), "kill database": databases.kill}
        load = Shopping(shop.conninfo)

        def settles(holds: Any, why: str) -> None:
            def tended() -> bool:
                crew.tend()
                return bool(holds())

            try:
                until(tended, why, SETTLE_S)
            except AssertionError as error:
                raise AssertionError(f"{error}; {crew.refused}; {crew.statuses()}") from None

        try:
            crew.start_all()
            for name, config in connectors(shop, databases.target).items():
                settles(lambda name=name, config=config: crew.ask("PUT", f"/connectors/{name}/config", config), name)
            settles(lambda: len(databases.logged()) >= ROWS and databases.is_equal(), "the first rows are copied")
            load.start()
            storm.rage(SECONDS)
            load.end()
            settles(databases.is_equal, "the copy is equal")
            expected = databases.rows(shop.conninfo, b"select id, version from audit order by n")
            settles(lambda: len(databases.logged()) >= ROWS + len(expected), "all changes are logged")
        finally:
            if load.is_alive():
                load.end()
            crew.end()
            print("\n".join(storm.told))
        first, logged = databases.logged()[:ROWS], databases.logged()[ROWS:]
        report("connect", storm, transactions=load.committed, changes=len(logged))
        nothing_hangs(cluster, [TOPIC])
        assert sorted(first) == [(number, number) for number in range(1, ROWS + 1)]
        assert Counter(logged) == Counter(expected), "each change once"
        assert logged == expected, "in the order of commits"
        assert databases.is_equal()
        assert load.committed > SECONDS, "the shop was busy"
