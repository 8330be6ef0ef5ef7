"""What every source must pass, with a real PostgreSQL: rows that were there, and changes."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Any

import pytest
from tests.integration.connect.shop import Shop, started_shop

from headrace_connect.connectors.postgres_cdc import PostgresSource
from headrace_connect.plugin import Source
from headrace_connect.testing import SourceCase, check_source

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
_numbers = count()


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with started_shop() as shop:
        yield shop


class CdcCase(SourceCase):
    """Two tables: rows before the slot is made, and transactions behind it that change both."""

    rows = 9

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        shop.drop_slots()
        number = next(_numbers)
        self.settings = shop.settings(
            f"case{number}",
            f"s{number}[.].*",
            incremental_snapshot_chunk_size=3,
            snapshot_include_collection_list=(f"s{number}[.]a",),
        )
        shop.do(
            f"create schema s{number}",
            f"create table s{number}.a (id int primary key)",
            f"create table s{number}.b (id int primary key)",
            f"create publication headrace_case{number} for table s{number}.a, s{number}.b",
            f"insert into s{number}.a select generate_series(1, 3)",
            f"select pg_create_logical_replication_slot('headrace_case{number}', 'pgoutput')",
            "begin",
            f"insert into s{number}.a values (4)",
            f"insert into s{number}.b values (1)",
            "commit",
            f"update s{number}.a set id = 5 where id = 4",
        )

    def make(self) -> Source[Any]:
        return PostgresSource(self.settings)

    def go_away(self) -> bool:
        """Connections are cut."""
        self.shop.do("select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'headrace%'")
        return True

    def identify(self, key: bytes | None, value: bytes | None) -> Hashable:
        assert key is not None
        if value is None:
            return key
        read = json.loads(value)
        return read["source"]["table"], read["op"], json.dumps(read["after"]), json.dumps(read["before"])


def test_the_suite(shop: Shop) -> None:
    check_source(lambda: CdcCase(shop))
