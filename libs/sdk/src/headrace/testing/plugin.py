"""The pytest plugin: fixtures only. Nothing is imported or started before a test asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace.testing import MemoryBackend
    from headrace.testing.clusters import TestCluster


@pytest.fixture(scope="session")
def headrace_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """
    A real cluster for all tests of the session: etcd, a controller, a broker, a coordinator and the admin service, each
    a process of its own, in a temporary directory. Tests share it: give topics names of their own (``unique_topic``).
    """
    from headrace.testing.clusters import started_cluster

    with started_cluster(tmp_path_factory.mktemp("headrace")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _clients_find_the_cluster(request: pytest.FixtureRequest) -> None:
    """A test with the cluster: clients without arguments find that one, as what is tested makes them."""
    if "headrace_cluster" in request.fixturenames:
        cluster = request.getfixturevalue("headrace_cluster")
        request.getfixturevalue("monkeypatch").setenv("HEADRACE_BOOTSTRAP", ",".join(cluster.bootstrap_servers))


@pytest.fixture
def headrace_memory() -> Iterator[MemoryBackend]:
    """A small cluster in this process, new for each test: no ports, no files."""
    from headrace.testing import MemoryBackend

    with MemoryBackend() as backend:
        yield backend
