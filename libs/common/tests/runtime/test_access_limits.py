"""How many calls one principal has at a time, wherever they come from; and what a node's metrics say of sessions."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from libs.common.tests.kit.access import BOB, allow
from libs.common.tests.runtime.test_access_gate import KEY_TEXT, ME, OTHER_TEXT, Streams, World, bearer, key_of, node
from libs.common.tests.runtime.test_access_gate import serving as serves
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType, literal
from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import Overloaded
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.rpc.node_gate import FORWARDED_HOST_KEY, FORWARDED_KEY
from headrace_common.runtime.audit_settings import AuditConfig
from headrace_common.runtime.service import warn_unless_loopback
from headrace_common.runtime.tasks import TaskRunner

OTHER = bearer(OTHER_TEXT)
THROUGH = (*node(Role.ADMIN), (FORWARDED_KEY, KEY_TEXT.encode()), (FORWARDED_HOST_KEY, "10.0.0.7"))
"""As an admin node asks for alice."""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serves(World(keys=[key_of(KEY_TEXT), key_of(OTHER_TEXT, owner=BOB)])) as world:
        world.access.calls_per_principal_max = 2
        world.grant(allow(ResourceType.CLUSTER, literal(CLUSTER_NAME), Operation.DESCRIBE))
        yield world


@pytest.fixture
async def streams(world: World) -> AsyncIterator[Streams]:
    async with AsyncExitStack() as stack:
        yield Streams(world, stack)


async def test_a_principal_has_so_many_calls_at_a_time_and_others_have_their_own(
    world: World, streams: Streams
) -> None:
    first, _ = [await streams.open(ME) for _ in range(2)]  # two connections, as from two addresses
    refused = await world.call("Produce", ME)
    assert isinstance(refused, Overloaded)
    assert str(refused).startswith("User:alice has 2 calls under way at this node, streams among them, ")
    assert "(calls_per_principal_max); close clients that are not needed, " in str(refused)
    assert refused.retriable
    assert isinstance(await world.call("ListOffsets", ME), Overloaded)
    assert isinstance(await world.call("ListOffsets", *THROUGH), Overloaded), "who asks an admin node has no more"
    await streams.open(OTHER)
    assert await world.call("Metadata", OTHER) is None
    first.cancel()
    while world.access.streams > 2:
        await world.clock.advance(1)
    assert await world.call("ListOffsets", ME) is None


async def test_nodes_are_not_counted(world: World, streams: Streams) -> None:
    for _ in range(4):
        await streams.open(*node(Role.COORDINATOR))


async def test_who_has_shown_nothing_is_everybody_and_not_counted(world: World, streams: Streams) -> None:
    world.mode = Mode.OPEN
    world.told()
    for _ in range(4):
        await streams.open()
    await streams.open(ME)
    await streams.open(ME)
    assert isinstance(await world.call("Produce", ME), Overloaded), "who shows a key is known in an open cluster too"


async def test_0_is_no_bound(world: World, streams: Streams) -> None:
    world.access.calls_per_principal_max = 0
    for _ in range(4):
        await streams.open(ME)


def read(reader: InMemoryMetricReader) -> dict[str, Any]:
    """Values by name, and by ``name/cause`` where there are causes."""
    data = reader.get_metrics_data()
    return {
        metric.name + "".join(f"/{cause}" for cause in (point.attributes or {}).values()): getattr(point, "value", None)
        for resource in (data.resource_metrics if data else [])
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


async def test_metrics_say_by_which_rows_it_decides_and_why_sessions_ended(world: World, streams: Streams) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("t")
    async with TaskRunner() as tasks:
        auditing, key = world.access.auditing, NodeKey(Role.BROKER, NodeId(1))
        async with auditing.opened(AuditConfig(), key, tasks, meter):
            assert read(reader)["headrace_access_generation"] == 2
            soon = key_of(KEY_TEXT, expires_ms=world.clock.now_ms() + 50)
            world.keys = [soon, key_of(OTHER_TEXT, owner=BOB)]
            world.rules = replace(world.rules, generation=3)
            world.told()
            assert read(reader)["headrace_access_generation"] == 3
            mine, other = await streams.open(ME), await streams.open(OTHER)
            await world.clock.advance(50)
            await streams.ends(mine)
            world.rules = replace(world.rules, generation=4, blocked=frozenset({BOB}))
            world.told()
            await streams.ends(other)
            world.mode = Mode.OPEN
            world.told()
            nobody = await streams.open()
            world.mode = Mode.CLOSED
            world.told()
            await streams.ends(nobody)
            ended = {name: value for name, value in read(reader).items() if name.startswith("headrace_sessions")}
    assert ended == {f"headrace_sessions_ended/{cause}": 1 for cause in ("expired", "revoked", "refused")}
    assert not any("alice" in name for name in ended), "metrics name no callers"


def test_the_log_says_that_an_interface_is_in_plain_text_and_not_whom_it_lets_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    warn_unless_loopback("gRPC", Endpoint("127.0.0.1", 1))
    warn_unless_loopback("gRPC", Endpoint("10.0.0.7", 1))
    safe, warned = caplog.records
    assert safe.levelno == logging.INFO
    assert warned.levelno == logging.WARNING
    assert "listens in plain text on an address that other machines may reach" in warned.getMessage()
    assert "authentication" not in warned.getMessage(), "a closed cluster asks for it in plain text too"
