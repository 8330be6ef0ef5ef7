"""
The ``Broker`` service of ``broker.proto``: each call is decoded, given to the engine, and its answer encoded.

Streams cost two tasks each and a request none: one task reads, the handler itself writes.
"""
# ruff: noqa: N802 - methods have the names of the proto

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import grpc.aio

from headrace_broker.engine.body_checks import NOTHING_CHECKED
from headrace_broker.engine.broker import Broker
from headrace_broker.engine.fetch import FetchSession
from headrace_broker.engine.produce import ProduceSession
from headrace_broker.engine.replicate_session import ReplicateSession
from headrace_broker.rpc import decode, encode, encode_logs
from headrace_broker.rpc.metadata_answers import MetadataAnswers
from headrace_common.core.audit.kinds import Kind
from headrace_common.core.errors import HeadraceError, Rejected
from headrace_common.core.ids import NodeId, TopicId
from headrace_common.core.image import Listener, NodeKey, Role, ShardKind
from headrace_common.rpc.convert import role_from_proto
from headrace_common.rpc.convert_observed import observed_of
from headrace_common.rpc.node_gate import NodeGate
from headrace_common.rpc.options import CLIENT_ID_KEY, MESSAGE_BYTES_MAX
from headrace_common.rpc.peers import peer_of
from headrace_common.runtime.access_gate import current_counted, current_record_teller, current_rights
from headrace_common.runtime.admission import address_of
from headrace_common.runtime.answering import answer_stream
from headrace_common.runtime.tasks import TaskRunner
from headrace_proto.v1 import access_pb2, broker_pb2_grpc, cluster_pb2, transaction_pb2
from headrace_proto.v1 import broker_pb2 as pb

FETCHES_READ_AHEAD: Final = 2
_SHARD_KINDS: Final = {pb.GROUP: ShardKind.GROUPS, pb.TRANSACTION: ShardKind.TRANSACTIONS}

_EOF: Final[Any] = grpc.aio.EOF

Context = grpc.aio.ServicerContext[Any, Any]


