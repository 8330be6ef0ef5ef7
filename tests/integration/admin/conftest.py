"""One real cluster for the tests that only look and write; those that kill have their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from headrace_cli.local import LocalCluster

JSON = {"content-type": "application/json"}


@contextmanager
def cluster_at(directory: object, **options: object) -> Iterator[LocalCluster]:
    with LocalCluster(str(directory), restart=False, **options) as cluster:  # its own options
        yield cluster


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with cluster_at(tmp_path_factory.mktemp("shared") / "data", brokers=2) as cluster:
        yield cluster


@pytest.fixture
def http(shared: LocalCluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared.admin_url, timeout=60, headers={**JSON, **shared.authorization}) as client:
        yield client


@pytest.fixture
def make_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LocalCluster]]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(cluster_at(tmp_path_factory.mktemp("own") / "data", **options))
