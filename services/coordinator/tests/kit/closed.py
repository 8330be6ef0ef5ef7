"""A coordinator over gRPC in a cluster that decides who may what: for dialogues with callers of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc.aio
from libs.common.tests.kit.access import allow
from libs.common.tests.kit.closed import Rows, bearing, key_of, key_text, user
from libs.common.tests.kit.fixed_tokens import Fixed
from services.coordinator.tests.kit.dialogue import QUICK, Running, running_engine, serving
from services.coordinator.tests.kit.ports import MemoryCluster
from services.coordinator.tests.kit.shard_logs import MemoryShardLogs

from headrace_common.core import features
from headrace_common.core.access.resources import Operation, ResourceType, literal
from headrace_common.core.access.rows import Mode
from headrace_common.core.image import Role, ShardKind
from headrace_common.rpc.channels import Security, open_channel
from headrace_common.rpc.node_gate import FORWARDED_KEY, NODE_KEY, TOKEN_KEY, NodeGate
from headrace_common.runtime.access_gate import Access
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.listeners import Guard
from headrace_coordinator.rpc.access_table import ACCESS
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub
from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorStub

Granted = tuple[ResourceType, str, Operation]
"""A right: of what type and name, and to do what."""
Metadata = Mapping[str, str | bytes]

USERS = ("alice", "bob")
NOBODY: Metadata = {}


def as_user(name: str) -> Metadata:
    """What a call of a user shows."""
    return bearing(name)


def as_node(role: Role, on_behalf_of: str | None = None) -> Metadata:
    """What a call of a node shows."""
    shown: Metadata = {NODE_KEY: f"{role.value}-1", TOKEN_KEY: Fixed().shown}
    return shown if on_behalf_of is None else {**shown, FORWARDED_KEY: key_text(on_behalf_of).encode()}


@dataclass
class Closed:
    """Made by ``closed_coordinator``; ``USERS`` have keys and no rights."""

    running: Running
    access: Access
    rows: Rows = field(default_factory=lambda: Rows(keys=tuple(map(key_of, USERS))))
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    def grant(self, name: str, *rights: Granted) -> None:
        """A user has these rights, and no others."""
        rules = frozenset(allow(type, literal(resource), operation) for type, resource, operation in rights)
        self.rows.rules = {**self.rows.rules, user(name): rules}
        self.tell()

    def turn(self, mode: Mode) -> None:
        self.rows.mode = mode
        self.tell()

    def tell(self) -> None:
        """The cluster says what ``rows`` say."""
        self.running.cluster.govern(self.rows.image().access)
        self.access.look()

    async def channel(self, shown: Metadata) -> grpc.aio.Channel:
        """Of a caller that shows this with each call; open until the end."""
        channel = open_channel(str(self.running.endpoint), Security(lambda _: tuple(shown.items())))
        await self._open.enter_async_context(channel)
        return channel

    async def stub(self, shown: Metadata, service: str = "Coordinator") -> Any:
        """See ``channel``."""
        made: Any = CoordinatorStub if service == "Coordinator" else TransactionCoordinatorStub
        return made(await self.channel(shown))

    @property
    def written(self) -> int:
        """How much stands in the logs of all shards."""
        return sum(len(partition.records) for partition in self.running.logs.partitions.values())


@asynccontextmanager
async def closed_coordinator(
    topics: Mapping[str, int], *, grace_ms: int = QUICK.group_rejoin_grace_ms
) -> AsyncIterator[Closed]:
    """A coordinator with the only shard of groups and of transactions."""
    cluster = MemoryCluster(shards=1, topics=topics)
    cluster.rise(features.ACCESS.level)
    for kind in ShardKind:
        cluster.give(1, 0, kind=kind)
    gate = NodeGate(Fixed(), lambda: cluster.image)
    access = Access(lambda: cluster.image, gate, SystemClock())
    settings = replace(QUICK, group_rejoin_grace_ms=grace_ms)
    engine = running_engine(cluster, MemoryShardLogs(), settings=settings, near=True, access=access.control)
    async with engine as running:
        closed = Closed(running, access)
        closed.tell()
        async with serving(running, Guard(gate, None, access, ACCESS)), closed._open:
            for kind in ShardKind:
                await running.until_served(0, kind=kind)
            yield closed
