"""
The ``Coordinator`` service of ``coordinator.proto``: each call is decoded, given to the engine, its answer encoded.

A Membership call costs two tasks: one reads, the handler itself writes.
"""
# ruff: noqa: N802 - methods have the names of the proto

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import unquote

import grpc.aio

from headrace_common.core.errors import HeadraceError, NotCoordinator, Rejected
from headrace_common.rpc.convert_observed import observed_of
from headrace_common.rpc.node_gate import NodeGate
from headrace_common.rpc.peers import peer_of
from headrace_common.runtime.access_gate import current_rights
from headrace_common.runtime.answering import answer_stream
from headrace_common.runtime.clock import pause_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_coordinator.engine.callers import CallersGroups
from headrace_coordinator.engine.coordinator import Committer, Coordinator
from headrace_coordinator.engine.streams import MemberStream
from headrace_coordinator.rpc import decode, encode
from headrace_proto.v1 import access_pb2, coordinator_pb2_grpc, transaction_pb2
from headrace_proto.v1 import coordinator_pb2 as pb

LINGER_S_MAX: Final = 5.0
"""How long a client that sends no more may wait for what is still to come: the answer to its leave, above all."""
LEAVING: Final = "this coordinator is leaving; find the group's coordinator again"
_PROTOCOLS: Final = {"consumer_heartbeat": "consumer", "work_heartbeat": "work"}
"""By request; all others are of the classic one."""
_EITHER: Final = "leave"
_EOF: Final[Any] = grpc.aio.EOF

Context = grpc.aio.ServicerContext[Any, Any]


