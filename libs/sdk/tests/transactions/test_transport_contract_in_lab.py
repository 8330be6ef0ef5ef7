"""What ``port.Transport`` promises of coordinators of transactions, kept in the lab."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from libs.sdk.tests.kit.cluster import Labs
from libs.sdk.tests.transactions import test_transport_contract as contract

globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})


@pytest.fixture
async def world(labs: Labs) -> AsyncIterator[contract.World]:
    cluster = labs()
    cluster.create_topic("t", 1)
    transport = cluster.transport()
    world = await contract.World(transport, "t").begun()
    await world.init("the-first")  # so that there are shards to ask
    yield world
    await transport.close()
