"""What ``grpc`` says to coordinators: calls, one ``Membership`` stream per member, and one ``End`` stream."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from grpc import aio

from headrace._core.remedies import is_refusal
from headrace._credentials import Credentials, Granted
from headrace._runtime import Tasks
from headrace._transport.moving import Moving
from headrace._transport.port import Coordinator, CoordinatorCall
from headrace._transport.whereabouts import Whereabouts
from headrace.errors import HeadraceError, NetworkFailed, TlsFailed, Unauthenticated, error_for
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.secret import Secret
from headrace_common.rpc.calls import A_co, CallTo, Method, Q_contra
from headrace_common.runtime.asking import Asking, AskingStream, raise_error
from headrace_proto.v1 import broker_pb2, transaction_pb2
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorStub
from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorStub

if TYPE_CHECKING:
    from headrace_proto.v1.broker_pb2_grpc import BrokerAsyncStub  # exist for type checkers only
    from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorAsyncStub
    from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorAsyncStub

EndStream = AskingStream[transaction_pb2.EndRequest, transaction_pb2.EndResponse]

R = TypeVar("R")
S = TypeVar("S")

FIND_ATTEMPT_MS: Final = 5_000
"""How long one broker may take for FindCoordinator: the first that asks has the internal topic made."""

HANG_UP_MS: Final = 1_000
"""How long the end of a stream waits for what was sent before."""


class GrpcMembershipStream:
    """See ``port.MembershipStream``."""

    def __init__(
        self,
        call: aio.StreamStreamCall[pb.MembershipRequest, pb.MembershipResponse],
        where: str,
        tasks: Tasks,
        is_final: Callable[[HeadraceError], bool],
    ) -> None:
        self._call: aio.StreamStreamCall[pb.MembershipRequest, pb.MembershipResponse] = call
        self._where = where
        self._is_final = is_final
        self._queue: deque[pb.MembershipRequest] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._failure: HeadraceError | None = None
        self._writer = tasks.start(self._write(), f"write {where}")

    def send(self, request: pb.MembershipRequest) -> None:
        self._queue.append(request)
        self._wake.set()

    async def receive(self) -> pb.MembershipResponse:
        """The next that the coordinator says."""
        if self._failure is not None:
            raise self._failure
        try:
            with CallTo(self._where):
                answer: Any = await self._call.read()
            if isinstance(answer, pb.MembershipResponse):
                return answer
            self._failure = self._failure or NetworkFailed(f"{self._where} ended the stream")
        except HeadraceError as error:
            if self._failure is not None:
                raise self._failure from error
            renewed = not self._is_final(error) and is_refusal(error)
            self._failure = NetworkFailed(f"{self._where}: {error}") if renewed else error
        self._call.cancel()
        self._writer.cancel()  # one that waits for a connection would not hear of it
        raise self._failure

    async def _write(self) -> None:
        try:
            with CallTo(self._where):
                while True:
                    while self._queue:
                        await self._call.write(self._queue.popleft())
                    if self._closing:
                        await self._call.done_writing()
                        return
                    self._wake.clear()
                    await self._wake.wait()
        except HeadraceError:
            return  # whoever reads learns why

    def renew(self) -> None:
        """The stream breaks, for its member: who opens another one at once and says who it is has lost nothing."""
        self._failure = self._failure or NetworkFailed(f"the stream to {self._where} is begun anew by this client")
        self._call.cancel()
        self._writer.cancel()

    async def close(self) -> None:
        """End the stream; what was sent before leaves first."""
        if self._closing:
            return
        self._closing = True
        self._failure = self._failure or NetworkFailed("the stream was closed by this client")
        self._wake.set()
        await asyncio.wait([self._writer], timeout=HANG_UP_MS / 1000)
        self._writer.cancel()
        self._call.cancel()


class CoordinatorCalls(ABC):
    """A part of ``grpc.GrpcTransport``."""

    _call_timeout: float
    _credentials: Credentials
    _tasks: Tasks
    _nodes: Whereabouts
    _moving: Moving
    _memberships: WeakSet[GrpcMembershipStream]
    _stub_of: tuple[aio.Channel, TransactionCoordinatorAsyncStub] | None = None
    """The one used last: making a stub costs more than a call's share of it."""
    _ends: tuple[str, EndStream] | None = None
    """The one to the coordinator that was told an end last, and where that is."""

    @abstractmethod
    async def _first(self, ask: Callable[[BrokerAsyncStub], Awaitable[R]], *, elsewhere: bool = False) -> R:
        """The first answer of any broker."""

    @abstractmethod
    def _channel(self, address: str) -> aio.Channel:
        """The connection to an address."""

    @abstractmethod
    async def _leave_others(self) -> None:
        """Close the connections to where no node is, as far as is known."""

    async def _call(self, at: object, ask: Callable[[], Awaitable[R]]) -> R:
        """
        What is answered; asked once more where the credential has become another since. Where one node alone shows a
        certificate that is not trusted, the CAs are read again too: others may be connected since before they changed.

        Raises:
            HeadraceError: as ``CallTo``.
        """
        credentials = self._credentials
        if credentials.logs_in:
            await credentials.ready(self._log_in)
        shown = credentials.number
        try:
            with CallTo(at):
                return await ask()
        except TlsFailed:
            self._look_at_cas()
            raise
        except Unauthenticated:
            if not credentials.changed_since(shown):
                raise
        if credentials.logs_in:
            await credentials.ready(self._log_in)
        with CallTo(at):
            return await ask()

    @abstractmethod
    def _look_at_cas(self) -> None:
        """Read them again, and connect anew where they are others."""

    @abstractmethod
    async def _log_in(self, user: str, password: Secret, mechanism: str) -> Granted:
        """A session, had at any broker."""

    def _refusals(self) -> Callable[[HeadraceError], bool]:
        """
        Whether what ends a stream that is opened now is the last word: it is about who asks, and nothing else would be
        shown by now. Else the stream broke: what was under way goes out again, with the CAs of then where its node was
        not trusted.
        """
        shown = self._credentials.number

        def is_final(error: HeadraceError) -> bool:
            if isinstance(error, TlsFailed):
                self._look_at_cas()
            renewed = isinstance(error, Unauthenticated) and self._credentials.changed_since(shown)
            return is_refusal(error) and not renewed

        return is_final

    async def find_coordinator(
        self, key: str, kind: broker_pb2.CoordinatorType.ValueType = broker_pb2.GROUP
    ) -> Coordinator:
        timeout = min(self._call_timeout, FIND_ATTEMPT_MS / 1_000)
        request = broker_pb2.FindCoordinatorRequest(type=kind, keys=[key])
        answer = await self._first(lambda stub: stub.FindCoordinator(request, timeout=timeout), elsewhere=True)
        [found] = answer.coordinators
        if found.error:
            raise error_for(found.error, found.message or f"no coordinator for {key!r}")
        coordinator = Coordinator(NodeId(found.coordinator), str(Endpoint(found.endpoint.host, found.endpoint.port)))
        self._nodes.coordinator_at(coordinator.node, coordinator.address, found.endpoint.server_name)
        await self._leave_others()
        return coordinator

    def membership(self, coordinator: Coordinator) -> GrpcMembershipStream:
        """A new stream of one member."""
        with CallTo(coordinator):
            refused = self._refusals()
            self._moving.begin()
            call = self._coordinator(coordinator).Membership()
            stream = GrpcMembershipStream(call, str(coordinator), self._tasks, refused)
        self._memberships.add(stream)
        return stream

    def group_call(
        self, method: Callable[[CoordinatorAsyncStub], Method[Q_contra, A_co]], request: Q_contra
    ) -> CoordinatorCall[A_co]:
        return lambda coordinator, timeout_ms: self._ask(coordinator, method, self._coordinator, request, timeout_ms)

    def transaction_call(
        self, method: Callable[[TransactionCoordinatorAsyncStub], Method[Q_contra, A_co]], request: Q_contra
    ) -> CoordinatorCall[A_co]:
        return lambda coordinator, timeout_ms: self._ask(coordinator, method, self._transactions, request, timeout_ms)

    def end_call(self, request: transaction_pb2.EndTxnRequest) -> CoordinatorCall[transaction_pb2.EndTxnResponse]:
        return lambda coordinator, timeout_ms: self._end(coordinator, request, timeout_ms)

    async def _end(
        self, coordinator: Coordinator, request: transaction_pb2.EndTxnRequest, timeout_ms: float
    ) -> transaction_pb2.EndTxnResponse:
        answer = await self._end_stream(coordinator).ask(transaction_pb2.EndRequest(ask=request), timeout_ms)
        raise_error(answer)
        return answer.answer

    def _end_stream(self, coordinator: Coordinator) -> EndStream:
        """One client has one transactional id, so the one before is of no use any more."""
        if self._ends is None or self._ends[0] != coordinator.address:
            if self._ends is not None:
                self._ends[1].end(NetworkFailed(f"the coordinator is {coordinator} now; the outcome is unknown"))

            def open_call() -> Asking[transaction_pb2.EndRequest, transaction_pb2.EndResponse]:
                with CallTo(coordinator):
                    refused = self._refusals()
                    self._moving.begin()
                    call = self._transactions(coordinator).End()
                    return Asking(call, str(coordinator), self._tasks, strict=True, is_final=refused)

            self._ends = coordinator.address, AskingStream(open_call)
        return self._ends[1]

    async def _ask(
        self,
        coordinator: Coordinator,
        method: Callable[[S], Method[Q_contra, A_co]],
        stub_of: Callable[[Coordinator], S],
        request: Q_contra,
        timeout_ms: float,
    ) -> A_co:
        return await self._call(coordinator, lambda: method(stub_of(coordinator))(request, timeout=timeout_ms / 1_000))

    def _coordinator(self, coordinator: Coordinator) -> CoordinatorAsyncStub:
        return CoordinatorStub(self._channel(coordinator.address))

    def _transactions(self, coordinator: Coordinator) -> TransactionCoordinatorAsyncStub:
        channel = self._channel(coordinator.address)
        if self._stub_of is None or self._stub_of[0] is not channel:
            self._stub_of = channel, TransactionCoordinatorStub(channel)
        return self._stub_of[1]
