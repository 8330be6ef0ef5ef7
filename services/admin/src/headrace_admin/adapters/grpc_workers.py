"""
The ``Workers`` port: one channel per address that a worker of streams said to its group. Workers are clients, not nodes
of the cluster, so they are shown nothing of this node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace_admin.ports import StoreFacts
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import PLAIN, Channels
from headrace_proto.v1 import streams_pb2 as pb
from headrace_proto.v1.streams_pb2_grpc import StreamsQueryStub

if TYPE_CHECKING:
    from headrace_proto.v1.streams_pb2_grpc import StreamsQueryAsyncStub

_CHANNELS_MAX: Final = 64
"""Addresses that are kept; workers come and go."""


class GrpcWorkers:
    """Channels are opened when first used and closed with ``close``, or when there are too many."""

    def __init__(self, timeout_ms: float) -> None:
        self._timeout = timeout_ms / 1_000
        self._channels: Channels[Endpoint] = Channels(PLAIN)

    async def stores(self, at: Endpoint) -> list[StoreFacts]:
        stub = await self._stub(at)
        with CallTo(f"the worker at {at}"):
            found = await stub.DescribeStores(pb.DescribeStoresRequest(), timeout=self._timeout)
        return [
            StoreFacts(one.name, one.sub_topology, one.partitions, _columns(one.key_schema)) for one in found.stores
        ]

    async def locate(self, at: Endpoint, request: pb.LocateKeyRequest) -> pb.LocateKeyResponse:
        stub = await self._stub(at)
        with CallTo(f"the worker at {at}"):
            return await stub.LocateKey(request, timeout=self._timeout)

    async def rows(self, at: Endpoint, request: pb.QueryStoreRequest) -> list[dict[str, Any]]:
        stub = await self._stub(at)
        with CallTo(f"the worker at {at}"):
            arrow = b"".join([part.arrow async for part in stub.QueryStore(request, timeout=self._timeout)])
        return _rows(arrow) if arrow else []

    async def close(self) -> None:
        """Close the connections."""
        await self._channels.close()

    async def _stub(self, at: Endpoint) -> StreamsQueryAsyncStub:
        stub: StreamsQueryAsyncStub = StreamsQueryStub(self._channels.to(at))
        await self._channels.trim(_CHANNELS_MAX)
        return stub


# Arrow takes a second to load: a service starts without it.


def _rows(stream: bytes) -> list[dict[str, Any]]:
    import pyarrow as pa

    return pa.ipc.open_stream(pa.py_buffer(stream)).read_all().to_pylist()


def _columns(schema: bytes) -> dict[str, str]:
    import pyarrow as pa

    return {field.name: str(field.type) for field in pa.ipc.read_schema(pa.py_buffer(schema))} if schema else {}
