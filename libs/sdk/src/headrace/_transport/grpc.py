"""
The real cluster: connections, streams and calls over ``grpc.aio``. Decides nothing about records.

One channel per broker address, one ``Produce`` and one ``Fetch`` stream per broker. A stream is opened by the first
request and again by the first request after it broke; how fast a channel reconnects is bounded by its options
(``headrace_common.rpc.options``), and until then requests fail at once. A request that gets no answer in its time
breaks its stream: what is silent is not trusted with more.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar
from weakref import WeakSet

from headrace._core import phases
from headrace._core.remedies import is_refusal
from headrace._credentials import Credentials, Granted, bearer_metadata, credentials_for
from headrace._descriptors import need_descriptors, needing_descriptors
from headrace._logging_in import log_in
from headrace._runtime import Tasks, connected
from headrace._transport.grpc_coordinators import CoordinatorCalls
from headrace._transport.moving import Movable, Moving
from headrace._transport.whereabouts import Whereabouts
from headrace.errors import ClientClosed, ClusterUnreachable
from headrace.finding import ClusterAddress
from headrace.securing import trust_in
from headrace_common.core.errors import (
    HeadraceError,
    InconsistentClusterId,
    InvalidConfig,
    NetworkFailed,
    Overloaded,
    RequestTimedOut,
    TlsFailed,
)
from headrace_common.core.ids import NodeId
from headrace_common.core.secret import Secret
from headrace_common.rpc.calls import A_co, CallTo, Method, Q_contra, nobody_there
from headrace_common.rpc.channels import Channels, Metadata, Security
from headrace_common.rpc.library import INSTEAD, library
from headrace_common.rpc.options import CLIENT_ID_KEY, EAGER_RECONNECT_MS_MAX
from headrace_common.runtime.asking import Asking, AskingStream
from headrace_common.runtime.clock import Deadline, pause_ms
from headrace_common.runtime.memory import adapt_to_large_blocks
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.admin_pb2_grpc import AdminStub
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.tickets_pb2_grpc import TicketsStub

if TYPE_CHECKING:
    from grpc import aio

    from headrace_proto.v1.admin_pb2_grpc import AdminAsyncStub  # exist for type checkers only
    from headrace_proto.v1.broker_pb2_grpc import BrokerAsyncStub
    from headrace_proto.v1.tickets_pb2_grpc import TicketsAsyncStub

R = TypeVar("R")

_log = logging.getLogger("headrace")

ANSWER_ALLOWANCE_MS: Final = 2_000
"""Beyond a request's own time: the way there and back."""

METADATA_ATTEMPT_MS: Final = 3_000
"""How long one address may take to answer."""

UNHEARD_MS: Final = 2_000
"""Who has had no answer from any broker for so long is warned, once for each client."""

HEDGE_MS: Final = 400
"""When an address has not answered after this time the next is asked beside it: a broker that is stopped is silent."""

AVOID_MS: Final = 5_000
"""How long an address that failed or was silent is asked after all others."""

CALL_TIMEOUT_MS: Final = 30_000

GRPC_OPENS: Final = 12
"""File descriptors that gRPC opens at its first channel, all before that returns, and some to spare: 7 are known."""

HEARD_MAX: Final = 8
"""Answers that a sibling keeps until it asks somebody itself; a few, for the last may be of a broker that lags."""

NO_ACKS: Final = 0
CLOSED: Final = "the client was closed before the answer came; make a new one"


class GrpcProduceStream(AskingStream[pb.ProduceRequest, pb.ProduceResponse]):
    """See ``port.ProduceStream``."""

    def send(self, request: pb.ProduceRequest) -> Awaitable[pb.ProduceResponse]:
        """Queue ``request`` and return its answer to come."""
        return self.ask(request, request.timeout_ms + ANSWER_ALLOWANCE_MS, answered=request.acks != NO_ACKS)


