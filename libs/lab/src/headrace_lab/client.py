"""The client's side of calls: channels, and calls as ``grpc.aio`` gives them to stubs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from typing import Any, Final, Protocol, Self

import grpc
import grpc.aio

from headrace_lab.call import EOF, Call, Pipe, Status
from headrace_lab.loop import NODE
from headrace_lab.network import Connection, Network

REFUSED: Final = "failed to connect to all addresses; last error: connection refused"
ATTEMPT_S: Final = 0.001
"""How long it takes to learn that nobody listens."""
_FINISHED: Final = "RPC already finished."
_HALF_CLOSED: Final = 'RPC is half closed after calling "done_writing".'


class ClientCallEnd(Protocol):
    """A call, as its client's end has it; see ``headrace_lab.call.Call``."""

    status: Status | None
    cancelled: bool
    ended: asyncio.Future[Status]
    responses: Pipe

    async def wait_for_connection(self) -> None: ...

    async def room(self) -> None: ...

    def send(self, raw: bytes) -> None: ...

    def send_end(self) -> None: ...

    def cancel(self) -> bool: ...


class Channel:
    """What stubs are given: the four kinds of calls; see ``grpc.aio.Channel``."""

    def begin(self, method: str, metadata: Sequence[tuple[str, str | bytes]], timeout_s: float | None) -> ClientCallEnd:
        """An RPC under way. Raises: grpc.aio.UsageError: the channel is closed."""
        raise NotImplementedError

    async def close(self, grace: float | None = None) -> None:
        """Calls under way are cancelled."""
        raise NotImplementedError

    def unary_unary(self, method: str, *codec: Any, **options: Any) -> _Method:
        return _Method(self, method, UnaryAnswer, *codec, **options)

    def unary_stream(self, method: str, *codec: Any, **options: Any) -> _Method:
        return _Method(self, method, StreamAnswer, *codec, **options)

    def stream_unary(self, method: str, *codec: Any, **options: Any) -> _Method:
        return _Method(self, method, UnaryAnswer, *codec, streams=True, **options)

    def stream_stream(self, method: str, *codec: Any, **options: Any) -> _Method:
        return _Method(self, method, StreamAnswer, *codec, streams=True, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class LabChannel(Channel):
    """Connections of one node to an address: opened by a call, and by the next after each failure."""

    def __init__(self, network: Network, target: str, bytes_max: int) -> None:
        self._network, self._target, self._bytes_max = network, target, bytes_max
        self._node = NODE.get(network.loop.test)
        self._connection: Connection | None = None
        self._closed = False

    def begin(self, method: str, metadata: Sequence[tuple[str, str | bytes]], timeout_s: float | None) -> Call:
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        loop = self._network.loop
        connection = self._connect()
        request_bytes_max = 0 if connection is None else connection.server.bytes_max
        call = Call(loop, connection, method, metadata, timeout_s, (request_bytes_max, self._bytes_max))
        if connection is None:
            loop.call_later(ATTEMPT_S, call.broken, REFUSED)
        return call

    def _connect(self) -> Connection | None:
        if self._connection is None or not self._connection.alive:
            server = self._network.servers.get(self._target)
            self._connection = None if server is None else Connection(self._network, self._node, server)
        return self._connection

    async def close(self, grace: float | None = None) -> None:
        del grace
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            for call in list(connection.calls):
                assert isinstance(call, Call)
                call.cancel()


class _Method:
    """One RPC of a stub."""

    def __init__(
        self,
        channel: Channel,
        method: str,
        kind: type[_ClientCall],
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        *,
        streams: bool = False,
        **_: Any,
    ) -> None:
        self._channel, self._method, self._kind, self._streams = channel, method, kind, streams
        self._codec = request_serializer or bytes, response_deserializer or bytes

    def __call__(
        self, request: Any = None, *, timeout: float | None = None, metadata: Any = None, **_: Any
    ) -> _ClientCall:
        made = self._kind(self._channel.begin(self._method, metadata or (), timeout), *self._codec)
        if not self._streams:
            made.send(request)
            made.send_end()
        return made


class _ClientCall:
    """What all calls have."""

    def __init__(
        self, call: ClientCallEnd, serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any]
    ) -> None:
        self._call, self._serialize, self._deserialize = call, serialize, deserialize
        self._half_closed = False

    def cancel(self) -> bool:
        """Whether it was under way."""
        return self._call.cancel()

    def cancelled(self) -> bool:
        return self._call.status is not None and self._call.status.code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        return self._call.status is not None

    async def code(self) -> grpc.StatusCode:
        return (await asyncio.shield(self._call.ended)).code

    async def details(self) -> str:
        return (await asyncio.shield(self._call.ended)).details

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*(await asyncio.shield(self._call.ended)).trailing)

    async def wait_for_connection(self) -> None:
        """Raises: grpc.aio.AioRpcError: there was none."""
        await self._call.wait_for_connection()
        self._raise_for_status()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._call.ended.add_done_callback(lambda _: callback(self))

    def send(self, message: Any) -> None:
        self._call.send(self._serialize(message))

    def send_end(self) -> None:
        if not self._half_closed:
            self._half_closed = True
            self._call.send_end()

    async def write(self, message: Any) -> None:
        """Raises: asyncio.InvalidStateError: it has ended; grpc.aio.AioRpcError: it ends meanwhile."""
        if self.done():
            raise asyncio.InvalidStateError(_FINISHED)
        if self._half_closed:
            raise asyncio.InvalidStateError(_HALF_CLOSED)
        try:
            await self._call.room()
        except asyncio.CancelledError:
            self._call.cancel()
            raise
        self._raise_for_status()
        self.send(message)

    async def done_writing(self) -> None:
        if not self.done():
            self.send_end()

    def _raise_for_status(self) -> None:
        status = self._call.status
        if status is None or status.code is grpc.StatusCode.OK:
            return
        if self._call.cancelled:
            raise asyncio.CancelledError
        raise _error(status)

    async def _next(self) -> Any:
        """The next answer, or EOF."""
        try:
            raw = await self._call.responses.get()
        except asyncio.CancelledError:
            self._call.cancel()
            raise
        if raw is not None:
            return self._deserialize(raw)
        await asyncio.shield(self._call.ended)
        self._raise_for_status()
        return EOF


def _error(status: Status) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), grpc.aio.Metadata(*status.trailing), status.details)


class UnaryAnswer(_ClientCall):
    """Awaited for its one answer."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        answer = await self._next()
        if answer is EOF:
            raise _error(Status(grpc.StatusCode.INTERNAL, "the call ended without an answer"))
        try:
            await asyncio.shield(self._call.ended)
        except asyncio.CancelledError:
            self._call.cancel()
            raise
        self._raise_for_status()
        return answer


class StreamAnswer(_ClientCall):
    """Its answers are read one by one, or as an async iterator."""

    async def read(self) -> Any:
        return await self._next()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self._next()) is not EOF:
            yield message
