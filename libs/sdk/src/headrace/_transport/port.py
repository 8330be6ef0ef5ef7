"""
What producers, consumers and the admin client need from a cluster.

``grpc.py`` speaks to real brokers. Messages are the generated ones of ``headrace_proto.v1``: they are built once per
batch, never per record. All methods run on one event loop. Failures of a whole call are raised as ``HeadraceError``;
failures of one partition are in the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from headrace_common.core.ids import NodeId
from headrace_common.core.secret import Secret
from headrace_common.rpc.calls import A_co, Method, Q_contra
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import coordinator_pb2 as group_pb
from headrace_proto.v1 import transaction_pb2

if TYPE_CHECKING:
    from headrace_proto.v1.admin_pb2_grpc import AdminAsyncStub  # exist for type checkers only
    from headrace_proto.v1.coordinator_pb2_grpc import CoordinatorAsyncStub
    from headrace_proto.v1.tickets_pb2_grpc import TicketsAsyncStub
    from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorAsyncStub


class ProduceStream(Protocol):
    """One ``Produce`` stream to one broker; opened when first used, opened anew after it broke."""

    def send(self, request: pb.ProduceRequest) -> Awaitable[pb.ProduceResponse]:
        """
        Queue ``request`` and return its answer to come; the transport sets ``correlation_id``. Requests leave in
        the order of the calls. With ``acks`` 0 it resolves, empty, once the request has left.

        Raises (from the awaitable):
            NetworkFailed: the stream broke: the outcome of this request is unknown.
            RequestTimedOut: no answer in the request's ``timeout_ms`` plus the transport's allowance; unknown too.
        """
        ...

    def close(self) -> None:
        """End the stream; requests in flight fail with ``NetworkFailed``."""
        ...


class FetchStream(Protocol):
    """One ``Fetch`` stream to one broker; answers come in the order of the requests."""

    def send(self, request: pb.FetchRequest) -> Awaitable[pb.FetchResponse]:
        """
        Queue ``request`` and return its answer to come; the next may be sent before it came.

        Raises (from the awaitable):
            NetworkFailed: the stream broke; nothing is lost, fetch again.
        """
        ...

    def abandon(self) -> None:
        """
        Give up what is in flight, which then fails with ``NetworkFailed``: a request may wait for records that nobody
        is interested in any more. The next request opens the stream anew.
        """
        ...

    def close(self) -> None:
        """End the stream; requests in flight fail with ``NetworkFailed``."""
        ...


class Coordinator(NamedTuple):
    """Who has a group, or a transactional id."""

    node: NodeId
    address: str
    """Where it listens, as ``host:port``."""

    def __str__(self) -> str:
        return f"coordinator {self.node} at {self.address}"


CoordinatorCall: TypeAlias = Callable[[Coordinator, float], Awaitable[A_co]]
"""Makes one call: to whom, and how long it may take in ms."""


class MembershipStream(Protocol):
    """One ``Membership`` stream to one coordinator, from its opening to its end; a broken one is never used again."""

    def send(self, request: group_pb.MembershipRequest) -> None:
        """Queue ``request``; requests leave in the order of the calls. What cannot leave is told by ``receive``."""
        ...

    async def receive(self) -> group_pb.MembershipResponse:
        """
        The next that the coordinator says, asked or unasked, in its order.

        Raises:
            HeadraceError: the stream is over; each further call raises too.
        """
        ...

    async def close(self) -> None:
        """End the stream; what was sent before leaves first, if that is possible within a second. Idempotent."""
        ...


class Transport(Protocol):
    """Connections to all brokers of one cluster, shared by everything of one client."""

    async def metadata(self, request: pb.MetadataRequest, *, elsewhere: bool = False) -> pb.MetadataResponse:
        """
        From any broker that answers, trying known brokers and then the bootstrap servers, each once. Brokers that
        the answer names become known to this transport: the other methods take their ids. ``elsewhere`` begins with
        another broker than the one that answered last: what that one knows may be old.

        Raises:
            NetworkFailed: none answered; the text names each address and what it said.
        """
        ...

    def produce_stream(self, broker: NodeId) -> ProduceStream:
        """The one produce stream of this client to that broker."""
        ...

    def fetch_stream(self, broker: NodeId) -> FetchStream:
        """The one fetch stream of this client to that broker."""
        ...

    async def list_offsets(self, broker: NodeId, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        """Raises: ``HeadraceError`` when the call as a whole failed."""
        ...

    async def init_producer_id(self, request: pb.InitProducerIdRequest) -> pb.InitProducerIdResponse:
        """From any broker. Raises: ``HeadraceError`` when none could answer."""
        ...

    async def find_coordinator(self, key: str, kind: pb.CoordinatorType.ValueType = pb.GROUP) -> Coordinator:
        """
        Who has a group, or with ``TRANSACTION`` a transactional id or an owner of units, as any broker knows it.

        Raises:
            CoordinatorNotAvailable: nobody has it now.
            NetworkFailed: no broker answered.
            HeadraceError: what the broker says of the key.
        """
        ...

    def membership(self, coordinator: Coordinator) -> MembershipStream:
        """A new stream of one member; opened at once, what goes wrong is told by ``receive``."""
        ...

    def group_call(
        self, method: Callable[[CoordinatorAsyncStub], Method[Q_contra, A_co]], request: Q_contra
    ) -> CoordinatorCall[A_co]:
        """
        A call to whoever coordinates a group: ``group_call(lambda stub: stub.FetchOffsets, request)``.

        What is answered is durable; it may be made again. Raises, when it is made: what the service's definition says;
        ``NetworkFailed``, ``RequestTimedOut``: the outcome is unknown.
        """
        ...

    def transaction_call(
        self, method: Callable[[TransactionCoordinatorAsyncStub], Method[Q_contra, A_co]], request: Q_contra
    ) -> CoordinatorCall[A_co]:
        """The same to whoever coordinates a transactional id, or an owner of units."""
        ...

    def end_call(self, request: transaction_pb2.EndTxnRequest) -> CoordinatorCall[transaction_pb2.EndTxnResponse]:
        """
        ``transaction_call`` of ``EndTxn`` over a stream that stays open, which takes less than half of the time. For
        clusters whose coordinators have said that they take it.
        """
        ...

    def sibling(self) -> Transport:
        """
        Connections of their own to the same cluster, for use on another event loop; to be closed by the caller. Where
        nodes are they learn by themselves and from these.
        """
        ...

    async def admin(self) -> AdminAsyncStub:
        """
        A stub of the admin service, found through ``metadata``; raw gRPC errors are mapped by the caller.

        Raises:
            NetworkFailed: no admin service is registered; the text says how to start one.
        """
        ...

    async def ticket_call(
        self,
        method: Callable[[TicketsAsyncStub], Method[Q_contra, A_co]],
        request: Q_contra,
        maker: NodeId | None,
        bearer: Secret | None = None,
    ) -> A_co:
        """
        A call of ``Tickets``, to the broker that made a ticket; None: to any.

        Args:
            bearer: somebody else's, which is shown in place of what this client shows, and on other connections.

        Raises:
            NetworkFailed: nobody answered, or there is no such broker; or with ``bearer`` this client itself is not let
                in, so that it finds no broker.
            CredentialInPlainText: ``bearer`` would go to another machine, and not by TLS.
            HeadraceError: what the broker says.
        """
        ...

    async def close(self) -> None:
        """Close all streams and connections. Idempotent."""
        ...
