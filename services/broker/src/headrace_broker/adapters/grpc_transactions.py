"""The way to the coordinators of transactions over gRPC: to each address one channel, with one ``Enrol`` stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from headrace_broker.ports import Enrolment
from headrace_common.core.errors import HeadraceError, NetworkFailed, error_for
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import PLAIN, Channels, Security
from headrace_common.rpc.options import EAGER_RECONNECT_MS_MAX
from headrace_common.runtime.asking import AskingStreams, raise_error
from headrace_common.runtime.tasks import TaskRunner
from headrace_proto.v1 import transaction_pb2 as pb
from headrace_proto.v1.transaction_pb2_grpc import TransactionCoordinatorStub


class GrpcTransactions:
    """
    See ``TransactionCoordinators``. One event loop; ``close`` it at the end.

    ``streams``: whether all coordinators take ``Enrol``; until then each question is a call.
    """

    def __init__(
        self, tasks: TaskRunner, security: Security = PLAIN, streams: Callable[[], bool] = lambda: True
    ) -> None:
        self._channels: Channels[Endpoint] = Channels(security, reconnect_ms_max=EAGER_RECONNECT_MS_MAX)
        self._streams = streams
        self._enrol: AskingStreams[pb.EnrolRequest, pb.EnrolResponse] = AskingStreams(
            lambda at: TransactionCoordinatorStub(self._channels.to(at)).Enrol(), "coordinator", tasks
        )

    async def enrol(
        self, at: Endpoint, enrolments: Sequence[Enrolment], timeout_ms: float
    ) -> list[HeadraceError | None]:
        answer = await self._ask(at, _request(enrolments), timeout_ms)
        if len(answer.transactions) != len(enrolments):
            raise NetworkFailed(f"the coordinator at {at} left out transactions that were asked for")
        return [error_for(one.error, one.message) if one.error else None for one in answer.transactions]

    async def _ask(
        self, at: Endpoint, request: pb.AddPartitionsToTxnRequest, timeout_ms: float
    ) -> pb.AddPartitionsToTxnResponse:
        if self._streams():
            found = await self._enrol.ask(at, pb.EnrolRequest(ask=request), timeout_ms)
            raise_error(found)
            return found.answer
        stub = TransactionCoordinatorStub(self._channels.to(at))
        with CallTo(at):
            return await stub.AddPartitionsToTxn(request, timeout=timeout_ms / 1_000)

    async def keep(self, known: Collection[Endpoint]) -> None:
        self._enrol.keep(known)
        await self._channels.keep(known)

    async def close(self) -> None:
        self._enrol.keep(())
        await self._channels.close()


def _request(enrolments: Sequence[Enrolment]) -> pb.AddPartitionsToTxnRequest:
    request = pb.AddPartitionsToTxnRequest()
    for one in enrolments:
        entry = request.transactions.add(
            transactional_id=one.transactional_id, producer_id=one.producer_id, producer_epoch=one.producer_epoch
        )
        for id in one.partitions:
            entry.partitions.add(topic_id=id.topic_id, partition=id.partition)
    return request
