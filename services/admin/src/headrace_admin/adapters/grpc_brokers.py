"""The ``Brokers`` port: one channel per broker, at the address the image has for it now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace_admin.ports import Cluster
from headrace_common.core.errors import NetworkFailed, RequestTimedOut, error_for
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.rpc.calls import A_co, CallTo, Method, Q_contra
from headrace_common.rpc.channels import PLAIN, Channels, Security
from headrace_common.runtime.clock import limit_s
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import errors_pb2
from headrace_proto.v1.broker_pb2_grpc import BrokerStub
from headrace_proto.v1.tickets_pb2 import IssueTicketRequest, IssueTicketResponse
from headrace_proto.v1.tickets_pb2_grpc import TicketsStub

if TYPE_CHECKING:
    from headrace_proto.v1.broker_pb2_grpc import BrokerAsyncStub


class GrpcBrokers:
    """
    Channels are opened when first used and closed with ``close``, or after the broker has moved or left: calls that are
    still under way there fail, their outcome unknown.
    """

    def __init__(self, cluster: Cluster, timeout_ms: float, security: Security = PLAIN) -> None:
        self._cluster = cluster
        self._timeout = timeout_ms / 1_000
        self._channels: Channels[Endpoint] = Channels(security)

    async def ask(
        self, broker: NodeId, method: Callable[[BrokerAsyncStub], Method[Q_contra, A_co]], request: Q_contra
    ) -> A_co:
        with CallTo(f"broker {broker}"):
            return await method(await self._stub(broker))(request, timeout=self._timeout)

    async def fetch(self, broker: NodeId, request: pb.FetchRequest) -> pb.FetchResponse:
        """A stream of one request."""
        with CallTo(f"broker {broker}"):
            call = (await self._stub(broker)).Fetch(timeout=self._timeout)
            try:  # a write that waits for a connection never hears that its channel was closed
                async with limit_s(self._timeout):
                    await call.write(request)
                    await call.done_writing()
                    answer = await call.read()
            except TimeoutError:
                raise RequestTimedOut(f"broker {broker} did not answer in {self._timeout:g} s; try again") from None
            finally:
                call.cancel()
        if not isinstance(answer, pb.FetchResponse):
            raise NetworkFailed(f"broker {broker} ended the stream without an answer; it is stopping, try again")
        if answer.error != errors_pb2.NONE:
            raise error_for(answer.error, answer.message)
        return answer

    async def issue_ticket(self, request: IssueTicketRequest) -> IssueTicketResponse:
        """
        A ticket of the caller of the running handler, from whichever broker is not fenced.

        Raises:
            Denied: it may nothing of this.
            NetworkFailed: there is no broker, or it does not answer.
        """
        brokers = [node for key, node in self._cluster.image.nodes.items() if key.role is Role.BROKER]
        found = min(brokers, key=lambda node: (node.fenced, node.key.id), default=None)
        if found is None:
            raise NetworkFailed("no broker is registered, so there is nobody who makes tickets")
        with CallTo(f"broker {found.key.id}"):
            stub = TicketsStub(self._channels.to(found.inside))
            return await stub.IssueTicket(request, timeout=self._timeout)

    async def close(self) -> None:
        await self._channels.close()

    @property
    def channels(self) -> int:
        """How many are open."""
        return len(self._channels)

    async def _stub(self, broker: NodeId) -> BrokerAsyncStub:
        nodes = self._cluster.image.nodes
        node = nodes.get(NodeKey(Role.BROKER, broker))
        if node is None:
            raise NetworkFailed(f"broker {broker} is not registered; start it, or move its partitions")
        new = node.inside not in self._channels
        stub: BrokerAsyncStub = BrokerStub(self._channels.to(node.inside))
        if new:
            await self._channels.keep({other.inside for key, other in nodes.items() if key.role is Role.BROKER})
        return stub
