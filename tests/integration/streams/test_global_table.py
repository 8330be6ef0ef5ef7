"""A table that a worker has whole: all of it is there before the first record is looked up, and changes come."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing import TestCluster

from .apps import AppUnderTest, Row, app

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

WORDS = [b"word%d" % number for number in range(500)]


def put(tested: AppUnderTest, n: int) -> None:
    with tested.cluster.producer() as producer:
        producer.send_many(tested.late, [b'{"n": %d}' % n] * len(WORDS), keys=WORDS)
        producer.flush()


def test_all_of_it_is_there_first_and_changes_come(cluster: TestCluster, tmp_path: Path) -> None:
    tested = app(cluster, tmp_path, "looked_up", 2)
    tested.late = cluster.unique_topic("numbers", 3)
    put(tested, 0)
    put(tested, 1)
    tested.send(WORDS)
    with tested.running():
        found = tested.read(len(WORDS))
        assert sorted((row["word"].encode(), row["n"]) for _, row in found) == sorted((word, 1) for word in WORDS)
        put(tested, 2)

        def has_changed(rows: list[Row]) -> bool:
            tested.send(WORDS[:1])
            return rows[-1:] != [] and rows[-1][1]["n"] == 2

        tested.read_until(has_changed, "what has changed is found")
