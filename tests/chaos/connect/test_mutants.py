"""What is left out of Connect is found by a test of one process; of sources, by ``test_kills`` and its processes."""

from __future__ import annotations

import asyncio

import pytest
from libs.connect.tests.connectors.sql_sink.test_suite import SqliteCase
from libs.connect.tests.postgres import test_snapshot
from tests.chaos.connect.mutants.sitecustomize import marks_only, unchecked

from headrace_connect.connectors.sql_sink import SqlSink
from headrace_connect.connectors.sql_sink.settings import SinkSettings
from headrace_connect.testing.sinks import check_two_holders

pytestmark = pytest.mark.chaos


class PatientCase(SqliteCase):
    """Two holders may wait for each other: both go on while they are judged."""

    def make(self) -> SqlSink:
        return SqlSink(SinkSettings("shop", self.target.url, table_name_format="t"))


def test_a_sink_that_checks_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    unchecked(monkeypatch.setattr)
    with pytest.raises(AssertionError, match="more than once"):
        asyncio.run(check_two_holders(lambda: PatientCase(tmp_path_factory.mktemp("sqlite"))))


def test_a_snapshot_that_knows_marks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    marks_only(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        test_snapshot.test_rows_of_a_commit_that_the_chunk_does_not_see_are_dropped_until_one_sees_it()
