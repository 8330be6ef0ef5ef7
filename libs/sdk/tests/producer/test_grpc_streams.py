"""Streams over real connections: silence, breaks, and coming back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from headrace._transport.grpc import GrpcTransport
from headrace.errors import NetworkFailed, RequestTimedOut
from headrace_common.core.ids import NodeId
from headrace_common.rpc.options import server_options
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import broker_pb2_grpc, cluster_pb2

ME = NodeId(1)


class Broker:
    """Answers what ``answers`` holds: True for an answer, False for silence."""

    def __init__(self) -> None:
        self.port = 0
        self.answers = True
        self.ignored: set[int] = set()
        """Requests that get no answer, by their numbers."""
        self.streams = 0
        self.received: list[int] = []

    async def metadata(self, request: pb.MetadataRequest, context: object) -> pb.MetadataResponse:
        answer = pb.MetadataResponse(cluster_id="c", revision=1)
        node = answer.nodes.add(role=cluster_pb2.BROKER, id=ME)
        node.grpc.host, node.grpc.port = "127.0.0.1", self.port
        return answer

    async def produce(
        self, requests: AsyncIterator[pb.ProduceRequest], context: object
    ) -> AsyncIterator[pb.ProduceResponse]:
        self.streams += 1
        async for request in requests:
            self.received.append(request.correlation_id)
            if self.answers and request.correlation_id not in self.ignored:
                yield pb.ProduceResponse(correlation_id=request.correlation_id)

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[None]:
        server = grpc.aio.server(options=server_options())
        handlers = {
            "Metadata": grpc.unary_unary_rpc_method_handler(
                self.metadata, pb.MetadataRequest.FromString, pb.MetadataResponse.SerializeToString
            ),
            "Produce": grpc.stream_stream_rpc_method_handler(
                self.produce, pb.ProduceRequest.FromString, pb.ProduceResponse.SerializeToString
            ),
        }
        name = broker_pb2_grpc.BrokerStub.__module__ and "headrace.v1.Broker"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        self.port = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)


async def connected(broker: Broker) -> GrpcTransport:
    transport = GrpcTransport([f"127.0.0.1:{broker.port}"])
    await transport.metadata(pb.MetadataRequest())
    return transport


def request(timeout_ms: int = 20_000) -> pb.ProduceRequest:
    return pb.ProduceRequest(acks=-1, timeout_ms=timeout_ms)


async def test_silence_breaks_the_stream_and_the_next_request_opens_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace._transport.grpc.ANSWER_ALLOWANCE_MS", 0)
    broker = Broker()
    async with broker.serve():
        transport = await connected(broker)
        stream = transport.produce_stream(ME)
        broker.answers = False
        slow = asyncio.ensure_future(stream.send(request()))
        quick = asyncio.ensure_future(stream.send(request(timeout_ms=50)))
        with pytest.raises(RequestTimedOut):
            await quick
        with pytest.raises(NetworkFailed, match="unknown"):
            await slow
        broker.answers = True
        assert (await stream.send(request())).correlation_id == 1
        assert broker.streams == 2
        await transport.close()


async def test_one_request_without_an_answer_breaks_the_stream_though_others_have_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace._transport.grpc.ANSWER_ALLOWANCE_MS", 0)
    broker = Broker()
    broker.ignored = {1, 3}
    async with broker.serve():
        transport = await connected(broker)
        stream = transport.produce_stream(ME)
        late = asyncio.ensure_future(stream.send(request(timeout_ms=300)))
        assert (await stream.send(request())).correlation_id == 2
        other = asyncio.ensure_future(stream.send(request()))
        with pytest.raises(RequestTimedOut):
            await late
        with pytest.raises(NetworkFailed, match="unknown"):
            async with asyncio.timeout(5):
                await other
        broker.ignored.clear()
        assert (await stream.send(request())).correlation_id == 1
        assert broker.streams == 2
        await transport.close()


async def test_requests_arrive_in_the_order_of_the_calls() -> None:
    broker = Broker()
    async with broker.serve():
        transport = await connected(broker)
        stream = transport.produce_stream(ME)
        await asyncio.gather(*[stream.send(request()) for _ in range(200)])
        assert broker.received == list(range(1, 201))
        await transport.close()


async def test_a_broker_that_comes_back_is_found_again() -> None:
    broker = Broker()
    async with broker.serve():
        transport = await connected(broker)
        stream = transport.produce_stream(ME)
        await stream.send(request())
        broker.answers = False
        waiting = asyncio.ensure_future(stream.send(request()))
        while len(broker.received) < 2:
            await asyncio.sleep(0)
    with pytest.raises(NetworkFailed):
        await waiting
    with pytest.raises(NetworkFailed):
        await stream.send(request())
    broker.answers = True
    async with broker.serve(broker.port):
        while True:
            try:
                await stream.send(request())
                break
            except NetworkFailed:
                await asyncio.sleep(0.05)  # between attempts, as a producer's backoff does
        await transport.close()


async def test_a_broker_at_a_new_address_is_followed() -> None:
    broker = Broker()
    async with broker.serve():
        first_port = broker.port
        transport = await connected(broker)
        await transport.produce_stream(ME).send(request())
        async with broker.serve():
            assert broker.port != first_port
            await transport.metadata(pb.MetadataRequest())
            await transport.produce_stream(ME).send(request())
            assert f"127.0.0.1:{broker.port}" in transport._channels
            await transport.close()
