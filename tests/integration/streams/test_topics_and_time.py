"""Topics that come while a program runs, timers of the wall clock that outlive their worker, times that are ahead."""

from __future__ import annotations

import time
from pathlib import Path

import orjson
import pytest

from headrace.testing import TestCluster
from headrace_streams.worker_process import Ending

from .apps import PARTITIONS, app

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def test_a_topic_that_comes_later_and_a_timer_of_a_worker_that_died(cluster: TestCluster, tmp_path: Path) -> None:
    tested = app(cluster, tmp_path, "patterned")
    with tested.running():
        tested.send([b"one"], [b"ann"])
        assert tested.read(1)[0][1]["n"] == 1
    with tested.running(metadata_max_age_ms=200):
        assert [row["n"] for _, row in tested.read(2)] == [1, 1]
        later = f"{tested.lines}-later"
        with cluster.admin() as admin:
            admin.create_topic(later, PARTITIONS)
        with cluster.producer() as producer:
            producer.send_many(later, [b"two"], keys=[b"ann"])
            producer.flush()
        tested.wait_for_log(f"{later} is there")
        found = tested.read(3)
    assert sorted((row["word"], row["n"], "rang" in row) for _, row in found) == [
        ("ann", 1, False),
        ("ann", 1, True),
        ("ann", 2, False),
    ]


def test_an_app_waits_for_a_topic_that_is_missing_and_goes_on_when_it_is_made(
    cluster: TestCluster, tmp_path: Path
) -> None:
    """For a bounded time; then it stops, and names the topic."""
    tested = app(cluster, tmp_path, "plain", 1)
    tested.lines += "-later"
    with tested.running(default_api_timeout_ms=500) as worker:
        assert worker.wait(30) == Ending.FAILED, tested.log()
    create = f"create them first: headrace topic create {tested.lines}"
    assert f"reads and writes topics that do not exist: {tested.lines}; {create}" in tested.log()
    with tested.running() as worker:
        tested.wait_for_log(f"waits for topics that do not exist: {tested.lines}; headrace topic create", 2)
        with cluster.admin() as admin:
            admin.create_topic(tested.lines, 1)
        tested.send([b"one"])
        assert [row["word"] for _, row in tested.read(1)] == ["one"]
        assert worker.poll() is None, tested.log()


def test_windows_that_end_tomorrow_and_rows_of_next_week(cluster: TestCluster, tmp_path: Path) -> None:
    """Topics refuse records that are an hour ahead of the clock; so does a repartition topic of an earlier version."""
    tested = app(cluster, tmp_path, "daily")
    with cluster.admin() as admin:
        admin.create_topic(f"{tested.lines}-daily.by-word.repartition", PARTITIONS)
    now = int(time.time() * 1_000)
    rows = [{"word": "today", "at": now}, {"word": "next week", "at": now + 7 * 86_400_000}]
    with tested.running():
        tested.send([orjson.dumps(row) for row in rows], [b"one", b"one"])
        assert sorted((row["word"], row["n"]) for _, row in tested.read(2)) == [("next week", 1), ("today", 1)]
    assert not tested.said("goes back to its last commit"), tested.log()
