"""
The ``Workers`` port: one channel per address that a worker of streams said to its group. Workers are clients, not nodes
of the cluster, so they are shown nothing of this node, and of its callers tickets alone: whoever may join a group may
say that it is asked at some address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from headrace_admin.ports import StoreFacts
from headrace_common.core.access.tickets import HeldTickets
from headrace_common.core.errors import Rejected, Unauthenticated
from headrace_common.core.ids import Endpoint
from headrace_common.core.worker_address import STREAMS_HOST, WorkerAddress
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import PLAIN, Channels, Security
from headrace_common.runtime.access_gate import current_bearer, current_shown
from headrace_common.runtime.clock import Clock
from headrace_proto.v1 import streams_pb2 as pb
from headrace_proto.v1.streams_pb2_grpc import StreamsQueryStub
from headrace_proto.v1.tickets_pb2 import AccessQuestion, IssueTicketRequest, IssueTicketResponse, TicketAudience

if TYPE_CHECKING:
    from headrace_proto.v1.streams_pb2_grpc import StreamsQueryAsyncStub

T = TypeVar("T")

IssueTicket: TypeAlias = Callable[[IssueTicketRequest], Awaitable[IssueTicketResponse]]

_CHANNELS_MAX: Final = 64
"""Addresses that are kept; workers come and go."""


class GrpcWorkers:
    """Channels are opened when first used and closed with ``close``, or when there are too many."""

    def __init__(
        self, timeout_ms: float, issue_ticket: IssueTicket, clock: Clock, trust: Security | None = None
    ) -> None:
        """
        Args:
            issue_ticket: asks the cluster for one, as the caller of the running handler.
            trust: the CAs of workers that speak TLS, with nothing to show; None: there are none, and those are not
                asked.
        """
        self._timeout = timeout_ms / 1_000
        self._issue_ticket = issue_ticket
        self._clock = clock
        self._tickets = HeldTickets()
        self._plain: Channels[Endpoint] = Channels(PLAIN)
        self._by_host: Channels[Endpoint] | None = None
        self._by_kind: Channels[Endpoint] | None = None
        if trust is not None:
            self._by_host = Channels(trust)
            self._by_kind = Channels(replace(trust, server_name=lambda _: STREAMS_HOST))

    async def stores(self, app: str, at: WorkerAddress) -> list[StoreFacts]:
        async def ask(stub: StreamsQueryAsyncStub, ticket: bytes) -> pb.DescribeStoresResponse:
            return await stub.DescribeStores(pb.DescribeStoresRequest(ticket=ticket), timeout=self._timeout)

        found = await self._ask(app, at, "", ask)
        return [
            StoreFacts(one.name, one.sub_topology, one.partitions, _columns(one.key_schema)) for one in found.stores
        ]

    async def locate(self, app: str, at: WorkerAddress, request: pb.LocateKeyRequest) -> pb.LocateKeyResponse:
        async def ask(stub: StreamsQueryAsyncStub, ticket: bytes) -> pb.LocateKeyResponse:
            request.ticket = ticket
            return await stub.LocateKey(request, timeout=self._timeout)

        return await self._ask(app, at, request.store, ask)

    async def rows(self, app: str, at: WorkerAddress, request: pb.QueryStoreRequest) -> list[dict[str, Any]]:
        async def ask(stub: StreamsQueryAsyncStub, ticket: bytes) -> bytes:
            request.ticket = ticket
            return b"".join([part.arrow async for part in stub.QueryStore(request, timeout=self._timeout)])

        arrow = await self._ask(app, at, request.store, ask)
        return _rows(arrow) if arrow else []

    async def _ask(
        self, app: str, at: WorkerAddress, store: str, ask: Callable[[StreamsQueryAsyncStub, bytes], Awaitable[T]]
    ) -> T:
        """With a ticket where the worker wants to see one."""
        key, now_ms = (current_bearer(), current_shown().caller, app, at, store), self._clock.monotonic_ms()
        ticket = self._tickets.find(key, now_ms)
        stub = await self._stub(at)
        try:
            with CallTo(f"the worker at {at}"):
                return await ask(stub, ticket)
        except Unauthenticated:
            audience = TicketAudience(group=app, endpoint=str(at), purpose=store)
            asked_ms = self._clock.monotonic_ms()
            made = await self._issue_ticket(
                IssueTicketRequest(
                    audience=audience, questions=[AccessQuestion(operation="READ", type="GROUP", name=app)]
                )
            )
            self._tickets.keep(key, made.ticket, made.life_ms, asked_ms)
            with CallTo(f"the worker at {at}"):
                return await ask(stub, made.ticket)

    async def close(self) -> None:
        """Close the connections."""
        for channels in (self._plain, self._by_host, self._by_kind):
            if channels is not None:
                await channels.close()

    async def _stub(self, at: WorkerAddress) -> StreamsQueryAsyncStub:
        by_tls = self._by_kind if at.by_kind else self._by_host
        channels = by_tls if at.tls else self._plain
        if channels is None:
            raise Rejected(f"the worker at {at} speaks TLS, and this admin service has no CAs: set tls_ca")
        stub: StreamsQueryAsyncStub = StreamsQueryStub(channels.to(at.endpoint))
        await channels.trim(_CHANNELS_MAX)
        return stub


# Arrow takes a second to load: a service starts without it.


def _rows(stream: bytes) -> list[dict[str, Any]]:
    import pyarrow as pa

    return pa.ipc.open_stream(pa.py_buffer(stream)).read_all().to_pylist()


def _columns(schema: bytes) -> dict[str, str]:
    import pyarrow as pa

    return {field.name: str(field.type) for field in pa.ipc.read_schema(pa.py_buffer(schema))} if schema else {}
