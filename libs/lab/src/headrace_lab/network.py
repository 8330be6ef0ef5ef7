"""
What gRPC is between processes, between nodes of one loop: the same calls, the same ends of calls, and faults.

``LabGrpc`` stands where the ``grpc`` package stands for who opens channels and servers. Messages travel as bytes, so
nobody shares one. A connection keeps their order, as TCP does; how long each takes is drawn.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from headrace_lab.loop import NODE, LabLoop, Node

EOF: Final = grpc.aio.EOF
WINDOW_BYTES: Final = 4 << 20
KEEPALIVE_S: Final = 10.0
REFUSED: Final = "failed to connect to all addresses; last error: UNKNOWN: Failed to connect to remote host: connection refused"


class Status(NamedTuple):
    """How a call ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: tuple[tuple[str, Any], ...] = ()


OK: Final = Status(grpc.StatusCode.OK)
CANCELLED: Final = Status(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")


@dataclass(slots=True)
class Faults:
    """Of one way between two nodes."""

    delay_s: tuple[float, float] = (0.0001, 0.0005)
    cut: bool = False


class Network:
    """All servers and connections of one loop."""

    def __init__(self, loop: LabLoop) -> None:
        self.loop = loop
        self.servers: dict[str, LabServer] = {}
        self.connections: list[Connection] = []
        self.ways: dict[tuple[Node, Node], Faults] = {}
        self.messages = 0
        self._port = 20_000
        self._plain = Faults()

    def port(self) -> int:
        """A free one."""
        self._port += 1
        return self._port

    def way(self, source: Node, target: Node) -> Faults:
        return self.ways.get((source, target), self._plain)

    def kill(self, node: Node) -> None:
        """The node is gone; others' connections to it are reset."""
        self.loop.kill(node)
        for address, server in list(self.servers.items()):
            if server.node is node:
                del self.servers[address]
        for connection in [c for c in self.connections if node in (c.client, c.server_node)]:
            connection.reset("Socket closed")


class Connection:
    """One TCP connection: both directions keep their order; it is reset at most once."""

    def __init__(self, network: Network, client: Node, server: LabServer) -> None:
        self.network, self.client, self.server = network, client, server
        self.server_node = server.node
        self.peer = f"ipv4:127.0.0.1:{network.port()}"
        self.alive = True
        self.calls: dict[Call, None] = {}
        self._last = {client: 0.0, server.node: 0.0}
        self._held: list[tuple[Node, Callable[..., None], tuple[Any, ...]]] = []
        network.connections.append(self)

    def carry(self, to: Node, deliver: Callable[..., None], *args: Any) -> None:
        """Have ``deliver(*args)`` called over there, after all that went before it."""
        if not self.alive:
            return
        network = self.network
        source = self.client if to is self.server_node else self.server_node
        way = network.way(source, to)
        if way.cut:
            if not self._held:
                network.loop.call_later(KEEPALIVE_S, self._silent, context=self.client.context)
            self._held.append((to, deliver, args))
            return
        network.messages += 1
        loop = network.loop
        low, high = way.delay_s
        at = max(self._last[to], loop.time() + low + (high - low) * loop.random.random())
        self._last[to] = at
        loop.call_at(at, self._arrive, deliver, args, context=to.context)

    def _arrive(self, deliver: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.alive:
            deliver(*args)

    def _silent(self) -> None:
        if self._held:
            self.reset("ping timeout")

    def healed(self) -> None:
        """What was held back is on its way."""
        held, self._held = self._held, []
        for to, deliver, args in held:
            self.carry(to, deliver, *args)

    def reset(self, why: str) -> None:
        """Both sides hear of it."""
        if not self.alive:
            return
        self.alive = False
        self.network.connections.remove(self)
        loop = self.network.loop
        for call in list(self.calls):
            loop.call_soon(call.broken, why, context=self.client.context)
            if call.handler is not None:
                loop.call_soon(call.abandon, context=self.server_node.context)


class Pipe:
    """One direction of a call at its receiving end: messages that arrived, and who waits."""

    __slots__ = ("items", "ended", "waiter", "unread", "loop", "blocked")

    def __init__(self, loop: LabLoop) -> None:
        self.loop = loop
        self.items: deque[bytes] = deque()
        self.ended = False
        self.unread = 0
        """Bytes that were sent and not read: the sender's window."""
        self.waiter: asyncio.Future[None] | None = None
        self.blocked: asyncio.Future[None] | None = None
        """The writer, for want of window."""

    def put(self, raw: bytes) -> None:
        self.items.append(raw)
        self._wake()

    def end(self) -> None:
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def get(self) -> bytes | None:
        """The next message; None: there is none any more."""
        while not self.items:
            if self.ended:
                return None
            self.waiter = self.loop.create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        raw = self.items.popleft()
        self.unread -= len(raw)
        blocked = self.blocked
        if blocked is not None and self.unread < WINDOW_BYTES and not blocked.done():
            blocked.set_result(None)
        return raw

    async def room(self) -> None:
        while self.unread >= WINDOW_BYTES:
            self.blocked = self.loop.create_future()
            try:
                await self.blocked
            finally:
                self.blocked = None


class Call:
    """Both ends of one RPC."""

    def __init__(self, connection: Connection, method: str, metadata: Sequence[tuple[str, Any]], timeout: float | None) -> None:
        self.connection = connection
        self.loop = connection.network.loop
        self.method, self.metadata, self.timeout = method, tuple(metadata), timeout
        self.requests, self.responses = Pipe(self.loop), Pipe(self.loop)
        self.status: Status | None = None
        self.done: asyncio.Future[Status] = self.loop.create_future()
        self.handler: asyncio.Task[Any] | None = None
        self.server_over = False
        connection.calls[self] = None
        connection.carry(connection.server_node, self._begin)
        if timeout is not None:
            self.timer: asyncio.TimerHandle | None = self.loop.call_later(timeout, self._late)
        else:
            self.timer = None

    # --- client's end ---
    def finish(self, status: Status) -> None:
        """The client knows how it ended."""
        if self.status is not None:
            return
        self.status = status
        self.connection.calls.pop(self, None)
        if self.timer is not None:
            self.timer.cancel()
        self.responses.end()
        if self.requests.blocked is not None and not self.requests.blocked.done():
            self.requests.blocked.set_result(None)
        if not self.done.done():
            self.done.set_result(status)

    def cancel(self, status: Status = CANCELLED) -> bool:
        if self.status is not None:
            return False
        self.responses.items.clear()
        self.finish(status)
        self.connection.carry(self.connection.server_node, self.abandon)
        return True

    def broken(self, why: str) -> None:
        if self.status is None:
            self.responses.items.clear()
            self.finish(Status(grpc.StatusCode.UNAVAILABLE, why))

    def _late(self) -> None:
        self.cancel(Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    # --- server's end ---
    def _begin(self) -> None:
        self.handler = self.connection.server.serve(self)

    def abandon(self) -> None:
        """The caller is gone."""
        if self.handler is not None and not self.server_over:
            self.server_over = True
            self.requests.end()
            self.handler.cancel()

    def respond_end(self, status: Status) -> None:
        if self.server_over:
            return
        self.server_over = True
        self.connection.carry(self.connection.client, self.finish, status)


def _error(status: Status) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        status.code,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(*status.trailing),
        status.details,
    )


class _Base:
    """What all calls of a client have."""

    def __init__(self, call: Call, serialize: Any, deserialize: Any) -> None:
        self._call, self._serialize, self._deserialize = call, serialize, deserialize

    def cancel(self) -> bool:
        return self._call.cancel()

    def cancelled(self) -> bool:
        return self._call.status is not None and self._call.status.code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        return self._call.status is not None

    async def code(self) -> grpc.StatusCode:
        return (await asyncio.shield(self._call.done)).code

    async def details(self) -> str:
        return (await asyncio.shield(self._call.done)).details

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*(await asyncio.shield(self._call.done)).trailing)

    async def wait_for_connection(self) -> None:
        await asyncio.sleep(0)
        self._check()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._call.done.add_done_callback(lambda _: callback(self))

    def _check(self) -> None:
        status = self._call.status
        if status is None or status.code is grpc.StatusCode.OK:
            return
        if status is CANCELLED:
            raise asyncio.CancelledError
        raise _error(status)

    async def _one(self) -> Any:
        try:
            raw = await self._call.responses.get()
        except asyncio.CancelledError:
            self._call.cancel()
            raise
        if raw is not None:
            return self._deserialize(raw)
        self._check()
        return EOF

    def _send(self, message: Any) -> None:
        raw = self._serialize(message)
        call = self._call
        call.requests.unread += len(raw)
        call.connection.carry(call.connection.server_node, call.requests.put, raw)

    def _half_close(self) -> None:
        call = self._call
        call.connection.carry(call.connection.server_node, call.requests.end)


class UnaryCall(_Base):
    """Awaited for its one answer."""

    def __await__(self) -> Any:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        answer = await self._one()
        if answer is EOF:
            self._check()
            raise _error(Status(grpc.StatusCode.INTERNAL, "no response"))
        if self._call.status is None:
            try:
                await self._call.done
            except asyncio.CancelledError:
                self._call.cancel()
                raise
        self._check()
        return answer


class StreamCall(_Base):
    """Reads and writes."""

    async def read(self) -> Any:
        return await self._one()

    async def write(self, message: Any) -> None:
        if self._call.status is not None:
            self._check()
            raise asyncio.InvalidStateError("RPC already finished.")
        try:
            await self._call.requests.room()
        except asyncio.CancelledError:
            self._call.cancel()
            raise
        if self._call.status is not None:
            self._check()
            raise asyncio.InvalidStateError("RPC already finished.")
        self._send(message)

    async def done_writing(self) -> None:
        self._half_close()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._all()

    async def _all(self) -> AsyncIterator[Any]:
        while (message := await self._one()) is not EOF:
            yield message


class _Method:
    def __init__(self, channel: LabChannel, method: str, kind: type[_Base], serialize: Any, deserialize: Any, streams: bool) -> None:
        self._channel, self._method, self._kind = channel, method, kind
        self._serialize, self._deserialize, self._streams = serialize or bytes, deserialize or bytes, streams

    def __call__(self, request: Any = None, *, timeout: float | None = None, metadata: Any = None, **_: Any) -> Any:
        call = self._channel.begin(self._method, metadata or (), timeout)
        made = self._kind(call, self._serialize, self._deserialize)
        if not self._streams:
            made._send(request)
            made._half_close()
        return made


class LabChannel:
    """A client's connection to an address, opened by its first call and again after each failure."""

    def __init__(self, network: Network, target: str) -> None:
        self._network, self._target = network, target
        self._node = NODE.get(network.loop.test)
        self._connection: Connection | None = None
        self._closed = False

    def begin(self, method: str, metadata: Sequence[tuple[str, Any]], timeout: float | None) -> Call:
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        connection = self._connection
        if connection is None or not connection.alive:
            server = self._network.servers.get(self._target)
            if server is None:
                connection = Connection(self._network, self._node, _NOBODY(self._network))
                call = Call(connection, method, metadata, timeout)
                self._network.loop.call_later(0.001, call.broken, REFUSED)
                connection.alive = False
                return call
            connection = self._connection = Connection(self._network, self._node, server)
        return Call(connection, method, metadata, timeout)

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any) -> Any:
        return _Method(self, method, UnaryCall, request_serializer, response_deserializer, False)

    def unary_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any) -> Any:
        return _Method(self, method, StreamCall, request_serializer, response_deserializer, False)

    def stream_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any) -> Any:
        return _Method(self, method, UnaryCall, request_serializer, response_deserializer, True)

    def stream_stream(self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any) -> Any:
        return _Method(self, method, StreamCall, request_serializer, response_deserializer, True)

    async def close(self, grace: float | None = None) -> None:
        self._closed = True
        if self._connection is not None:
            for call in list(self._connection.calls):
                call.cancel()
            self._connection.alive or None
            self._connection = None

    async def __aenter__(self) -> LabChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Context_:
    """A handler's view of its call."""

    def __init__(self, call: Call, handler: Any) -> None:
        self._call = call
        self._deserialize = handler.request_deserializer or bytes
        self._serialize = handler.response_serializer or bytes
        self._code, self._details, self._trailing = grpc.StatusCode.OK, "", ()

    async def read(self) -> Any:
        raw = await self._call.requests.get()
        return EOF if raw is None else self._deserialize(raw)

    async def write(self, message: Any) -> None:
        call = self._call
        if call.server_over:
            raise grpc.aio.BaseError("the call is over")
        await call.responses.room()
        raw = self._serialize(message)
        call.responses.unread += len(raw)
        call.connection.carry(call.connection.client, call.responses.put, raw)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self._call.respond_end(Status(code, details, tuple(trailing_metadata)))
        raise grpc.aio.AbortError("Locally aborted.")

    def peer(self) -> str:
        return self._call.connection.peer

    def invocation_metadata(self) -> tuple[Any, ...]:
        return self._call.metadata

    def cancelled(self) -> bool:
        return self._call.server_over

    def done(self) -> bool:
        return self._call.server_over

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def time_remaining(self) -> float | None:
        return None

    def status(self) -> Status:
        return Status(self._code, self._details, self._trailing)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not EOF:
            yield message


