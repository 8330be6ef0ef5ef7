"""
A shop's database under load, through ``postgres-cdc``, a topic and two sinks, into another server: a copy of its table
by upsert, and a log without a key, whose bad rows are dead letters. Hosts are killed and stopped at each step of their
commits; workers, brokers, coordinators, the controller and both databases are killed and stopped at any moment. In the
end the copy is equal row by row, and each change is in the log or a dead letter, once, in order. Then the slot is lost,
and the copy is equal again.

``make chaos-connect`` is 10 minutes of it, and more until each step was hit often enough; CONNECT_SECONDS=15 a short
one; CHAOS_SEED names the faults, CONNECT_MUTANT something of ``mutants`` that is left out: then it has to fail.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.chaos.connect.crew import GROUP, SINK_POINTS, SOURCE_POINTS, Workers
from tests.chaos.connect.mutations import variables_of
from tests.chaos.connect.shopping import BAD, ROWS, Change, Databases, Shopping
from tests.chaos.points import Points, rage_until_hit
from tests.chaos.transactions.storm import (
    BROKER_1,
    BROKER_2,
    BROKER_3,
    COORDINATOR_1,
    COORDINATOR_2,
    SEED,
    STOPS,
    Storm,
    hurt_cluster,
    make_topic,
    nothing_hangs,
    report,
    until,
)
from tests.integration.connect.shop import Shop, started_shop
from tests.integration.transactions.postgres import started_postgres

from headrace import Consumer
from headrace.testing import TestCluster

SECONDS: Final = float(os.environ.get("CONNECT_SECONDS", "0"))
LONG: Final = SECONDS > 60
HITS: Final = int(os.environ.get("CONNECT_HITS", "20" if LONG else "0"))
"""Each point has to be hit so often by a kill, and by a stop."""
MUTANT: Final = os.environ.get("CONNECT_MUTANT", "")
SLOTS: Final = 3 if LONG else 2
POINTS_EVERY_S: Final = 0.2
SETTLE_S: Final = 200.0
LOST_S: Final = 20.0
SIZES: Final = (*[1, 5] * 12, *[50, 300] * 6, *((2_000, 10_000) if LONG else ()))
"""Changes of a transaction."""
TOPIC: Final = "shop.public.orders"
DEAD: Final = "log-dead"
SCHEMAS: Final = {
    "key.converter": "json",
    "key.converter.schemas.enable": "true",
    "value.converter": "json",
    "value.converter.schemas.enable": "true",
}
FAULTS: Final = {
    "kill worker": 3,
    "replace worker": 2,
    "replace leader": 1,
    "kill host": 3,
    "kill fork server": 1,
    "kill shop": 1,
    "kill target": 1,
    "add column": 1,
    **dict.fromkeys((COORDINATOR_1, COORDINATOR_2, BROKER_1, BROKER_2, BROKER_3, *STOPS), 1),
    "kill controller-1": 1,
}

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(SECONDS + (3_000 if HITS else 900)),
    pytest.mark.skipif(not SECONDS, reason="only make chaos-connect has the minutes"),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with hurt_cluster(tmp_path / "data", TOPIC, DEAD, connect=GROUP) as started:
        yield started


def connectors(shop: Shop, target: str) -> dict[str, dict[str, str]]:
    """The source, the copy and the log."""
    where = dict(part.split("=", 1) for part in target.split())
    sink = {
        "connector.class": "sql-sink",
        "topics": TOPIC,
        "connection.url": f"postgresql://{where['host']}:{where['port']}/{where['dbname']}",
        "connection.user": where["user"],
        "auto.evolve": "true",
        **SCHEMAS,
    }
    changes = {"value.form": "flat", "offset.flush.interval.ms": "200", "max.batch.size": "500", **SCHEMAS}
    return {
        "shop": shop.config("shop", "public.orders", **changes, **{"on.slot.lost": "resnapshot"}),
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
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": DEAD,
            "transforms": "rows",
            "transforms.rows.type": "Filter",
            "transforms.rows.predicate": "deletes",
            "predicates": "deletes",
            "predicates.deletes.type": "RecordIsTombstone",
        },
    }


def read_dead(consumer: Consumer[Any, Any], found: list[Change]) -> int:
    """Add keys and versions of the dead letters that have come since; how many there are now."""
    rows = [json.loads(record.value)["payload"] for record in consumer.read_to_end(timeout_ms=60_000)]
    found += [(row["id"], row["version"]) for row in rows]
    return len(found)


def judge(wanted: list[Change], found: list[Change], what: str) -> None:
    """The snapshot in any order, then the changes in the order of commits."""
    times = Counter(found) - Counter(wanted)
    assert not times, f"{what}: once each, and these too often: {times}"
    assert Counter(found) == Counter(wanted), f"{what}: all"
    first = sum(version <= ROWS for _, version in wanted)
    assert sorted(found[:first]) == wanted[:first], f"{what}: the snapshot first"
    assert found[first:] == wanted[first:], f"{what}: in the order of commits"


def test_a_database_is_copied_through_a_storm(
    cluster: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(cluster, TOPIC, 1)
    make_topic(cluster, DEAD, 1)
    monkeypatch.setenv("HEADRACE_FAILPOINTS_DIR", str(tmp_path / "points"))
    for name, value in variables_of(MUTANT).items():
        monkeypatch.setenv(name, value)
    chance = random.Random(SEED)
    with started_shop() as shop, started_postgres() as target:
        databases = Databases(shop, target, chance)
        crew = Workers(cluster, tmp_path, SLOTS, chance)
        storm = Storm(cluster, crew, random.Random(SEED), dict(FAULTS), pauses=(0.5, 3.0))
        storm.changes = {
            "kill host": crew.kill_host,
            "kill fork server": crew.kill_fork_server,
            "kill shop": databases.kill_shop,
            "kill target": databases.kill_target,
            "add column": databases.add_column,
            "replace leader": crew.replace_leader,
        }
        load, more = Shopping(databases, SIZES), Shopping(databases, SIZES[:12], deletes=False)

        def settles(holds: Callable[[], object], why: str) -> None:
            def tended() -> bool:
                crew.tend()
                return bool(holds())

            try:
                until(tended, why, SETTLE_S)
            except AssertionError as error:
                raise AssertionError(f"{error}; {crew.refused}; {crew.statuses()}") from None

        def reaches(count: Callable[[], int], wanted: int, why: str) -> None:
            """However far behind it is: it must not stand still."""
            while (seen := count()) < wanted:
                settles(lambda seen=seen: count() > seen, f"{why}: {seen} of {wanted}")

        try:
            crew.start_all()
            for name, config in connectors(shop, target).items():
                settles(lambda name=name, config=config: crew.ask("PUT", f"/connectors/{name}/config", config), name)
            settles(lambda: databases.count_logged() >= ROWS - ROWS // BAD, "the first rows are logged")
            settles(databases.is_equal, "the first rows are copied")
            crew.groups = [
                Points(tmp_path / "points", names, chance, POINTS_EVERY_S) for names in (SOURCE_POINTS, SINK_POINTS)
            ]
            load.start()
            rage_until_hit(storm, SECONDS, crew.groups, HITS)
            load.end()
            settles(databases.is_equal, "the copy is equal")
            changes = [*((number, number) for number in range(1, ROWS + 1)), *databases.audited()]
            good = [one for one in changes if one[1] % BAD]
            bad = [one for one in changes if not one[1] % BAD]
            reaches(databases.count_logged, len(good), "all changes are logged")
            dead: list[Change] = []
            with cluster.consumer(DEAD, isolation_level="read_committed") as consumer:
                reaches(lambda: read_dead(consumer, dead), len(bad), "or dead letters")
                read_dead(consumer, dead)
            logged = databases.logged()
            assert databases.is_equal()
            databases.lose_slot()
            more.start()
            storm.rage(LOST_S)
            more.end()
            settles(databases.is_equal, "the copy is equal after the slot was lost")
        finally:
            for one in (load, more):
                one.end()
            crew.end()
            print("\n".join(storm.told))
        report("connect", storm, transactions=load.committed, changes=len(logged), dead=len(dead))
        points = {name: times for group in crew.groups for name, times in group.told.items()}
        print(json.dumps({"connect": SEED, "faults": dict(storm.counts), "points": points}), file=sys.stderr)
        nothing_hangs(cluster, [TOPIC, DEAD])
        judge(good, logged, "the log")
        judge(bad, dead, "dead letters")
        assert load.committed > SECONDS / 10, "the shop was busy"
        assert min(points.values()) >= HITS, f"each point was hit {HITS} times: {points}"
