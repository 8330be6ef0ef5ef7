"""A cluster in which a worker that stands still is put out after three seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing import TestCluster, started_cluster

SHORT_MS = {"SESSION_TIMEOUT": 3_000, "HEARTBEAT_INTERVAL": 500}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with pytest.MonkeyPatch.context() as patch:
        for name, ms in SHORT_MS.items():
            patch.setenv(f"HEADRACE_COORDINATOR_GROUP_CONSUMER_{name}_MS", str(ms))
        with started_cluster(tmp_path_factory.mktemp("cluster") / "data") as started:
            yield started
