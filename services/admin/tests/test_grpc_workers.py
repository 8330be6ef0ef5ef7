"""The adapter that asks workers of streams, against a server of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pyarrow as pa
import pytest

from headrace_admin.adapters.grpc_workers import GrpcWorkers
from headrace_admin.ports import StoreFacts
from headrace_common.core.errors import NetworkFailed, NotCoordinator
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.interceptor import ErrorInterceptor
from headrace_proto.v1 import streams_pb2 as pb
from headrace_proto.v1 import streams_pb2_grpc

ROWS = pa.table({"user": ["ann", "ann"], "n": [1, 2]})
KEYS = pa.schema([pa.field("user", pa.string()), pa.field("day", pa.date32())])


class Servicer(streams_pb2_grpc.StreamsQueryServicer):
    async def DescribeStores(self, request: pb.DescribeStoresRequest, context: Any) -> pb.DescribeStoresResponse:
        stores = [
            pb.StreamsStore(name="a", sub_topology="x", partitions=2, key_schema=KEYS.serialize().to_pybytes()),
            pb.StreamsStore(name="b", sub_topology="y", partitions=1),
        ]
        return pb.DescribeStoresResponse(stores=stores)

    async def LocateKey(self, request: pb.LocateKeyRequest, context: Any) -> pb.LocateKeyResponse:
        return pb.LocateKeyResponse(key="|".join(request.columns).encode(), partition=1)

    async def QueryStore(self, request: pb.QueryStoreRequest, context: Any) -> AsyncIterator[pb.QueryStoreResponse]:
        if request.store == "moved":
            raise NotCoordinator("elsewhere")
        if request.store == "none":
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, ROWS.schema) as writer:
            writer.write_table(ROWS)
        whole = sink.getvalue().to_pybytes()
        for start in range(0, len(whole), 100):
            yield pb.QueryStoreResponse(arrow=whole[start : start + 100])


@pytest.fixture
async def at() -> AsyncIterator[Endpoint]:
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    streams_pb2_grpc.add_StreamsQueryServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield Endpoint("127.0.0.1", port)
    await server.stop(None)


async def test_a_worker_is_asked(at: Endpoint) -> None:
    workers = GrpcWorkers(10_000)
    assert await workers.stores(at) == [
        StoreFacts("a", "x", 2, {"user": "string", "day": "date32[day]"}),
        StoreFacts("b", "y", 1, {}),
    ]
    located = await workers.locate(at, pb.LocateKeyRequest(store="a", columns=["ann", "1"]))
    assert (located.key, located.partition) == (b"ann|1", 1)
    assert await workers.rows(at, pb.QueryStoreRequest(store="a")) == ROWS.to_pylist()
    assert await workers.rows(at, pb.QueryStoreRequest(store="none")) == []
    with pytest.raises(NotCoordinator, match="elsewhere"):
        await workers.rows(at, pb.QueryStoreRequest(store="moved"))
    await workers.close()


async def test_a_worker_that_is_gone() -> None:
    workers = GrpcWorkers(10_000)
    with pytest.raises(NetworkFailed, match="the connection failed"):
        await workers.stores(Endpoint("127.0.0.1", 1))
    await workers.close()