class BrokerServicer(broker_pb2_grpc.BrokerServicer):
    """
    One for each listener; ``draining`` ends long streams after what is under way.

    ``listener``: where its clients ask. ``apart``: addresses are told apart, and of clients without a credential all of
    one address have a share of the write queue; not behind a proxy. ``request_bytes_max``: its largest request;
    clients are told so, for a batch that does not fit breaks the stream instead of being answered.
    """

    def __init__(
        self,
        broker: Broker,
        draining: asyncio.Event,
        gate: NodeGate,
        *,
        listener: Listener = Listener.CLIENT,
        apart: bool = True,
        request_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self._broker = broker
        self._draining = draining
        self._gate = gate
        self._listener = listener
        self._apart = apart
        self._metadata = MetadataAnswers(broker, request_bytes_max, listener=listener)

    # --- produce ------------------------------------------------------------------------------------------

    def Produce(self, requests: Any, context: Context) -> Any:
        """See the proto. A coroutine that writes by itself; the interceptor awaits it."""
        del requests
        return self._produce(context)

    async def _produce(self, context: Context) -> None:
        """Read in one task, answer in this one."""
        caller = self._gate.caller(context)
        trusted = caller is not None and caller.role is Role.COORDINATOR
        session = self._broker.produce_session(
            lambda: trusted or not self._gate.closed,
            self._whose(context),
            current_rights(),
            _client_id(context),
            current_record_teller(Kind.RECORDS_WRITTEN),
        )
        try:
            async with TaskRunner() as own:
                reader = own.start(self._read_produce(session, context), name="produce-read")
                drainer = own.start(self._on_drain(reader.cancel, session.end), name="produce-drain")
                try:
                    await self._answer_produce(session, context)
                    await _raise_error_of(reader)
                finally:  # at once: gRPC may cancel this task again while the runner waits for the two
                    reader.cancel()
                    drainer.cancel()
        finally:
            self._broker.end_session(session)

    def _whose(self, context: Context) -> str | None:
        """Who has a share with all of its streams; None: a node, or who cannot be told from others."""
        if self._gate.caller(context) is not None:
            return None
        principal = current_counted()
        if principal is not None:
            return str(principal)
        return address_of(peer_of(context)) if self._apart else None

    async def _read_produce(self, session: ProduceSession, context: Context) -> HeadraceError | None:
        checks = self._broker.body_checks

        async def take(request: pb.ProduceRequest) -> None:
            entries = [decode.produce_entry(entry) for entry in request.partitions]
            costly = [index for index in checks.costly(entries) if session.may_write(entries[index])]
            session.accept(
                request.correlation_id,
                request.acks,
                request.timeout_ms,
                entries,
                request.transactional_id if request.HasField("transactional_id") else None,
                await checks.check_beside(entries, costly) if costly else NOTHING_CHECKED,
            )

        return await _read_all(context, session.room, take, session.end)

    async def _answer_produce(self, session: ProduceSession, context: Context) -> None:
        write, answers, changed = context.write, session.answers, session.changed
        while not session.finished:
            await changed.wait()
            changed.clear()
            while answers:
                await write(encode.produce_response(answers.popleft()))
                session.check_room()

    async def _on_drain(self, *ends: Callable[[], object]) -> None:
        await self._draining.wait()
        for end in ends:
            end()

    # --- fetch --------------------------------------------------------------------------------------------

    def Fetch(self, requests: Any, context: Context) -> Any:
        """See the proto. A coroutine that writes by itself; the interceptor awaits it."""
        del requests
        return self._fetch(context)

    async def _fetch(self, context: Context) -> None:
        """Read ahead in one task, answer in order in this one."""
        tell = current_record_teller(Kind.RECORDS_READ)
        whose, fetches = self._whose(context), self._broker.fetches
        inbox, session = _Inbox(), fetches.session(current_rights(), _client_id(context), tell, whose)
        async with TaskRunner() as own:
            reader = own.start(_read_all(context, inbox.room, inbox.put, inbox.close), name="fetch-read")
            drainer = own.start(self._on_drain(reader.cancel, inbox.close, session.rate.end), name="fetch-drain")
            try:
                while (request := await inbox.take()) is not None:
                    await session.rate.room()
                    await self._answer_fetch(request, session, context)
                    del request  # an idle stream keeps nothing
                await _raise_error_of(reader)
            finally:  # at once: gRPC may cancel this task again while the runner waits for the two
                reader.cancel()
                drainer.cancel()

    async def _answer_fetch(self, request: pb.FetchRequest, session: FetchSession, context: Context) -> None:
        response, size = await self._encode_fetched(request, session)
        with self._broker.fetches.answers.sending(session.answers, size):
            await context.write(response)

    async def _encode_fetched(self, request: pb.FetchRequest, session: FetchSession) -> tuple[pb.FetchResponse, int]:
        ask, rate = decode.fetch_ask(request), session.rate
        most = rate.most_at_once()
        if most is not None and most < ask.bytes_max:
            ask = replace(ask, bytes_max=most)
        try:
            results = await self._broker.fetches.fetch(ask, session.logs, session.answers)
        except HeadraceError as error:
            return encode.fetch_refused(request.correlation_id, error), 0
        size = sum(len(batch) for result in results for batch in result.batches)
        throttle_ms = rate.record(size) if rate.holds else 0
        return encode.fetch_response(request.correlation_id, session.news(results), throttle_ms), size

    # --- replicate ----------------------------------------------------------------------------------------

    def Replicate(self, requests: Any, context: Context) -> Any:
        """See the proto. A coroutine that writes by itself; the interceptor awaits it."""
        del requests
        return self._replicate(context)

    async def _replicate(self, context: Context) -> None:
        """Read in one task, read from disk in another, answer in this one."""
        session = self._broker.replication.session()
        try:
            async with TaskRunner() as own:
                reader = own.start(self._read_positions(session, context), name="copy-read")
                cold = own.start(session.read_cold(), name="copy-cold")
                drainer = own.start(self._on_drain(session.end), name="copy-drain")
                try:
                    while (answer := await session.answer()) is not None:
                        await context.write(encode.copy_answer(answer))
                    if reader.done() and (error := reader.result()) is not None:
                        await context.write(encode.copy_refused(error))
                finally:  # at once: gRPC may cancel this task again while the runner waits for them
                    session.end()
                    for task in (reader, cold, drainer):
                        task.cancel()
        finally:
            session.end()

    async def _read_positions(self, session: ReplicateSession, context: Context) -> HeadraceError | None:
        caller = self._gate.caller(context)

        async def take(request: pb.ReplicateRequest) -> None:
            ask = decode.copy_ask(request)
            self._gate.hold(caller, NodeKey(Role.BROKER, ask.broker))
            session.take(ask)

        return await _read_all(context, None, take, session.end)

    # --- unary --------------------------------------------------------------------------------------------

    async def ListOffsets(self, request: pb.ListOffsetsRequest, context: Context) -> pb.ListOffsetsResponse:
        del context
        asks = [decode.offset_ask(entry) for entry in request.partitions]
        stable = request.isolation_level == pb.READ_COMMITTED
        found = await self._broker.offsets.find(asks, request.max_wait_ms, stable=stable, rights=current_rights())
        results = [encode.offset_result(ask.partition, one) for ask, one in zip(asks, found, strict=True)]
        return pb.ListOffsetsResponse(partitions=results)

    async def Metadata(self, request: pb.MetadataRequest, context: Context) -> pb.MetadataResponse:
        del context
        return self._metadata.answer(request, current_rights())

    async def InitProducerId(self, request: pb.InitProducerIdRequest, context: Context) -> pb.InitProducerIdResponse:
        del context
        producer_id, epoch = await self._broker.producer_ids.init(
            request.producer_id if request.HasField("producer_id") else None,
            request.producer_epoch if request.HasField("producer_epoch") else None,
            current_rights(),
        )
        return pb.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)

    async def FindCoordinator(self, request: pb.FindCoordinatorRequest, context: Context) -> pb.FindCoordinatorResponse:
        del context
        kind = _SHARD_KINDS.get(request.type)
        if kind is None:
            raise Rejected(f"coordinators of type {request.type} are not known here; ask for GROUP or TRANSACTION")
        found = await self._broker.coordinators.find(kind, request.keys, current_rights())
        answers = (encode.coordinator(one, listener=self._listener) for one in found)
        return pb.FindCoordinatorResponse(coordinators=answers)

    async def DeleteRecords(self, request: pb.DeleteRecordsRequest, context: Context) -> pb.DeleteRecordsResponse:
        del context
        asks = [(decode.partition(entry), entry.offset) for entry in request.partitions]
        trimmed = await self._broker.trim(asks, current_rights())
        return pb.DeleteRecordsResponse(partitions=[encode.trim_result(one) for one in trimmed])

    async def DescribeLogs(self, request: pb.DescribeLogsRequest, context: Context) -> pb.DescribeLogsResponse:
        del context
        broker, rights = self._broker, current_rights()
        logs = broker.logs([TopicId(topic_id) for topic_id in request.topic_ids], rights)
        found = [(one, broker.compaction(one)) for one in logs]
        unreadable = broker.fetches.unreadable
        if request.only_stuck:  # asked again and again, so nothing is encoded in vain
            found = [
                (one, compaction)
                for one, compaction in found
                if (compaction is not None and compaction.stuck) or unreadable.text(one) is not None
            ]
        answer = pb.DescribeLogsResponse(
            logs=[
                encode_logs.log_description(
                    one,
                    broker.segments(one) if request.segments else None,
                    compaction,
                    broker.topic_noter.note(one.id.topic_id),
                    unreadable.text(one),
                )
                for one, compaction in found
            ],
        )
        if broker.describes_itself(rights):
            answer.disk_free_bytes, answer.disk_total_bytes, answer.disk_reserve_bytes = broker.disk()
            answer.recovery_report = encode_logs.report_text(broker.report)
            answer.scrub.CopyFrom(encode_logs.scrub(broker.scrub()))
        return answer

    async def LogEnds(self, request: pb.LogEndsRequest, context: Context) -> pb.LogEndsResponse:
        del context
        ends = self._broker.log_ends([decode.partition(one) for one in request.partitions])
        return pb.LogEndsResponse(
            logs=[
                pb.LogEnd(topic_id=id.topic_id, partition=id.partition, last_epoch=epoch, written_end=end)
                for id, epoch, end in ends
            ]
        )

    async def Inventory(self, request: pb.InventoryRequest, context: Context) -> AsyncIterator[pb.InventoryResponse]:
        del context
        async for page in self._broker.inventory([decode.topic_id(one) for one in request.topic_ids]):
            yield encode_logs.inventory_page(page)

    async def WriteTxnMarkers(
        self, request: transaction_pb2.WriteTxnMarkersRequest, context: Context
    ) -> transaction_pb2.WriteTxnMarkersResponse:
        del context
        return await self._mark(request)

    def Mark(self, requests: Any, context: Context) -> Any:
        """See the proto. A coroutine that writes by itself; the interceptor awaits it."""
        del requests
        check = self._gate.holding("Broker/Mark", context)
        return answer_stream(context, self._draining, self._mark, transaction_pb2.MarkResponse, check)

    async def _mark(self, request: transaction_pb2.WriteTxnMarkersRequest) -> transaction_pb2.WriteTxnMarkersResponse:
        results = await self._broker.markers.write([decode.marker_ask(marker) for marker in request.markers])
        return transaction_pb2.WriteTxnMarkersResponse(markers=map(encode.marker_result, results))

    async def WriteAudit(self, request: pb.WriteAuditRequest, context: Context) -> pb.WriteAuditResponse:
        node = NodeKey(role_from_proto(request.role), NodeId(request.id))
        self._gate.hold(self._gate.caller(context), node)
        await self._broker.audit_log.write(node, request.partition, request.lines)
        return pb.WriteAuditResponse()

    async def DescribeProducers(
        self, request: pb.DescribeProducersRequest, context: Context
    ) -> pb.DescribeProducersResponse:
        del context
        asked = [decode.partition(one) for one in request.partitions]
        answer = pb.DescribeProducersResponse()
        async for found in self._broker.producers(asked, open_only=request.open_only, rights=current_rights()):
            answer.partitions.append(encode.partition_producers(found))
        return answer

    async def Identify(self, request: pb.IdentifyRequest, context: Context) -> pb.IdentifyResponse:
        del request, context
        who = self._broker.who
        return pb.IdentifyResponse(
            role=cluster_pb2.BROKER, id=who.broker_id, incarnation=who.incarnation, cluster_id=who.cluster_id
        )

    async def Observed(self, request: access_pb2.ObservedRequest, context: Context) -> access_pb2.ObservedResponse:
        return observed_of(current_rights().control, request)


