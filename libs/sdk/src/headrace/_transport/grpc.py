"""
The real cluster: connections, streams and calls over ``grpc.aio``. Decides nothing about records.

One channel per broker address, one ``Produce`` and one ``Fetch`` stream per broker. A stream is opened by the first
request and again by the first request after it broke; how fast a channel reconnects is bounded by its options
(``headrace_common.rpc.options``), and until then requests fail at once. A request that gets no answer in its time
breaks its stream: what is silent is not trusted with more.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import grpc
from grpc import aio

from headrace._runtime import Tasks
from headrace._transport.grpc_transactions import GrpcTransactionCalls
from headrace.errors import ClientClosed
from headrace_common.core.errors import HeadraceError, NetworkFailed, Overloaded, RequestTimedOut
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.rpc.options import channel_options
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import cluster_pb2
from headrace_proto.v1.admin_pb2_grpc import AdminStub
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

if TYPE_CHECKING:
    from headrace_proto.v1.admin_pb2_grpc import AdminAsyncStub  # exist for type checkers only
    from headrace_proto.v1.broker_pb2_grpc import BrokerAsyncStub

Q = TypeVar("Q", pb.ProduceRequest, pb.FetchRequest)
A = TypeVar("A", pb.ProduceResponse, pb.FetchResponse)
R = TypeVar("R")

ANSWER_ALLOWANCE_MS: Final = 2_000
"""Beyond a request's own time: the way there and back."""

METADATA_ATTEMPT_MS: Final = 3_000
"""How long one address may take to answer."""

HEDGE_MS: Final = 400
"""When an address has not answered after this time the next is asked beside it: a broker that is stopped is silent."""

AVOID_MS: Final = 5_000
"""How long an address that failed or was silent is asked after all others."""

RECONNECT_MS_MAX: Final = 250
"""Longest pause between attempts to reach a broker again: it may lead soon after it came back."""

CALL_TIMEOUT_MS: Final = 30_000
PENDING_MAX: Final = 10_000
"""Requests that may wait for answers on one stream."""

NO_ACKS: Final = 0