class CoordinatorServicer(coordinator_pb2_grpc.CoordinatorServicer):
    """One for the process; ``draining`` refuses new streams, and ends those of markers."""

    def __init__(self, coordinator: Coordinator, draining: asyncio.Event, gate: NodeGate) -> None:
        self._coordinator = coordinator
        self._draining = draining
        self._gate = gate

    @property
    def _asked(self) -> CallersGroups:
        """Groups, as the caller of the running handler may ask for them."""
        return CallersGroups(self._coordinator, current_rights())

    # --- membership -------------------------------------------------------------------------------------------

    def Membership(self, requests: Any, context: Context) -> Any:
        """See the proto. A coroutine that writes by itself; the interceptor awaits it."""
        del requests
        return self._membership(context)

    async def _membership(self, context: Context) -> None:
        first = await _next(context)
        if first is None:
            return
        if self._draining.is_set():
            raise NotCoordinator(LEAVING)
        stream = self._asked.open_stream(decode.group_id(first.group_id), _address(peer_of(context)))
        try:
            async with TaskRunner() as own:
                reader = own.start(self._read(first, stream, context), name="membership-read")
                try:
                    while (message := await stream.next_message()) is not None:
                        await context.write(encode.message(message))
                finally:  # at once: gRPC may cancel this task again while the runner waits for the reader
                    reader.cancel()
        finally:
            self._coordinator.broke(stream)
            self._coordinator.close_stream(stream)

    async def _read(self, first: pb.MembershipRequest, stream: MemberStream, context: Context) -> None:
        """Whatever ends the reading ends the stream, by what it is told."""
        request: pb.MembershipRequest | None = first
        protocol: str | None = None
        try:
            while request is not None:
                protocol = _check_protocol(request, first.group_id, protocol)
                event = decode.member_event(request, stream, self._coordinator.moment(), self._coordinator.fresh_id)
                self._coordinator.say(stream, event)
                await stream.room()
                request = await _next(context)
        except grpc.aio.BaseError:
            stream.close()  # the connection is gone
        except HeadraceError as error:
            stream.fail(error)
        else:
            await pause_ms(LINGER_S_MAX * 1_000)
            stream.close()

    # --- offsets ----------------------------------------------------------------------------------------------

    async def CommitOffsets(self, request: pb.CommitOffsetsRequest, context: Context) -> pb.CommitOffsetsResponse:
        del context
        by = Committer(request.member_id, decode.instance(request), request.generation)
        found = await self._asked.commit(decode.group_id(request.group_id), by, decode.commits(request))
        return pb.CommitOffsetsResponse(results=map(encode.offset_outcome, found))

    async def TxnOffsetCommit(self, request: pb.TxnOffsetCommitRequest, context: Context) -> pb.CommitOffsetsResponse:
        del context
        by = Committer(request.member_id, decode.instance(request), request.generation)
        found = await self._asked.commit_in_transaction(
            decode.group_id(request.group_id), by, decode.transaction(request), decode.commits(request)
        )
        return pb.CommitOffsetsResponse(results=map(encode.offset_outcome, found))

    async def WriteTxnMarkers(
        self, request: transaction_pb2.WriteTxnMarkersRequest, context: Context
    ) -> transaction_pb2.WriteTxnMarkersResponse:
        del context
        return await self._mark(request)

    def Mark(self, requests: Any, context: Context) -> Any:
        """See the proto. A coroutine that writes by itself; the interceptor awaits it."""
        del requests
        check = self._gate.holding("Coordinator/Mark", context)
        return answer_stream(context, self._draining, self._mark, transaction_pb2.MarkResponse, check)

    async def _mark(self, request: transaction_pb2.WriteTxnMarkersRequest) -> transaction_pb2.WriteTxnMarkersResponse:
        found = await self._coordinator.end_transactions(decode.markers(request))
        return transaction_pb2.WriteTxnMarkersResponse(markers=map(encode.encode_marker_result, found))

    async def FetchOffsets(self, request: pb.FetchOffsetsRequest, context: Context) -> pb.FetchOffsetsResponse:
        del context
        found = await self._asked.offsets(
            decode.group_id(request.group_id),
            request.member_id if request.HasField("member_id") else None,
            request.member_epoch if request.HasField("member_epoch") else None,
            decode.partitions_by_topic(request.partitions) or None,
            require_stable=request.require_stable,
        )
        return pb.FetchOffsetsResponse(offsets=map(encode.encode_offset, found))

    async def DeleteOffsets(self, request: pb.DeleteOffsetsRequest, context: Context) -> pb.DeleteOffsetsResponse:
        del context
        partitions = decode.partitions_by_topic(request.partitions)
        if not partitions:
            raise Rejected("the request names no partitions; name those whose offsets are to be forgotten")
        found = await self._asked.delete_offsets(decode.group_id(request.group_id), partitions)
        return pb.DeleteOffsetsResponse(results=map(encode.offset_outcome, found))

    # --- groups -----------------------------------------------------------------------------------------------

    async def ListGroups(self, request: pb.ListGroupsRequest, context: Context) -> pb.ListGroupsResponse:
        del context
        groups, loading = self._asked.list_groups(decode.states(request.states))
        return pb.ListGroupsResponse(groups=map(encode.encode_listing, groups), loading=loading)

    async def DescribeGroups(self, request: pb.DescribeGroupsRequest, context: Context) -> pb.DescribeGroupsResponse:
        del context
        found = await self._asked.describe(decode.group_ids(request.group_ids))
        own_id = self._coordinator.who.node_id
        return pb.DescribeGroupsResponse(groups=[encode.description(one, own_id) for one in found])

    async def DeleteGroups(self, request: pb.DeleteGroupsRequest, context: Context) -> pb.DeleteGroupsResponse:
        del context
        ids = decode.group_ids(request.group_ids)
        errors = await self._asked.delete(ids)
        return pb.DeleteGroupsResponse(groups=map(encode.group_result, ids, errors))

    async def IdentifyCoordinator(
        self, request: pb.IdentifyCoordinatorRequest, context: Context
    ) -> pb.IdentifyCoordinatorResponse:
        del request, context
        who = self._coordinator.who
        return pb.IdentifyCoordinatorResponse(id=who.node_id, incarnation=who.incarnation, cluster_id=who.cluster_id)

    async def Observed(self, request: access_pb2.ObservedRequest, context: Context) -> access_pb2.ObservedResponse:
        return observed_of(current_rights().control, request)


async def _next(context: Context) -> pb.MembershipRequest | None:
    """The next request; None: the client sends no more."""
    request = await context.read()
    return None if request is _EOF else request


def _check_protocol(request: pb.MembershipRequest, group_id: str, protocol: str | None) -> str | None:
    """
    The stream's protocol, which its first request that has one fixes.

    Raises:
        Rejected: the request is about another group, or in another protocol.
    """
    if request.group_id != group_id:
        raise Rejected(f"this stream is for group {group_id!r}; open another one for {request.group_id[:60]!r}")
    asked = request.WhichOneof("request")
    if asked is None or asked == _EITHER:
        return protocol
    spoken = _PROTOCOLS.get(asked, "classic")
    if protocol not in (None, spoken):
        raise Rejected(f"this stream speaks the {protocol} protocol; open another one for the {spoken} protocol")
    return spoken


def _address(peer: str) -> str:
    """``host:port`` of gRPC's ``ipv4:127.0.0.1:5000`` or ``ipv6:%5B::1%5D:5000``."""
    family, colon, rest = peer.partition(":")
    return unquote(rest) if colon and family in {"ipv4", "ipv6"} else peer
