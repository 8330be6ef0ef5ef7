"""What `validate` says of a server, by key, and what is typed about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace_connect.connectors.postgres_cdc.checks import find_problems
from headrace_connect.connectors.postgres_cdc.facts import Facts, Publication, captured, statement_for
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.postgres_cdc.slots import Slot
from headrace_connect.connectors.postgres_cdc.tables import Table

ORDERS = Table(1, "public", "orders", "d", ("id",))
LOG = Table(2, "public", "log", "d")
FULL = Table(3, "public", "full", "f")
SOUND = Facts(150_004, "logical", False, True, False, True, 5, (ORDERS, FULL), None, None)
SLOT = Slot("pgoutput", "shop", None, 0, False, "")


def settings(**more: Any) -> SourceSettings:
    given = {"name": "shop", "topic_prefix": "shop", "database_hostname": "db", "database_dbname": "shop"}
    return SourceSettings(**{**given, "database_user": "headrace", **more})


def facts(**more: Any) -> Facts:
    return replace(SOUND, **more)


def published(*tables: Table) -> tuple[Table, ...]:
    return tuple(replace(table, published=True) for table in tables)


def test_nothing_is_wrong() -> None:
    assert find_problems(SOUND, settings()) == []
    ready = facts(tables=published(ORDERS, FULL), publication=Publication(False), slot=SLOT, free_slots=0)
    assert find_problems(ready, settings(publication_autocreate_mode="disabled")) == []
    only_inserts = Publication(False, updates=False, deletes=False)
    assert find_problems(facts(tables=published(LOG), publication=only_inserts), settings()) == []


@pytest.mark.parametrize(
    ("found", "given", "key", "said"),
    [
        ({"version": 130_000}, {}, "database.hostname", "PostgreSQL 13; it takes 14"),
        ({"is_standby": True}, {}, "database.hostname", "standby"),
        ({"wal_level": "replica"}, {}, "database.hostname", "ALTER SYSTEM SET wal_level = logical;"),
        ({"can_replicate": False}, {}, "database.user", 'ALTER ROLE "headrace" REPLICATION;'),
        ({}, {"slot_failover": True}, "slot.failover", "PostgreSQL 17"),
        ({}, {"table_include_list": ("public.order", "public.full")}, "table.include.list", "is public.orders meant?"),
        (
            {},
            {"table_include_list": ("public[.]nothing", "public.full")},
            "table.include.list",
            "public[.]nothing; a pattern is for the whole of SCHEMA.TABLE",
        ),
        ({"tables": ()}, {}, "table.include.list", "no table that would be captured"),
        ({}, {"publication_autocreate_mode": "disabled"}, "publication.name", "CREATE PUBLICATION"),
        ({"can_create": False}, {}, "database.user", "GRANT CREATE ON DATABASE"),
        ({}, {"publication_autocreate_mode": "all_tables"}, "publication.autocreate.mode", "takes a superuser"),
        (
            {"tables": (replace(ORDERS, owned=False),)},
            {},
            "publication.autocreate.mode",
            'CREATE PUBLICATION "headrace_shop" FOR TABLE "public"."orders";',
        ),
        (
            {"tables": (*published(ORDERS), replace(FULL, owned=False)), "publication": Publication(False)},
            {},
            "publication.autocreate.mode",
            'ALTER PUBLICATION "headrace_shop" ADD TABLE "public"."full";',
        ),
        (
            {"tables": published(ORDERS), "publication": Publication(True, deletes=False)},
            {},
            "publication.name",
            "leaves out delete: ALTER PUBLICATION",
        ),
        ({"tables": (ORDERS, LOG)}, {}, "table.exclude.list", 'ALTER TABLE "public"."log" REPLICA IDENTITY FULL;'),
        ({"tables": (replace(ORDERS, readable=False),)}, {}, "database.user", 'GRANT SELECT ON "public"."orders"'),
        (
            {"tables": (replace(ORDERS, name="a b"), replace(FULL, name="a/b"))},
            {},
            "table.exclude.list",
            "would have one topic, shop.public.a_b",
        ),
        ({"free_slots": 0}, {}, "slot.name", "max_replication_slots"),
        ({"slot": replace(SLOT, database="other")}, {}, "slot.name", "in the database other"),
        ({"slot": replace(SLOT, plugin=None)}, {}, "slot.name", "physical"),
        (
            {"tables": tuple(replace(ORDERS, oid=number * 99, name=f"t{number}") for number in range(1, 1_500))},
            {},
            "table.include.list",
            "1499 tables are too many for one connector",
        ),
    ],
)
def test_what_is_wrong(found: dict[str, Any], given: dict[str, Any], key: str, said: str) -> None:
    (problem,) = find_problems(facts(**found), settings(**given))
    assert problem.key == key
    assert problem.message.startswith(f"{key}: ")
    assert said in problem.message


def test_what_is_published() -> None:
    made = 'create publication "headrace_shop" for '
    root = " with (publish_via_partition_root = true)"
    assert statement_for(SOUND, settings()) == f'{made}table "public"."orders", "public"."full"{root}'
    assert statement_for(SOUND, settings(publication_autocreate_mode="all_tables")) == f"{made}all tables{root}"
    assert statement_for(SOUND, settings(publication_autocreate_mode="disabled")) is None
    some = facts(tables=(*published(ORDERS), FULL, LOG), publication=Publication(False))
    added = 'alter publication "headrace_shop" add table "public"."full"'
    assert statement_for(some, settings()) == added, "updates of one without a replica identity would fail"
    assert statement_for(replace(some, publication=Publication(True)), settings()) is None
    unfit = facts(tables=(LOG,))
    assert statement_for(unfit, settings()) is None
    assert statement_for(unfit, settings(publication_autocreate_mode="all_tables")) is None


def test_partitions_count_where_they_are_published() -> None:
    part = replace(ORDERS, oid=9, name="orders_1", is_partition=True)
    assert captured(facts(tables=(ORDERS, part)), settings()) == [ORDERS]
    own = facts(tables=published(part), publication=Publication(False))
    assert captured(own, settings()) == list(published(part))


def test_names_with_quotes_stay_names() -> None:
    odd = replace(ORDERS, name='a"; drop')
    statement = statement_for(facts(tables=(odd,)), settings())
    assert statement is not None
    assert '"public"."a""; drop"' in statement
