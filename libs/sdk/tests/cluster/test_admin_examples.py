"""The examples of the admin clients' documentation, as they stand there, against a real cluster."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Iterator

import pytest

from headrace.testing import TestCluster, started_cluster

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with started_cluster(tmp_path_factory.mktemp("fresh")) as cluster:
        yield cluster


@pytest.mark.parametrize("module", ["headrace.admin", "headrace.aio.admin"])
def test_examples_do_what_they_say(module: str, fresh: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", ",".join(fresh.bootstrap_servers))
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried, "there are examples"
    assert not failed