class _Call(Generic[Q, A]):
    """One gRPC call of a stream, from its opening to its end; a broken one is never used again."""

    def __init__(self, call: aio.StreamStreamCall[Q, A], where: str, tasks: Tasks) -> None:
        self.failure: HeadraceError | None = None
        self._call: aio.StreamStreamCall[Q, A] = call
        self._where = where
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, tuple[asyncio.Future[Any], asyncio.TimerHandle]] = {}
        self._queue: deque[tuple[Q, bool]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._tasks = (tasks.start(self._write(), f"write {where}"), tasks.start(self._read(), f"read {where}"))

    def send(self, request: Q, answered: bool, timeout_ms: float) -> asyncio.Future[Any]:
        """Queue ``request``; its future ends within ``timeout_ms``."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if len(self._pending) >= PENDING_MAX:
            future.set_exception(Overloaded(f"{PENDING_MAX} requests wait for {self._where}; wait for their answers"))
            return future
        number = request.correlation_id
        timer = self._loop.call_later(timeout_ms / 1_000, self._expired, number, timeout_ms)
        self._pending[number] = (future, timer)
        self._queue.append((request, answered))
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        return future

    async def _write(self) -> None:
        queue = self._queue
        try:
            while True:
                while queue:
                    request, answered = queue.popleft()
                    await self._call.write(request)
                    if not answered:
                        self._resolve(request.correlation_id, None)
                self._wake = self._loop.create_future()
                await self._wake
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # the reader learns why

    async def _read(self) -> None:
        try:
            while True:
                answer = await self._call.read()
                if not isinstance(answer, pb.ProduceResponse | pb.FetchResponse):
                    self.end(NetworkFailed(f"{self._where} ended the stream; the outcome is unknown"))
                    return
                self._resolve(answer.correlation_id, answer)
        except grpc.RpcError as error:
            cause = error_from_rpc(error)
            self.end(NetworkFailed(f"{self._where}: {cause}", code=cause.code if cause.retriable else None))
        except asyncio.InvalidStateError:
            self.end(NetworkFailed(f"{self._where}: the stream is gone; the outcome is unknown"))

    def _resolve(self, number: int, answer: Any) -> None:
        pending = self._pending.pop(number, None)
        if pending is None:
            return
        future, timer = pending
        timer.cancel()
        if not future.done():
            future.set_result(answer)

    def _expired(self, number: int, timeout_ms: float) -> None:
        future, _ = self._pending.pop(number)
        if not future.done():
            future.set_exception(RequestTimedOut(f"{self._where} did not answer within {timeout_ms:g} ms"))
        self.end(NetworkFailed(f"{self._where} did not answer another request; the outcome of this one is unknown"))

    def end(self, error: HeadraceError) -> None:
        """Fail what waits; idempotent."""
        if self.failure is not None:
            return
        self.failure = error
        for future, timer in self._pending.values():
            timer.cancel()
            if not future.done():
                future.set_exception(NetworkFailed(str(error), code=error.code))
                future.exception()  # whoever still waits sees it; nobody is warned about the others
        self._pending.clear()
        self._queue.clear()
        self._call.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()


class _Stream(Generic[Q, A]):
    """A stream to one broker over any number of calls, one at a time."""

    def __init__(self, open_call: Callable[[], _Call[Q, A]]) -> None:
        self._open_call: Callable[[], _Call[Q, A]] = open_call
        self._live: _Call[Q, A] | None = None
        self._numbers = 0
        self._closed = False

    def _send(self, request: Q, answered: bool, timeout_ms: float) -> Awaitable[Any]:
        live = self._live
        if live is None or live.failure is not None:
            try:
                if self._closed:
                    raise NetworkFailed("the stream is closed")
                live = self._live = self._open_call()
            except HeadraceError as error:
                future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                future.set_exception(error)
                return future
        self._numbers += 1
        request.correlation_id = self._numbers
        return live.send(request, answered, timeout_ms)

    async def close(self) -> None:
        """End the stream; requests in flight fail with ``NetworkFailed``."""
        self._closed = True
        self.end(NetworkFailed("the client was closed before the answer came"))

    def end(self, error: HeadraceError) -> None:
        """Break the call there is; the next request opens another."""
        if self._live is not None:
            self._live.end(error)


class GrpcProduceStream(_Stream[pb.ProduceRequest, pb.ProduceResponse]):
    """See ``port.ProduceStream``."""

    def send(self, request: pb.ProduceRequest) -> Awaitable[pb.ProduceResponse]:
        """Queue ``request`` and return its answer to come."""
        return self._send(request, request.acks != NO_ACKS, request.timeout_ms + ANSWER_ALLOWANCE_MS)


class GrpcFetchStream(_Stream[pb.FetchRequest, pb.FetchResponse]):
    """See ``port.FetchStream``."""

    def send(self, request: pb.FetchRequest) -> Awaitable[pb.FetchResponse]:
        """Queue ``request`` and return its answer to come."""
        return self._send(request, True, request.max_wait_ms + CALL_TIMEOUT_MS)

    def abandon(self) -> None:
        """Give up what is in flight; the next request opens another call."""
        self.end(NetworkFailed("given up by this client"))


def _channel_options() -> list[tuple[str, int]]:
    return list({**dict(channel_options()), "grpc.max_reconnect_backoff_ms": RECONNECT_MS_MAX}.items())


async def _outcome(ask: Callable[[BrokerAsyncStub], Awaitable[R]], stub: BrokerAsyncStub) -> R | HeadraceError:
    try:
        return await ask(stub)
    except grpc.RpcError as error:
        return error_from_rpc(error)


class GrpcTransport(GrpcTransactionCalls):
    """
    See ``port.Transport``. Made on any thread; used on one event loop.

    Raises:
        ClientClosed: this is a forked child of a process that had connections; gRPC hangs or crashes in such a child.
    """

    _connected_in: ClassVar[int | None] = None
    """The process that opened the first channel."""

    def __init__(self, bootstrap: Sequence[str], *, call_timeout_ms: float = CALL_TIMEOUT_MS) -> None:
        assert bootstrap, "at least one address"
        if GrpcTransport._connected_in not in (None, os.getpid()):
            raise ClientClosed(
                "this process was forked from one whose clients had connected, and gRPC does not survive that; "
                "start it with multiprocessing.get_context('spawn'), or fork before the first client is used"
            )
        self._bootstrap = list(bootstrap)
        self._call_timeout = call_timeout_ms / 1_000
        self._channels: dict[str, aio.Channel] = {}
        self._brokers: dict[NodeId, str] = {}
        self._admins: list[str] = []
        self._produce: dict[NodeId, GrpcProduceStream] = {}
        self._fetch: dict[NodeId, GrpcFetchStream] = {}
        self._answered: str | None = None
        self._avoided: dict[str, float] = {}
        """Until when to ask others first, by address."""
        self._tasks = Tasks()
        self._closed = False

    async def metadata(self, request: pb.MetadataRequest, *, elsewhere: bool = False) -> pb.MetadataResponse:
        """From any broker that answers; the brokers it names become known."""
        timeout = min(self._call_timeout, METADATA_ATTEMPT_MS / 1_000)
        answer = await self._first(lambda stub: stub.Metadata(request, timeout=timeout), elsewhere=elsewhere)
        await self._learn(answer)
        return answer

    async def _first(self, ask: Callable[[BrokerAsyncStub], Awaitable[R]], *, elsewhere: bool = False) -> R:
        """
        The first answer. Addresses are asked one after the other, the next when one fails or is silent for
        ``HEDGE_MS``; the one that answered last comes first, or with ``elsewhere`` last.
        """
        left = self._addresses(elsewhere)
        said: list[str] = []
        asked: dict[asyncio.Task[R | HeadraceError], str] = {}
        try:
            while left or asked:
                if left:
                    address = left.popleft()
                    asked[self._tasks.start(_outcome(ask, self._stub(address)), f"ask {address}")] = address
                wait_s = HEDGE_MS / 1_000 if left else None
                done, _ = await asyncio.wait(asked, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    address, outcome = asked.pop(task), task.result()
                    if not isinstance(outcome, HeadraceError):
                        self._answered = address
                        self._avoided.pop(address, None)
                        return outcome
                    said.append(f"{address}: {outcome}")
                    self._avoid(address)
        finally:
            for task, address in asked.items():
                self._avoid(address)
                task.cancel()
        raise NetworkFailed("no broker answered; is the cluster up? " + "; ".join(said))

    def _addresses(self, elsewhere: bool) -> deque[str]:
        """All that are known, in the order in which to ask."""
        known = dict.fromkeys([*self._brokers.values(), *self._bootstrap])
        now = asyncio.get_running_loop().time()
        self._avoided = {address: until for address, until in self._avoided.items() if until > now}
        order = [address for address in known if address not in self._avoided]
        if self._answered in order:
            at = order.index(self._answered)
            order = order[at + 1 :] + order[: at + 1] if elsewhere else order[at:] + order[:at]
        return deque([*order, *(address for address in known if address in self._avoided)])

    def _avoid(self, address: str) -> None:
        self._avoided[address] = asyncio.get_running_loop().time() + AVOID_MS / 1_000

    async def _learn(self, answer: pb.MetadataResponse) -> None:
        admins: list[str] = []
        brokers: dict[NodeId, str] = {}
        for node in answer.nodes:
            address = str(Endpoint(node.grpc.host, node.grpc.port))
            if node.role == cluster_pb2.BROKER:
                brokers[NodeId(node.id)] = address
            elif node.role == cluster_pb2.ADMIN:
                admins.append(address)
        moved = {b: old for b, old in self._brokers.items() if brokers.get(b, old) != old}
        self._brokers.update(brokers)
        self._admins = admins
        for broker, address in moved.items():
            for stream in (self._produce.get(broker), self._fetch.get(broker)):
                if stream is not None:
                    stream.end(NetworkFailed(f"broker {broker} is no longer at {address}; the outcome is unknown"))
        for address in set(moved.values()).difference(self._brokers.values(), self._bootstrap):
            await self._drop(address)

    async def _drop(self, address: str) -> None:
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    def produce_stream(self, broker: NodeId) -> GrpcProduceStream:
        """The one produce stream to that broker."""
        stream = self._produce.get(broker)
        if stream is None:

            def open_call() -> _Call[pb.ProduceRequest, pb.ProduceResponse]:
                return _Call(self._broker(broker).Produce(), self._name(broker), self._tasks)

            stream = self._produce[broker] = GrpcProduceStream(open_call)
        return stream

    def fetch_stream(self, broker: NodeId) -> GrpcFetchStream:
        """The one fetch stream to that broker."""
        stream = self._fetch.get(broker)
        if stream is None:

            def open_call() -> _Call[pb.FetchRequest, pb.FetchResponse]:
                return _Call(self._broker(broker).Fetch(), self._name(broker), self._tasks)

            stream = self._fetch[broker] = GrpcFetchStream(open_call)
        return stream

    async def list_offsets(self, broker: NodeId, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        """Raises: ``HeadraceError`` when the call as a whole failed."""
        try:
            return await self._broker(broker).ListOffsets(
                request, timeout=self._call_timeout + request.max_wait_ms / 1_000
            )
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error

    async def init_producer_id(self, request: pb.InitProducerIdRequest) -> pb.InitProducerIdResponse:
        """From any broker."""
        timeout = min(self._call_timeout, METADATA_ATTEMPT_MS / 1_000)
        return await self._first(lambda stub: stub.InitProducerId(request, timeout=timeout))

    def sibling(self) -> GrpcTransport:
        """Connections of their own, for another event loop."""
        addresses = list(dict.fromkeys([*self._bootstrap, *self._brokers.values()]))
        return GrpcTransport(addresses, call_timeout_ms=self._call_timeout * 1_000)

    async def admin(self) -> AdminAsyncStub:
        """A stub of the admin service."""
        await self.metadata(pb.MetadataRequest())
        if not self._admins:
            raise NetworkFailed("the cluster has no admin service; start one, for example with `headrace up`")
        return AdminStub(self._channel(self._admins[0]))

    async def close(self) -> None:
        """Close all streams and connections. Idempotent."""
        self._closed = True
        for produce in self._produce.values():
            await produce.close()
        for fetch in self._fetch.values():
            await fetch.close()
        await self._tasks.close()
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    def _channel(self, address: str) -> aio.Channel:
        if self._closed:
            raise NetworkFailed("the client is closed")
        channel = self._channels.get(address)
        if channel is None:
            GrpcTransport._connected_in = os.getpid()
            channel = self._channels[address] = aio.insecure_channel(address, options=_channel_options())
        return channel

    def _stub(self, address: str) -> BrokerAsyncStub:
        return BrokerStub(self._channel(address))

    def _broker(self, broker: NodeId) -> BrokerAsyncStub:
        address = self._brokers.get(broker)
        if address is None:
            raise NetworkFailed(f"broker {broker} is not in the cluster's metadata; refresh it")
        return self._stub(address)

    def _name(self, broker: NodeId) -> str:
        return f"broker {broker} at {self._brokers[broker]}"
