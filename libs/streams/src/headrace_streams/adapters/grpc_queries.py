"""``StreamsQuery``: questions to a worker over gRPC."""
# ruff: noqa: N802 - methods have the names of the proto

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import grpc.aio
import pyarrow as pa

from headrace_common.core.errors import Rejected
from headrace_common.core.ids import Endpoint
from headrace_common.core.image import Listener
from headrace_common.core.worker_address import STREAMS_HOST, WorkerAddress
from headrace_common.rpc.interceptor import ErrorInterceptor
from headrace_common.rpc.options import ServerLimits, server_options
from headrace_common.runtime.descriptors import connections_max
from headrace_common.runtime.service import ServerConfig, listening
from headrace_common.runtime.service_tls import ServiceTls
from headrace_proto.v1 import streams_pb2 as pb
from headrace_proto.v1 import streams_pb2_grpc
from headrace_streams.ports import Answering, Question

_RPCS_MAX: Final = 100
_REQUEST_BYTES_MAX: Final = 1 << 20
_PART_BYTES: Final = 1 << 20

LetIn: TypeAlias = Callable[[bytes, str, str], Awaitable[None]]
"""Raises what is said to who may not ask: given what it shows, where it asks, and for which store, if any."""


class Servicer(streams_pb2_grpc.StreamsQueryServicer):
    """Satisfies the generated service."""

    def __init__(self, answering: Answering, let_in: LetIn) -> None:
        self._answering = answering
        self._let_in = let_in
        self.endpoint = ""
        """Where others ask, as the group has it."""

    async def DescribeStores(self, request: pb.DescribeStoresRequest, context: Any) -> pb.DescribeStoresResponse:
        await self._let_in(request.ticket, self.endpoint, "")
        return pb.DescribeStoresResponse(
            stores=[
                pb.StreamsStore(
                    name=one.name,
                    sub_topology=one.sub_topology,
                    partitions=one.partitions,
                    key_schema=pa.schema(one.keys).serialize().to_pybytes() if one.keys else b"",
                )
                for one in self._answering.stores()
            ]
        )

    async def LocateKey(self, request: pb.LocateKeyRequest, context: Any) -> pb.LocateKeyResponse:
        await self._let_in(request.ticket, self.endpoint, request.store)
        key, partition = self._answering.locate(request.store, request.columns)
        return pb.LocateKeyResponse(key=key, partition=partition)

    async def QueryStore(self, request: pb.QueryStoreRequest, context: Any) -> AsyncIterator[pb.QueryStoreResponse]:
        await self._let_in(request.ticket, self.endpoint, request.store)
        key = request.key if request.HasField("key") else None
        record = request.at_least
        if request.HasField("at_least") and record.partition != request.partition:
            raise Rejected(
                f"task {request.partition} of {request.store!r} does not read partition {record.partition} of "
                f"{record.topic}"
            )
        first = request.first_key if request.HasField("first_key") else None
        last = request.last_key if request.HasField("last_key") else None
        ranged = first is not None or last is not None
        if ranged and key is not None:
            raise Rejected("ask for one key, or for those from first_key to last_key")
        question = Question(
            request.store,
            request.partition,
            key,
            request.stale,
            record.topic,
            record.offset,
            request.wait_ms,
            first,
            last,
        )
        rows = await self._answering.rows(question)
        if record.topic or ranged:
            yield pb.QueryStoreResponse(contains=bool(record.topic), ranged=ranged)
        if rows is None:
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        whole = memoryview(sink.getvalue())
        for start in range(0, len(whole), _PART_BYTES):
            yield pb.QueryStoreResponse(arrow=bytes(whole[start : start + _PART_BYTES]))


@asynccontextmanager
async def open_queries(
    answering: Answering, listen: Endpoint, advertise: str | None, let_in: LetIn, tls: ServiceTls | None = None
) -> AsyncIterator[WorkerAddress]:
    """
    Answer those who are ``let_in`` until the block ends; gives the address for others.

    Args:
        tls: None: in plain text. What others are told says by which name its certificate is known.

    Raises:
        CannotListen: the address is taken or not of this machine.
    """
    servicer = Servicer(answering, let_in)

    def make(shared_port: bool) -> grpc.aio.Server:
        server = grpc.aio.server(
            interceptors=[ErrorInterceptor()],
            options=server_options(ServerLimits(_REQUEST_BYTES_MAX, connections_max()), shared_port=shared_port),
            maximum_concurrent_rpcs=_RPCS_MAX,
        )
        streams_pb2_grpc.add_StreamsQueryServicer_to_server(servicer, server)
        return server

    serving = None if tls is None else tls.serving(Listener.CLIENT)
    async with listening(make, listen, serving) as (server, port):
        endpoint = ServerConfig(advertise_host=advertise).choose_endpoint(port, listen_host=listen.host)
        address = WorkerAddress(endpoint)
        if tls is not None and tls.dials:
            address = WorkerAddress(endpoint, tls=True, by_kind=tls.names(STREAMS_HOST))
        servicer.endpoint = str(address)
        try:
            yield address
        finally:
            await server.stop(None)
