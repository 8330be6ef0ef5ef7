"""The server's side of calls: what generated code and interceptors are given in place of ``grpc.aio``'s server."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio

from headrace_lab.call import CANCELLED, EOF, Call, Metadata, Status
from headrace_lab.loop import NODE
from headrace_lab.network import Connection, Network

_GOING: str = "the server is shutting down"


@dataclass(frozen=True, slots=True)
class _CallDetails:
    method: str
    invocation_metadata: Metadata


class LabContext:
    """A handler's view of its call; see ``grpc.aio.ServicerContext``."""

    def __init__(self, call: Call, handler: Any) -> None:
        self._call = call
        self._deserialize = handler.request_deserializer or bytes
        self._serialize = handler.response_serializer or bytes
        self._code, self._details, self._trailing = grpc.StatusCode.OK, "", tuple[Any, ...]()

    @property
    def connection(self) -> Connection:
        """Which gRPC shows nobody: on what it came, for who intercepts calls to break it."""
        assert self._call.connection is not None, "somebody asked"
        return self._call.connection

    async def read(self) -> Any:
        raw = await self._call.requests.get()
        return EOF if raw is None else self._deserialize(raw)

    async def write(self, message: Any) -> None:
        """Raises: grpc.aio.BaseError: nobody reads it any more."""
        call = self._call
        await call.responses.room()
        if not call.served:
            raise grpc.aio.BaseError("the call has ended")
        call.respond(self._serialize(message))

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Nobody here waits for it."""

    async def requests(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not EOF:
            yield message

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        self._call.respond_end(Status(code, details, tuple(trailing_metadata)))
        raise grpc.aio.AbortError("Locally aborted.")

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        assert self._call.handler is not None, "it runs"
        self._call.handler.add_done_callback(lambda _: callback(self))

    def peer(self) -> str:
        return self.connection.peer

    def invocation_metadata(self) -> Metadata:
        return self._call.metadata

    def cancelled(self) -> bool:
        return not self._call.served

    def done(self) -> bool:
        return not self._call.served

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, metadata: Any) -> None:
        self._trailing = tuple(metadata)

    def status(self) -> Status:
        """With which the call ends when its handler returns."""
        return Status(self._code, self._details, self._trailing)


class LabServer:
    """Serves what generated code adds to it, on the node that made it."""

    def __init__(
        self, network: Network, interceptors: Sequence[Any] = (), *, bytes_max: int, calls_max: int | None = None
    ) -> None:
        self.node = NODE.get(network.loop.test)
        self.bytes_max = bytes_max
        """Largest request."""
        self._network = network
        self._interceptors = [*interceptors, *network.interceptors]
        self._calls_max = calls_max
        self._handlers: list[Any] = []
        self._running: dict[asyncio.Task[None], Call] = {}
        self._addresses: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """See ``grpc.aio.Server``, as for all here."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """They are among the generic ones too."""

    def add_insecure_port(self, address: str) -> int:
        """Raises: RuntimeError: somebody listens there."""
        host, _, port = address.rpartition(":")
        number = int(port) or self._network.new_port()
        if f"{host}:{number}" in self._network.servers:
            raise RuntimeError(f"Failed to bind to address {address}")
        self._addresses.append(f"{host}:{number}")
        return number

    async def start(self) -> None:
        self._network.servers |= dict.fromkeys(self._addresses, self)

    async def stop(self, grace: float | None) -> None:
        """No new calls; those under way may take ``grace`` seconds, then they are cancelled."""
        for address in self._addresses:
            self._network.servers.pop(address, None)
        if self._running and grace:
            await asyncio.wait(list(self._running), timeout=grace)
        for task, call in list(self._running.items()):
            call.respond_end(Status(grpc.StatusCode.UNAVAILABLE, _GOING))
            task.cancel()
        if self._running:
            await asyncio.wait(list(self._running))
        for connection in [one for one in self._network.connections if one.server is self]:
            connection.reset("Socket closed")

    def serve(self, call: Call) -> asyncio.Task[None]:
        """Begin to handle it."""
        task = self._network.loop.create_task(self._serve(call), context=self.node.context.copy())
        self._running[task] = call
        task.add_done_callback(self._running.pop)
        return task

    async def _serve(self, call: Call) -> None:
        if self._calls_max is not None and len(self._running) > self._calls_max:
            call.respond_end(Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!"))
            return
        try:
            handler = await self._find(_CallDetails(call.method, call.metadata))
            if handler is None:
                call.respond_end(Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
                return
            context = LabContext(call, handler)
            await _handle(handler, context)
        except grpc.aio.AbortError:
            return
        except asyncio.CancelledError:
            call.respond_end(CANCELLED)
            raise
        except Exception as error:  # noqa: BLE001 - gRPC's own boundary
            call.respond_end(Status(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}"))
        else:
            call.respond_end(context.status())

    async def _find(self, asked: _CallDetails) -> Any:
        async def innermost(details: Any) -> Any:
            return next((found for one in self._handlers if (found := one.service(details)) is not None), None)

        continuation: Any = innermost
        for interceptor in reversed(self._interceptors):
            continuation = _through(interceptor, continuation)
        return await continuation(asked)


def _through(interceptor: Any, continuation: Any) -> Any:
    async def ask(details: Any) -> Any:
        return await interceptor.intercept_service(continuation, details)

    return ask


async def _handle(handler: Any, context: LabContext) -> None:
    behavior = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    request: Any = context.requests() if handler.request_streaming else await context.read()
    if request is EOF:
        return
    answers = behavior(request, context)
    if inspect.isasyncgen(answers):
        async for answer in answers:
            await context.write(answer)
        return
    answer = await answers
    if not handler.response_streaming:
        await context.write(answer)