class GrpcFetchStream(AskingStream[pb.FetchRequest, pb.FetchResponse]):
    """See ``port.FetchStream``."""

    def send(self, request: pb.FetchRequest) -> Awaitable[pb.FetchResponse]:
        """Queue ``request`` and return its answer to come."""
        return self.ask(request, request.max_wait_ms + CALL_TIMEOUT_MS)

    def abandon(self) -> None:
        """Give up what is in flight; the next request opens another call."""
        self.end(NetworkFailed("given up by this client"))


def _begin(transport: GrpcTransport) -> None:
    """
    ``transport`` opens a channel. gRPC is held from the first on: when its last object goes, which may be at the very
    end of the process, it would wake its thread, and that crashes when it finds no interpreter.

    Raises:
        Overloaded: too few file descriptors are left for that.
    """
    pid = os.getpid()
    if GrpcTransport._holds != pid and INSTEAD.get() is None:
        need_descriptors(GRPC_OPENS)
        library().aio.init_grpc_aio()
        adapt_to_large_blocks()
        GrpcTransport._holds = pid
    transport._pid = pid
    connected(transport)


class GrpcTransport(CoordinatorCalls):
    """
    See ``port.Transport``. Made on any thread; used on one event loop.

    With ``patient`` a client that was never answered asks on as one that was.
    With a ``ClusterAddress`` that knows its cluster's id, what brokers of another cluster answer is not taken.

    Raises:
        InvalidConfig: the file of the cluster's CAs cannot be read, or what is named as its API key is none.
        CredentialInPlainText: the key would go to another machine without TLS.
        Rejected: this is a forked child of a process that had connections, and cannot load a gRPC of its own.
        Overloaded: no file descriptor is left for that.
    """

    _holds: ClassVar[int | None] = None
    """The process that holds gRPC."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        *,
        call_timeout_ms: float = CALL_TIMEOUT_MS,
        security: Security | None = None,
        credentials: Credentials | None = None,
        patient: bool = False,
        client_id: str = "",
    ) -> None:
        assert bootstrap, "at least one address"
        with needing_descriptors():
            library()
        self._pid: int | None = None
        """The process whose connections these are."""
        self._bootstrap = list(bootstrap)
        self._meant = bootstrap if isinstance(bootstrap, ClusterAddress) else None
        self._ca = None if self._meant is None or self._meant.ca is None else Path(self._meant.ca)
        self._certificate = None if self._meant is None else self._meant.certificate
        security = security or trust_in(self._ca, self._certificate)
        self._credentials = credentials or credentials_for(self._meant, self._bootstrap, os.environ)
        self._connected_with = self._credentials.number
        self._call_timeout = call_timeout_ms / 1_000
        self._security = security
        self._nodes = Whereabouts()
        self._patient = patient
        self._client_id = client_id
        self._asked_since: float | None = None
        self._channels: Channels[str] = Channels(
            self._named(security),
            own_connection=True,  # a server bounds the calls of one; other clients of the process are not to wait
            reconnect_ms_max=EAGER_RECONNECT_MS_MAX,
        )
        self._bearing: Channels[str] | None = None
        """Of calls that show somebody else's credential, and nothing of this client."""
        self._produce: dict[NodeId, GrpcProduceStream] = {}
        self._fetch: dict[NodeId, GrpcFetchStream] = {}
        self._answered: str | None = None
        self._suspected = "is the cluster up there?"
        """Why nobody answers."""
        self._avoided: dict[str, Deadline] = {}
        """Until when to ask others first, by address."""
        self._turns = -1
        self._heard: deque[pb.MetadataResponse] = deque(maxlen=HEARD_MAX)
        """What the one this is a sibling of has learned meanwhile, on its own thread."""
        self._hearers: list[deque[pb.MetadataResponse]] = []
        self._tasks = Tasks()
        self._memberships = WeakSet()
        self._moving = Moving(self._credentials, self._log_in, self._streams, self._tasks)
        self._watched = False
        self._closed = False

    async def metadata(self, request: pb.MetadataRequest, *, elsewhere: bool = False) -> pb.MetadataResponse:
        """From any broker that answers; the brokers it names become known."""
        timeout = min(self._call_timeout, METADATA_ATTEMPT_MS / 1_000)
        try:
            answer = await self._first(lambda stub: stub.Metadata(request, timeout=timeout), elsewhere=elsewhere)
        except Overloaded as error:
            self._suspected = f"{error}."  # the cluster was not even asked
            raise
        await self._learn(answer)
        return answer

    async def _first(self, ask: Callable[[BrokerAsyncStub], Awaitable[R]], *, elsewhere: bool = False) -> R:
        """
        The first answer. Addresses are asked one after the other, the next when one fails or is silent for
        ``HEDGE_MS``; the one that answered last comes first, or with ``elsewhere`` last.
        """
        if not self._watched:
            self._watched = True
            self._tasks.start(self._warn_if_unheard(), "warn if nobody answers")
        while self._heard:
            await self._learn(self._heard.popleft())
        clock = asyncio.get_running_loop().time
        left = self._addresses(elsewhere)
        if self._asked_since is None:
            self._asked_since = clock()
        failed: dict[str, HeadraceError] = {}
        asked: dict[asyncio.Task[R | HeadraceError], tuple[str, float]] = {}
        try:
            while left or asked:
                if left:
                    address = left.popleft()
                    call = self._outcome(ask, self._stub(address), address)
                    asked[self._tasks.start(call, f"ask {address}")] = address, clock()
                wait_s = HEDGE_MS / 1_000 if left else None
                done, _ = await asyncio.wait(asked, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    (address, _) = asked.pop(task)
                    if task.cancelled():
                        raise ClientClosed(CLOSED)
                    outcome = task.result()
                    if not isinstance(outcome, HeadraceError):
                        self._answered = address
                        self._avoided.pop(address, None)
                        return outcome
                    failed[address] = outcome
                    self._avoid(address)
                    if isinstance(outcome, RequestTimedOut):
                        await self._renew(address)
        finally:
            for task, (address, since) in asked.items():
                self._avoid(address)
                task.cancel()
                if clock() - since > HEDGE_MS / 1_000:
                    await self._renew(address)
        raise self._explain(failed, clock() - self._asked_since)

    def _explain(self, failed: Mapping[str, HeadraceError], asked_s: float) -> HeadraceError:
        """Why nobody has answered, by address."""
        others = [error for error in failed.values() if isinstance(error, InconsistentClusterId) or is_refusal(error)]
        if others:
            return others[0]
        busy = [error for error in failed.values() if isinstance(error, Overloaded)]
        if busy:  # somebody is there, and says what is too much
            self._suspected = f"{busy[0]}."
            return busy[0]
        untrusted = [error for error in failed.values() if isinstance(error, TlsFailed)]
        if untrusted:
            self._suspected = f"{untrusted[0]}."
        silent = all(nobody_there(error) or isinstance(error, TlsFailed) for error in failed.values())
        if silent and self._answered is None and not self._patient and asked_s * 1_000 >= phases.UNREACHABLE_MS:
            return self._unreachable(asked_s, untrusted)
        said = "; ".join(f"{address}: {error}" for address, error in failed.items())
        kind = TlsFailed if failed and len(untrusted) == len(failed) else NetworkFailed
        return kind(f"no broker answered; is the cluster up? {said}")

    def _named(self, security: Security) -> Security:
        """To nodes that are known by what the cluster says their certificates name, in place of an address."""
        return replace(security, server_name=self._server_name_at, metadata=self._credentials.metadata)

    def _server_name_at(self, address: str) -> str | None:
        return self._nodes.server_name_at(address)

    def _look_at_cas(self) -> None:
        """They may have been changed since; connections are made anew with others, and those there are end."""
        try:
            security = trust_in(self._ca, self._certificate)
        except InvalidConfig as error:
            _log.warning("%s; those of before stay in use", error)
            return
        if security != self._security:
            self._security = security
            self._tasks.start(self._channels.renew(self._named(security)), "connections with other CAs")
            if self._bearing is not None:
                bare = replace(security, server_name=self._server_name_at)
                self._tasks.start(self._bearing.renew(bare), "connections with other CAs")

    def _unreachable(self, asked_s: float, untrusted: Sequence[TlsFailed]) -> ClusterUnreachable:
        """Nobody can be spoken to, and nobody ever could."""
        if untrusted:
            return ClusterUnreachable(f"{untrusted[0]}; so since this client first asked, {asked_s:.0f} s ago")
        return ClusterUnreachable(
            f"nobody has listened at {', '.join(self._bootstrap)} since this client first asked, {asked_s:.0f} s "
            "ago: start the cluster (`headrace up`), or name the one that is meant with bootstrap_servers or "
            "HEADRACE_BOOTSTRAP; a client with a max_block_ms or default_api_timeout_ms of its own waits as long"
        )

    async def _outcome(
        self, ask: Callable[[BrokerAsyncStub], Awaitable[R]], stub: BrokerAsyncStub, address: str
    ) -> R | HeadraceError:
        """What was answered, if it was the cluster that is meant."""

        async def attempt() -> R:
            answer = await ask(stub)
            if self._meant is not None and self._meant.cluster_id is not None:
                named = answer if isinstance(answer, pb.MetadataResponse) else await self._who_is(stub)
                self._meant.check(named.cluster_id, address)
            return answer

        try:
            return await self._call(f"the broker at {address}", attempt)
        except HeadraceError as error:
            return error

    async def _who_is(self, stub: BrokerAsyncStub) -> pb.MetadataResponse:
        return await stub.Metadata(pb.MetadataRequest(), timeout=min(self._call_timeout, METADATA_ATTEMPT_MS / 1_000))

    async def _log_in(self, user: str, password: Secret, mechanism: str) -> Granted:
        failed: HeadraceError = NetworkFailed("no broker is known")
        for address in self._addresses(elsewhere=False):
            security = replace(self._security, server_name=self._server_name_at)
            try:
                return await log_in(address, security, user, password, mechanism)
            except HeadraceError as error:
                failed = error
                if is_refusal(error):
                    raise
                self._avoid(address)
        raise failed

    async def _warn_if_unheard(self) -> None:
        await pause_ms(UNHEARD_MS)
        if self._answered is None:
            _log.warning(
                "no broker has answered for %g s at %s; %s Trying on",
                UNHEARD_MS / 1_000,
                ", ".join(self._bootstrap),
                self._suspected,
            )

    def _addresses(self, elsewhere: bool) -> deque[str]:
        """All that are known, in the order in which to ask: who was silent, or is said to be fenced, comes last."""
        known = dict.fromkeys([*self._nodes.brokers.values(), *self._bootstrap])
        self._avoided = {address: until for address, until in self._avoided.items() if until.left_ms > 0}
        hopeful = self._nodes.living.union(self._bootstrap)
        order = [address for address in known if address in hopeful and address not in self._avoided]
        if self._answered in order:
            at = order.index(self._answered)
            order = order[at + 1 :] + order[: at + 1] if elsewhere else order[at:] + order[:at]
        last = [address for address in known if address not in order]
        return deque([*self._in_turn(order), *self._in_turn(last)])

    def _in_turn(self, order: Sequence[str]) -> list[str]:
        """
        After each address that was learned a configured one: all brokers may have been replaced, and then nobody is at
        any of their addresses any more, while the configured ones lead to who is there now.
        """
        learned = deque(address for address in order if address not in self._bootstrap)
        configured = deque(address for address in order if address in self._bootstrap)
        queues = (configured, learned) if order and order[0] in self._bootstrap else (learned, configured)
        return [address for pair in zip_longest(*queues) for address in pair if address is not None]

    def _avoid(self, address: str) -> None:
        self._avoided[address] = Deadline(AVOID_MS)

    async def _renew(self, address: str) -> None:
        """
        Drop the connection to a configured address that was silent: it may end where nobody is any more, while the name
        leads elsewhere now. That of a node stays, where requests may be under way; streams judge silence by themselves.
        """
        if address not in self._nodes.addresses:
            await self._channels.drop(address)

    async def _learn(self, answer: pb.MetadataResponse) -> None:
        for hearer in self._hearers:
            hearer.append(answer)
        for broker, address in self._nodes.learn(answer).items():
            for stream in (self._produce.get(broker), self._fetch.get(broker)):
                if stream is not None:
                    stream.end(NetworkFailed(f"broker {broker} is no longer at {address}; the outcome is unknown"))
        await self._leave_others()

    async def _leave_others(self) -> None:
        """Close the connections to where no node is, or one of another role; the configured ones stay."""
        for address in self._nodes.take_renamed():
            await self._channels.drop(address)
            if self._bearing is not None:
                await self._bearing.drop(address)
        known = self._nodes.addresses.union(self._bootstrap)
        await self._channels.keep(known)
        if self._bearing is not None:
            await self._bearing.keep(known)

    def produce_stream(self, broker: NodeId) -> GrpcProduceStream:
        stream = self._produce.get(broker)
        if stream is None:

            def open_call() -> Asking[pb.ProduceRequest, pb.ProduceResponse]:
                refused = self._refusals()
                self._moving.begin()
                call = self._broker(broker).Produce(metadata=self._named_as_client())
                return Asking(call, self._name(broker), self._tasks, strict=True, is_final=refused)

            stream = self._produce[broker] = GrpcProduceStream(open_call)
        return stream

    def fetch_stream(self, broker: NodeId) -> GrpcFetchStream:
        stream = self._fetch.get(broker)
        if stream is None:

            def open_call() -> Asking[pb.FetchRequest, pb.FetchResponse]:
                refused = self._refusals()
                self._moving.begin()
                call = self._broker(broker).Fetch(metadata=self._named_as_client())
                return Asking(call, self._name(broker), self._tasks, strict=True, is_final=refused)

            stream = self._fetch[broker] = GrpcFetchStream(open_call)
        return stream

    def _streams(self) -> Iterator[Movable]:
        """All that are open, or were."""
        yield from self._produce.values()
        yield from self._fetch.values()
        yield from self._memberships
        if self._ends is not None:
            yield self._ends[1]

    def _named_as_client(self) -> Metadata:
        return ((CLIENT_ID_KEY, self._client_id.encode()),) if self._client_id else ()

    async def list_offsets(self, broker: NodeId, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        """Raises: ``HeadraceError`` when the call as a whole failed."""
        timeout = self._call_timeout + request.max_wait_ms / 1_000
        return await self._call(f"broker {broker}", lambda: self._broker(broker).ListOffsets(request, timeout=timeout))

    async def init_producer_id(self, request: pb.InitProducerIdRequest) -> pb.InitProducerIdResponse:
        timeout = min(self._call_timeout, METADATA_ATTEMPT_MS / 1_000)
        return await self._first(lambda stub: stub.InitProducerId(request, timeout=timeout))

    def sibling(self) -> GrpcTransport:
        """Connections of their own, for another event loop; what is learned here they hear of."""
        bootstrap, timeout_ms = self._meant or self._bootstrap, self._call_timeout * 1_000
        twin = self._channels.context.run(
            GrpcTransport,
            bootstrap,
            call_timeout_ms=timeout_ms,
            security=self._security,
            credentials=self._credentials,
            patient=self._patient,
            client_id=self._client_id,
        )
        twin._asked_since, twin._answered = self._asked_since, self._answered
        twin._nodes = self._nodes.copy()
        self._hearers.append(twin._heard)
        return twin

    async def admin(self) -> AdminAsyncStub:
        """A stub of the admin service; whoever asks again has found the last one away, and gets the next."""
        await self.metadata(pb.MetadataRequest())
        admins = self._nodes.admins
        if not admins:
            raise NetworkFailed("the cluster has no admin service; start one, for example with `headrace up`")
        self._turns += 1
        return AdminStub(self._channel(admins[self._turns % len(admins)]))

    async def ticket_call(
        self,
        method: Callable[[TicketsAsyncStub], Method[Q_contra, A_co]],
        request: Q_contra,
        maker: NodeId | None,
        bearer: Secret | None = None,
    ) -> A_co:
        """See ``port.Transport``."""
        if maker is not None:
            if maker not in self._nodes.brokers:
                await self.metadata(pb.MetadataRequest())
            return await self._of_tickets(self._nodes.brokers.get(maker), method, request)
        elsewhere = False
        while True:
            if self._answered is None or elsewhere:
                await self._find_for(bearer, elsewhere=elsewhere)
            try:
                return await self._of_tickets(self._answered, method, request, bearer)
            except (NetworkFailed, RequestTimedOut):
                if elsewhere:
                    raise
                elsewhere = True

    async def _find_for(self, bearer: Secret | None, *, elsewhere: bool) -> None:
        """Find a broker. What this client is refused itself says nothing of whose ``bearer`` it asks about."""
        try:
            await self.metadata(pb.MetadataRequest(), elsewhere=elsewhere)
        except HeadraceError as error:
            if bearer is None or not is_refusal(error):
                raise
            raise NetworkFailed(f"this program is not let in itself: {error}") from error

    async def _of_tickets(
        self,
        address: str | None,
        method: Callable[[TicketsAsyncStub], Method[Q_contra, A_co]],
        request: Q_contra,
        bearer: Secret | None = None,
    ) -> A_co:
        if address is None:
            raise NetworkFailed("there is no such broker now")
        timeout = min(self._call_timeout, METADATA_ATTEMPT_MS / 1_000)
        at = f"the broker at {address}"
        if bearer is None:
            return await self._call(at, lambda: method(TicketsStub(self._channel(address)))(request, timeout=timeout))
        shown = bearer_metadata(bearer, address, tls=self._security.newest is not None)
        call: Any = method(TicketsStub(self._bearing_channel(address)))
        with CallTo(at):  # not _call, which looks for another credential of this client when one is refused
            answer: A_co = await call(request, timeout=timeout, metadata=shown)
        return answer

    def _bearing_channel(self, address: str) -> aio.Channel:
        """One that adds nothing of this client to a call."""
        self._channel(address)  # is open, and holds gRPC
        if self._bearing is None:
            bare = replace(self._security, server_name=self._server_name_at)
            self._bearing = self._channels.context.run(
                Channels[str], bare, own_connection=True, reconnect_ms_max=EAGER_RECONNECT_MS_MAX
            )
        return self._bearing.to(address)

    async def close(self) -> None:
        """Close all streams and connections. Idempotent."""
        self._closed = True
        for produce in self._produce.values():
            produce.close()
        for fetch in self._fetch.values():
            fetch.close()
        if self._ends is not None:
            self._ends[1].close()
        await self._tasks.close()
        await self._channels.close()
        if self._bearing is not None:
            await self._bearing.close()

    def _channel(self, address: str) -> aio.Channel:
        if self._closed:
            raise ClientClosed(CLOSED)
        if self._pid not in (None, os.getpid()):
            raise ClientClosed.by_fork("client")
        if self._certificate is not None and self._connected_with != self._credentials.number:
            self._connected_with = self._credentials.number
            self._look_at_cas()  # and at the certificate
        if address not in self._channels:
            _begin(self)
        return self._channels.to(address)

    def _stub(self, address: str) -> BrokerAsyncStub:
        return BrokerStub(self._channel(address))

    def _broker(self, broker: NodeId) -> BrokerAsyncStub:
        address = self._nodes.brokers.get(broker)
        if address is None:
            raise NetworkFailed(f"broker {broker} is not in the cluster's metadata; refresh it")
        return self._stub(address)

    def _name(self, broker: NodeId) -> str:
        return f"broker {broker} at {self._nodes.brokers[broker]}"
