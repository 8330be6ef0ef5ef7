"""An admin service over a cluster of the lab, and REST in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs
from libs.sdk.tests.kit.labs import labs, pytest_asyncio_loop_factories
from services.admin.tests.kit.rest import Rest, served
from services.admin.tests.kit.world import World, opened

__all__ = ["labs", "pytest_asyncio_loop_factories"]


@pytest.fixture
def lab(labs: Labs) -> LabCluster:
    """Two brokers, two coordinators."""
    return labs(2, coordinators=2)


@pytest.fixture
async def world(lab: LabCluster) -> AsyncIterator[World]:
    async with opened(lab) as made:
        yield made


@pytest.fixture
async def rest(world: World) -> AsyncIterator[Rest]:
    async with served(world) as made:
        yield made
