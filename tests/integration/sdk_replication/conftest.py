"""One cluster of three brokers for each test: tests kill and stop its processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import TestCluster, started_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    with started_cluster(tmp_path / "data", brokers=3, restart=False) as started:
        yield started
