"""
A Spark application is killed where it hurts most, and each row is in its sinks once. ``make spark-chaos`` has the rest.

CHAOS_SEED names the processes that are hit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import TestCluster

from ..transactions.storm import hurt_cluster
from .copying import LOOSE, SEED
from .scenarios import short

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with hurt_cluster(tmp_path / "data", tls=False) as started:
        yield started


def test_each_row_is_there_once_and_the_judge_sees_where_it_is_not(cluster: TestCluster, tmp_path: Path) -> None:
    report = short(cluster, tmp_path, SEED)
    print(f"\n{report.text()}", file=sys.stderr)
    assert report.sound, report.text()
    assert report.repeated, "the batch whose commit Spark had not noted was repeated, and dropped"
    assert report.anomalies[LOOSE].get("double-output"), "a sink without transactions has its last batch twice"