@dataclass(slots=True)
class _Details:
    method: str
    invocation_metadata: tuple[Any, ...]


class LabServer:
    """Serves what generated code adds to it."""

    def __init__(self, network: Network, interceptors: Sequence[Any] = ()) -> None:
        self._network = network
        self.node = NODE.get(network.loop.test)
        self._interceptors = list(interceptors)
        self._handlers: list[Any] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._addresses: list[str] = []
        self._ready: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        del service, handlers

    def add_insecure_port(self, address: str) -> int:
        host, _, port = address.rpartition(":")
        number = int(port) or self._network.port()
        self._addresses.append(f"{host}:{number}")
        return number

    async def start(self) -> None:
        for address in self._addresses:
            self._network.servers[address] = self

    async def stop(self, grace: float | None = None) -> None:
        for address in self._addresses:
            self._network.servers.pop(address, None)
        if self._tasks and grace:
            await asyncio.wait(list(self._tasks), timeout=grace)
        for task in list(self._tasks):
            task.cancel()

    def serve(self, call: Call) -> asyncio.Task[Any]:
        """A task of the handler, on the server's node."""
        task = self._network.loop.create_task(self._serve(call), context=self.node.context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _handler(self, call: Call) -> Any:
        details = _Details(call.method, call.metadata)
        handler = self._ready.get(call.method)
        if handler is not None:
            return handler

        async def innermost(asked: Any) -> Any:
            return next((found for one in self._handlers if (found := one.service(asked)) is not None), None)

        continuation: Any = innermost
        for interceptor in reversed(self._interceptors):
            continuation = _through(interceptor, continuation)
        return await continuation(details)

    async def _serve(self, call: Call) -> None:
        handler = await self._handler(call)
        if handler is None:
            call.respond_end(Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
            return
        context = Context_(call, handler)
        behavior = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        try:
            asked: Any = context.__aiter__() if handler.request_streaming else await context.read()
            answers = behavior(asked, context)
            if inspect.isasyncgen(answers):
                async for answer in answers:
                    await context.write(answer)
            else:
                answer = await answers
                if not handler.response_streaming:
                    await context.write(answer)
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            call.respond_end(CANCELLED)
        except Exception as error:  # noqa: BLE001 - gRPC's own boundary
            call.respond_end(Status(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}"))
        else:
            call.respond_end(context.status())


def _through(interceptor: Any, continuation: Any) -> Any:
    async def asked(details: Any) -> Any:
        return await interceptor.intercept_service(continuation, details)

    return asked


class _NOBODY:
    def __init__(self, network: Network) -> None:
        self.node = Node("nobody")


class _Aio:
    def __init__(self, network: Network) -> None:
        self._network = network

    def insecure_channel(self, target: str, options: Any = None) -> LabChannel:
        return LabChannel(self._network, target)

    def server(self, *, interceptors: Sequence[Any] = (), **_: Any) -> LabServer:
        return LabServer(self._network, interceptors)

    def init_grpc_aio(self) -> None:
        """Nothing to begin."""

    def __getattr__(self, name: str) -> Any:
        return getattr(grpc.aio, name)


class LabGrpc:
    """In place of the ``grpc`` package."""

    def __init__(self, network: Network) -> None:
        self.aio = _Aio(network)

    def __getattr__(self, name: str) -> Any:
        return getattr(grpc, name)
