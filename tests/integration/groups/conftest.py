"""Clusters with two coordinators; those that are killed come back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing import TestCluster

from .crew import PROTOCOLS, two_coordinators


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with two_coordinators(tmp_path_factory.mktemp("groups") / "data") as started:
        yield started


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)
