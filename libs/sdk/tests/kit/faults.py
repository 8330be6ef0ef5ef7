"""What can go wrong with one request of a client, at the servers of the lab: before it is carried out, or after."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from headrace.errors import ErrorCode, error_for
from headrace_common.rpc.status import abort_with, detail_of
from headrace_lab.loop import Node
from headrace_lab.server import LabContext
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import transaction_pb2

NAMES: Final = {
    "TxnOffsetCommit": "commit_offsets_in_txn",
    "AddPartitionsToTxn": "enrol",
    "End": "end_txn",
    "Mark": "write_txn_markers",
    "InitTransactionalId": "init_transactional_id",
}
"""APIs that clients call by another name than the service."""
STREAMS: Final = ("produce", "fetch", "enrol", "end_txn", "write_txn_markers")
"""APIs that go over streams, once all nodes know them."""


ANSWERS: Final[dict[Any, Any]] = {
    transaction_pb2.EnrolRequest: transaction_pb2.EnrolResponse,
    transaction_pb2.EndRequest: transaction_pb2.EndResponse,
    transaction_pb2.MarkRequest: transaction_pb2.MarkResponse,
}


class Does(Enum):
    """What a fault does to a request."""

    DROP = "the connection breaks"
    ERROR = "every partition, or the call, is answered with `code`"
    SILENCE = "no answer comes"
    HOLD = "wait for `until`, then go on"


@dataclass(slots=True)
class Fault:
    """One failure of one request."""

    does: Does
    after: bool = False
    """True: the request is carried out first."""
    code: ErrorCode = ErrorCode.NONE
    partition: int | None = None
    """Only this partition is answered with ``code``; the others are carried out."""
    until: asyncio.Event | None = None


OnRequest = Callable[[str, int, Any], Fault | None]


@dataclass
class Faults:
    """Those of one cluster. A ``grpc.aio.ServerInterceptor`` for the lab's network."""

    client: Node
    """Only what comes from here is disturbed; calls between nodes are noted, and held where a test names them."""
    on_request: OnRequest | None = None
    """Asked before each request of a client: ("produce", "fetch", "metadata", …; broker; request)."""
    asked: list[str] = field(default_factory=list)
    """What coordinators were asked, by clients and by brokers."""
    produced: list[pb.ProduceRequest] = field(default_factory=list)
    """Every produce request of a client, in order."""
    refusing: set[str] = field(default_factory=set)
    """Nodes that take no calls of clients."""
    queued: dict[str, deque[Fault]] = field(default_factory=dict)

    def inject(self, api: str, faults: Iterable[Fault]) -> None:
        """The next requests of ``api`` fail so."""
        self.queued.setdefault(api, deque()).extend(faults)

    def due(self, api: str, context: LabContext, request: Any) -> Fault | None:
        """What goes wrong with this request."""
        connection = context.connection
        node = connection.server.node.name
        if node.startswith("coordinator"):
            self.asked.append(api)
        if connection.client is not self.client:
            return self.queued[api].popleft() if api in INTERNAL and self.queued.get(api) else None
        if api == "produce":
            copy = pb.ProduceRequest()
            copy.CopyFrom(request)
            self.produced.append(copy)
        if self.queued.get(api):
            return self.queued[api].popleft()
        return self.on_request(api, int(node.rpartition("-")[2]), request) if self.on_request is not None else None

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """See ``grpc.aio.ServerInterceptor``."""
        handler = await continuation(details)
        if handler is None:
            return None
        api = _name(details.method, handler)
        if handler.unary_unary is not None:
            return handler._replace(unary_unary=self._unary(api, handler.unary_unary))
        if handler.stream_stream is not None:
            return handler._replace(stream_stream=self._stream(api, handler.stream_stream))
        return handler

    def _unary(self, api: str, behavior: Any) -> Any:
        async def call(request: Any, context: LabContext) -> Any:
            await self._refuse(context)
            kind = api
            if api == "find_coordinator" and request.type == pb.TRANSACTION:
                kind = "find_transaction_coordinator"
            fault = self.due(kind, context, request)
            if fault is not None and not fault.after:
                await _strike(fault, context)
            answer = await behavior(request, context)
            if fault is not None and fault.after:
                await _strike(fault, context)
            return answer

        return call

    def _stream(self, api: str, behavior: Any) -> Any:
        async def call(requests: Any, context: LabContext) -> Any:
            await self._refuse(context)
            return await behavior(requests, _Disturbed(context, self, api) if api in STREAMS else context)

        return call

    async def _refuse(self, context: LabContext) -> None:
        connection = context.connection
        if connection.client is self.client and connection.server.node.name in self.refusing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection refused")


