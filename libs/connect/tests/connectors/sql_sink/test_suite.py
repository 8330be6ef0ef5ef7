"""What every sink must pass, with SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from libs.connect.tests.connectors.moving import Movable
from libs.connect.tests.connectors.sql_sink.test_exactly_once import sink_on
from libs.connect.tests.connectors.sql_sink.test_sqlite import SqliteFile

from headrace_connect.plugin import Sink
from headrace_connect.testing import SinkCase, check_sink


class SqliteCase(SinkCase):
    """A table without a key, so that what comes twice shows; a check refuses one record."""

    rows = 24
    bad = frozenset({11})

    def __init__(self, directory: Path) -> None:
        self.target = SqliteFile(directory / "x.db")
        self.target.query("create table t (n integer check (n <> 11))")
        self.place = Movable(self.target.path)

    def make(self) -> Sink[Any]:
        sink, _ = sink_on(self.target, table_name_format="t")
        return sink

    def stored(self) -> Sequence[int]:
        return [n for (n,) in self.target.query("select n from t")]

    def go_away(self) -> bool:
        return self.place.go_away()

    def come_back(self) -> None:
        self.place.come_back()


@pytest.mark.timeout(600)
def test_the_suite(tmp_path_factory: pytest.TempPathFactory) -> None:
    check_sink(lambda: SqliteCase(tmp_path_factory.mktemp("sqlite")))
