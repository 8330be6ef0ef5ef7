"""
Streams to the cluster in memory: requests in order, faults in between, answers when ready. Opened by ``memory``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from libs.sdk.tests.twin.memory_faults import Does, Fault

from headrace._runtime import Tasks
from headrace.errors import NetworkFailed, RequestTimedOut
from headrace_common.core.ids import NodeId
from headrace_proto.v1 import broker_pb2 as pb

if TYPE_CHECKING:
    from libs.sdk.tests.twin.memory import MemoryCluster

Q = TypeVar("Q", pb.ProduceRequest, pb.FetchRequest)
A = TypeVar("A", pb.ProduceResponse, pb.FetchResponse)


class _MemoryStream(Generic[Q, A]):
    """One stream to one broker: requests are handled in order by one task; a broken one starts again."""

    def __init__(self, cluster: MemoryCluster, broker: NodeId, api: str) -> None:
        self._cluster = cluster
        self.broker = broker
        self._api = api
        self._tasks = Tasks()
        self._queue: asyncio.Queue[tuple[Q, asyncio.Future[Any]]] = asyncio.Queue()
        self._pending: dict[asyncio.Future[Any], asyncio.TimerHandle] = {}
        self._running: asyncio.Task[None] | None = None
        self._numbers = 0
        self._closed = False

    def _send(self, request: Q, timeout_ms: float) -> Awaitable[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._closed or self.broker in self._cluster.down:
            future.set_exception(NetworkFailed(f"broker {self.broker} cannot be reached"))
            return future
        self._numbers += 1
        request.correlation_id = self._numbers
        self._pending[future] = loop.call_later(timeout_ms / 1_000, self._expired, future, timeout_ms)
        self._queue.put_nowait((request, future))
        if self._running is None or self._running.done():
            self._running = self._tasks.start(self._run(self._queue), f"{self._api} {self.broker}")
        return future

    async def _run(self, queue: asyncio.Queue[tuple[Q, asyncio.Future[Any]]]) -> None:
        while True:
            request, future = await queue.get()
            await self._cluster.until_awake(self.broker)
            fault = self._cluster.fault(self._api, self.broker, request)
            if fault is not None and not fault.after:
                if fault.does is Does.HOLD:
                    assert fault.until is not None, "HOLD needs an event"
                    await fault.until.wait()
                elif fault.does is Does.DROP:
                    self.broke("dropped before it was carried out")
                    return
                elif fault.does is Does.SILENCE:
                    continue
            answer = await self._carry_out(request, fault)
            if fault is not None and fault.after:
                if fault.does is Does.DROP:
                    self.broke("dropped after it was carried out")
                    return
                if fault.does is Does.SILENCE:
                    continue
                if fault.does is Does.HOLD:
                    self._tasks.start(self._later(fault, future, answer), "held answer")
                    continue
            self._answer(future, answer)

    async def _carry_out(self, request: Q, fault: Fault | None) -> Any:
        raise NotImplementedError

    async def _later(self, fault: Fault, future: asyncio.Future[Any], answer: Any) -> None:
        assert fault.until is not None, "HOLD needs an event"
        await fault.until.wait()
        self._answer(future, answer)

    def _answer(self, future: asyncio.Future[Any], answer: Any) -> None:
        timer = self._pending.pop(future, None)
        if timer is not None:
            timer.cancel()
        if not future.done():
            future.set_result(answer)

    def _expired(self, future: asyncio.Future[Any], timeout_ms: float) -> None:
        self._pending.pop(future, None)
        if not future.done():
            future.set_exception(RequestTimedOut(f"broker {self.broker} did not answer within {timeout_ms:g} ms"))
        self.broke("the stream was given up")

    def broke(self, why: str) -> None:
        """All that waits for an answer fails, as its outcome is unknown."""
        if self._running is not None and self._running is not asyncio.current_task():
            self._running.cancel()
        self._running = None
        self._queue = asyncio.Queue()
        pending, self._pending = self._pending, {}
        for future, timer in pending.items():
            timer.cancel()
            if not future.done():
                future.set_exception(NetworkFailed(f"broker {self.broker}: {why}"))
                future.exception()

    async def close(self) -> None:
        """End the stream; requests in flight fail with ``NetworkFailed``."""
        self._closed = True
        await self._tasks.close()
        self.broke("the client was closed")


class MemoryProduceStream(_MemoryStream[pb.ProduceRequest, pb.ProduceResponse]):
    """See ``port.ProduceStream``."""

    def send(self, request: pb.ProduceRequest) -> Awaitable[pb.ProduceResponse]:
        """Queue ``request`` and return its answer to come."""
        return self._send(request, request.timeout_ms)

    async def _carry_out(self, request: pb.ProduceRequest, fault: Fault | None) -> pb.ProduceResponse | None:
        cluster = self._cluster
        copy = pb.ProduceRequest()
        copy.CopyFrom(request)
        cluster.produced.append(copy)
        wrong = fault is not None and fault.does is Does.ERROR
        if not wrong or fault is None:
            answer = cluster.produce(self.broker, request)
        elif fault.after:
            answer = cluster.produce(self.broker, request)
            _fail(answer.partitions, fault)
        else:
            everything = fault.partition is None
            only = pb.ProduceRequest() if everything else request
            answer = cluster.produce(self.broker, only, fault.partition)
            if everything:
                answer = pb.ProduceResponse(
                    correlation_id=request.correlation_id,
                    partitions=[
                        pb.ProducePartitionResult(topic_id=e.topic_id, partition=e.partition)
                        for e in request.partitions
                    ],
                )
            _fail(answer.partitions, fault)
        return None if request.acks == 0 else answer


class MemoryFetchStream(_MemoryStream[pb.FetchRequest, pb.FetchResponse]):
    """See ``port.FetchStream``."""

    def send(self, request: pb.FetchRequest) -> Awaitable[pb.FetchResponse]:
        """Queue ``request`` and return its answer to come."""
        return self._send(request, request.max_wait_ms + 30_000)

    def abandon(self) -> None:
        """Give up what is in flight."""
        self.broke("given up by this client")

    async def _carry_out(self, request: pb.FetchRequest, fault: Fault | None) -> pb.FetchResponse:
        if fault is not None and fault.does is Does.ERROR:
            answer = pb.FetchResponse(correlation_id=request.correlation_id)
            for entry in request.partitions:
                if fault.partition in (None, entry.partition):
                    answer.partitions.add(topic_id=entry.topic_id, partition=entry.partition, high_watermark=-1)
            _fail(answer.partitions, fault)
            return answer
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1_000
        while True:
            answer, total = self._cluster.fetch(self.broker, request)
            left = deadline - asyncio.get_running_loop().time()
            told = any(not partition.batches for partition in answer.partitions)  # an error, or where else to read
            if total >= max(1, request.min_bytes) or told or left <= 0:
                return answer
            await self._cluster.news(left * 1_000)


def _fail(results: Iterable[Any], fault: Fault) -> None:
    for result in results:
        if fault.partition in (None, result.partition):
            result.error = fault.code
            result.message = "injected"
            if hasattr(result, "base_offset"):
                result.base_offset = -1
