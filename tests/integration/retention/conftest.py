"""One cluster of three brokers for all tests here; retention and the cleaner look twice a second."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import TestCluster, started_cluster

sys.path.insert(0, str(Path(__file__).parent))  # for retention_looks
from retention_looks import HURRIED


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    directory = tmp_path_factory.mktemp("retention") / "data"
    with started_cluster(directory, brokers=3, settings=HURRIED) as started:
        yield started
