"""
Connections to brokers (and to coordinators that are told ends of transactions), shared by all shards: one channel per
address, and on it one ``Produce`` stream.

Decides nothing about logs. A stream is opened by the first request and again by the first after it broke; a request
without an answer in its time breaks its stream, so that nothing more is entrusted to what is silent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import grpc.aio

from headrace_common.core.errors import HeadraceError, NetworkFailed, RequestTimedOut
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import PLAIN, Channels, Security
from headrace_common.rpc.options import EAGER_RECONNECT_MS_MAX
from headrace_common.runtime.clock import limit_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

if TYPE_CHECKING:
    from headrace_proto.v1.broker_pb2_grpc import BrokerAsyncStub

ANSWER_ALLOWANCE_MS: Final = 1_000
"""Beyond a request's own time: the way there and back."""
CALL_S_MAX: Final = 3.0
_EOF: Final[Any] = grpc.aio.EOF


class _ProduceCall:
    """One ``Produce`` call from its opening to its end; a broken one is never used again."""

    def __init__(self, call: Any, where: str, tasks: TaskRunner) -> None:
        self.failure: HeadraceError | None = None
        self._call = call
        self._where = where
        self._numbers = 0
        self._pending: dict[int, asyncio.Future[pb.ProducePartitionResult]] = {}
        self._queue: deque[pb.ProduceRequest] = deque()
        self._filled = asyncio.Event()
        self._tasks = (
            tasks.start(self._write(), name=f"produce-write {where}"),
            tasks.start(self._read(), name=f"produce-read {where}"),
        )

    async def send(self, entry: pb.ProducePartition, timeout_ms: int) -> pb.ProducePartitionResult:
        """The result of ``entry``, in time; each shard has one under way, so what waits here is bounded by them."""
        self._numbers += 1
        number = self._numbers
        future: asyncio.Future[pb.ProducePartitionResult] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        self._queue.append(pb.ProduceRequest(correlation_id=number, acks=-1, timeout_ms=timeout_ms, partitions=[entry]))
        self._filled.set()
        try:
            async with limit_ms(timeout_ms + ANSWER_ALLOWANCE_MS):
                return await future
        except TimeoutError:
            late = RequestTimedOut(f"{self._where} did not answer within {timeout_ms + ANSWER_ALLOWANCE_MS} ms")
            self.end(NetworkFailed(f"{late}; nothing more is sent on this stream"))
            raise late from None
        finally:
            self._pending.pop(number, None)

    async def _write(self) -> None:
        try:
            with CallTo(self._where):
                while True:
                    while self._queue:
                        await self._call.write(self._queue.popleft())
                    self._filled.clear()
                    await self._filled.wait()
        except HeadraceError:
            return  # the reader learns why

    async def _read(self) -> None:
        try:
            with CallTo(self._where):
                while (answer := await self._call.read()) is not _EOF:
                    future = self._pending.get(answer.correlation_id)
                    if len(answer.partitions) != 1:
                        raise NetworkFailed(f"one batch was answered with {len(answer.partitions)} results")
                    if future is not None and not future.done():
                        future.set_result(answer.partitions[0])
            self.end(NetworkFailed(f"{self._where} ended the stream; the outcome is unknown"))
        except HeadraceError as error:
            self.end(NetworkFailed(f"{self._where}: {error}"))

    def end(self, error: HeadraceError) -> None:
        """Fail what waits; idempotent."""
        if self.failure is not None:
            return
        self.failure = error
        for future in self._pending.values():
            if not future.done():
                future.set_exception(NetworkFailed(str(error)))
                future.exception()  # whoever still waits sees it; nobody is warned about the others
        self._queue.clear()
        self._call.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()


class BrokerConnections:
    """One for the process; one event loop."""

    def __init__(self, tasks: TaskRunner, security: Security = PLAIN) -> None:
        self._tasks = tasks
        self._channels: Channels[Endpoint] = Channels(security, reconnect_ms_max=EAGER_RECONNECT_MS_MAX)
        self._stubs: dict[Endpoint, BrokerAsyncStub] = {}
        self._produce: dict[Endpoint, _ProduceCall] = {}

    async def produce(self, at: Endpoint, entry: pb.ProducePartition, timeout_ms: int) -> pb.ProducePartitionResult:
        """
        Append one batch with acks=all; the broker's word on it, errors included.

        Raises:
            NetworkFailed, RequestTimedOut: it may have been appended, or may yet be.
        """
        call = self._produce.get(at)
        if call is None or call.failure is not None:
            call = self._produce[at] = _ProduceCall(self.stub(at).Produce(), f"broker at {at}", self._tasks)
        return await call.send(entry, timeout_ms)

    async def fetch(self, at: Endpoint, request: pb.FetchRequest) -> pb.FetchResponse:
        """
        One answer, over a stream of its own.

        Raises:
            HeadraceError: there was none.
        """
        call: Any = self.stub(at).Fetch()
        try:
            async with limit_ms(CALL_S_MAX * 1_000 + request.max_wait_ms):
                with CallTo(f"the broker at {at}"):
                    await call.write(request)
                    answer = await call.read()
        except TimeoutError:
            raise RequestTimedOut(f"the broker at {at} did not answer a fetch in time") from None
        finally:
            call.cancel()
        if not isinstance(answer, pb.FetchResponse):
            raise NetworkFailed(f"the broker at {at} ended the fetch stream")
        return answer

    async def list_offsets(self, at: Endpoint, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        """
        Raises:
            HeadraceError: the call as a whole failed.
        """
        with CallTo(f"the broker at {at}"):
            answer = await self.stub(at).ListOffsets(request, timeout=CALL_S_MAX)
        if len(answer.partitions) != len(request.partitions):
            raise NetworkFailed(f"the broker at {at} left out offsets that were asked for")
        return answer

    async def init_producer_id(self, at: Endpoint) -> tuple[int, int]:
        """
        A new producer id and its epoch.

        Raises:
            HeadraceError: none was given.
        """
        with CallTo(f"the broker at {at}"):
            answer = await self.stub(at).InitProducerId(pb.InitProducerIdRequest(), timeout=CALL_S_MAX)
        return answer.producer_id, answer.producer_epoch

    def stub(self, at: Endpoint) -> BrokerAsyncStub:
        stub = self._stubs.get(at)
        if stub is None:
            stub = self._stubs[at] = BrokerStub(self.channel(at))
        return stub

    def channel(self, at: Endpoint) -> grpc.aio.Channel:
        """The connection to one process."""
        return self._channels.to(at)

    @property
    def addresses(self) -> set[Endpoint]:
        """Where there are connections to."""
        return set(self._channels)

    async def keep(self, known: set[Endpoint]) -> None:
        """Close the connections to all other addresses: those processes have moved or are gone."""
        for at in [at for at in self._channels if at not in known]:
            await self._drop(at)

    async def close(self) -> None:
        """Close everything; requests under way fail."""
        for at in list(self._channels):
            await self._drop(at)

    async def _drop(self, at: Endpoint) -> None:
        call = self._produce.pop(at, None)
        if call is not None:
            call.end(NetworkFailed(f"the connection to {at} was closed; the outcome is unknown"))
        self._stubs.pop(at, None)
        await self._channels.drop(at)
