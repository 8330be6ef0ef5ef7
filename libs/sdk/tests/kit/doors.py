"""A broker that is closed to whoever shows no key: what a test gives keys to, and takes them from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import Any

from libs.common.tests.kit.clock import FakeClock
from services.broker.tests.kit.cluster import FakeCluster, image_of
from services.broker.tests.kit.dialogue import running_broker

from headrace_broker.adapters.memory_log import MemoryLogs
from headrace_common.core.access.api_keys import ID_BYTES, SECRET_BYTES, ApiKey, digest_of, format_key, parse_key
from headrace_common.core.access.issuers import IssuerKeys
from headrace_common.core.access.principal import Principal, PrincipalType
from headrace_common.core.access.rows import (
    CONFIGURED,
    STATE,
    Configured,
    Mode,
    changed_quotas,
    write_configured,
    write_issuer,
    write_key,
    write_state,
)
from headrace_common.core.ids import Endpoint
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage
from headrace_common.core.quotas.entities import Entity
from headrace_common.core.quotas.kinds import Quota
from headrace_common.core.quotas.state import Quotas, alter
from headrace_common.rpc.access_rules import ANYBODY
from headrace_common.rpc.node_gate import NodeGate
from headrace_common.runtime.access_gate import Access, AccessGate
from headrace_common.runtime.service import GrpcService, ServerConfig, Servicer
from headrace_proto.v1 import (
    admin_pb2,
    broker_pb2,
    coordinator_pb2,
    coordinator_pb2_grpc,
    transaction_pb2,
    transaction_pb2_grpc,
)

_numbers = count(1)
ALICE = Principal(PrincipalType.USER, "alice")
ALICE_BY_TOKEN = Principal(PrincipalType.OIDC, "idp/alice")


def _operations() -> list[str]:
    services = (
        service
        for module in (admin_pb2, broker_pb2, coordinator_pb2, transaction_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
    )
    return [f"{service.name}/{method.name}" for service in services for method in service.methods]


class _CountingAccess(Access):
    """Counts the streams that it has ended."""

    cut = 0

    def _end_if_over(self, stream: Any) -> None:
        super()._end_if_over(stream)
        self.cut += stream.over is not None


class Door:
    """Who is let in; changes hold at once. Closed from the beginning; nobody has a key, and alice may everything."""

    def __init__(self, clock: Any = None) -> None:
        self.clock = clock or FakeClock()
        self._last = EMPTY_IMAGE
        self._rows: dict[str, bytes] = {
            STATE: write_state(Mode.CLOSED, 1),
            CONFIGURED: write_configured(Configured(frozenset({ALICE, ALICE_BY_TOKEN}))),
        }
        self._access = _CountingAccess(self._image, NodeGate(), self.clock)
        self.gate = AccessGate(self._access, dict.fromkeys(_operations(), ANYBODY), takes_nodes=False)

    def _image(self) -> ClusterImage:
        rows = MappingProxyType(dict(self._rows))
        if self._last.access != rows:
            self._last = replace(EMPTY_IMAGE, revision=len(self._rows), access=rows)
        return self._last

    @property
    def cut(self) -> int:
        """How many streams were ended because what they were begun with was over, or was taken back."""
        return self._access.cut

    def make_key(self, life_ms: float | None = None) -> str:
        """Another key, of alice; for so long from now on. None: for ever."""
        number = next(_numbers)
        text = format_key(number.to_bytes(ID_BYTES, "big"), number.to_bytes(SECRET_BYTES, "big"))
        id, secret = parse_key(text)
        expires_ms = None if life_ms is None else int(self.clock.now_ms() + life_ms)
        row, value = write_key(ApiKey(id, ALICE, digest_of(secret), created_ms=0, expires_ms=expires_ms))
        self._rows[row] = value
        self._access.look()
        return text

    def revoke(self, text: str) -> None:
        """The key is known no more, and streams that were begun with it end."""
        del self._rows[f"keys/{parse_key(text).id}"]
        self._access.look()

    def trust(self, known: IssuerKeys) -> None:
        """Tokens of this issuer by these keys alone let in, too."""
        self._rows |= [write_issuer(known)]
        self._access.look()

    def limit(self, entity: Entity, quota: Quota, value: float) -> None:
        """Set a quota."""
        self._rows |= changed_quotas(Quotas(), alter(Quotas(), [(entity, {quota: value})]))
        self._access.look()

    def bound(self, calls: int) -> None:
        """So many calls of one principal at a time; 0: no bound."""
        self._access.calls_per_principal_max = calls

    @property
    def streams(self) -> int:
        """That are open."""
        return self._access.streams

    def open(self) -> None:
        """Everybody may come."""
        self._rows[STATE] = write_state(Mode.OPEN, 1)
        self._access.look()


@asynccontextmanager
async def closed_coordinator(door: Door) -> AsyncIterator[Endpoint]:
    """The address of a coordinator behind ``door`` that answers nothing else than who may not come in."""
    coordinator: Any = coordinator_pb2_grpc.CoordinatorServicer
    transactions: Any = transaction_pb2_grpc.TransactionCoordinatorServicer
    servicers: list[Servicer] = [
        (coordinator_pb2_grpc.add_CoordinatorServicer_to_server, coordinator()),
        (transaction_pb2_grpc.add_TransactionCoordinatorServicer_to_server, transactions()),
    ]
    async with GrpcService.open(ServerConfig(), servicers, interceptors=[door.gate]) as server:
        yield Endpoint("127.0.0.1", server.port)


@asynccontextmanager
async def closed_broker(door: Door, topics: Mapping[str, int]) -> AsyncIterator[Endpoint]:
    """The address of a broker behind ``door`` that leads ``topics``."""
    cluster = FakeCluster()
    async with running_broker(MemoryLogs(), cluster, interceptors=[door.gate]) as (broker, server):
        endpoint = Endpoint("127.0.0.1", server.port)
        cluster.show(image_of(topics, endpoint=endpoint))
        await broker.follower.changed.wait()
        yield endpoint
