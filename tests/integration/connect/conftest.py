"""The cluster of the tests of Streams, and a MariaDB that tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.connect.mariadb import MariadbServer, started_mariadb
from tests.integration.streams.conftest import cluster

__all__ = ["cluster"]


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariadbServer]:
    """A server; each test empties its database."""
    with started_mariadb() as server:
        yield server
