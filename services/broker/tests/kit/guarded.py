"""A broker behind gRPC in a cluster that a test opens and closes, whose rules are about ``User:alice``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import grpc.aio
from libs.common.tests.kit.closed import Rows, bearing, key_of, key_text, user
from libs.common.tests.kit.fixed_tokens import Fixed
from services.broker.tests.kit.cluster import FakeCluster, image_of
from services.broker.tests.kit.dialogue import running_broker
from services.broker.tests.kit.transactions import FakeTransactions

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_broker.engine.broker import Broker, EngineSettings
from headrace_broker.engine.storage_queue import Flush
from headrace_broker.rpc.access_table import ACCESS
from headrace_common.core.access.grants import Grant
from headrace_common.core.access.rows import Mode
from headrace_common.core.features import HIGHEST
from headrace_common.core.ids import NodeId
from headrace_common.core.image import ClusterImage, NodeKey, Role
from headrace_common.rpc.channels import Security, open_channel
from headrace_common.rpc.node_gate import FORWARDED_KEY, NODE_KEY, TOKEN_KEY, NodeGate
from headrace_common.runtime.access_gate import Access
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.listeners import Guard
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

if TYPE_CHECKING:
    from headrace_proto.v1.broker_pb2_grpc import BrokerAsyncStub

Shows: TypeAlias = tuple[tuple[str, str | bytes], ...]
"""The metadata of a call."""
NOTHING: Final[Shows] = ()
ALICE: Final[Shows] = (*bearing("alice").items(),)
ROOT: Final[Shows] = (*bearing("root").items(),)
"""A super user."""


def node(role: Role, on_behalf: str | None = None) -> Shows:
    """What node 1 of a role shows, for itself or for a user."""
    forwarded: Shows = () if on_behalf is None else ((FORWARDED_KEY, key_text(on_behalf).encode()),)
    return ((NODE_KEY, str(NodeKey(role, NodeId(1)))), (TOKEN_KEY, "secret"), *forwarded)


@dataclass
class Guarded:
    """See the module's text. What is changed here is so in the next image."""

    broker: Broker
    cluster: FakeCluster
    access: Access
    target: str
    stack: AsyncExitStack
    transactions: FakeTransactions
    rows: Rows = field(
        default_factory=lambda: Rows(
            keys=[key_of("alice"), key_of("carol"), key_of("root")], super_users=frozenset({user("root")})
        )
    )

    async def show(self, image: ClusterImage | None = None) -> None:
        """The next image, with the rows; returns when the broker acts on it."""
        self.cluster.show(replace(self.rows.image(image or self.cluster.image), feature_level=HIGHEST))
        self.access.look()
        await self.broker.follower.wait_for_image(self.cluster.image.revision)

    async def turn(self, mode: Mode) -> None:
        """The cluster is in this mode."""
        self.rows.mode = mode
        await self.show()

    async def allow(self, *grants: Grant, who: str = "alice") -> None:
        """These and no others are the grants of a user."""
        self.rows.rules = {**self.rows.rules, user(who): frozenset(grants)}
        await self.show()

    async def stub(self, shows: Shows) -> BrokerAsyncStub:
        """A connection of somebody who shows this."""
        return BrokerStub(await self.channel(shows))

    async def channel(self, shows: Shows) -> grpc.aio.Channel:
        """The same, for another service of the broker."""
        channel = open_channel(self.target, Security(lambda _: shows), own_connection=True)
        return await self.stack.enter_async_context(channel)


@asynccontextmanager
async def guarded_broker(**topics: int) -> AsyncIterator[Guarded]:
    """A broker that leads ``topics`` (name to partition count); the cluster is closed, and alice may nothing."""
    cluster = FakeCluster()
    gate = NodeGate(Fixed(), lambda: cluster.image)
    access = Access(lambda: cluster.image, gate, SystemClock())
    transactions = FakeTransactions()
    guard, settings = Guard(gate, None, access, ACCESS), EngineSettings(flush=Flush.OS)
    async with (
        running_broker(MemoryLogs(), cluster, settings=settings, transactions=transactions, guard=guard) as (
            broker,
            server,
        ),
        AsyncExitStack() as stack,
    ):
        guarded = Guarded(broker, cluster, access, f"127.0.0.1:{server.port}", stack, transactions)
        await guarded.show(image_of(topics))
        yield guarded