def _client_id(context: Context) -> str:
    """What the client calls itself; empty: nothing."""
    for key, value in context.invocation_metadata() or ():
        if key == CLIENT_ID_KEY and isinstance(value, bytes):
            return value.decode(errors="replace")
    return ""


class _Inbox:
    """Fetch requests that were read and not answered; a few, so that the next is there when one is done."""

    def __init__(self) -> None:
        self._waiting: deque[pb.FetchRequest] = deque()
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False

    async def put(self, request: pb.FetchRequest) -> None:
        self._waiting.append(request)
        self._filled.set()
        if len(self._waiting) >= FETCHES_READ_AHEAD:
            self._room.clear()

    async def room(self) -> None:
        """Wait until another may be read."""
        await self._room.wait()

    async def take(self) -> pb.FetchRequest | None:
        """The next; None when there will be none."""
        while not self._waiting:
            if self._closed:
                return None
            self._filled.clear()
            await self._filled.wait()
        self._room.set()
        return self._waiting.popleft()

    def close(self) -> None:
        """No more will come."""
        self._closed = True
        self._filled.set()


async def _read_all(
    context: Context,
    room: Callable[[], Awaitable[None]] | None,
    take: Callable[[Any], Awaitable[None]],
    end: Callable[[], None],
) -> HeadraceError | None:
    """Give each message of a stream to ``take``, read when there is ``room`` for it; what the caller did wrong."""
    try:
        while True:
            if room is not None:
                await room()
            request = await context.read()
            if request is _EOF:
                return None
            await take(request)
            del request  # an idle stream keeps no batches
    except grpc.aio.BaseError:
        return None  # the connection is gone
    except HeadraceError as error:
        return error
    finally:
        end()


async def _raise_error_of(reader: asyncio.Task[HeadraceError | None]) -> None:
    """What ended the reading of a stream is the stream's answer; a bug in it is the interceptor's to report."""
    await asyncio.wait([reader])
    if reader.cancelled():
        return
    error = reader.result()
    if error is not None:
        raise error