INTERNAL: Final = ("write_txn_markers", "enrol")
"""What only nodes ask of each other."""


def _name(method: str, handler: Any) -> str:
    del handler
    name = method.rpartition("/")[2]
    return NAMES.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


async def _strike(fault: Fault, context: LabContext) -> None:
    """Returns if the request goes on."""
    match fault.does:
        case Does.HOLD:
            assert fault.until is not None, "HOLD needs an event"
            await fault.until.wait()
        case Does.ERROR:
            await abort_with(context, error_for(fault.code, "injected"))  # type: ignore[arg-type]  # it stands for gRPC's
        case Does.DROP:
            await _drop(context)
        case Does.SILENCE:
            await asyncio.Event().wait()


async def _drop(context: LabContext) -> NoReturn:
    context.connection.reset("Connection reset by peer")
    await asyncio.Event().wait()  # until the handler is cancelled
    raise AssertionError("nobody sets it")


class _Disturbed:
    """The context of a stream whose requests and answers may fail."""

    def __init__(self, context: LabContext, faults: Faults, api: str) -> None:
        self._context, self._faults, self._api = context, faults, api
        self._after: dict[int, Fault] = {}
        """What befalls answers, by their correlation ids."""
        self._held: set[asyncio.Task[None]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        """The next request that gets through."""
        while (request := await self._context.read()) is not grpc.aio.EOF:
            fault = self._faults.due(self._api, self._context, request)
            if fault is None:
                return request
            if fault.after:
                self._after[request.correlation_id] = fault
                return request
            match fault.does:
                case Does.SILENCE:
                    continue
                case Does.ERROR:
                    rest = None if hasattr(request, "ask") else _without(request, fault.partition)
                    if rest is None:
                        await self._context.write(_refused(request, fault))
                        continue
                    self._after[request.correlation_id] = fault
                    return rest
            await _strike(fault, self._context)
            return request
        return grpc.aio.EOF

    async def write(self, answer: Any) -> None:
        """An answer, if it gets through."""
        fault = self._after.pop(answer.correlation_id, None)
        if fault is None:
            await self._context.write(answer)
            return
        match fault.does:
            case Does.DROP:
                await _drop(self._context)
            case Does.HOLD:
                task = asyncio.get_running_loop().create_task(self._write_later(fault, answer))
                self._held.add(task)
            case Does.ERROR:
                if hasattr(answer, "answer"):
                    answer = type(answer)(
                        correlation_id=answer.correlation_id, error=detail_of(error_for(fault.code, "injected"))
                    )
                else:
                    _spoil(answer, fault)
                await self._context.write(answer)

    async def _write_later(self, fault: Fault, answer: Any) -> None:
        await _strike(fault, self._context)
        try:
            await self._context.write(answer)
        except grpc.aio.BaseError:
            return  # nobody waits for it any more


def _without(request: Any, partition: int | None) -> Any:
    """What is carried out of a request in which one partition, or with None each, is refused."""
    left = [entry for entry in request.partitions if partition is not None and entry.partition != partition]
    if not left:
        return None
    rest = type(request)()
    rest.CopyFrom(request)
    del rest.partitions[:]
    rest.partitions.extend(left)
    return rest


def _refused(request: Any, fault: Fault) -> Any:
    if hasattr(request, "ask"):
        detail = detail_of(error_for(fault.code, "injected"))
        return ANSWERS[type(request)](correlation_id=request.correlation_id, error=detail)
    answer = pb.ProduceResponse() if isinstance(request, pb.ProduceRequest) else pb.FetchResponse()
    answer.correlation_id = request.correlation_id
    for entry in request.partitions:
        _refuse_partition(answer, entry.topic_id, entry.partition, fault)
    return answer


def _refuse_partition(answer: Any, topic_id: bytes, partition: int, fault: Fault) -> None:
    code = int(fault.code)
    result = answer.partitions.add(topic_id=topic_id, partition=partition, error=code, message="injected")
    if isinstance(answer, pb.ProduceResponse):
        result.base_offset = result.log_append_time_ms = -1
    else:
        result.high_watermark = -1


def _spoil(answer: Any, fault: Fault) -> None:
    """The partitions of an answer that was carried out are told the error."""
    told = [(each.topic_id, each.partition) for each in answer.partitions]
    kept = [each for each in answer.partitions if fault.partition not in (None, each.partition)]
    topic_id = told[0][0]
    refused = told if fault.partition is None else [(topic_id, fault.partition)]
    del answer.partitions[:]
    answer.partitions.extend(kept)
    for topic, partition in refused:
        _refuse_partition(answer, topic, partition, fault)
